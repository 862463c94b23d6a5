package langs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// deathLanguages start the programs of playDeaths.
func deathLanguages(t *testing.T) []language {
	all := append(functionLanguages("deaths", "c", "go", "python"), inRust("deaths"))
	for _, l := range all {
		l.options(t) // they are built before a broker runs that waits for them
	}
	testkit.CrashBinary(t)
	if everyDeath() {
		pythonWithCrashPoints(t)
	}
	return all
}

// deaths is a caller of one language, whose provider of another one ends in some way, and again in another.
type deaths struct {
	t        *testing.T
	b        *testkit.Broker
	from, to language
	caller   *testkit.Process
}

// plays starts a program that says that it is ready.
func (d *deaths) plays(l language, what string, opts ...testkit.StartOption) *testkit.Process {
	d.t.Helper()
	with := language{l.name, func(t *testing.T) []testkit.StartOption { return append(l.options(t), opts...) }}
	p := plays(d.t, d.b, "deaths", with, what)
	says(d.t, p, "ready")
	return p
}

func (d *deaths) provider(opts ...testkit.StartOption) *testkit.Process {
	d.t.Helper()
	return d.plays(d.to, "serve", opts...)
}

// dying starts a provider that is killed at a crash point.
func (d *deaths) dying(point string) *testkit.Process {
	d.t.Helper()
	return d.provider(diesAt(d.t, d.to, point)...)
}

// diesAt has a program of a language die at a crash point.
func diesAt(t *testing.T, l language, point string) []testkit.StartOption {
	opts := []testkit.StartOption{testkit.Env(crashpoint.Env, point)}
	switch l.name {
	case "go":
		opts = append(opts, testkit.Program(testkit.CrashBinary(t)))
	case "python":
		opts = append(opts, testkit.Env("PYTHONPATH", pythonWithCrashPoints(t)))
	}
	return opts
}

// hasCrashPoints tells whether the programs of a language can die at crash points; a package of Python that can is built
// for the long campaign alone.
func hasCrashPoints(l language) bool {
	return l.name == "go" || l.name == "rust" || l.name == "python" && everyDeath()
}

// pythonWithCrashPoints is a directory that has the package, built for tests.
func pythonWithCrashPoints(t *testing.T) string {
	t.Helper()
	cargo := clib.NeedCargo(t)
	return testkit.Once(t, "python", func(dir string) error {
		cmd := exec.Command(cargo, "build", "--locked", "--manifest-path", "../python/Cargo.toml", "--target-dir", "target/python")
		cmd.Dir = filepath.Join(clib.Root(t), "rust") // whose settings have the crash points
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cargo build: %w\n%s", err, out)
		}
		if err := os.CopyFS(filepath.Join(dir, "baton"), os.DirFS(filepath.Join(clib.Root(t), "python/py/baton"))); err != nil {
			return err
		}
		return os.Symlink(filepath.Join(cmd.Dir, "target/python/debug/lib_native.so"), filepath.Join(dir, "baton/_native.abi3.so"))
	})
}

// ends makes sure how the call ends that is under way.
func (d *deaths) ends(want string) {
	d.t.Helper()
	says(d.t, d.caller, want)
}

func (d *deaths) endsBy(p *testkit.Process) {
	d.t.Helper()
	d.ends(strconv.Itoa(p.PID()))
}

// served makes sure that the caller's next call has a provider's result, and no more was said of the one before.
func (d *deaths) served(p *testkit.Process) {
	d.t.Helper()
	d.caller.Tell("pid")
	d.endsBy(p)
}

// row is what the broker lists of the function.
func (d *deaths) row() (row broker.FunctionRow) {
	for _, r := range testkit.List[broker.FunctionRow](d.t, d.b, protocol.ListFunctions) {
		row = r
	}
	return row
}

// waits waits until a call waits for a provider.
func (d *deaths) waits() {
	d.t.Helper()
	testkit.Until(d.t, "the call waits", func() (bool, string) { r := d.row(); return r.Waiting == 1, fmt.Sprintf("%+v", r) })
}

// nothingIsLeft waits until nothing of calls and providers is held; the caller has the function open.
func (d *deaths) nothingIsLeft() {
	d.t.Helper()
	testkit.Audit(d.t, d.b)
	testkit.Until(d.t, "nothing of calls is left", func() (bool, string) {
		r, h := d.row(), testkit.Look(d.t, d.b)
		ok := len(r.Providers) == 0 && r.Waiting+r.Running == 0 && len(h.Storages) == 0 && len(h.Leases) == 0 && len(h.Sessions) <= 2
		return ok, fmt.Sprintf("%+v\n%s", r, h)
	})
}

