package broker

import (
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

// guard is the broker's mutex, which can measure how long each holder has it.
type guard struct {
	sync.Mutex
	observe func(Hold) // nil: nothing is measured; set before the first Lock

	// Of the present holder, if it is measured.
	who   string
	since time.Time
	cpu   time.Duration
}

// Hold is one time that the broker's mutex was held.
type Hold struct {
	// By is the op of a request, as its Go type is called, or else the function.
	By string
	// Took is how long, and CPU how much of it the holder ran: the rest it waited for a
	// processor.
	Took, CPU time.Duration
}

func (g *guard) Lock() {
	g.Mutex.Lock()
	if g.observe != nil {
		g.begin(caller())
	}
}

// begin is apart, so that Lock stays small. A goroutine that is measured keeps its thread,
// whose clock it reads.
func (g *guard) begin(who string) {
	runtime.LockOSThread()
	g.who, g.since, g.cpu = who, time.Now(), sys.ThreadTime()
}

func (g *guard) Unlock() {
	if g.observe == nil {
		g.Mutex.Unlock()
		return
	}
	h := Hold{By: g.who, CPU: sys.ThreadTime() - g.cpu, Took: time.Since(g.since)}
	g.Mutex.Unlock()
	runtime.UnlockOSThread()
	g.observe(h)
}

// doing names what the holder does, if its function does not show it.
func (g *guard) doing(what func() string) {
	if g.observe != nil {
		g.who = what()
	}
}

// Doing is for the alarms, whose functions all run from one place.
func (g *guard) Doing(f func()) {
	g.doing(func() string { return shortName(runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()) })
}

// caller is the function that calls Lock.
func caller() string {
	var pcs [1]uintptr
	if runtime.Callers(3, pcs[:]) == 0 {
		return ""
	}
	f, _ := runtime.CallersFrames(pcs[:]).Next()
	return shortName(f.Function)
}

// shortName is the name of a function without packages and what the compiler adds.
func shortName(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	_, name, _ = strings.Cut(name, ".")
	name, _, _ = strings.Cut(name, ".func")
	return strings.TrimSuffix(name, "-fm")
}
