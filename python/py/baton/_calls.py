"""Calls of functions that wait in an event loop: to be sent, for what they return, for their parts.

What a task awaits waits in its loop, a future in one loop for all. The calls that were made within no other are known,
to be cancelled at the interpreter's end. Fork: the child makes a loop of its own, and knows none of its parent's calls.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from baton import _aio, _coroutines, _native
from baton._errors import Cancelled, Closed, Timeout

_replies = _coroutines.Loop("baton replies")  # of calls that are waited for later


class _Outside:
    """What waits for calls that were made within no other, in whichever thread, with what cancels it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may call as well
        self.all: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
        self.over = False

    def add(self, what: Any, cancel: Callable[[Any], object]) -> None:
        with self.lock:
            over = self.over
            if not over:
                self.all[what] = cancel
        if over:
            cancel(what)

    def end(self, over: bool) -> None:
        """Cancels all, and from here on what is made; or no more."""
        with self.lock:
            self.over, all = over, list(self.all.items()) if over else []
        for what, cancel in all:
            cancel(what)


_outside = _Outside()


def _is_within() -> bool:
    """Whether what is called here is called within a call."""
    return _native.current_call() is not None or _coroutines.current.get() is not None


def begun(parts: _native.Parts) -> None:
    """Notes a stream that was made within no call."""
    _outside.add(parts, _native.Parts.close)


async def _reply(pending: _native.Pending) -> Any:
    """What a call that was sent returns."""
    try:
        (value,) = await _aio._until(pending, pending._poll, pending._left(), pending._wait)
        return value
    except Closed:
        if _outside.over and not _is_within():
            raise Cancelled("the interpreter ends, and the call with it") from None
        raise
    finally:
        pending._cancel()  # unless it is over


def future_of(pending: _native.Pending) -> "concurrent.futures.Future[Any]":
    """The future of a call that was sent."""
    future = _replies.submit(_reply(pending))
    if (made := _coroutines.futures.get()) is not None:
        made.add(future)
    if not _is_within():
        _outside.add(future, concurrent.futures.Future.cancel)
    return future


def begin(sending: _native.Sending) -> None:
    """Sends a call where there is room, and none of this loop waits for that."""
    if not _aio.has_turn(sending, sending._topic):
        sending._try()


async def _sent(sending: _native.Sending) -> None:
    """Sends a call: waits for a provider, then for room behind those of this loop that wait for that already. One that
    was sent has its room, and waits for nothing: those that wait may wait for its end."""
    if sending._is_sent:
        return
    while not sending._ready():
        await _aio._until(sending, lambda: sending._ready() or None, sending._left(), lambda: False)
    turn = _aio._watcher(sending).turn(sending._topic)
    while True:
        try:
            async with asyncio.timeout(sending._left()), turn:
                await _aio._until(sending, lambda: sending._try() or None, None, lambda: True)
                return
        except Timeout:
            raise  # of the call within which it is made
        except TimeoutError:
            if sending._try():  # Full, once its time is over
                return


async def result_of(f: _native.Function, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Calls a function. Within a call of a coroutine it takes no longer than that may."""
    given = _Given()
    sending = f._sending(args, named, given.start)
    try:
        try:
            await _sent(sending)
            pending = sending._pending()
            if not _is_within():
                _outside.add(pending, _native.Pending._cancel)
        finally:
            sending._cancel()  # unless it was sent
        return await _reply(pending)
    finally:
        given.end()


class _Given:
    """The functions among the arguments of a call: they run in the loop in which it is awaited."""

    def __init__(self) -> None:
        self.loop, self.context = asyncio.get_running_loop(), contextvars.copy_context()
        self.running: set[asyncio.Task[None]] = set()

    def start(self, f: Callable[..., Any], call: _native.Call) -> None:
        """Has a call of one run; from any thread. Raises RuntimeError where the loop is closed."""
        self.loop.call_soon_threadsafe(self._begin, f, call, context=self.context)

    def _begin(self, f: Callable[..., Any], call: _native.Call) -> None:
        task = self.loop.create_task(self._run(f, call))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _run(self, f: Callable[..., Any], call: _native.Call) -> None:
        _coroutines.current.set(call)
        try:
            args, more = call._arguments()
            value = f(*args, **(more or {}))
            if inspect.isawaitable(value):
                value = await value
            del args, more
        except BaseException as e:  # noqa: BLE001 - SystemExit too ends the call, and not the loop
            call._fail(e)
        else:
            call._reply(value)

    def end(self) -> None:
        """Cancels those that await something still, once the call is over."""
        for task in self.running:
            task.cancel()


async def next_part(parts: _native.Parts) -> Any:
    """The next part of a call. A task that is cancelled while it waits wants no more, as of any asynchronous generator."""
    try:
        if (sending := parts._sending) is not None:
            await _sent(sending)
        got = await _aio._until(parts, parts._poll, parts._left(), lambda: _last(parts))
    except asyncio.CancelledError:
        parts.close()
        raise
    if not got:
        raise StopAsyncIteration
    return got[0]


def _last(parts: _native.Parts) -> tuple[Any, ...]:
    """What there is after the deadline, of which the call says that it is over."""
    for part in parts:
        return (part,)
    return ()


def _in_child() -> None:
    """The loop's thread is the parent's."""
    global _replies, _outside
    _replies, _outside = _coroutines.Loop(_replies.name), _Outside()


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Meanwhile calls that are within no other end: those that are under way, and what is called."""
    _native.end_calls(True)
    try:
        _outside.end(True)
        yield
    finally:
        _outside.end(False)
        _native.end_calls(False)


def end() -> None:
    """Cancels the calls of futures, and ends the thread."""
    _replies.end()


os.register_at_fork(after_in_child=_in_child)