// deathStep is where a provider is killed: at a crash point, or without one when it has not taken the call, or runs the function.
type deathStep struct {
	point string
	state string // what has happened by then
}

const (
	waiting = "not begun"
	running = "begun"
	replied = "replied"
)

// steps are those of a language.
func steps(of language, states ...string) (all []deathStep) {
	list := []deathStep{{"", waiting}, {"", running}}
	if hasCrashPoints(of) {
		list = append(list, deathStep{"take-held", waiting}, deathStep{"claim-before", waiting}, deathStep{"claim-swapped", waiting}, deathStep{"lane-joined", waiting},
			deathStep{"call-begun", running}, deathStep{"call-ran", running}, deathStep{"send-counted", running}, deathStep{"send-written", running},
			deathStep{"send-published", replied}, deathStep{"send-ring", replied}, deathStep{"call-replied", replied}, deathStep{"call-done", replied})
	}
	for _, s := range list {
		for _, state := range states {
			if s.state == state {
				all = append(all, s)
			}
		}
	}
	return all
}

// provider starts a provider that can be killed at a step of its nth call.
func (s deathStep) provider(d *deaths, nth int) *testkit.Process {
	d.t.Helper()
	if s.point == "" {
		return d.provider()
	}
	return d.dying(s.point + ":" + strconv.Itoa(nth))
}

// kill has the call be made, and the provider be dead.
func (s deathStep) kill(d *deaths, p *testkit.Process) {
	d.t.Helper()
	switch {
	case s.point != "":
		d.caller.Tell("pid")
		p.Killed()
	case s.state == running:
		d.caller.Tell("hold")
		says(d.t, p, "begun")
		p.Kill()
	default:
		p.Stop()
		d.caller.Tell("pid")
		d.waits()
		p.Kill()
	}
}

// death is a row of the table of docs/functions.md.
type death struct {
	name  string
	steps func(d *deaths) []deathStep
	run   func(d *deaths, s deathStep)
}

var once = func(*deaths) []deathStep { return []deathStep{{}} }

func stepsOf(states ...string) func(*deaths) []deathStep {
	return func(d *deaths) []deathStep { return steps(d.to, states...) }
}

