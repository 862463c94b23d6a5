package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// run is the state of one Run.
type run struct {
	Options
	*private
	queue     *client.Queue
	topic     *client.Topic
	reader    *client.Reader
	news      chan progress
	shown     quarters
	workers   []*child // by number, from 1
	loader    *child
	evaluator *child
	working   int // workers that have not ended
	running   int // roles that have not ended

	began, trained time.Time          // training
	latest         []figures          // of workers, by number, as they told
	totals         map[*child]figures // of roles that have finished
	unread         uint64             // bytes of progress messages that had been copied
	killing        bool
	result         *Result
}

// Run trains the network and returns what came of it. It starts all processes and
// has ended them when it returns, also when ctx ends or the terminal is closed
// (SIGHUP); then the error is the context's. The figures are returned whether they
// are good or not: see Result.Check.
func Run(ctx context.Context, options Options) (*Result, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	// Children die with the thread that started them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	r := &run{Options: o, shown: quarters{out: o.Progress, style: o.Style}, news: make(chan progress), totals: map[*child]figures{}, result: &Result{}}
	if r.Python, err = o.findPython(ctx); err != nil {
		return nil, err
	}
	if r.Python != "" {
		r.result.PythonWorkers = pythonWorkers
		r.Workers += pythonWorkers
	}
	r.latest, r.result.Workers = make([]figures, r.Workers+1), r.Workers
	r.private, err = openPrivate(ctx, o)
	defer r.close()
	if err == nil {
		err = r.train(ctx)
	}
	if err == nil {
		err = r.finish(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	r.result.Seconds = time.Since(start).Seconds()
	return r.result, nil
}

// train starts the roles and follows them to their ends.
func (r *run) train(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if err := r.follow(ctx); err != nil {
			cancel(err)
		}
	}()
	defer func() {
		cancel(nil)
		<-followed
	}()
	if err := r.startRoles(); err != nil {
		return err
	}
	r.showProcesses()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for r.running > 0 {
		select {
		case e := <-r.events:
			if err := r.handle(e); err != nil {
				return err
			}
		case p := <-r.news:
			if p.Worker < 1 || p.Worker > r.Workers {
				return protocol.Errorf(protocol.CodeProtocol, "run all roles of one version", "progress of worker %d", p.Worker)
			}
			r.latest[p.Worker] = p.Figures
		case <-look.C:
			if err := r.advance(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.shown.reach(1)
	return nil
}

// open makes the queue and the topic, which live as long as we have them open.
func (r *run) open(ctx context.Context) (err error) {
	if r.queue, err = r.c.Queue(ctx, queueBatches, client.Redeliver(true), client.Linger(0)); err != nil {
		return err
	}
	if r.topic, err = r.c.Topic(ctx, topicProgress, client.Linger(0)); err != nil {
		return err
	}
	r.reader, err = r.topic.Reader(ctx)
	return err
}

func (r *run) startRoles() (err error) {
	if r.evaluator, err = r.role(roleEvaluator, 0); err != nil {
		return err
	}
	r.workers = make([]*child, r.Workers+1)
	for i := 1; i <= r.Workers; i++ {
		if r.workers[i], err = r.worker(i); err != nil {
			return err
		}
		r.working++
	}
	r.loader, err = r.role(roleLoader, 0)
	return err
}

// worker starts a worker; those in Python come last.
func (r *run) worker(number int) (*child, error) {
	if number <= r.Workers-r.result.PythonWorkers {
		return r.role(roleWorker, number)
	}
	plan, err := json.Marshal(r.plan(number).forPython())
	if err != nil {
		return nil, fmt.Errorf("write the plan of a worker in Python: %w", err)
	}
	r.running++
	return r.start(fmt.Sprintf("worker %d in Python", number), nil, syscall.SIGKILL, r.Python, "-c", workerScript, string(plan))
}

func (r *run) role(name string, number int) (*child, error) {
	plan, err := json.Marshal(r.plan(number))
	if err != nil {
		return nil, fmt.Errorf("write the plan of %s: %w", name, err)
	}
	title := name
	if number > 0 {
		title += " " + strconv.Itoa(number)
	}
	r.running++
	return r.start(title, nil, syscall.SIGKILL, r.Binary, RoleCommand, name, string(plan))
}

// follow reads the progress that workers send, until ctx ends.
func (r *run) follow(ctx context.Context) error {
	var at places
	for {
		m, err := r.reader.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var p progress
		b, err := m.Bundle()
		if err == nil {
			err = m.Meta(&p)
		}
		if err == nil {
			var copied uint64
			copied, err = at.copied(b)
			r.unread += copied
		}
		m.Release()
		if err != nil {
			return fmt.Errorf("progress of %s: %w", m.Sender, err)
		}
		select {
		case r.news <- p:
		case <-ctx.Done():
			return nil
		}
	}
}

// advance shows how far the training is and kills a worker half-way.
func (r *run) advance() error {
	n := uint64(0)
	for _, f := range r.latest {
		n += f.Batches
	}
	if n == 0 || r.began.IsZero() {
		return nil
	}
	share := r.plan(0).share(n, r.began)
	r.shown.reach(share)
	if share < 0.5 || r.killing {
		return nil
	}
	r.killing = true
	if err := r.workers[maker].cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill worker %d: %w", maker, err)
	}
	return nil
}

// handle takes note of what a child reported or how it ended.
func (r *run) handle(e event) error {
	switch {
	case e.report == nil:
		return r.ended(e.from)
	case e.report.Began:
		r.began = time.Now()
	case e.report.Point != nil:
		r.result.Accuracy = e.report.Point.Accuracy
		r.result.curve = append(r.result.curve, sample{time.Since(r.began).Seconds(), r.result.Accuracy})
		r.shown.accuracy = r.result.Accuracy
	case e.report.Seen != nil:
		r.result.seen = e.report.Seen
	case e.report.Figures != nil:
		r.totals[e.from] = *e.report.Figures
	}
	return nil
}

// ended takes note of a child's end. Only one worker may end other than well.
func (r *run) ended(c *child) error {
	if c == r.broker {
		return r.brokerFailure()
	}
	_, finished := r.totals[c]
	if c == r.workers[maker] && r.killing && !finished {
		if !c.killed(syscall.SIGKILL) {
			return c.failure()
		}
		r.result.Killed++
		r.result.died = time.Since(r.began).Seconds()
		r.shown.println(fmt.Sprintf("worker %d (pid %d), which had allocated the shared weights, was killed with SIGKILL: training goes on",
			maker, c.cmd.Process.Pid))
		r.loader.stdin.Close() // the last batches may come
	} else if c.err != nil || !finished {
		return c.failure()
	}
	r.running--
	if !slices.Contains(r.workers, c) {
		return nil
	}
	if r.working--; r.working == 0 {
		r.trained = time.Now()
		r.evaluator.stdin.Close() // no more snapshots will come
	}
	return nil
}

// showProcesses prints the processes.
func (r *run) showProcesses() {
	pids := "workers"
	for _, c := range r.workers[1:] {
		pids += " " + strconv.Itoa(c.cmd.Process.Pid)
	}
	if n := r.result.PythonWorkers; n > 0 {
		pids += fmt.Sprintf(" (the last %d in Python)", n)
	}
	r.shown.println(fmt.Sprintf("processes: broker %d, loader %d, evaluator %d, %s",
		r.broker.cmd.Process.Pid, r.loader.cmd.Process.Pid, r.evaluator.cmd.Process.Pid, pids))
}

// finish counts what was done, takes the names and topics away, and asks the
// broker what is left.
func (r *run) finish(ctx context.Context) error {
	s := r.result
	s.BytesCopied = r.unread
	for i, w := range r.workers {
		if _, finished := r.totals[w]; w != nil && !finished {
			r.totals[w] = r.latest[i] // the killed one, as far as it told
		}
	}
	for _, f := range r.totals {
		s.Handovers += f.Handovers
		s.BytesHandedOver += f.Bytes
		s.BytesCopied += f.Copied
	}
	s.Batches = int(r.totals[r.loader].Batches)
	if d := r.trained.Sub(r.began).Seconds(); d > 0 {
		s.BatchesPerSecond = float64(s.Batches) / d
		s.SamplesPerSecond = s.BatchesPerSecond * BatchSize
	}
	for _, name := range []string{nameWeights, nameSnapshot} {
		if err := r.c.Delete(ctx, name); err != nil {
			return err
		}
	}
	for _, close := range []func() error{r.reader.Close, r.topic.Close, r.queue.Close} {
		if err := close(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*endWait)
	defer cancel()
	var err error
	if s.StoragesLeft, err = r.left(ctx); err != nil {
		return err
	}
	if err := r.nats.FlushWithContext(ctx); err != nil { // what the server has sent has arrived
		return fmt.Errorf("receive the last tuples: %w", err)
	}
	s.NATSTuples = r.tuples.Load()
	return nil
}
