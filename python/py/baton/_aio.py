"""Waiting in asyncio.

Each session has one descriptor that becomes readable when something may have changed for it; event loops
watch that, so no thread waits for a task. A woken task looks by itself: a task that is cancelled takes
nothing with it.

Concurrency: any number of event loops, each in its thread, may wait on one session.
"""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from baton._errors import Closed, Timeout

if TYPE_CHECKING:
    from baton._native import Bundle, Message, Queue, Reader, Topic, Watch

T = TypeVar("T")


class Source(Protocol):
    """A queue, topic or reader as asyncio sees it."""

    def _poll_fd(self) -> int: ...
    def _clear_poll_fd(self) -> None: ...


class _Watcher:
    """The tasks of one event loop that wait for one session."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self.loop, self.fd = loop, fd
        self.waiting: set[asyncio.Future[None]] = set()
        self.turns: weakref.WeakValueDictionary[int | None, asyncio.Lock] = weakref.WeakValueDictionary()

    def turn(self, topic: int | None) -> asyncio.Lock:
        """Of the calls of a function that wait for room: one looks at a time, and they are sent in their order."""
        return self.turns.setdefault(topic, asyncio.Lock())

    async def rung(self, source: Source) -> None:
        """Waits until something may have changed since the caller looked."""
        future = self.loop.create_future()
        self.waiting.add(future)
        if len(self.waiting) == 1:
            self.loop.add_reader(self.fd, self.ready, source)
        try:
            await future
        finally:
            self.waiting.discard(future)
            if not self.waiting:
                self.loop.remove_reader(self.fd)

    def ready(self, source: Source) -> None:
        """Clears first: what is published after that rings again."""
        try:
            source._clear_poll_fd()
        except Closed:
            pass  # the tasks find out when they look
        self.wake()
        with _lock:
            others = [w for watchers in _watchers.values() if (w := watchers.get(self.fd)) and w is not self]
        for w in others:  # another loop has not seen it
            if not w.loop.is_closed():
                with contextlib.suppress(RuntimeError):  # closed by its thread since then
                    w.loop.call_soon_threadsafe(w.wake)

    def wake(self) -> None:
        """Wakes the tasks."""
        for future in self.waiting:
            if not future.done():
                future.set_result(None)


_lock = threading.Lock()
_watchers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Watcher]]" = weakref.WeakKeyDictionary()


def _watcher(source: Source) -> _Watcher:
    loop, fd = asyncio.get_running_loop(), source._poll_fd()
    with _lock:
        watchers = _watchers.setdefault(loop, {})
        if fd not in watchers:
            watchers[fd] = _Watcher(loop, fd)
        return watchers[fd]


def has_turn(source: Source, topic: int | None) -> bool:
    """Whether calls of a function wait in this loop for room, or look for it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    fd = source._poll_fd()
    with _lock:
        watcher = _watchers.get(loop, {}).get(fd)
    return watcher is not None and topic in watcher.turns  # as long as one of them has it


async def _until(source: Source, attempt: Callable[[], T | None], timeout: float | None, last: Callable[[], T]) -> T:
    """What `attempt` gives once that is not None; after the time what `last` gives or raises."""
    try:
        async with asyncio.timeout(timeout):
            while (got := attempt()) is None:
                await _watcher(source).rung(source)
            return got
    except Timeout:
        raise  # what was awaited is over with it
    except TimeoutError:
        return last()


async def get(queue: "Queue", timeout: float | None) -> Any:
    """The next item of a queue."""
    (value,) = await _until(queue, queue._take, timeout, lambda: (queue.get(0),))
    return value


async def put(queue: "Queue", value: Any, timeout: float | None) -> None:
    """Adds an item to a queue. Its arrays are copied once, however long it waits."""
    packed = queue._pack(value)

    def last() -> bool:
        queue.put(packed, 0)
        return True

    await _until(queue, lambda: queue._offer(packed) or None, timeout, last)


async def send(topic: "Topic", value: Any, meta: Any, timeout: float | None) -> None:
    """Sends to a topic. Its arrays are copied once, however long a lossless one makes it wait."""
    packed = topic._pack(value)

    def last() -> bool:
        topic.send(packed, meta, 0)
        return True

    await _until(topic, lambda: topic._offer(packed, meta) or None, timeout, last)


async def receive(reader: "Reader", timeout: float | None) -> "Message":
    """The next message of a reader."""
    return await _until(reader, reader._poll, timeout, lambda: reader.receive(0))


async def newest(watch: "Watch", timeout: float | None) -> "Bundle":
    """The newest revision of a watched name."""
    return await _until(watch, watch._poll, timeout, lambda: watch.receive(0))


async def following(wait: "Callable[[], Any]") -> Any:
    """The next of an asynchronous iteration, which ends when the topic was closed for all sessions."""
    try:
        return await wait()
    except Closed as e:
        if "topic" not in e.detail:  # the session, or what is iterated, was closed by this program
            raise
        raise StopAsyncIteration from None
