"""What goes to another process, which has not opened it yet.

multiprocessing lets go of the arguments of a process as soon as it has started it, and a fork's child opens what it
inherited when it first needs it: until then the queue would be one that no process has. So it is kept for a while,
and no longer than the process lives that is to open it: a program that starts many and leaves their items would
keep all of these.

Concurrency: any thread. Death: of that process, as the kernel tells: the last end of a pipe that it has is closed.
Fork: the child keeps nothing of its parent's.
"""

import _thread
import contextlib
import multiprocessing.context
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import baton

# For how many seconds at most.
KEPT = 30.0
# How often is looked whether a process that is being started can be waited for.
_LOOK = 0.1

_Held = list["baton.Queue | baton.Topic"]


class _Life:
    """The life of a process that was started."""

    def descriptor(self) -> int | None:
        """What is readable once it has ended; None while there is none yet."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether it has ended."""
        fd = self.descriptor()
        if fd is None:
            return False
        look = select.poll()
        look.register(fd, select.POLLIN)
        return bool(look.poll(0))


class _Forked(_Life):
    """Of a fork's child, which has the other end of a pipe as long as it lives, and so have its children."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def descriptor(self) -> int | None:
        return self.fd

    def __del__(self) -> None:
        os.close(self.fd)


class _Started(_Life):
    """Of a process that multiprocessing starts, by what it waits for."""

    def __init__(self, popen: Any) -> None:
        self.popen = popen

    def descriptor(self) -> int | None:
        # A fork server's sentinel gives the number of the process first, which multiprocessing reads.
        if getattr(self.popen, "pid", None) is None:
            return None
        fd: int | None = self.popen.sentinel
        return fd

    def is_over(self) -> bool:
        # Closed by the program, which it may be only after its end: another file may have the number by now.
        finalizer = getattr(self.popen, "finalizer", None)
        return (finalizer is not None and not finalizer.still_active()) or super().is_over()


class OnTheWay:
    """The queues that go to another process; a thread that lives only while there is one lets go of them."""

    def __init__(self, opened: Callable[[], _Held]) -> None:
        """opened: gives what this process has open, which the child of a fork has as well."""
        self.opened = opened
        self.forking = threading.local()
        self.changed: int | None = None  # what the thread waits for besides
        self._reset()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def _reset(self) -> None:
        self.lock = threading.RLock()  # a finalizer may pickle a queue as well
        self.all: list[tuple[float, _Held, _Life | None]] = []
        self._have_no_thread()

    def _have_no_thread(self) -> None:
        self.runs = False  # whether there is a thread
        # Forgotten before it is closed: the child of a fork meanwhile would close what has the number by then, and
        # multiprocessing ends a child without a word that cannot close its pipes.
        changed, self.changed = self.changed, None
        if changed is not None:
            os.close(changed)

    def pickled(self, held: _Held) -> None:
        """Keeps what was pickled: for the process that is being started, or for whichever reads it."""
        popen = multiprocessing.context.get_spawning_popen()
        self._add(held, None if popen is None else _Started(popen))

    def _before_fork(self) -> None:
        self.forking.ends = None
        self.forking.held = self.opened()
        if self.forking.held:
            try:
                self.forking.ends = os.pipe()
            except OSError:
                pass  # no descriptor is left: then it is kept for as long as may be

    def _after_in_parent(self) -> None:
        held, ends = self.forking.held, self.forking.ends
        self.forking.held = self.forking.ends = None
        life = None
        if ends is not None:
            os.close(ends[1])
            life = _Forked(ends[0])
        self._add(held, life)

    def _after_in_child(self) -> None:
        ends = self.forking.ends
        self.forking.held = self.forking.ends = None
        self._reset()
        if ends is not None:
            os.close(ends[0])  # the other one stays until this process ends

    def _add(self, held: _Held, life: _Life | None) -> None:
        if not held:
            return
        with self.lock:
            self.all.append((time.monotonic() + KEPT, held, life))
            if not self.runs:
                try:
                    self.changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                except OSError:
                    pass  # as above
                # Not by threading, which waits until the thread runs: a KeyboardInterrupt that comes within a function
                # of os.register_at_fork is printed and lost.
                _thread.start_new_thread(self._let_go, ())
                self.runs = True
            elif self.changed is not None:
                os.eventfd_write(self.changed, 1)

    def _ended(self) -> list[Any]:
        """Takes out what need not be kept any more."""
        now = time.monotonic()
        ended: list[Any] = []
        kept: list[Any] = []
        for one in self.all:
            over = one[0] <= now or (one[2] is not None and one[2].is_over())
            (ended if over else kept).append(one)
        self.all = kept
        return ended

    def _let_go(self) -> None:
        while self._goes_on():
            self._wait()

    def _goes_on(self) -> bool:
        with self.lock:
            ended = self._ended()
            goes_on = bool(self.all)
            if not goes_on:
                self._have_no_thread()
        del ended  # after the lock: it is the end of queues
        return goes_on

    def _wait(self) -> None:
        """Until one has been kept for long enough, a process has ended, or there is another one."""
        look = select.poll()
        with self.lock:
            until = min((until for until, _, _ in self.all), default=0)
            lives = [life for _, _, life in self.all if life is not None]  # and so their descriptors, but no queue
            changed = self.changed  # which this thread alone closes
        ends = [life.descriptor() for life in lives]
        for fd in (changed, *ends):
            if fd is not None:
                look.register(fd, select.POLLIN)
        left = max(until - time.monotonic(), 0)
        look.poll(1000 * (min(left, _LOOK) if None in ends else left))
        if changed is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(changed)
