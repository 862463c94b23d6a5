"""Functions: provided by this process, and called in others.

Ownership: what `start_functions` returns provides until it is closed; at the interpreter's exit all is closed, and what
runs is waited for. Concurrency: each function runs in as many threads of its own as its concurrency says, coroutines in
one loop for all; a call that is waited for needs no thread. Fork: a child provides nothing, and functions that it has
may be called.
"""

import asyncio
import atexit
import concurrent.futures
import contextvars
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, overload

from baton import _aio, _default, _native, _signature
from baton._errors import Closed, Conflict, InvalidArgument, NotFound

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Definition:
    """A function that is to be provided."""

    name: str
    function: Callable[..., Any]
    concurrency: int
    idempotent: bool
    exclusive: bool
    override: bool


_lock = threading.RLock()
_defined: dict[str, _Definition] = {}
_started: "list[Functions]" = []


@overload
def function(
    name: F,
) -> F: ...
@overload
def function(
    name: str | None = None,
    *,
    version: str | None = None,
    concurrency: int = 1,
    idempotent: bool = False,
    exclusive: bool = False,
    override: bool = False,
) -> Callable[[F], F]: ...
def function(
    name: Any = None,
    *,
    version: str | None = None,
    concurrency: int = 1,
    idempotent: bool = False,
    exclusive: bool = False,
    override: bool = False,
) -> Any:
    """Has a function be provided once `serve_functions` or `start_functions` runs. It can be called here as before.

    name: default module/qualname, with slashes for dots. version: stands behind it, name@version. concurrency: how many
    calls run at a time, each in a thread, or a task of an async function. idempotent: what a provider that has died had
    begun is given to another. exclusive: one process alone provides it. override: takes the place of other providers.
    What it takes is what its annotations say; callers refuse anything else. Raises InvalidArgument for what is no name
    and for a function of __main__, or inside another one, without a name.

    >>> @baton.function("doc/scale")
    ... def scale(x: baton.Tensor, by: float = 2.0) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale):
    ...     baton.call("doc/scale", np.ones(3), by=3).tolist()
    [3.0, 3.0, 3.0]
    """
    if callable(name):
        return function()(name)

    def define(f: F) -> F:
        try:
            full = named(name or _signature.name_for(f), version)
        except ValueError as e:
            raise e if isinstance(e, InvalidArgument) else InvalidArgument(str(e)) from None
        if not 1 <= concurrency <= 1024:
            raise InvalidArgument(f"a concurrency of {concurrency} is not 1 to 1024")
        d = _Definition(full, f, concurrency, idempotent, exclusive, override)
        with _lock:
            before = _defined.get(full)
            if before is not None and _place(before.function) != _place(f):
                raise Conflict(f"{full} is defined already, by {_place(before.function)} (choose another name)")
            _defined[full] = d
        return f

    return define


def _place(f: Callable[..., Any]) -> str:
    return f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', '')}"


def named(name: str, version: str | None = None) -> str:
    """A name with its version. Raises InvalidArgument for what is none."""
    if version is not None and "@" in name:
        raise InvalidArgument(f"{name} has a version already (leave version= out)")
    _native.check_name(name.split("@", 1)[0])
    return name if version is None else f"{name}@{version}"


