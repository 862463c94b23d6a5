package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// talker is a program in Python that does one job after the other: it takes
// seconds to start, because of what it measures against.
type talker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	errOut bytes.Buffer
	about  string // versions of what it measures
}

// talk starts the program of python/bench, which runs on two CPUs, with a process
// on each. It is killed when ctx ends.
func talk(ctx context.Context, command []string, cpus [2]int, socket string) (*talker, error) {
	args := append(command[1:len(command):len(command)], strconv.Itoa(cpus[0]), strconv.Itoa(cpus[1]))
	t := &talker{cmd: exec.CommandContext(ctx, command[0], args...)}
	for _, v := range os.Environ() {
		// What it imports is to be compiled once, not at every start: of torch that takes many seconds.
		if !strings.HasPrefix(v, "BATON_") && !strings.HasPrefix(v, "PYTHONDONTWRITEBYTECODE=") {
			t.cmd.Env = append(t.cmd.Env, v)
		}
	}
	t.cmd.Env = append(t.cmd.Env, "BATON_ADDRESS="+socket)
	t.cmd.Stderr = &t.errOut
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	t.out = json.NewDecoder(out)
	if err := startOn(t.cmd, cpus[:]); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	if err := t.out.Decode(&t.about); err != nil {
		return nil, t.failed(err)
	}
	return t, nil
}

// do gives it a job and waits for the figures.
func (t *talker) do(j job) (map[string][]float64, error) {
	raw, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	if _, err := t.in.Write(append(raw, '\n')); err != nil {
		return nil, t.failed(err)
	}
	values := map[string][]float64{}
	if err := t.out.Decode(&values); err != nil {
		return nil, t.failed(err)
	}
	return values, nil
}

// failed ends it and says why it did not answer: it has most to say itself.
func (t *talker) failed(err error) error {
	t.cmd.Process.Kill()
	t.cmd.Wait()
	return fmt.Errorf("%s: %w: %s", strings.Join(t.cmd.Args, " "), err, strings.TrimSpace(t.errOut.String()))
}

// end lets it end.
func (t *talker) end() error {
	t.in.Close()
	if err := t.cmd.Wait(); err != nil {
		return t.failed(err)
	}
	return nil
}