var allDeaths = []death{
	{"provider before it began, another one is there", stepsOf(waiting), func(d *deaths, s deathStep) {
		other := d.provider()
		c := d.b.Connect()
		held := make(chan any, 1)
		go func() {
			pid, err := client.Call[int](testkit.Context(d.t), c, "de/work", "hold")
			held <- fmt.Sprint(pid, err)
		}()
		says(d.t, other, "begun")
		p := s.provider(d, 1)
		s.kill(d, p)
		testkit.Gone(d.t, d.b, p.PID())
		other.Tell("go on")
		require.Equal(d.t, fmt.Sprint(other.PID(), nil), <-held)
		d.endsBy(other)
		d.served(other)
		require.NoError(d.t, c.Close())
		other.Done()
	}},
	{"the only provider", stepsOf(waiting, running, replied), func(d *deaths, s deathStep) {
		nth := 2
		if s.point == "lane-joined" {
			nth = 1 // by the call before it has the place
		}
		p := s.provider(d, nth)
		if nth == 2 {
			d.caller.Tell("tensor")
			d.ends("1024 bytes")
		}
		s.kill(d, p)
		d.ends(s.outcome(p))
		testkit.Gone(d.t, d.b, p.PID())
		d.goesOn()
	}},
	{"provider and broker, which is suspended before", killable, func(d *deaths, s deathStep) { d.withBroker(s, (*testkit.Process).Stop) }},
	{"provider and broker, which is killed before", killable, func(d *deaths, s deathStep) { d.withBroker(s, nil) }},
	{"provider and broker, and no next one", withoutNext, func(d *deaths, s deathStep) {
		p := s.provider(d, 2)
		d.served(p)
		d.b.Kill()
		s.kill(d, p)
		want := s.outcome(p)
		if s.state != replied {
			want = "BrokerLost"
		}
		d.ends(want)
		d.b.Restart()
		testkit.Gone(d.t, d.b, p.PID())
		d.goesOn()
	}},
	{"suspended provider", once, func(d *deaths, _ deathStep) {
		p := d.provider()
		d.served(p)
		p.Stop()
		d.caller.Tell("pid 100")
		d.ends("Timeout")
		shown := exec.Command(testkit.Binary(d.t), "show", "function", "de/work", "--address", "unix:"+d.b.Socket, "--namespace", d.b.Namespace)
		out, err := shown.CombinedOutput()
		require.NoError(d.t, err, string(out))
		require.Contains(d.t, string(out), "is suspended")
		p.Cont()
		d.served(p)
		p.Done()
	}},
	{"caller", callerSteps, func(d *deaths, s deathStep) {
		p := d.provider()
		var opts []testkit.StartOption
		if s.point != "" {
			opts = diesAt(d.t, d.from, s.point)
		}
		dying := d.plays(d.from, "ask", opts...)
		dying.Tell("hold")
		if s.point == "" {
			says(d.t, p, "begun")
			dying.Kill()
			says(d.t, p, "cancelled")
		} else {
			dying.Killed() // the function may have begun, or never does
		}
		testkit.Gone(d.t, d.b, dying.PID())
		testkit.Until(d.t, "nothing waits or runs", func() (bool, string) { r := d.row(); return r.Waiting+r.Running == 0, fmt.Sprintf("%+v", r) })
		for word := ""; p.Poll(&word); {
			require.Contains(d.t, []string{"begun", "cancelled"}, word)
		}
		d.served(p)
		p.Done()
	}},
	{"suspended caller", once, func(d *deaths, _ deathStep) {
		p := d.provider()
		late := d.plays(d.from, "ask")
		late.Tell("pid")
		says(d.t, late, strconv.Itoa(p.PID()))
		late.Tell("hold 1000")
		says(d.t, p, "begun")
		late.Stop()
		says(d.t, p, "cancelled")
		d.served(p)
		late.Cont()
		says(d.t, late, "Timeout")
		late.Tell("pid")
		says(d.t, late, strconv.Itoa(p.PID()))
		late.Done()
		testkit.Gone(d.t, d.b, late.PID())
		p.Done()
	}},
	{"broker", once, func(d *deaths, _ deathStep) {
		p := d.provider()
		d.served(p)
		d.caller.Tell("hold")
		says(d.t, p, "begun")
		d.b.Kill()
		p.Tell("go on")
		d.endsBy(p)
		d.served(p)
		d.b.Restart()
		d.served(p)
		p.Done()
	}},
	{"function that raises, panics, forks, exits, executes, or returns what cannot be sent", once, func(d *deaths, _ deathStep) {
		p := d.provider()
		for how, kinds := range kindsOf(d.to.name) {
			d.caller.Tell(how)
			var said string
			d.caller.Next(&said)
			require.Contains(d.t, kinds, said, how)
			d.served(p)
		}
		if d.to.name != "go" {
			d.caller.Tell("fork")
			d.endsBy(p)
			d.served(p)
		}
		p.Done()
		for _, how := range []string{"exit", "exec"} {
			p := d.provider()
			d.caller.Tell(how)
			d.ends("ProviderDied")
			p.Wait()
			testkit.Gone(d.t, d.b, p.PID())
		}
	}},
}

// kindsOf are the kinds of the errors of functions of a language, by what they are asked to do.
func kindsOf(provider string) map[string][]string {
	kinds := map[string][]string{"raise": {"test.Raised"}, "unsendable": {"baton.InvalidArgument"}}
	switch provider {
	case "go":
		kinds["panic"], kinds["closed"] = []string{"panic"}, []string{"baton.Closed"}
	case "rust":
		kinds["panic"] = []string{"panic"}
	case "python":
		kinds["panic"], kinds["closed"], kinds["unsendable"] = []string{"RuntimeError"}, []string{"baton.Closed"}, []string{"TypeError"}
	}
	return kinds
}

// outcome is what a caller has whose only provider was killed at a step.
func (s deathStep) outcome(p *testkit.Process) string {
	switch s.state {
	case waiting:
		return "NoProvider"
	case running:
		return "ProviderDied"
	}
	return strconv.Itoa(p.PID())
}

// goesOn makes sure that another provider is called.
func (d *deaths) goesOn() {
	d.t.Helper()
	p := d.provider()
	d.served(p)
	p.Done()
}

