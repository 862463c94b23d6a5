"""The queues of multiprocessing, carried by Baton's: any object that can be pickled, its tensors by handle.

Differences from torch's: `put` pickles at once, so that what cannot be pickled is an error of `put`, and later
writes to what is no tensor are not seen; what was put is received, even if its sender has ended, and of one that was
killed what is under way (2,047 items at most, of those with memory beside them 256; more wait in their sender); a queue
may go to other processes in any way that carries pickles, also through a queue.

Concurrency: any thread and process. Death: what is under way is there for others; a place in a queue with `maxsize` is
what no item takes, so that no process takes one along. Fork: the child has the queue, without what waits here.
"""

import collections
import multiprocessing
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.context import BaseContext
from typing import Any

from torch.multiprocessing.queue import ConnectionWrapper

import baton
from baton.torch import _install, _packing
from baton.torch.multiprocessing._on_the_way import OnTheWay
from baton.torch.multiprocessing._places import Places
from baton.torch.multiprocessing._readable import Readable

__all__ = ["ConnectionWrapper", "JoinableQueue", "Queue", "SimpleQueue"]

# Items that a sender has on their way: so many with memory beside them, and some more of others, as a pipe takes of
# short pickles. Of a Queue without maxsize more of them wait in the sender, whose end waits for room; of a SimpleQueue
# the sender itself waits. Slots are short for that, and those of a Queue long enough for two tensors and a number.
_MOST_LARGE, _MOST_SMALL = 256, 2047
_DESCRIPTION, _DESCRIPTION_SIMPLE = 256, 192
# The most places of a queue that has maxsize.
_MOST = 1 << 16
# For how many seconds a sender waits for the memory of its lane, and how often it looks. A lane has up to 644 KiB, which a
# process needs once for each queue into which it puts; torch's queues need none.
_FOR_A_LANE, _LOOK = 10.0, 0.05


def _with_a_lane(put: Callable[[], None], wait: float | None) -> None:
    """Has something put, also where there is no memory for the lane yet: others may let go of some. wait: seconds."""
    until = time.monotonic() + (_FOR_A_LANE if wait is None else wait)
    while True:
        try:
            return put()
        except (baton.QuotaExceeded, baton.OutOfMemory):
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK)


def _most(message: _packing.Message) -> int:
    """Behind how many items of its sender an item may be on its way."""
    return _MOST_LARGE if _packing.has_memory(message) else _MOST_SMALL


def _packed(obj: Any) -> _packing.Message:
    """An item as a message. Of a DataLoader's worker that has none for it: the error, for its trainer."""
    try:
        return _packing.pack(obj)
    except Exception as e:
        told = _install.told_instead(obj, e)
        if told is None:
            raise
        return _packing.pack(told)


class SimpleQueue:
    """A queue whose senders wait where the takers are far behind: `multiprocessing.SimpleQueue`."""

    def __init__(self, *, ctx: BaseContext | None = None) -> None:
        self._open(baton.queue(depth=_MOST_SMALL, description=_DESCRIPTION_SIMPLE, linger=0))

    def _open(self, carrier: "baton.Queue") -> None:
        self._carrier = carrier
        _open.add(self)
        self._closed = False
        self._reader_made: Readable | None = None

    def put(self, obj: Any) -> None:
        """Adds an object, waiting while 2,047 of this process are not taken yet, and one with memory beside it while
        256 are not. Raises OSError when it was closed here."""
        self._check()
        message = _packing.pack(obj)
        _with_a_lane(lambda: self._carrier._put_ahead(message, _most(message)), None)

    def get(self) -> Any:
        """Takes an object, waiting for one. Raises OSError when it was closed here."""
        self._check()
        return self._take(None)

    def _check(self) -> None:
        if self._closed:
            raise OSError("handle is closed")

    def _take(self, timeout: float | None) -> Any:
        return _packing.unpack(self._taken(timeout))

    def _taken(self, timeout: float | None) -> _packing.Message:
        try:
            message: _packing.Message = self._carrier.get(timeout)
            return message
        finally:
            if self._reader_made is not None:
                self._reader_made.look()  # also where there is none: another process may have taken it

    def _discard(self) -> None:
        """Takes an item if one is there, without looking at it."""
        try:
            self._taken(0)
        except baton.Empty:
            pass

    def empty(self) -> bool:
        """Whether no item is there."""
        if self._closed:
            raise OSError("handle is closed")
        return not self._carrier.qsize()

    @property
    def _reader(self) -> Readable:
        """What `multiprocessing.connection.wait` waits for."""
        if self._reader_made is None:
            self._reader_made = Readable(self._carrier, self.get)
        return self._reader_made

    def close(self) -> None:
        """Ends the use of it in this process."""
        self._closed = True
        if self._reader_made is not None:
            self._reader_made.close()

    def __reduce__(self) -> Any:
        _on_the_way.pickled(self._held())
        return _reopen, (type(self), self.__getstate__())

    def _held(self) -> "list[baton.Queue | baton.Topic]":
        """What ends with the last process that has it."""
        return [self._carrier]

    def __getstate__(self) -> Any:
        return self._carrier

    def __setstate__(self, state: Any) -> None:
        self._open(state)

    __class_getitem__: Any = classmethod(types.GenericAlias)


