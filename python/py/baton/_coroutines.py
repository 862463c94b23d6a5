"""Running coroutines that are provided as functions.

All of them share one event loop in a thread of its own, and one thread for each function takes its calls. Fork: a child
has neither.
"""

import asyncio
import concurrent.futures
import contextvars
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from baton import _aio, _native
from baton._errors import Closed, SessionLost

_lock = threading.Lock()

# Of coroutines, which share a thread.
current: "contextvars.ContextVar[_native.Call | None]" = contextvars.ContextVar("baton_call", default=None)


class Made:
    """The futures that a coroutine has made, in its thread and in others, to be cancelled with its call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: weakref.WeakSet[concurrent.futures.Future[Any]] = weakref.WeakSet()
        self.over = False

    def add(self, future: "concurrent.futures.Future[Any]") -> None:
        with self.lock:
            self.all.add(future)
            over = self.over
        if over:
            future.cancel()

    def cancel(self) -> None:
        with self.lock:
            self.over, all = True, list(self.all)
        for future in all:
            future.cancel()


futures: "contextvars.ContextVar[Made | None]" = contextvars.ContextVar("baton_futures", default=None)


class Loop:
    """An event loop in a thread of its own, made when it is first needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.over = threading.Event()  # of the thread's work: an interrupt may spoil a join before that

    def running(self) -> asyncio.AbstractEventLoop:
        with _lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self.over.clear()
                self.thread = threading.Thread(target=self._run, args=[self.loop], name=self.name, daemon=True)
                self.thread.start()
            return self.loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            self.over.set()

    def submit(self, c: Coroutine[Any, Any, Any]) -> "concurrent.futures.Future[Any]":
        return asyncio.run_coroutine_threadsafe(c, self.running())

    def end(self) -> None:
        """Cancels all tasks and ends the thread."""
        if self.loop is None or self.thread is None:
            return
        loop = self.loop

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            loop.stop()

        asyncio.run_coroutine_threadsafe(cancel(), loop)
        self.over.wait()
        self.thread.join()
        loop.close()
        self.loop = self.thread = None


_loop = Loop("baton coroutines")


async def _give(call: _native.Call, source: _aio.Source, part: Any) -> None:
    """Gives a part of a call, and waits until its caller has taken enough of those before."""
    if call._part(part):
        return
    await _aio._until(source, call._retry, None, lambda: True)
    try:
        await _aio._until(source, call._regain, None, lambda: True)
    except BaseException:
        call._forget()  # its turn is another's
        raise


class _Task:
    """Calls of a coroutine function that run in the loop."""

    def __init__(self) -> None:
        # Without its call is one that was cancelled: once, since it may await what it has to do at its end.
        self.running: dict[asyncio.Task[None], _native.Call | None] = {}
        self.futures: dict[asyncio.Task[None], Made] = {}
        self.watching: asyncio.Task[None] | None = None

    async def watch(self, source: _aio.Source) -> None:
        """Cancels the tasks whose callers want them no more, and all once no reply can be sent."""
        over = False
        while self.running and not over:
            try:
                await _aio._watcher(source).rung(source)
            except (Closed, SessionLost):
                over = True
            self.look(over)

    def look(self, over: bool = False) -> None:
        """Cancels the tasks of calls that are over."""
        for task, call in list(self.running.items()):
            if call is not None and (over or call.cancelled):
                self.running[task] = None
                task.cancel()
                self.futures[task].cancel()


def take(provided: _native.Provided, code: list[Callable[..., Any]], concurrency: int, parts: bool) -> None:
    """Takes calls of a coroutine function, the one of the list, and runs them in the loop. Of one that gives parts the
    places are counted where they are taken, since calls that wait give theirs back."""
    loop = _loop.running()
    free = threading.Semaphore(0 if parts else concurrency)
    begun = 0  # of those with parts, those that have not ended
    tasks = _Task()

    async def run(call: _native.Call) -> None:
        current.set(call)
        try:
            args, named = call._arguments()
            value, f = None, code[0]
            if parts:
                await give_all(call, f(*args, **(named or {})))
            else:
                value = await f(*args, **(named or {}))
            del args, named
        except BaseException as e:  # noqa: BLE001 - SystemExit too ends the call, and not the loop
            call._fail(e)
        else:
            call._reply(value)

    async def give_all(call: _native.Call, generator: AsyncGenerator[Any, None]) -> None:
        async with aclosing(generator) as all:
            async for part in all:
                await _give(call, provided, part)
                del part

    def start(call: _native.Call) -> None:
        context, made = contextvars.Context(), Made()
        context.run(futures.set, made)
        task = loop.create_task(run(call), context=context)
        tasks.running[task], tasks.futures[task] = call, made
        deadline = call.deadline
        late = None if deadline is None else loop.call_at(deadline + 0.001, tasks.look)  # by the same clock

        def over(_task: "asyncio.Task[None]") -> None:
            if late is not None:
                late.cancel()
            tasks.running.pop(task, None)
            tasks.futures.pop(task, None)
            free.release()

        task.add_done_callback(over)
        if tasks.watching is None or tasks.watching.done():
            tasks.watching = loop.create_task(tasks.watch(provided))

    while True:
        if not parts:
            free.acquire()
        call = provided._take()
        if call is None:
            break
        while begun and free.acquire(blocking=False):
            begun -= 1
        begun += parts
        loop.call_soon_threadsafe(start, call)
    if not parts:
        free.release()
    for _ in range(begun if parts else concurrency):  # what runs still
        free.acquire()


def is_here() -> bool:
    """Whether this thread is that of the loop."""
    return _loop.thread is threading.current_thread()


def end() -> None:
    """Cancels what runs, and ends the thread."""
    _loop.end()


def _in_child() -> None:
    """The loop's thread is the parent's, and so is the call of the task that forks."""
    global _lock, _loop
    _lock = threading.Lock()
    _loop = Loop(_loop.name)
    current.set(None)
    futures.set(None)


os.register_at_fork(after_in_child=_in_child)
