package client

import (
	"context"
	"iter"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/protocol"
)

// AheadOption is an option of a stream, given beside its arguments; see Ahead.
type AheadOption struct{ parts int }

// Ahead is how many parts of a stream its function may have sent that the loop has not taken, 1 to 63 (default 16).
// Each holds its tensors.
func Ahead(parts int) AheadOption { return AheadOption{parts} }

const (
	// defaultAhead is Ahead of a stream that does not say.
	defaultAhead = 16
	// mostAhead leaves room for the end of a stream.
	mostAhead = 63
)

// Parts calls a function that gives parts, and ranges over them:
//
//	for part, err := range client.Parts[*client.Tensor](ctx, c, "camera/frames", client.Arg("rate", 30)) {
//		if err != nil {
//			return err
//		}
//		…
//		part.Release()
//	}
//
// Each range is a call of its own, and begins when the loop does. A loop that is left early cancels the call. An
// error, which ends the loop, is one of Call's; the parts that were sent before come first. ctx and its deadline are
// those of the whole stream. The function is at most Ahead parts ahead of the loop: meanwhile it is its provider's
// other calls that run.
func Parts[T any](ctx context.Context, c *Client, name string, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		f, err := c.knownFunction(ctx, name)
		if err != nil {
			var none T
			yield(none, err)
			return
		}
		for f != nil {
			f = eachPartOrAnew(ctx, c, name, f, args, yield)
		}
	}
}

// eachPartOrAnew is eachPart of what a name means, and ends the use of it. What it returns is to be called instead, if
// anything: nothing was yielded then.
func eachPartOrAnew[T any](ctx context.Context, c *Client, name string, f *Function, args []any, yield func(T, error) bool) (anew *Function) {
	defer f.done()
	began := false
	eachPart(ctx, f, args, func(part T, err error) bool {
		if !began {
			began, anew = true, c.foundAnew(ctx, name, f, err)
		}
		return anew == nil && yield(part, err)
	})
	return anew
}

// PartsOf is Parts of a function that is open.
func PartsOf[T any](ctx context.Context, f *Function, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if !f.use() {
			var none T
			yield(none, fault.Closed(f.t.Title()))
			return
		}
		defer f.done()
		eachPart(ctx, f, args, yield)
	}
}

// Parts is as the function of this name, with parts as they come: what Call returns.
func (f *Function) Parts(ctx context.Context, args ...any) iter.Seq2[any, error] {
	return PartsOf[any](ctx, f, args...)
}

func eachPart[T any](ctx context.Context, f *Function, args []any, yield func(T, error) bool) {
	var none T
	args, ahead, err := aheadOf(args)
	if err != nil {
		yield(none, err)
		return
	}
	u, err := f.begin(ctx, args, uint32(ahead))
	if err != nil {
		yield(none, err)
		return
	}
	defer u.end()
	for {
		r, err := u.next(ctx)
		if err != nil {
			yield(none, err)
			return
		}
		last := r.record.Flags&protocol.CallPart == 0
		if !last {
			part, err := resultOf[T](ctx, f, r)
			if err == nil {
				if !yield(part, nil) {
					return
				}
				continue
			}
			yield(none, err)
			return
		}
		if r.record.Flags&protocol.CallFailed != 0 {
			err = u.failed(r)
		} else {
			r.m.Release()
		}
		u.end()
		if err != nil {
			yield(none, err)
		}
		return
	}
}

// aheadOf takes the option out of arguments.
func aheadOf(args []any) (others []any, ahead int, err error) {
	ahead = defaultAhead
	for i, v := range args {
		o, is := v.(AheadOption)
		if !is {
			others = append(others, v)
			continue
		}
		if ahead = o.parts; ahead < 1 || ahead > mostAhead {
			return nil, 0, protocol.Errorf(protocol.CodeInvalid, "use 1 to 63", "argument %d: %d parts ahead", i+1, ahead)
		}
	}
	return others, ahead, nil
}
