package demo

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/tail"
	"github.com/baton-ipc/baton/protocol"
)

// NoPython is the value of Options.Python for a run without workers in Python.
const NoPython = "none"

// pythonWorkers is how many workers are added where there is a Python for them.
const pythonWorkers = 2

// workerScript is the worker in Python.
//
//go:embed worker.py
var workerScript string

// probe prints the version of the package, if all that the worker imports is there.
const probe = `import importlib.metadata, baton, numpy; print(importlib.metadata.version("baton-ipc"))`

// probePatience bounds the look at an interpreter, which imports NumPy.
const probePatience = 20 * time.Second

// findPython returns the interpreter that runs the workers in Python: the one named, which must have the
// package, else the first at hand that has it in the version of this program; "" when there is none.
func (o Options) findPython(ctx context.Context) (string, error) {
	switch o.Python {
	case NoPython:
		return "", nil
	case "":
		for _, python := range interpreters(o.Binary) {
			if usable(ctx, python) == nil {
				return python, nil
			}
		}
		return "", nil
	}
	if err := usable(ctx, o.Python); err != nil {
		return "", protocol.Errorf(protocol.CodeInvalid, "install the package into it (pip install ./python), or leave --python out",
			"%s cannot run workers: %w", o.Python, err)
	}
	return o.Python, nil
}

// interpreters lists where a Python with the package may be: beside the program, which came with it; in the
// active virtual environment; on PATH.
func interpreters(binary string) []string {
	found := []string{filepath.Join(filepath.Dir(binary), "python3")}
	if env := os.Getenv("VIRTUAL_ENV"); env != "" {
		found = append(found, filepath.Join(env, "bin", "python3"))
	}
	if path, err := exec.LookPath("python3"); err == nil {
		found = append(found, path)
	}
	return found
}

// usable tells whether an interpreter has the package in this program's version, and NumPy.
func usable(ctx context.Context, python string) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", probe)
	cmd.WaitDelay = time.Second
	said := tail.New(tailBytes)
	cmd.Stderr = said
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	if version := strings.TrimSpace(string(out)); version != client.Version {
		return fmt.Errorf("its package is of version %q and this program of %q", version, client.Version)
	}
	return nil
}

// pythonPlan is what a worker in Python is told.
type pythonPlan struct {
	plan
	Rate          float32 `json:"rate"`
	ProgressEvery int     `json:"progress_every"`
	SnapshotEvery int     `json:"snapshot_every"`
}

func (p plan) forPython() pythonPlan {
	return pythonPlan{plan: p, Rate: p.rate(), ProgressEvery: p.progressEvery(), SnapshotEvery: p.snapshotEvery()}
}
