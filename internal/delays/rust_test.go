package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const rustSample = `//! A module; word(0).load(1) is said.
use crate::sys;

fn drop(&mut self) {
    self.refcounts.take(self.index)?;
    let first = self.asked.take(); // another's
    if self.state.swap(FREE, Ordering::Release) == AWAITED {
        futex_wake(&self.state);
    }
    shape.swap(a, b);
    let now = self.closed
        .load(Ordering::Acquire);
    drop(self.all.lock());
    ManuallyDrop::drop(self.value);
    std::thread::spawn(move || crate::sys::say(to));
}
`

func TestRustPausesStandBeforeSteps(t *testing.T) {
	got, n := weaveRust(rustSample, 7)
	require.Equal(t, 8, n)
	require.True(t, strings.HasPrefix(got, `//! A module; word(0).load(1) is said.
use crate::sys;

fn drop(&mut self) {
    self.refcounts.delayed(7).take(self.index)?;
    let first = self.asked.take(); // another's
    if self.state.delayed(8).swap(FREE, Ordering::Release) == AWAITED {
        crate::delays::delayed(9, futex_wake)(&self.state);
    }
    shape.swap(a, b);
    let now = self.closed
        .delayed(10).load(Ordering::Acquire);
    crate::delays::delayed(11, drop)(self.all.delayed(12).lock());
    ManuallyDrop::drop(self.value);
    crate::delays::delayed(13, std::thread::spawn)(move || crate::delays::delayed(14, crate::sys::say)(to));
}
`), got)
	plain := "fn g(n: u32) -> u32 {\n    n + 1\n}\n"
	woven, n := weaveRust(plain, 0)
	require.Zero(t, n)
	require.Equal(t, plain, woven, "what has no step stays as it is")
}