// killable are the steps at which a provider can be killed while no broker says whether it has taken a call. The call
// before has opened the place of the reply.
func killable(d *deaths) (all []deathStep) {
	for _, s := range steps(d.to, waiting, running, replied) {
		if (s.point != "" || s.state == running) && s.point != "lane-joined" {
			all = append(all, s)
		}
	}
	return all
}

// withoutNext are those as well, of which a caller waits five seconds for a broker: of one pair a language, unless all are
// gone through.
func withoutNext(d *deaths) []deathStep {
	if d.from.name != d.to.name && !everyDeath() {
		return nil
	}
	return killable(d)
}

// everyDeath tells whether every step of every pair is gone through.
func everyDeath() bool { return os.Getenv("BATON_CRASH_KILLS") != "" }

// withBroker kills a provider while the broker is suspended, or dead where suspend is nil, and has the next broker say
// what became of it.
func (d *deaths) withBroker(s deathStep, suspend func(*testkit.Process)) {
	p := s.provider(d, 2)
	d.served(p)
	if suspend == nil {
		d.b.Kill()
	} else {
		d.b.Raw().Close() // it could not close while the broker is suspended
		suspend(d.b.Process())
	}
	s.kill(d, p)
	if suspend != nil {
		d.b.Kill()
	}
	d.b.Restart()
	d.ends(s.outcome(p))
	testkit.Gone(d.t, d.b, p.PID())
	d.goesOn()
}

// callerSteps are where a caller is killed: while the function runs, and at the crash points of its language.
func callerSteps(d *deaths) []deathStep {
	all := []deathStep{{"", running}}
	if hasCrashPoints(d.from) {
		for _, point := range []string{"lane-joined", "send-written", "send-published", "call-sent", "park-sleep"} {
			all = append(all, deathStep{point, ""})
		}
	}
	return all
}

// Every row of "Which process ends, and what the caller has", of a caller of each language and a provider of each. One
// step of each row and pair is gone through, another one for each pair; all of them where BATON_CRASH_KILLS is set. The
// call ends once, as the row says; the caller's next one is served, and nothing is left.
func TestDeathsInACallAcrossLanguages(t *testing.T) {
	languages := deathLanguages(t)
	for i, from := range languages {
		for j, to := range languages {
			t.Run(from.name+" calls "+to.name, func(t *testing.T) {
				b := testkit.StartBroker(t)
				d := &deaths{t: t, b: b, from: from, to: to}
				d.caller = d.plays(from, "ask")
				for k, row := range allDeaths {
					steps := row.steps(d)
					if !everyDeath() && len(steps) > 0 {
						at := (len(languages)*i + j + k) % len(steps)
						steps = steps[at : at+1]
					}
					for _, s := range steps {
						name := strings.TrimSpace(row.name + " " + s.point + " " + s.state)
						t.Log(name)
						row.run(d, s)
						d.nothingIsLeft()
					}
				}
				d.caller.Done()
				testkit.AuditEmpty(t, b)
			})
		}
	}
}

// A request of a client has its own time, in which a broker that is suspended does not answer. A call without a limit,
// which needs several of them, goes on waiting, and has its result once the broker goes on.
func TestDeathsOfRequestsEndNoCallWithoutALimit(t *testing.T) {
	if !everyDeath() {
		t.Skip("half a minute: make crash")
	}
	languages := deathLanguages(t)
	b := testkit.StartBroker(t)
	d := &deaths{t: t, b: b, to: languages[0]}
	c := b.Connect()
	p := d.provider()
	var callers []*testkit.Process
	for _, l := range languages {
		callers = append(callers, d.plays(l, "ask"))
	}
	b.Process().Stop()
	for _, caller := range callers {
		caller.Tell("pid") // the first: all of it needs the broker
	}
	_, err := c.Function(context.Background(), "de/work") // as long as a request lasts
	require.ErrorIs(t, err, protocol.ErrTimeout)
	within, cancel := context.WithTimeout(context.Background(), 3*time.Second) // theirs began later
	defer cancel()
	_, err = c.Function(within, "de/work")
	require.ErrorIs(t, err, protocol.ErrTimeout)
	b.Process().Cont()
	for i, caller := range callers {
		var said string
		caller.Next(&said)
		require.Equal(t, strconv.Itoa(p.PID()), said, languages[i].name)
		caller.Done()
	}
	p.Done()
	require.NoError(t, c.Close())
	testkit.AuditEmpty(t, b)
}