class Functions:
    """Functions that this process provides, until they are closed.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> provided = baton.start_functions(add)
    >>> provided.names, baton.call("doc/add", 2), provided.remove("doc/add"), provided.names
    (['doc/add'], 3, True, [])
    >>> provided.close()
    >>> provided.join()  # at once: it takes no calls any more
    """

    def __init__(self, definitions: Iterable[_Definition], session: _native.Session) -> None:
        self._all: dict[str, tuple[_native.Provided, list[threading.Thread]]] = {}
        self._session = session
        try:
            for d in definitions:
                self._start(d, session)
        except BaseException:
            self.close()
            raise

    def _start(self, d: _Definition, session: _native.Session) -> None:
        is_async = inspect.iscoroutinefunction(d.function)
        description = _signature.describe(d.function)
        provided = _native.provide(session, d.name, description, d.concurrency, d.idempotent, d.exclusive, d.override)
        f = _signature.adapted(d.function)
        if is_async:
            runs = [lambda: _take(provided, f, d.concurrency)]
        else:
            runs = [lambda: provided._work(f)] * d.concurrency
        threads = [threading.Thread(target=run, name=f"baton {d.name}", daemon=True) for run in runs]
        self._all[d.name] = provided, threads
        for t in threads:
            t.start()

    @property
    def names(self) -> list[str]:
        """Those that take calls still: not those that were removed, or replaced by another provider."""
        return [name for name, (provided, _) in self._all.items() if provided.current]

    def remove(self, name: str) -> bool:
        """Takes no more calls of one, and waits for those that run. Whether it was provided."""
        found = self._all.pop(name, None)
        if found is not None:
            self._end([found])
        return found is not None

    def join(self) -> None:
        """Waits until none takes calls any more: all were closed, removed or replaced, or the session was closed.

        Raises SessionLost where the broker has ended the session.
        """
        for _, threads in list(self._all.values()):
            for t in threads:
                t.join()
        self._session._check_lost()

    def close(self) -> None:
        """Takes no more calls, and waits for those that run. What one of them calls it from is not waited for."""
        self._end(list(self._all.values()))
        with _lock:
            if self in _started:
                _started.remove(self)

    @staticmethod
    def _end(all: list[tuple[_native.Provided, list[threading.Thread]]]) -> None:
        for provided, _ in all:
            provided._close()
        for _, threads in all:
            for t in threads:
                if t is not threading.current_thread():
                    t.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<baton.Functions {', '.join(self._all)}>"


def start_functions(*functions: Callable[..., Any] | str, session: _native.Session | None = None) -> Functions:
    """Provides the functions that were defined by `function`, in threads, until what it returns is closed.

    functions: names or functions, default all that are not provided yet. Raises Conflict where another process has
    registered one with another signature, PermissionDenied where the name is another user's.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> with baton.start_functions(add) as provided:
    ...     provided.names, baton.call("doc/add", 1, y=2)
    (['doc/add'], 3)
    """
    with _lock:
        if functions:
            chosen = [_definition(f) for f in functions]
        else:
            running = {name for started in _started for name in started.names}
            chosen = [d for d in _defined.values() if d.name not in running]
        started = Functions(chosen, session or _default.session())
        _started.append(started)
    return started


def _definition(f: Callable[..., Any] | str) -> _Definition:
    for d in _defined.values():
        if f == d.name or f is d.function:
            return d
    raise NotFound(f"{f} was not defined here (decorate it with baton.function)")


def serve_functions(*functions: Callable[..., Any] | str, session: _native.Session | None = None) -> None:
    """As `start_functions`, until the process is interrupted (Ctrl-C), which ends it without an error, or none is
    provided any more. Raises SessionLost where the broker has ended the session.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> server = threading.Thread(target=baton.serve_functions, args=[add])
    >>> server.start()  # a program calls it in its main thread, at its end
    >>> baton.get_function("doc/add", wait=60)(1), baton.remove_function("doc/add")
    (2, 1)
    >>> server.join()
    """
    with start_functions(*functions, session=session) as started:
        try:
            started.join()
        except KeyboardInterrupt:
            return


def remove_function(name: str, *, version: str | None = None, everywhere: bool = False) -> int:
    """Provides a function no more: it takes no more calls, and what runs is waited for. How many providers ended.

    everywhere: ends all registrations, those of other processes too. Raises NotFound where there is none,
    PermissionDenied.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> with baton.start_functions(add):
    ...     baton.remove_function("doc/add"), baton.functions("doc/add")[0].providers
    (1, [])
    """
    full = named(name, version)
    if everywhere:
        return _native.remove_function_everywhere(_default.session(), full)
    with _lock:
        started = list(_started)
    n = sum(s.remove(full) for s in started)
    if n == 0:
        raise NotFound(f"{full} is not provided by this process (everywhere=True removes it everywhere)")
    return n