# A queue ends, with what is in it, when no process has it.
_open: "weakref.WeakSet[SimpleQueue]" = weakref.WeakSet()


def _reopen(cls: Any, state: Any) -> Any:
    queue = cls.__new__(cls)
    queue.__setstate__(state)
    return queue


_on_the_way = OnTheWay(lambda: [h for q in list(_open) for h in q._held()])


def _uncounted(_n: int) -> None:
    pass


class _Outgoing:
    """What waits for room on the way, sent on by a thread that lives only while there is something."""

    def __init__(self, carrier: "baton.Queue") -> None:
        self.carrier = carrier
        self._after_fork()
        util.register_after_fork(self, _Outgoing._after_fork)

    def _after_fork(self) -> None:
        self.waiting: collections.deque[_packing.Message] = collections.deque()
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.at_exit: Any = None
        self.joined = True

    def put(self, message: _packing.Message) -> None:
        with self.changed:
            if not self.waiting:
                try:
                    return self.carrier._put_ahead(message, _most(message), 0)
                except baton.Full:
                    pass
            self.waiting.append(message)
            if self.thread is None:
                self.thread = threading.Thread(target=self._feed, name="QueueFeederThread", daemon=True)
                self.thread.start()
                if self.joined and self.at_exit is None:
                    self.at_exit = util.Finalize(None, self.join, exitpriority=-5)

    def _feed(self) -> None:
        while True:
            with self.changed:
                if not self.waiting:
                    self.thread = None
                    if self.at_exit is not None:
                        self.at_exit.cancel()  # which keeps the queue
                        self.at_exit = None
                    self.changed.notify_all()
                    return
                message = self.waiting[0]
            try:
                self.carrier._put_ahead(message, _most(message))
            except baton.BrokerLost:
                continue  # until there is one again, or the session is lost
            except baton.Error:
                traceback.print_exc()  # as of multiprocessing's thread: the caller of put is elsewhere
            with self.changed:
                self.waiting.popleft()

    def join(self) -> None:
        """Waits until everything is on its way."""
        with self.changed:
            self.changed.wait_for(lambda: self.thread is None)

    def leave(self) -> None:
        """Lets the process end without that."""
        self.joined = False
        if self.at_exit is not None:
            self.at_exit.cancel()


