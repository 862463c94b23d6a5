package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/address"
)

// served is a broker of this package's own, in a runtime directory of its own.
type served struct {
	binary string
	dir    string // XDG_RUNTIME_DIR of the broker
	cmd    *exec.Cmd
	held   bool // it is this program, and measures how long its mutex is held
	out    bytes.Buffer
	errOut bytes.Buffer
	ended  chan struct{}
}

// serve starts `baton serve` on any of our CPUs and waits until it answers.
func serve(ctx context.Context, binary string) (*served, error) {
	dir, err := os.MkdirTemp(address.TempDir(), "baton-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a runtime directory: %w", err)
	}
	b := &served{dir: dir, binary: binary}
	return b, b.start(ctx)
}

// kill ends the broker as a death does and starts the next one.
func (b *served) kill(ctx context.Context) error {
	b.cmd.Process.Kill()
	<-b.ended
	return b.start(ctx)
}

// start runs a broker in the directory and waits until it answers.
func (b *served) start(ctx context.Context) error {
	b.cmd, b.ended = exec.Command(b.binary, "serve", "--nats-functions"), make(chan struct{})
	b.out.Reset()
	b.errOut.Reset()
	if b.held {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		b.cmd = exec.Command(self, roleArgument)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "BATON_") && !strings.HasPrefix(v, "XDG_RUNTIME_DIR=") {
			b.cmd.Env = append(b.cmd.Env, v)
		}
	}
	b.cmd.Env = append(b.cmd.Env, "XDG_RUNTIME_DIR="+b.dir)
	if b.held {
		raw, err := json.Marshal(job{Role: "broker", Directory: b.runtimeDir()})
		if err != nil {
			return err
		}
		b.cmd.Env = append(b.cmd.Env, envJob+"="+string(raw))
	}
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.errOut
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	if err := b.cmd.Start(); err != nil {
		os.RemoveAll(b.dir)
		return fmt.Errorf("start %s serve: %w", b.binary, err)
	}
	go func(cmd *exec.Cmd, ended chan struct{}) {
		cmd.Wait()
		close(ended)
	}(b.cmd, b.ended)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	answers := make(chan error, 1)
	go func() {
		c, err := b.connect(ctx)
		if err == nil {
			err = c.Close()
		}
		answers <- err
	}()
	var err error
	select {
	case err = <-answers:
	case <-b.ended:
		cancel()
		<-answers
		err = fmt.Errorf("it ended at once: %s", strings.TrimSpace(b.errOut.String()))
	}
	if err != nil {
		b.stop()
		return fmt.Errorf("%s serve: %w", b.binary, err)
	}
	return nil
}

// runtimeDir is where the broker keeps its socket and how to reach its NATS.
func (b *served) runtimeDir() string { return filepath.Join(b.dir, "baton") }

func (b *served) socket() string { return filepath.Join(b.runtimeDir(), "broker.sock") }

// at lets a job be done at a broker.
func (j *job) at(b *served) { j.Socket, j.Directory = b.socket(), b.runtimeDir() }

// awaitNATS waits until the broker tells how to reach its NATS: it answers clients
// before that.
func (b *served) awaitNATS(ctx context.Context) error {
	for began := time.Now(); ; {
		_, err := natsbridge.ReadInfo(b.runtimeDir())
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(began) > stalled:
			return err
		}
		nap(time.Millisecond)
	}
}

func (b *served) pid() int { return b.cmd.Process.Pid }

func (b *served) connect(ctx context.Context) (*client.Client, error) {
	return connect(ctx, b.socket(), "bench")
}

// stop ends the broker and removes what it left.
func (b *served) stop() {
	b.cmd.Process.Signal(syscall.SIGINT) // for good
	select {
	case <-b.ended:
	case <-time.After(10 * time.Second):
		b.cmd.Process.Kill()
		<-b.ended
	}
	os.RemoveAll(b.dir)
}

func connect(ctx context.Context, socket, name string) (*client.Client, error) {
	return client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName(name))
}
