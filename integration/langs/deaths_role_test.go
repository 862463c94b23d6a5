package langs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// playDeaths is what a program in every language does. With BATON_FUNCTIONS=serve it provides de/work, one call at a
// time, says "ready", and goes on until its standard input ends. de/work gives the number of its process, after what its
// one argument says:
//
//	pid         nothing
//	hold        it says "begun" and waits for a line of its standard input; where the call is cancelled, or late, before
//	            that, it says "cancelled" and fails
//	raise       it fails with the kind test.Raised
//	panic       it panics, or raises RuntimeError; not in C
//	exit        its process exits
//	exec        its process executes true(1)
//	fork        a child of it ends at once; not in Go
//	tensor      it returns a tensor of 256 floats instead
//	unsendable  it returns what cannot be sent
//	closed      it returns a tensor that is released; in Go and Python
//
// Else it says "ready", and calls de/work for each line of its standard input: the argument, and behind a space, if there
// is one, the time that the call may take in ms. It says what the call gave, or the code of its error, or the kind of
// that of the function. With "parts:" before the argument it takes the parts that de/parts gives, and says how many came,
// and behind a space the code of an error.
func playDeaths(p *testkit.Child) error {
	name, play := "caller", askDeaths
	if os.Getenv("BATON_FUNCTIONS") == "serve" {
		name, play = "provider", serveDeaths
	}
	c, err := p.Connect(client.WithName(name))
	if err != nil {
		return err
	}
	if err := play(p, c); err != nil {
		return err
	}
	return c.Close()
}

// errRaised is what the kind test.Raised is in Go.
var errRaised = errors.New("as asked")

func serveDeaths(p *testkit.Child, c *client.Client) error {
	type asked struct{ How string }
	var mu sync.Mutex
	goOn := make(chan struct{})
	r, err := client.Handle(c, "de/work", func(ctx context.Context, in asked) (any, error) {
		switch in.How {
		case "hold":
			mu.Lock()
			told := goOn
			mu.Unlock()
			if err := p.Say("begun"); err != nil {
				return nil, err
			}
			select {
			case <-told:
			case <-ctx.Done():
				return nil, errors.Join(p.Say("cancelled"), ctx.Err())
			}
		case "raise":
			return nil, client.OfKind("test.Raised", errRaised)
		case "panic":
			panic("as asked")
		case "exit":
			os.Exit(3)
		case "exec":
			return nil, sys.Exec("/bin/true", []string{"true"}, nil)
		case "tensor":
			return floats(ctx, c, 256, 1)
		case "unsendable":
			return make(chan int), nil
		case "closed":
			x, err := floats(ctx, c, 1, 1)
			if err != nil {
				return nil, err
			}
			x.Release()
			return x, nil
		}
		return os.Getpid(), nil
	})
	if err != nil {
		return err
	}
	if err := p.Say("ready"); err != nil {
		return err
	}
	for {
		var line string
		if err := p.Hear(&line); err != nil {
			if err != io.EOF {
				return err
			}
			return r.Close(context.WithoutCancel(p.Context()))
		}
		mu.Lock()
		close(goOn)
		goOn = make(chan struct{})
		mu.Unlock()
	}
}

func askDeaths(p *testkit.Child, c *client.Client) error {
	if err := p.Say("ready"); err != nil {
		return err
	}
	for {
		var line string
		if err := p.Hear(&line); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := p.Say(askOnce(c, line)); err != nil {
			return err
		}
	}
}

func askOnce(c *client.Client, line string) string {
	ctx := context.Background() // without a limit, as the calls of the other languages
	if how, is := strings.CutPrefix(line, "parts:"); is {
		n := 0
		for _, err := range client.Parts[any](ctx, c, "de/parts", how) {
			if err != nil {
				return fmt.Sprint(n, " ", protocol.CodeOf(err))
			}
			n++
		}
		return strconv.Itoa(n)
	}
	how, limit, has := strings.Cut(line, " ")
	if has {
		ms, err := strconv.Atoi(limit)
		if err != nil {
			return err.Error()
		}
		within, cancel := context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
		ctx = within
	}
	back, err := client.Call[any](ctx, c, "de/work", how)
	if x, is := back.(*client.Tensor); is {
		defer x.Release()
		return fmt.Sprint(4*x.Len(), " bytes")
	}
	var remote *client.RemoteError
	switch {
	case err == nil:
		return fmt.Sprint(back)
	case errors.As(err, &remote) && protocol.CodeOf(err) == protocol.CodeRemote:
		return remote.Kind
	}
	return string(protocol.CodeOf(err))
}
