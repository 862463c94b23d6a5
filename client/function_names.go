package client

import "context"

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
