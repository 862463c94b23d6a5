package cudaipc

import "runtime"

// enter makes the device's primary context current on this goroutine's thread,
// which it locks, until the function returned by the caller's defer is called. It
// is split in two so that the path of every hand-over makes no closure.
func (d *Device) enter() error {
	context, err := d.retained()
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := d.api.push.call(context); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return nil
}

// retained returns the primary context, made at the first call. Two goroutines may both
// retain it: it is one context, and kept to the end of the process.
func (d *Device) retained() (uintptr, error) {
	if c := d.context.Load(); c != 0 {
		return c, nil
	}
	c, err := d.api.retain(d.number)
	if err == nil {
		d.context.Store(c)
	}
	return c, err
}

// leave puts the context back that was current.
func (d *Device) leave() {
	// A context that was pushed can be popped.
	_ = d.api.pop.call(0)
	runtime.UnlockOSThread()
}

// within runs f with the context current.
func (d *Device) within(f func() error) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return f()
}

// Synchronize waits for all work of the device's context in this process.
func (d *Device) Synchronize() error {
	return d.within(func() error { return d.api.synchronize.call() })
}

// Memory returns the bytes of the GPU that are free and that it has, as the driver
// counts them for all processes.
func (d *Device) Memory() (free, total uint64, err error) {
	err = d.within(func() (err error) {
		free, total, err = d.api.getMemInfo()
		return err
	})
	return free, total, err
}
