"""`multiprocessing.pool.Pool`, whose tasks and results go by queues of Baton's."""

import multiprocessing.pool
from typing import Any

from torch.multiprocessing.pool import clean_worker

from baton.torch.multiprocessing.queue import SimpleQueue

__all__ = ["Pool", "clean_worker"]

_Pool: Any = multiprocessing.pool.Pool


class Pool(_Pool):  # type: ignore[misc]
    """A pool of processes that get tensors as handles, and give them so."""

    def _setup_queues(self) -> None:
        self._inqueue, self._outqueue = SimpleQueue(), SimpleQueue()
        self._quick_put, self._quick_get = self._inqueue.put, self._outqueue.get

    def _get_sentinels(self) -> list[Any]:
        return [self._change_notifier._reader]  # a result changes nothing for the thread that starts workers

    @staticmethod
    def _help_stuff_finish(inqueue: SimpleQueue, task_handler: Any, size: int) -> None:
        # What no worker takes any more is taken here, so that the thread that puts comes to its end.
        while task_handler.is_alive() and not inqueue.empty():
            inqueue._discard()
