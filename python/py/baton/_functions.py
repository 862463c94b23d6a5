"""Functions: provided by this process, and called in others.

Ownership: what `start_functions` returns provides until it is closed; at the interpreter's exit all is closed, and what
runs is waited for. Concurrency: each function runs in as many threads of its own as its concurrency says, coroutines in
one loop for all; a call that is waited for needs no thread. Fork: a child provides nothing, and functions that it has
may be called.
"""

import _thread
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from baton import _coroutines, _default, _native, _provided, _signature
from baton._errors import Conflict, InvalidArgument, NotFound
from baton._provided import Definition, Functions, place

F = TypeVar("F", bound=Callable[..., Any])


# How many seconds an interrupted start waits until what it has started is over.
_A_MOMENT = 1.0

_lock = threading.RLock()
_defined: dict[str, Definition] = {}
_beginning: set[tuple[int, str]] = set()  # by session and name, what a thread is about to provide


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
    linger: float = 0.0,
    nats: bool = False,
) -> Callable[[F], F]: ...
def function(
    name: Any = None,
    *,
    version: str | None = None,
    concurrency: int = 1,
    idempotent: bool = False,
    exclusive: bool = False,
    override: bool = False,
    linger: float = 0.0,
    nats: bool = False,
) -> Any:
    """Has a function be provided once `serve_functions` or `start_functions` runs. It can be called here as before.

    name: default module/qualname, with slashes for dots. version: stands behind it, name@version. concurrency: how many
    calls run at a time, each in a thread, or a task of an async function. idempotent: another provider runs a call
    again whose provider ended before its reply, so a call may run more than once. exclusive: one process alone
    provides it. override: takes the place of other providers.
    linger: for how many seconds it stays listed once no session has it open; calls are NoProvider all the same.
    nats: requests over NATS call it, too, by a broker that runs with --nats-functions.
    What it takes is what its annotations say; callers refuse anything else. A function that is defined again in its
    module, as by a cell that runs again, replaces the former definition; `start_functions` provides it. Raises
    InvalidArgument for what is no name and for a function of __main__, or inside another one, without a name; Conflict
    for a name that another function of this process has.

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
            full = named(_signature.name_for(f) if name is None else name, version)
        except ValueError as e:
            raise e if isinstance(e, InvalidArgument) else InvalidArgument(str(e)) from None
        if not 1 <= concurrency <= 1024:
            raise InvalidArgument(f"a concurrency of {concurrency} is not 1 to 1024")
        if not 0 <= linger < 2**32:
            raise InvalidArgument(f"a linger of {linger} seconds is not 0 or more (or 136 years)")
        d = Definition(full, f, concurrency, idempotent, exclusive, override, linger, nats)
        with _lock:
            before = _defined.get(full)
            if before is not None and place(before.function) != place(f):
                raise Conflict(
                    f"{full} is defined already, by {place(before.function)} (choose another name, or keep that of the function)"
                )
            _defined[full] = d
        return f

    return define


def named(name: str, version: str | None = None) -> str:
    """A name with its version. Raises InvalidArgument for what is none."""
    if version is not None and "@" in name:
        raise InvalidArgument(f"{name} has a version already (leave version= out)")
    full = name if version is None else f"{name}@{version}"
    _native.check_function(full)
    return full


def start_functions(*functions: Callable[..., Any] | str) -> Functions:
    """Provides the functions that were defined by `function`, in threads, until what it returns is closed.

    functions: names or functions, default all that this session does not provide yet, and those that were defined again
    since. A function that was defined again takes the place of what the session provides: what runs ends by the former
    definition, what waits runs by the new one, and the object that was returned before has it no more. If signature,
    documentation or settings differ, the process opens a session for the new one; a different signature needs that no
    other session provides it, or override. Raises Conflict if another process has registered one with another
    signature, or the session provides it by this very definition, PermissionDenied if the name is another user's.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> with baton.start_functions(add) as provided:
    ...     provided.names, baton.call("doc/add", 1, y=2)
    (['doc/add'], 3)
    """
    return _default.session().start_functions(*functions)


def start(session: _native.Session, functions: tuple[Callable[..., Any] | str, ...]) -> Functions:
    """As `start_functions`, in a session."""
    if threading.current_thread() is threading.main_thread():
        return _Start(lambda: _start(session, functions)).run()
    return _start(session, functions)


class _Start:
    """Starts functions for the main thread, in a thread of its own: an interrupt breaks off any line of the main
    thread, also the one behind a registration that has nothing noted of it yet. One that comes while the main thread
    waits here ends what was started."""

    def __init__(self, begin: Callable[[], Functions]) -> None:
        self._begin, self._wanted = begin, True
        self._made: Functions | None = None
        self._error: BaseException | None = None
        self._over = _thread.allocate_lock()
        self._over.acquire()

    def run(self) -> Functions:
        """Raises what the start raises, and what an interrupt does."""
        try:
            # It runs or it does not, while an interrupt may leave a Thread in between.
            _thread.start_new_thread(self._work, ())
            self._over.acquire()
            if self._made is not None:
                return self._made
        except BaseException:
            self._wanted = False
            self._over.acquire(timeout=_A_MOMENT)  # where no broker answers, the thread ends the functions later
            if self._made is not None:
                self._made.close()
            raise
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:
            del error  # whose traceback has this frame

    def _work(self) -> None:
        try:
            self._made = self._begin()
            if not self._wanted:
                self._made.close()
        except BaseException as e:  # noqa: BLE001 - it is raised where it was waited for
            self._error = e
        finally:
            self._over.release()


def _start(session: _native.Session, functions: tuple[Callable[..., Any] | str, ...]) -> Functions:
    with _lock:
        if functions:
            chosen = list({d.name: d for f in functions for d in _definitions(f)}.values())
            if twice := [d.name for d in chosen if (id(session), d.name) in _beginning]:
                raise Conflict(f"another thread starts {twice[0]} in this session (start it once)")
        else:
            chosen = [d for d in _defined.values() if _is_new(d, session)]
        mine = {(id(session), d.name) for d in chosen}
        _beginning.update(mine)
    try:
        return Functions(chosen, session)
    finally:
        with _lock:
            _beginning.difference_update(mine)


def _is_new(d: Definition, session: _native.Session) -> bool:
    """Whether a session does not provide a definition yet, or a former one of the same function."""
    if (id(session), d.name) in _beginning:
        return False
    has = _provided.of_name(d.name, session)
    return has is None or (has is not d and place(has.function) == place(d.function))


def _definitions(f: Callable[..., Any] | str) -> list[Definition]:
    """That of a name, or those of a function, which may have several names."""
    if found := [d for d in _defined.values() if f == d.name or f is d.function]:
        return found
    raise NotFound(f"{f} was not defined here (decorate it with baton.function)")


def serve_functions(*functions: Callable[..., Any] | str) -> None:
    """As `start_functions`, until the process is interrupted (Ctrl-C), which ends it without an error, or none is
    provided any more; then it waits for those that run. Raises SessionLost if the broker has ended the session.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> server = threading.Thread(target=baton.serve_functions, args=[add])
    >>> server.start()  # a program calls it in its main thread, at its end
    >>> baton.get_function("doc/add", wait=60)(1), baton.remove_function("doc/add")
    (2, 1)
    >>> server.join()
    """
    _default.session().serve_functions(*functions)


def serve(session: _native.Session, functions: tuple[Callable[..., Any] | str, ...]) -> None:
    """As `serve_functions`, in a session."""
    with start(session, functions) as started, contextlib.suppress(KeyboardInterrupt):
        started.join()


def remove_function(name: str, *, version: str | None = None, everywhere: bool = False) -> int:
    """Provides a function no more: it takes no more calls, and what runs is waited for. How many providers ended.

    What other sessions of the process provide goes on. everywhere: ends all registrations, those of other sessions and
    processes too. Raises NotFound if there is none, PermissionDenied.

    >>> @baton.function("doc/add")
    ... def add(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> with baton.start_functions(add):
    ...     baton.remove_function("doc/add"), baton.functions("doc/add")[0].providers
    (1, [])
    """
    return _default.session().remove_function(name, version=version, everywhere=everywhere)


def remove(session: _native.Session, name: str, version: str | None, everywhere: bool) -> int:
    """As `remove_function`, of a session."""
    full = named(name, version)
    if everywhere:
        return _native.remove_function_everywhere(session, full)
    with _lock:
        all = _provided.of(session)
    n = sum(started.remove(full) for started in all)
    if n == 0:
        raise NotFound(f"{full} is not provided by this session (everywhere=True removes it everywhere)")
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
    return _native.current_call() or _coroutines.current.get()


@dataclass(frozen=True)
class ProviderInfo:
    """A session that provides a function. What it says of the calls that ended: how many, errors, and the seconds
    within which half of them ended (p50), and 99 of 100 (p99): at most a quarter more than the time itself, None
    without calls.

    >>> @baton.function("doc/provided")
    ... def provided_here() -> int:
    ...     return 1
    >>> with baton.start_functions(provided_here):
    ...     _ = baton.call("doc/provided")
    ...     (provider,) = baton.functions("doc/provided")[0].providers
    >>> provider.uid == os.getuid(), provider.calls, provider.errors, provider.p50 <= provider.p99
    (True, 1, 0, True)
    """

    session: int
    name: str
    pid: int
    concurrency: int
    running: int
    stopped: bool
    uid: int = 0
    calls: int = 0
    errors: int = 0
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class FunctionInfo:
    """A function as the broker lists it. The counts, p50 and p99 are as those of `ProviderInfo`, of all its providers,
    also of those that have left.

    >>> @baton.function("doc/counted")
    ... def counted() -> int:
    ...     return 1
    >>> with baton.start_functions(counted):
    ...     _ = baton.call("doc/counted")
    ...     (info,) = baton.functions("doc/counted")
    >>> info.calls, info.errors, info.p50 is not None, info.p99 is not None
    (1, 0, True, True)
    """

    name: str
    signature: str
    doc: str
    idempotent: bool
    exclusive: bool
    callers: int
    waiting: int
    running: int
    calls: int = 0
    errors: int = 0
    p50: float | None = None
    p99: float | None = None
    providers: list[ProviderInfo] = field(default_factory=list)


def functions(pattern: str = "") -> list[FunctionInfo]:
    """The functions that are registered, by name; `*` in the pattern stands for any characters.

    >>> @baton.function("doc/scale")
    ... def scale(x: baton.Tensor, by: float = 2.0) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale):
    ...     [(f.name, f.signature, len(f.providers)) for f in baton.functions("doc/sca*")]
    [('doc/scale', '(x: tensor, by: float = 2.0) -> tensor', 1)]
    """
    return _default.session().functions(pattern)


def listed(session: _native.Session, pattern: str) -> list[FunctionInfo]:
    """As `functions`, of a session."""
    rows = sorted(_native.list_functions(session, pattern))
    return [FunctionInfo(*row[:-2], *row[-2], [ProviderInfo(*p[:-1], *p[-1]) for p in row[-1]]) for row in rows]


def get_function(name: str, *, version: str | None = None, wait: float | None = None) -> _native.Function:
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
    if wait is None:
        return _default.session().get_function(name, version=version)
    session, left = _default.within(wait)
    found = session.get_function(name, version=version, wait=left)
    return found if left == wait else found.options(wait=wait)


def get(session: _native.Session, name: str, version: str | None, wait: float | None) -> _native.Function:
    """As `get_function`, of a session."""
    return _native.get_function(session, named(name, version), wait)


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
    return _default.session().call(function_name, *args, **named)


def functions_of(
    obj: Any,
    prefix: str,
    *,
    concurrency: int = 1,
    idempotent: bool = False,
    exclusive: bool = False,
    override: bool = False,
    linger: float = 0.0,
    nats: bool = False,
) -> list[Callable[..., Any]]:
    """Has the public methods of an object be provided under a name, as `function` does, each as prefix/method.

    All have the same settings; a method that is to have others is given to `function` itself. Names that begin with an
    underscore, classes and what is no method are left out. It returns the methods, for `start_functions`.

    >>> class Counter:
    ...     def __init__(self):
    ...         self.n = 0
    ...     def add(self, n: int = 1) -> int:
    ...         self.n += n
    ...         return self.n
    >>> with baton.start_functions(*baton.functions_of(Counter(), "doc/counter")):
    ...     counter = baton.bind("doc/counter")
    ...     counter.add(), counter.add(5)
    (1, 6)
    """
    _native.check_name(prefix)
    methods = []
    for name in dir(obj):
        static = inspect.getattr_static(obj, name)
        if name.startswith("_") or not inspect.isroutine(static):
            continue
        settings: dict[str, Any] = {
            "idempotent": idempotent,
            "exclusive": exclusive,
            "override": override,
            "linger": linger,
            "nats": nats,
        }
        method = getattr(obj, name)
        if isinstance(static, staticmethod):
            # It is one function for all objects, and `start_functions` goes by the function that it is given.
            method = functools.partial(method)
        methods.append(function(f"{prefix}/{name}", concurrency=concurrency, **settings)(method))
    if not methods:
        raise InvalidArgument(f"{obj!r} has no public methods")
    return methods


class Namespace:
    """Functions under a common name, as attributes."""

    def __init__(self, prefix: str, session: _native.Session | None = None) -> None:
        """session: whose functions; None: at each look those of the default session."""
        _native.check_name(prefix)
        self._prefix, self._session = prefix, session
        self._known: dict[str, _native.Function] = {}

    def __getattr__(self, name: str) -> _native.Function:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            f = self._known[name] = self._in().get_function(f"{self._prefix}/{name}")
        except NotFound as e:
            raise AttributeError(str(e), name=name, obj=self) from e
        self.__dict__[name] = f
        return f

    def __dir__(self) -> list[str]:
        names = (f.name.removeprefix(f"{self._prefix}/") for f in self._in().functions(f"{self._prefix}/*"))
        return sorted({name.split("@")[0] for name in names if "/" not in name})

    def _in(self) -> _native.Session:
        return self._session or _default.session()

    def __reduce__(self) -> Any:
        return Namespace, (self._prefix, self._session)

    def __repr__(self) -> str:
        return f"<baton.Namespace {self._prefix}>"


def bind(prefix: str) -> Namespace:
    """The functions under a name as attributes: `bind("vision").normalize(x)` calls vision/normalize.

    >>> @baton.function("doc/scale")
    ... def scale(x: baton.Tensor, by: float = 2.0) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale):
    ...     baton.bind("doc").scale(np.ones(2), by=0.5).tolist()
    [0.5, 0.5]
    """
    return Namespace(prefix)


def _in_child() -> None:
    """What another thread held is the parent's."""
    global _lock
    _lock = threading.RLock()
    _beginning.clear()


os.register_at_fork(after_in_child=_in_child)
