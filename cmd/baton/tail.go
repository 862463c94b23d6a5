package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newTailCommand) }

type tailFlags struct {
	clientFlags
	count int
	from  string
	join  bool
	json  bool
}

// beginnings are where tail may begin, the default first.
var beginnings = []string{"new", "last", "all"}

var starts = map[string]client.Start{"new": client.StartNew, "last": client.StartLast, "all": client.StartAll}

func newTailCommand(a *app) *cobra.Command {
	var f tailFlags
	cmd := &cobra.Command{
		Use:   "tail TOPIC",
		Short: "Print the messages of a topic as they come",
		Long: `Print each message of a topic: sender, sequence, tensors, meta. No tensor is
copied, and each is let go as soon as its line is written.

The topic must exist, or be made within --timeout. Of a lossless topic the senders
wait for every reader, so that one is read only with --join. Items of a queue go to
one taker each, so a queue cannot be watched: see baton show.`,
		GroupID: groupCarry,
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.tail(cmd.Context(), &f, args[0])
		},
		ValidArgsFunction: a.completeKind(&f.clientFlags, protocol.KindTopic),
	}
	f.add(cmd, "time to wait for the broker, for the topic and for each message (0: fail at once without broker or topic, and wait for messages without a limit)")
	cmd.Flags().IntVarP(&f.count, "count", "n", 0, "end after so many `messages`; 0: go on")
	f.from = beginnings[0]
	cmd.Flags().Var(settings.NewChoice(&f.from, beginnings...), "from", "`where` to begin: "+settings.Or(beginnings)+" that is kept; a lossless topic is read from now on")
	cmd.Flags().BoolVar(&f.join, "join", false, "read a lossless topic, whose senders then wait for this reader")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one line of JSON for each message")
	return cmd
}

func (a *app) tail(ctx context.Context, f *tailFlags, name string) (err error) {
	if f.count < 0 {
		return badUsage("--count %d is negative", f.count)
	}
	if err := protocol.CheckName(name); err != nil {
		return &usage{cause: err}
	}
	c, err := a.connect(ctx, &f.clientFlags, false)
	if err != nil {
		return err
	}
	defer closeClient(c, &err)
	topic, err := openExisting(ctx, c, name, f.timeout)
	if err != nil {
		return err
	}
	if !topic.Info().Overwrite && !f.join {
		return &usage{cause: fmt.Errorf("topic %s is lossless: its senders would wait for this reader", name),
			remedy: "add --join to become one of its readers"}
	}
	r, err := topic.Reader(ctx, starts[f.from])
	if err != nil {
		return err
	}
	for n := 0; f.count == 0 || n < f.count; n++ {
		m, err := receive(ctx, r, f.timeout)
		if errors.Is(err, protocol.ErrClosed) {
			return nil // closed for all sessions, and all of it was printed
		}
		if e := (*protocol.Error)(nil); errors.As(err, &e) && e.Detail["device"] != nil {
			fmt.Fprintln(a.err, "baton: passed over a message with tensors on a GPU, which only clients with CUDA can receive")
			n--
			continue
		}
		if err != nil {
			return err
		}
		err = a.printMessage(name, m, f.json)
		m.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// openExisting opens a topic that another session made or makes in time: one made
// here would have options that its owner does not want.
func openExisting(ctx context.Context, c *client.Client, name string, timeout time.Duration) (*client.Topic, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(timeout)
	for {
		t, err := c.Topic(ctx, name, client.MustExist())
		if errors.Is(err, protocol.ErrConflict) { // no option was given, so it is the kind
			return nil, &usage{cause: fmt.Errorf("%s is a queue: its items go to one taker each", name),
				remedy: "look at it with baton show " + name}
		}
		if err == nil || statusOf(err) != exitNotFound || !time.Now().Before(deadline) {
			return t, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func receive(ctx context.Context, r *client.Reader, timeout time.Duration) (*client.Message, error) {
	if timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = bounded
	}
	return r.Receive(ctx)
}

func tensorRows(b *client.Bundle) []broker.TensorRow {
	rows := []broker.TensorRow{}
	for _, t := range b.Tensors() {
		shape := t.Shape()
		if shape == nil {
			shape = []int64{}
		}
		rows = append(rows, broker.TensorRow{Name: t.Name(), DType: t.DType().String(), Shape: shape, Strides: t.Strides(), Bytes: t.NumBytes(), ReadOnly: t.ReadOnly()})
	}
	return rows
}

// messageRow is one line of `tail --json`.
type messageRow struct {
	Topic    string             `json:"topic"`
	Sender   string             `json:"sender"`
	Sequence uint64             `json:"sequence"`
	Stamp    uint64             `json:"stamp"`
	Lost     uint64             `json:"lost"`
	Bytes    int64              `json:"bytes"`
	Meta     json.RawMessage    `json:"meta"`
	Value    json.RawMessage    `json:"value,omitempty"`
	Tensors  []broker.TensorRow `json:"tensors"`
	Error    string             `json:"error,omitempty"`
}

// printMessage writes one line. A message that its sender described wrongly is
// reported and does not end the command.
func (a *app) printMessage(topic string, m *client.Message, asJSON bool) error {
	row := messageRow{Topic: topic, Sender: m.Sender, Sequence: m.Sequence, Stamp: m.Stamp, Lost: m.Lost,
		Meta: m.RawMeta(), Tensors: []broker.TensorRow{}}
	if !json.Valid(row.Meta) {
		row.Meta = json.RawMessage("null")
	}
	if b, err := m.Bundle(); err != nil {
		row.Error = err.Error()
	} else {
		row.Tensors, row.Bytes = tensorRows(b), b.NumBytes()
		row.Value = treeOf(b)
	}
	if asJSON {
		line, err := json.Marshal(row)
		if err != nil {
			return err
		}
		return a.println(string(line))
	}
	return a.println(a.text(row.line()))
}

// treeOf is the value as JSON in which tensors are numbered; nil for one that is
// nothing but tensors.
func treeOf(b *client.Bundle) json.RawMessage {
	v, err := b.Value()
	if err != nil {
		return nil
	}
	tree, _, err := protocol.EncodeTree(v, func(leaf any) bool { _, is := leaf.(*client.Tensor); return is })
	if err != nil || !json.Valid(tree) {
		return nil
	}
	return tree
}

func (r *messageRow) line() string {
	parts := []string{r.Sender, fmt.Sprintf("#%d", r.Sequence)}
	if r.Lost > 0 {
		parts = append(parts, fmt.Sprintf("(%d lost)", r.Lost))
	}
	tensors := make([]string, len(r.Tensors))
	for i, t := range r.Tensors {
		tensors[i] = strings.TrimSpace(t.Name + " " + describe(t.DType, t.Shape))
	}
	if len(tensors) > 0 {
		parts = append(parts, few(tensors))
	}
	if r.Value != nil {
		parts = append(parts, "value "+shorten(string(r.Value)))
	}
	if string(r.Meta) != "null" {
		parts = append(parts, "meta "+shorten(string(r.Meta)))
	}
	if r.Error != "" {
		parts = append(parts, "cannot be read: "+r.Error)
	}
	return strings.Join(parts, "  ")
}

// shorten keeps a line readable.
func shorten(s string) string {
	const most = 400
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
