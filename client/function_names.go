package client

import (
	"context"
	"strings"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/protocol"
)

// mostFunctions bounds those that stay open for calls by name.
const mostFunctions = 64

// knownFunction finds a function that is open for calls by name, or opens it. The caller ends the use.
func (c *Client) knownFunction(ctx context.Context, name string) (*Function, error) {
	k := &c.calls
	k.mu.Lock()
	f := k.functions[name]
	if f != nil && f.use() {
		k.mu.Unlock()
		return f, nil
	}
	k.mu.Unlock()
	f, err := c.openFunction(ctx, name, 0)
	for c.unanswered(ctx, err) {
		f, err = c.openFunction(ctx, name, 0)
	}
	if err != nil {
		return nil, err
	}
	f.hold()
	k.mu.Lock()
	var over []*Function
	if k.functions == nil {
		k.functions = map[string]*Function{}
	}
	if other := k.functions[name]; other != nil { // another goroutine was faster
		over = append(over, other)
	} else if len(k.functions) >= mostFunctions {
		for some, one := range k.functions { // any
			delete(k.functions, some)
			over = append(over, one)
			break
		}
	}
	k.functions[name] = f
	k.mu.Unlock()
	for _, one := range over {
		go one.Close()
	}
	return f, nil
}

// forgetFunction has the next call of a name look for the function anew.
func (c *Client) forgetFunction(name string, f *Function) {
	k := &c.calls
	k.mu.Lock()
	if k.functions[name] == f {
		delete(k.functions, name)
	}
	k.mu.Unlock()
	go f.Close()
}

// forgetOther has the next call of a name look for the function anew, unless it means this one.
func (c *Client) forgetOther(name string, f *Function) {
	k := &c.calls
	k.mu.Lock()
	other := k.functions[name]
	k.mu.Unlock()
	if other != nil && other.t.Info.ID != f.t.Info.ID {
		c.forgetFunction(name, other)
	}
}

// foundAnew looks for the function of a name anew, where a call of what it meant has ended with err since that has no
// provider: nothing of it ran. The caller ends the use. nil: err says something else, or there is no provider.
func (c *Client) foundAnew(ctx context.Context, name string, f *Function, err error) *Function {
	if err == nil || fault.Code(err) != protocol.CodeNoProvider {
		return nil
	}
	c.forgetFunction(name, f)
	if c.s.Link.IsAway() || ctx.Err() != nil {
		return nil // what is known holds
	}
	within, cancel := context.WithTimeout(ctx, aMoment)
	defer cancel()
	anew, err := c.knownFunction(within, name)
	if err != nil {
		return nil
	}
	if anew.Providers() == 0 {
		anew.done()
		return nil
	}
	return anew
}

// lookForVersion is how often a name without a version is looked for while what it means has no provider: another
// version may have one.
const lookForVersion = 250 * time.Millisecond

// awaitProvided waits until the function of a name has a provider, or another one that the name means has. It closes f
// where it returns another one, or an error.
func (c *Client) awaitProvided(ctx context.Context, name string, f *Function) (*Function, error) {
	until := time.Now().Add(f.wait)
	for {
		look := *f
		if look.wait = time.Until(until); !strings.Contains(name, "@") {
			look.wait = min(look.wait, lookForVersion)
		}
		err := look.awaitProvider(ctx)
		if err == nil || fault.Code(err) != protocol.CodeNoProvider || !time.Now().Before(until) {
			if err != nil {
				f.Close()
				return nil, err
			}
			return f, nil
		}
		anew, err := c.openFunction(ctx, name, time.Until(until))
		for c.unanswered(ctx, err) {
			anew, err = c.openFunction(ctx, name, time.Until(until))
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		anew.wait = f.wait
		f.Close()
		if f = anew; f.Providers() > 0 {
			return f, nil
		}
	}
}