class Queue(SimpleQueue):
    """A queue, without a bound or of `maxsize` places for all its senders together: `multiprocessing.Queue`."""

    def __init__(self, maxsize: int = 0, *, ctx: BaseContext | None = None) -> None:
        if maxsize > _MOST:
            raise ValueError(f"maxsize {maxsize} (a queue has at most {_MOST} places; leave it out for no bound)")
        self._maxsize = max(maxsize, 0)
        self._places = Places(self._maxsize) if self._maxsize else None
        bound = self._maxsize
        depth, description = (bound, None) if bound else (_MOST_SMALL, _DESCRIPTION)
        self._open(baton.queue(depth=depth, description=description, linger=0))

    def _open(self, carrier: "baton.Queue") -> None:
        super()._open(carrier)
        self._out = _Outgoing(carrier)

    def _held(self) -> "list[baton.Queue | baton.Topic]":
        return [*super()._held(), *(() if self._places is None else [self._places.room])]

    def __getstate__(self) -> Any:
        return self._carrier, self._maxsize, self._places

    def __setstate__(self, state: Any) -> None:
        carrier, self._maxsize, self._places = state
        self._open(carrier)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Adds an object. Raises queue.Full, ValueError when it was closed here."""
        self._check()
        wait = timeout if block else 0
        try:
            self._put(_packed(obj), wait, _uncounted)
        except baton.Full:
            raise
        except baton.Error as e:  # there may be no memory for what is copied here
            told = _install.told_instead(obj, e)
            if told is None:
                raise
            self._put(_packing.pack(told), wait, _uncounted)

    def _put(self, message: _packing.Message, timeout: float | None, count: Callable[[int], None]) -> None:
        """Adds a message once there is a place for it; `count` as of `Places.put`."""
        if self._places is not None:
            places = self._places
            return _with_a_lane(lambda: places.put(self._carrier, message, timeout, count), timeout)
        count(1)
        try:
            _with_a_lane(lambda: self._out.put(message), timeout)
        except BaseException:
            count(-1)
            raise

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes an object. Raises queue.Empty, ValueError when it was closed here."""
        self._check()
        return self._take((None if timeout is None else max(timeout, 0)) if block else 0)

    def _take(self, timeout: float | None) -> Any:
        message = self._taken(timeout)
        if self._places is not None:
            self._places.freed()
        return _packing.unpack(message)

    def put_nowait(self, obj: Any) -> None:
        """As `put`, without waiting."""
        self.put(obj, False)

    def get_nowait(self) -> Any:
        """As `get`, without waiting."""
        return self.get(False)

    def qsize(self) -> int:
        """How many items are there."""
        return self._carrier.qsize() + len(self._out.waiting)

    def full(self) -> bool:
        """Whether there are `maxsize` items."""
        return bool(self._maxsize) and self.qsize() >= self._maxsize

    def join_thread(self) -> None:
        """Waits until everything that was put here is on its way. Only after `close`."""
        if not self._closed:
            raise AssertionError(f"Queue {self!r} not closed")
        self._out.join()

    def cancel_join_thread(self) -> None:
        """Lets the process end although what was put here is not all on its way."""
        self._out.leave()

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")


class JoinableQueue(Queue):
    """A queue whose items are reported as done: `multiprocessing.JoinableQueue`."""

    def __init__(self, maxsize: int = 0, *, ctx: BaseContext | None = None) -> None:
        context = ctx or multiprocessing.get_context()
        super().__init__(maxsize, ctx=context)
        self._unfinished = context.Semaphore(0)
        self._none = context.Condition()

    def __getstate__(self) -> Any:
        return super().__getstate__(), self._unfinished, self._none

    def __setstate__(self, state: Any) -> None:
        queue, self._unfinished, self._none = state
        super().__setstate__(queue)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Adds an object that is to be done. Raises queue.Full, ValueError when it was closed here."""
        self._check()
        self._put(_packing.pack(obj), timeout if block else 0, self._counted)

    def _counted(self, n: int) -> None:
        if n < 0:
            return self.task_done()
        with self._none:
            self._unfinished.release()  # before a taker can have done it

    def task_done(self) -> None:
        """Says that an item which was taken is done. Raises ValueError when all were."""
        with self._none:
            if not self._unfinished.acquire(False):
                raise ValueError("task_done() called too many times")
            if not self._unfinished.get_value():
                self._none.notify_all()

    def join(self) -> None:
        """Waits until every item that was put is done."""
        with self._none:
            if self._unfinished.get_value():
                self._none.wait()
