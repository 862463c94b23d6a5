"""The places of a queue that has a bound, for all its senders together.

A place is taken by an item that was not taken yet, and by nothing else: so no process that ends can take one along.
Senders look for one and fill it in turn. Their turn is a lock of the kernel's on bytes of shared memory, which it
takes back from a process that ends. A taker tells waiting senders by a topic of the room that it made; one that
was ended before it did so costs them `_LOOK` seconds.
"""

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing import util
from typing import Any

import baton
from baton.torch import _packing

# How often a sender that waits looks without having been told.
_LOOK = 0.05
# How long a sender waits between two attempts to have its turn.
_PAUSE = 20e-6


class Places:
    """The places of one queue."""

    def __init__(self, most: int) -> None:
        self._open(most, baton.zeros(8, "int64"), baton.topic(depth=1, linger=0))

    def _open(self, most: int, memory: "baton.Tensor", room: "baton.Topic") -> None:
        self.most, self.memory, self.room = most, memory, room
        self.waits = memory.numpy()[:1]  # 1 while a sender waits
        self._after_fork()
        util.register_after_fork(self, Places._after_fork)

    def _after_fork(self) -> None:
        self.one = threading.RLock()  # for the threads of this process; a finalizer may put as well
        self.depth = 0  # of such, one in the other
        self.turn: _Turn | None = None  # a child needs one of its own

    def __getstate__(self) -> Any:
        return self.most, self.memory, self.room

    def __setstate__(self, state: Any) -> None:
        self._open(*state)

    def put(
        self, carrier: "baton.Queue", message: _packing.Message, timeout: float | None, count: Callable[[int], None]
    ) -> None:
        """Adds a message once there is a place for it. `count` is called with 1 before it can be taken, and with -1 where
        it could not be added after all. timeout: None waits without a limit. Raises Full."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._offer(carrier, message, until, count):
            return
        room = self.room.reader()
        while True:
            self.waits[0] = 1  # before the look: a take after it is told
            if self._offer(carrier, message, until, count):
                return
            left = _LOOK if until is None else until - time.monotonic()
            if left <= 0:
                raise baton.Full("the queue has no place for another item (take some, or wait longer)")
            try:
                room.receive(min(left, _LOOK))
            except baton.Timeout:
                pass

    def freed(self) -> None:
        """Tells waiting senders that an item was taken."""
        if self.waits[0]:
            self.waits[0] = 0
            self.room.send(None)

    def _offer(
        self, carrier: "baton.Queue", message: _packing.Message, until: float | None, count: Callable[[int], None]
    ) -> bool:
        if not self.one.acquire(timeout=_left(until)):
            return False
        try:
            if self.turn is None:
                self.turn = _Turn(self.memory)
            if not self.depth and not self.turn.take(until):
                return False
            self.depth += 1
            try:
                if carrier.qsize() >= self.most:
                    return False
                count(1)
                try:
                    carrier.put(message, 0)
                    return True
                except baton.Full:  # the item that was here before is still being taken
                    count(-1)
                    return False
            finally:
                self.depth -= 1
                if not self.depth:
                    self.turn.give()
        finally:
            self.one.release()


def _left(until: float | None) -> float:
    return -1 if until is None else min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX)


class _Turn:
    """A lock of the kernel's on the first byte of a tensor, which belongs to an opened file: so this one opens the
    file of shared memory anew, and a process that ends loses it."""

    def __init__(self, memory: "baton.Tensor") -> None:
        where = memory._file()
        assert where is not None  # it lies in shared memory
        fd, _, self.at = where
        try:
            self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def take(self, until: float | None) -> bool:
        """Waits for the turn, until a time of time.monotonic()."""
        while True:
            try:
                self._lock(fcntl.F_WRLCK)
                return True
            except (BlockingIOError, PermissionError):  # another one has it: the kernel says EAGAIN or EACCES
                if until is not None and time.monotonic() >= until:
                    return False
                time.sleep(_PAUSE)

    def give(self) -> None:
        """Ends the turn."""
        self._lock(fcntl.F_UNLCK)

    def _lock(self, kind: int) -> None:
        # struct flock: type, whence, start, length, pid, which is 0 of locks of an opened file.
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, self.at, 1, 0))
