// Command pipeline hands pictures of digits through four stages: a loader in Go,
// an augmenting stage in Rust, a normalising one in C, and a consumer in Go that
// checks every picture. Each stage changes them in place; nothing is copied,
// which the consumer checks as well.
//
// It builds the stages (with cargo and a C compiler), starts a broker of its own,
// and draws how long each stage took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/termtext"
)

func main() {
	batches := flag.Int("batches", 2000, "how many batches of pictures go through")
	role := flag.String("role", "", "run one stage: load")
	dev := flag.Bool("dev", false, "build the stages as the tests of the crates do")
	flag.Parse()
	run := func(ctx context.Context, batches int) error { return pipeline(ctx, batches, *dev) }
	if *role == "load" {
		run = load
	}
	if err := run(context.Background(), *batches); err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
}

// pipeline builds and starts everything, and is the consumer.
func pipeline(ctx context.Context, batches int, dev bool) error {
	dir, err := os.MkdirTemp("", "baton-pipeline")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Println("building the stages")
	stages, err := build(dir, dev)
	if err != nil {
		return err
	}
	var all children
	ctx, cancel := context.WithCancelCause(ctx)
	defer all.Wait()
	defer cancel(nil)
	address := "unix:" + filepath.Join(dir, "broker.sock")
	os.Setenv("BATON_ADDRESS", address)
	if err := all.start(ctx, cancel, filepath.Join(dir, "baton"), "serve", "--address", address); err != nil {
		return err
	}
	c, err := client.Connect(ctx, client.WithName("consumer"))
	if err != nil {
		return because(ctx, err)
	}
	defer c.Close()
	// Stages take the queues as they are. Short ones: in a long one a batch waits for
	// the slowest stage most of the time, and the latencies show nothing else.
	for _, name := range []string{"pipeline/loaded", "pipeline/augmented", "pipeline/normalised"} {
		if _, err := c.Queue(ctx, name, client.Depth(4)); err != nil {
			return because(ctx, err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	stages = append(stages, []string{self, "-role", "load", "-batches", fmt.Sprint(batches)})
	for _, s := range stages {
		if err := all.start(ctx, cancel, s[0], s[1:]...); err != nil {
			return err
		}
	}
	began := time.Now()
	seen, err := consume(ctx, c, batches)
	if err != nil {
		return because(ctx, err)
	}
	elapsed := time.Since(began)
	times := termtext.Table{Header: []string{"", "p50", "p99", "longest"}, Right: []bool{false, true, true, true}, Rows: seen.latencies()}
	fmt.Println(times.Render(termtext.Detect(os.Stdout, os.Getenv)))
	pictures := int64(batches * perBatch)
	fmt.Printf("%s pictures in %s batches, all right, in order, none copied: %s, %s\n", termtext.Count(pictures),
		termtext.Count(int64(batches)), termtext.Rate(pictures, elapsed), termtext.Duration(elapsed))
	return nil
}

// build makes the broker's program and the two stages that are not Go, and gives
// the command lines of these.
func build(dir string, dev bool) ([][]string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("run it inside the project: %w", err)
	}
	in := func(path string) string { return filepath.Join(string(root[:len(root)-1]), path) }
	clib, normalise := filepath.Join(dir, "c"), filepath.Join(dir, "normalise")
	target := in("rust/target")
	if t := os.Getenv("CARGO_TARGET_DIR"); t != "" {
		target = t
	}
	profile, clibArgs, cargoArgs := "release", []string{clib}, []string{"--release"}
	if dev {
		profile, clibArgs, cargoArgs = "debug", []string{clib, "dev"}, []string{"--workspace", "--all-features"}
	}
	augment := exec.Command("cargo", append([]string{"build", "--quiet", "--locked", "--example", "augment"}, cargoArgs...)...)
	augment.Dir = in("rust")
	if !dev {
		augment.Env = append(os.Environ(), "RUSTFLAGS="+os.Getenv("RUSTFLAGS")) // in place of the tests'
	}
	for _, c := range []*exec.Cmd{
		exec.Command("go", "build", "-o", filepath.Join(dir, "baton"), "./cmd/baton"),
		augment,
		exec.Command("tools/clib", clibArgs...),
		exec.Command("cc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", "-I"+clib+"/include", "-o", normalise,
			"examples/pipeline/normalise/normalise.c", "-L"+clib+"/lib", "-lbaton", "-lm", "-Wl,-rpath,"+clib+"/lib"),
	} {
		if c.Dir == "" {
			c.Dir = in("")
		}
		if out, err := c.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", c.Args[0], err, out)
		}
	}
	return [][]string{{filepath.Join(target, profile, "examples/augment")}, {normalise}}, nil
}

// children are the broker and the stages.
type children struct{ sync.WaitGroup }

// start starts a process that ends with the context; when it fails, everything
// does.
func (all *children) start(ctx context.Context, cancel context.CancelCauseFunc, program string, args ...string) error {
	c := exec.CommandContext(ctx, program, args...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	log := &tail{}
	c.Stderr = log
	if err := c.Start(); err != nil {
		return err
	}
	all.Go(func() {
		if err := c.Wait(); err != nil {
			cancel(fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, log.bytes))
		}
	})
	return nil
}

// tail keeps the end of what a stage complains about. It is read when the stage
// has ended.
type tail struct{ bytes []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	t.bytes = t.bytes[max(0, len(t.bytes)-4096):]
	return len(p), nil
}

// because prefers what a stage died of to what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
