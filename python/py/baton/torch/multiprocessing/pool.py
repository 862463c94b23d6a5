"""`multiprocessing.pool.Pool`, whose tasks and results go by queues of Baton's."""

import functools
import multiprocessing.pool
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.pool import clean_worker

import baton
from baton._native import own_thread
from baton.torch.multiprocessing.queue import SimpleQueue

__all__ = ["Pool", "clean_worker"]

_Pool: Any = multiprocessing.pool.Pool


class _Line(SimpleQueue):
    """A queue between a pool and its workers, whose loop ends where the queue was closed."""

    def get(self) -> Any:
        try:
            return super().get()
        except baton.Closed:
            raise EOFError from None

    def put(self, obj: Any) -> None:
        try:
            super().put(obj)
        except baton.Closed:
            raise SystemExit(0) from None


def _begin(lines: tuple[_Line, ...], initializer: Callable[..., None] | None, *initargs: Any) -> None:
    """Begins a worker, which ends with the process of its pool: a pipe's other end would be closed then."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        try:
            fd = os.pidfd_open(parent.pid)
        except ProcessLookupError:
            _close(lines)
        except OSError:  # the system has no pidfds, and the worker stays
            pass
        else:
            threading.Thread(target=_end_with, args=(fd, lines), name="baton-pool", daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with(fd: int, lines: tuple[_Line, ...]) -> None:
    own_thread()
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    ended.poll()
    os.close(fd)
    _close(lines)


def _close(lines: tuple[_Line, ...]) -> None:
    for line in lines:
        line._carrier.close()


class Pool(_Pool):  # type: ignore[misc]
    """A pool of processes that get tensors as handles, and give them so."""

    @property
    def _initializer(self) -> Callable[..., None]:
        """What each worker calls first, also one that takes the place of another."""
        return functools.partial(_begin, (self._inqueue, self._outqueue), self._first)

    @_initializer.setter
    def _initializer(self, initializer: Callable[..., None] | None) -> None:
        self._first = initializer

    def _setup_queues(self) -> None:
        self._inqueue, self._outqueue = _Line(), _Line()
        self._quick_put, self._quick_get = self._inqueue.put, self._outqueue.get

    def _get_sentinels(self) -> list[Any]:
        return [self._change_notifier._reader]  # a result changes nothing for the thread that starts workers

    @staticmethod
    def _help_stuff_finish(inqueue: SimpleQueue, task_handler: Any, size: int) -> None:
        # What no worker takes any more is taken here, so that the thread that puts comes to its end.
        while task_handler.is_alive() and not inqueue.empty():
            inqueue._discard()