def current_call() -> "_native.Call | None":
    """The call that a function runs for: cancelled, deadline, attempt, caller. None outside of one.

    >>> @baton.function("doc/attempt")
    ... def attempt():
    ...     return baton.current_call() and baton.current_call().attempt
    >>> with baton.start_functions(attempt):
    ...     baton.call("doc/attempt"), attempt()
    (1, None)
    """
    return _native.current_call() or _current.get()


# Of coroutines, which share a thread.
_current: "contextvars.ContextVar[_native.Call | None]" = contextvars.ContextVar("baton_call", default=None)


@dataclass(frozen=True)
class ProviderInfo:
    """A session that provides a function."""

    session: int
    name: str
    pid: int
    concurrency: int
    running: int
    stopped: bool


@dataclass(frozen=True)
class FunctionInfo:
    """A function as the broker lists it."""

    name: str
    signature: str
    doc: str
    idempotent: bool
    exclusive: bool
    callers: int
    waiting: int
    running: int
    providers: list[ProviderInfo] = field(default_factory=list)


def functions(pattern: str = "", *, session: _native.Session | None = None) -> list[FunctionInfo]:
    """The functions that are registered, by name; `*` in the pattern stands for any characters.

    >>> @baton.function("doc/scale")
    ... def scale(x: baton.Tensor, by: float = 2.0) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale):
    ...     [(f.name, f.signature, len(f.providers)) for f in baton.functions("doc/sca*")]
    [('doc/scale', '(x: tensor, by: float = 2.0) -> tensor', 1)]
    """
    rows = sorted(_native.list_functions(session or _default.session(), pattern))
    return [FunctionInfo(*row[:-1], [ProviderInfo(*p) for p in row[-1]]) for row in rows]


def get_function(
    name: str, *, version: str | None = None, wait: float | None = None, session: _native.Session | None = None
) -> _native.Function:
    """A function that processes provide, to be called. Without a version the newest one.

    wait: how many seconds to wait for it, and for a provider; calls of it wait as long. Raises NotFound, which names
    similar ones, and NoProvider after the wait.

    >>> @baton.function("doc/scale")
    ... def scale(x: baton.Tensor, by: float = 2.0) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale):
    ...     f = baton.get_function("doc/scale", wait=5)
    ...     f.name, f.providers, f(np.ones(2)).tolist(), f.submit(np.ones(1)).result().tolist()
    ('doc/scale', 1, [2.0, 2.0], [2.0])
    """
    return _native.get_function(session or _default.session(), named(name, version), wait)


def call(function_name: str, /, *args: Any, **named: Any) -> Any:
    """Calls a function and waits for what it returns. All keywords are the function's; for others see `get_function`.

    Raises what the function raises, as far as that is a builtin or was registered by `register_error`, else RemoteError;
    NotFound, NoProvider, ProviderDied, Cancelled, InvalidArgument for what the function does not take.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> with baton.start_functions(add):
    ...     baton.call("doc/add", 2, y=3)
    5
    """
    return _native.call(_default.session(), function_name, args, named or None)


class Namespace:
    """Functions under a common name, as attributes."""

    def __init__(self, prefix: str, session: _native.Session | None = None) -> None:
        _native.check_name(prefix)
        self._prefix, self._session = prefix, session
        self._known: dict[str, _native.Function] = {}

    def __getattr__(self, name: str) -> _native.Function:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            f = self._known[name] = get_function(f"{self._prefix}/{name}", session=self._session)
        except NotFound as e:
            raise AttributeError(str(e), name=name, obj=self) from e
        self.__dict__[name] = f
        return f

    def __dir__(self) -> list[str]:
        names = (f.name.removeprefix(f"{self._prefix}/") for f in functions(f"{self._prefix}/*", session=self._session))
        return sorted({name.split("@")[0] for name in names if "/" not in name})

    def __repr__(self) -> str:
        return f"<baton.Namespace {self._prefix}>"


