"""Queues as something that `multiprocessing.connection.wait` and selectors wait for.

One thread of the process waits on the session's descriptor in the place of all of them, and makes a descriptor
readable for each queue that has an item.
"""

import functools
import os
import select
import threading
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import connection
from typing import Any

import baton
from baton._native import Queue, own_thread


class Readable:
    """The receiving end of a queue, as multiprocessing's Connection is one."""

    def __init__(self, carrier: Queue, get: Callable[[], Any]) -> None:
        self._carrier, self._get = carrier, weakref.WeakMethod(get)  # the queue has this one
        self._fd: int | None = None
        self._closed = False
        self._lock = threading.RLock()  # of the descriptor's state and end

    def fileno(self) -> int:
        """A descriptor that is readable while an item is there."""
        if self._fd is None:
            with self._lock:
                if self._fd is None:
                    self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            _watch(self)
        self.look()
        return self._fd

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether an item is there, or comes within the time."""
        if self._is_ready():
            return True
        if timeout == 0.0:
            return False
        return bool(connection.wait([self.fileno()], timeout))

    def recv(self) -> Any:
        """Takes an object, waiting for one."""
        get = self._get()
        if get is None:
            raise OSError("handle is closed")
        return get()

    def is_over(self) -> bool:
        """Whether each take ends with an error."""
        return _is_over(self._carrier)

    def _is_ready(self) -> bool:
        """Whether a take does not wait."""
        try:
            return bool(self._carrier.qsize())
        except baton.Error:
            return self.is_over()  # the take finds out why

    def look(self) -> None:
        """Makes the descriptor readable while a take does not wait, and not otherwise."""
        with self._lock:
            if self._fd is None:
                return
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                pass
            if self._is_ready():  # after the clearing: what comes later is seen by the thread
                os.eventfd_write(self._fd, 1)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Closes the descriptor."""
        self._closed = True
        self._give_up()

    def _give_up(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)

    def __del__(self) -> None:
        self._give_up()


def _is_over(carrier: Queue) -> bool:
    """Whether a take ends with an error, now and later: of a session that was lost, of a queue that is no more."""
    try:
        carrier.qsize()
    except baton.BrokerLost:
        return False  # until there is one again, or the session is lost
    except baton.Error:
        return True
    return False


def _see_all() -> None:
    """Has `multiprocessing.connection.wait` look at queues once more where it gives others.

    A process may put an item and end: its sentinel is ready then before the thread has made the queue's descriptor
    readable. A caller that waits for both, as `concurrent.futures` does, would take the process for one that failed.
    """
    if getattr(connection.wait, "_sees_queues", False):
        return
    of_selectors = connection.wait

    @functools.wraps(of_selectors)
    def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
        objects = list(object_list)
        ready: list[Any] = of_selectors(objects, timeout)
        return ready + [r for r in objects if isinstance(r, Readable) and r not in ready and r.poll()]

    wait._sees_queues = True  # type: ignore[attr-defined]
    connection.wait = wait


_see_all()  # here: a caller has the function before it asks the queue for its end


_watched: "weakref.WeakSet[Readable]" = weakref.WeakSet()
_starting = threading.RLock()  # a finalizer may make one as well
_thread: threading.Thread | None = None


def _watch(r: Readable) -> None:
    with _starting:
        _watched.add(r)
        if _thread is None or not _thread.is_alive():
            _start()


def _start() -> None:
    global _thread
    source = baton.queue(depth=1, linger=0)  # of its own: the others are to end with their last use
    _thread = threading.Thread(target=_ring, args=(source,), name="baton-readable", daemon=True)
    _thread.start()


def _ring(source: Queue) -> None:
    own_thread()
    ring = select.poll()  # select takes no descriptor from 1,024 on
    ring.register(source._poll_fd(), select.POLLIN)
    over = False
    while not over:
        ring.poll()
        source._clear_poll_fd()
        over = _is_over(source)  # before the look: then the others of its session are as well
        _look()
    _leave()


def _leave() -> None:
    """Ends the thread of a session that is over. Queues of the one that followed it have another thread."""
    global _thread
    with _starting:
        _thread = None
        for r in list(_watched):
            if r.is_over():
                _watched.discard(r)
        if _watched:
            _start()


def _look() -> None:
    with _starting:
        all_ = [weakref.ref(r) for r in _watched]  # one at a time is kept from its end
    for one in all_:
        r = one()
        if r is not None:
            r.look()


def _in_child() -> None:
    global _starting, _thread
    _starting, _thread = threading.RLock(), None
    for r in list(_watched):
        r._lock = threading.RLock()
        r._give_up()  # the parent's descriptor is shared with it
    _watched.clear()


os.register_at_fork(after_in_child=_in_child)
