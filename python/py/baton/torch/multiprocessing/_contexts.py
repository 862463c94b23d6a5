"""The contexts of this module: multiprocessing's, with Baton's queues and pools."""

import multiprocessing as _standard
import multiprocessing.context as _context
from collections.abc import Callable, Iterable
from typing import Any

from baton.torch.multiprocessing import pool, queue

__all__ = ["ForkContext", "ForkServerContext", "JoinableQueue", "Pool", "Queue", "SimpleQueue", "get_context"]


class _Context:
    """What a context of the standard library makes otherwise here."""

    _name: str

    def Queue(self, maxsize: int = 0) -> queue.Queue:
        """A queue; see `queue.Queue`."""
        return queue.Queue(maxsize, ctx=self._standard())

    def JoinableQueue(self, maxsize: int = 0) -> queue.JoinableQueue:
        """A queue whose items are reported as done."""
        return queue.JoinableQueue(maxsize, ctx=self._standard())

    def SimpleQueue(self) -> queue.SimpleQueue:
        """A queue without a bound and times."""
        return queue.SimpleQueue(ctx=self._standard())

    def Pool(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
    ) -> pool.Pool:
        """A pool of processes."""
        return pool.Pool(processes, initializer, initargs, maxtasksperchild, context=self._standard())

    def get_context(self, method: str | None = None) -> Any:
        """The context of another way to start processes; without one this."""
        return self if method is None else get_context(method)

    def _standard(self) -> _context.BaseContext:
        return _standard.get_context(self._name)


class ForkContext(_Context, _context.ForkContext):  # type: ignore[misc]
    """multiprocessing's, with the queues and the pool of this module."""


class _SpawnContext(_Context, _context.SpawnContext):  # type: ignore[misc]
    """multiprocessing's, with the queues and the pool of this module."""


class ForkServerContext(_Context, _context.ForkServerContext):  # type: ignore[misc]
    """multiprocessing's, with the queues and the pool of this module."""


_contexts = {c._name: c() for c in (ForkContext, _SpawnContext, ForkServerContext)}


def get_context(method: str | None = None) -> Any:
    """The context of a way to start processes: "fork", "spawn" or "forkserver"; without one the default's."""
    name = _standard.get_context(method)._name  # type: ignore[attr-defined]
    return _contexts[name]


def Queue(maxsize: int = 0) -> queue.Queue:
    """A queue of the default context."""
    made: queue.Queue = get_context().Queue(maxsize)
    return made


def JoinableQueue(maxsize: int = 0) -> queue.JoinableQueue:
    """A queue whose items are reported as done, of the default context."""
    made: queue.JoinableQueue = get_context().JoinableQueue(maxsize)
    return made


def SimpleQueue() -> queue.SimpleQueue:
    """A queue without a bound and times, of the default context."""
    made: queue.SimpleQueue = get_context().SimpleQueue()
    return made


def Pool(
    processes: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    maxtasksperchild: int | None = None,
) -> pool.Pool:
    """A pool of processes of the default context."""
    made: pool.Pool = get_context().Pool(processes, initializer, initargs, maxtasksperchild)
    return made