def bind(prefix: str, *, session: _native.Session | None = None) -> Namespace:
    """The functions under a name as attributes: `bind("vision").normalize(x)` calls vision/normalize.

    >>> @baton.function("doc/scale")
    ... def scale(x: baton.Tensor, by: float = 2.0) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale):
    ...     baton.bind("doc").scale(np.ones(2), by=0.5).tolist()
    [0.5, 0.5]
    """
    return Namespace(prefix, session)


class _Loop:
    """An event loop in a thread of its own, made when it is first needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        with _lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self.thread = threading.Thread(target=self.loop.run_forever, name=self.name, daemon=True)
                self.thread.start()
            return self.loop

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
        self.thread.join()
        loop.close()
        self.loop = self.thread = None


_replies = _Loop("baton replies")  # of calls that are waited for later
_coroutines = _Loop("baton coroutines")  # that are provided


async def _reply(pending: _native.Pending, timeout: float | None) -> Any:
    """What a call that was sent returns."""
    try:
        (value,) = await _aio._until(pending, pending._poll, timeout, pending._wait)
        return value
    finally:
        pending._cancel()  # unless it is over


def future_of(pending: _native.Pending) -> "concurrent.futures.Future[Any]":
    """The future of a call that was sent."""
    return _replies.submit(_reply(pending, pending.timeout))


async def result_of(f: _native.Function, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Calls a function. Within a call of a coroutine it takes no longer than that may."""
    outer, timeout = _current.get(), None
    if outer is not None and (deadline := outer.deadline) is not None:
        timeout = max(deadline - time.monotonic(), 0)
        f = f.options(timeout=timeout)
    pending = f._submit(args, named)
    return await _reply(pending, pending.timeout)


class _Task:
    """Calls of a coroutine function that run in the loop."""

    def __init__(self) -> None:
        self.running: dict[asyncio.Task[None], _native.Call] = {}
        self.watching: asyncio.Task[None] | None = None

    async def watch(self, source: _aio.Source) -> None:
        """Cancels the tasks whose callers want them no more."""
        while self.running:
            try:
                await _aio._watcher(source).rung(source)
            except Closed:
                return
            for task, call in list(self.running.items()):
                if call.cancelled:
                    task.cancel()


def _take(provided: _native.Provided, f: Callable[..., Any], concurrency: int) -> None:
    """Takes calls of a coroutine function, and runs them in the loop."""
    loop = _coroutines.running()
    free = threading.Semaphore(concurrency)
    tasks = _Task()

    async def run(call: _native.Call) -> None:
        _current.set(call)
        try:
            args, named = call._arguments()
            value = await f(*args, **(named or {}))
            del args, named
        except BaseException as e:  # noqa: BLE001 - SystemExit too ends the call, and not the loop
            call._fail(e)
        else:
            call._reply(value)

    def start(call: _native.Call) -> None:
        task = loop.create_task(run(call), context=contextvars.Context())
        tasks.running[task] = call

        def over(_task: "asyncio.Task[None]") -> None:
            tasks.running.pop(task, None)
            free.release()

        task.add_done_callback(over)
        if tasks.watching is None or tasks.watching.done():
            tasks.watching = loop.create_task(tasks.watch(provided))

    while True:
        free.acquire()
        call = provided._take()
        if call is None:
            break
        loop.call_soon_threadsafe(start, call)
    free.release()
    for _ in range(concurrency):  # what runs still
        free.acquire()


def _in_child() -> None:
    """A child provides nothing, and its threads are the parent's."""
    global _lock, _started, _replies, _coroutines
    _lock = threading.RLock()
    _started = []
    _replies, _coroutines = _Loop(_replies.name), _Loop(_coroutines.name)


def _at_exit() -> None:
    """Ends all threads while the interpreter is there, which those that wait come back to."""
    while _started:
        _started[-1].close()
    _replies.end()
    _coroutines.end()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
