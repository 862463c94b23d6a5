package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// RoleCommand is the hidden command of baton by which Run starts a role: baton
// demo-role NAME PLAN.
const RoleCommand = "demo-role"

const (
	roleLoader    = "loader"
	roleWorker    = "worker"
	roleEvaluator = "evaluator"
)

// patience is how long a role waits for another before it gives up.
const patience = 30 * time.Second

// figures are what a role did so far.
type figures struct {
	Batches   uint64 `json:"batches"` // loaded or trained
	Handovers uint64 `json:"handovers"`
	Bytes     uint64 `json:"bytes"`  // handed over
	Copied    uint64 `json:"copied"` // of those received, the bytes that were not where their sender had put them
}

// point is the accuracy of one snapshot.
type point struct {
	Revision uint64  `json:"revision"`
	Accuracy float64 `json:"accuracy"`
}

// seen is what the network makes of one held-out picture.
type seen struct {
	Picture   int     `json:"picture"`
	Predicted int     `json:"predicted"`
	Sure      float32 `json:"sure"`
}

// report is one line that a role writes on its standard output; one field is set.
type report struct {
	Began   bool     `json:"began,omitempty"` // training can begin
	Point   *point   `json:"point,omitempty"`
	Seen    []seen   `json:"seen,omitempty"`
	Figures *figures `json:"figures,omitempty"`
}

// progress is the meta of a message on digits/progress.
type progress struct {
	Worker  int     `json:"worker"`
	Figures figures `json:"figures"`
}

// role is what all roles have. Standard input ends when Run wants the role to
// finish.
type role struct {
	plan
	c      *client.Client
	out    *json.Encoder
	in     io.Reader
	places places
	copied uint64
}

// Role is the main function of a child process of Run. It uses the broker that
// the environment names, reports on standard output, and takes the end of
// standard input as Run's wish that it finishes. Arguments: the role's plan as JSON.
func Role(ctx context.Context, name string, args []string) error {
	run := map[string]func(*role, context.Context) error{
		roleLoader: (*role).load, roleWorker: (*role).work, roleEvaluator: (*role).evaluate,
	}[name]
	if run == nil || len(args) != 1 {
		return protocol.Errorf(protocol.CodeInvalid, "run baton demo, which starts its roles by itself", "no role %q with %d arguments", name, len(args))
	}
	r := &role{out: json.NewEncoder(os.Stdout), in: os.Stdin}
	if err := json.Unmarshal([]byte(args[0]), &r.plan); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "run baton demo, which starts its roles by itself", "plan of role %s: %w", name, err)
	}
	title := "demo " + name
	if r.Number > 0 {
		title = fmt.Sprintf("%s %d", title, r.Number)
	}
	var err error
	if r.c, err = client.Connect(ctx, client.WithName(title)); err != nil {
		return err
	}
	defer r.c.Close()
	return run(r, ctx)
}

func (r *role) report(x report) error {
	if err := r.out.Encode(x); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// figures returns what this role did; batches is its own count.
func (r *role) figures(batches uint64) figures {
	s := r.c.Stats()
	return figures{Batches: batches, Handovers: s.Handovers, Bytes: s.BytesSent, Copied: r.copied}
}

func (r *role) finish(batches uint64) error {
	f := r.figures(batches)
	return r.report(report{Figures: &f})
}

// check counts what of a received bundle was copied on the way.
func (r *role) check(b *client.Bundle) error {
	n, err := r.places.copied(b)
	r.copied += n
	return err
}

// finishing is closed when Run wants the role to finish.
func (r *role) finishing() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, r.in)
		close(ended)
	}()
	return ended
}
