"""Functions that this process provides: their registrations, and the threads that run their calls.

Concurrency: any thread may wait for the end of functions. A thread is joined only once its work is over: CPython before
3.13 takes a thread for one that has ended once an interrupt breaks off a join of it, and then nothing waits for it any
more. Fork: a child provides nothing, and waits for nothing of its parent's.
"""

import atexit
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

from baton import _calls, _coroutines, _native, _signature
from baton._errors import Conflict


@dataclasses.dataclass(frozen=True)
class Definition:
    """A function that is to be provided."""

    name: str
    function: Callable[..., Any]
    concurrency: int = 1
    idempotent: bool = False
    exclusive: bool = False
    override: bool = False
    linger: float = 0
    nats: bool = False


_changed = threading.Condition()  # the work of a thread is over, or functions have changed hands
_started: "list[Functions]" = []

# A signal that comes as a wait begins to sleep does not wake it: the handler runs after so many seconds.
_LOOK = 0.5


def place(f: Callable[..., Any]) -> str:
    """Where a function is defined."""
    return f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', '')}"


class _Worker(threading.Thread):
    """A thread that runs calls."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=f"baton {name}", daemon=True)
        self.work: Callable[[], None] | None = work
        self.over = False

    def run(self) -> None:
        assert self.work is not None
        try:
            self.work()
        finally:
            self.work = None  # it has the function open
            with _changed:
                self.over = True
                _changed.notify_all()


class _Registration:
    """A function that a session provides."""

    def __init__(self, d: Definition, session: _native.Session, override: bool) -> None:
        self.definition, self.session, self.pid = d, session, os.getpid()
        self.has_own_session = False  # which ends with it
        self.description = _signature.describe(d.function, d.nats)
        self.is_async = _is_async(d.function)
        self.parts = _signature.gives_parts(d.function)
        self.code = [_signature.adapted(d.function)]  # a list: each call takes what stands there as it begins
        self.workers: list[_Worker] = []
        known = weakref.ref(self)  # what is registered has `another`, and must not have itself

        def another() -> bool:
            """Starts one thread more, while one waits until its caller takes parts."""
            r = known()
            if r is None:
                return False
            r._begin()
            return True

        self.provided = _native.provide(
            session,
            d.name,
            self.description,
            d.concurrency,
            d.idempotent,
            d.exclusive,
            override,
            d.linger,
            None if self.is_async else another,
        )

    def start(self) -> Self:
        """Takes calls."""
        for _ in range(1 if self.is_async else self.definition.concurrency):
            self._begin()
        return self

    def _begin(self) -> None:
        worker = _Worker(self.definition.name, self._work)
        worker.start()
        with _changed:
            self.workers = [*(w for w in self.workers if not w.over), worker]

    def _work(self) -> None:
        if self.is_async:
            _coroutines.take(self.provided, self.code, self.definition.concurrency, self.parts)
        else:
            self.provided._work(self.code, self.parts)

    def is_over(self) -> bool:
        """Whether its threads do nothing any more, other than this one. The caller has `_changed`."""
        if self.pid != os.getpid():
            return True
        return self._runs_here() or all(w.over or w is threading.current_thread() for w in self.workers)

    def _runs_here(self) -> bool:
        """Whether this thread runs coroutines, of which it cannot await one."""
        return self.is_async and _coroutines.is_here()

    def is_called_here(self) -> bool:
        """Whether this thread is one that runs its calls."""
        return self._runs_here() or threading.current_thread() in self.workers

    def may_become(self, d: Definition) -> bool:
        """Whether calls may run by another definition, with nothing that the broker has to be told."""
        settings = dataclasses.replace(d, function=self.definition.function, override=self.definition.override)
        return (
            settings == self.definition
            and self.description == _signature.describe(d.function, d.nats)
            and self.is_async == _is_async(d.function)
            and not (d.override and not _is_sole(d.name, self.session))
        )

    def become(self, d: Definition) -> None:
        """What begins from now on runs by another definition."""
        self.definition, self.code[0] = d, _signature.adapted(d.function)

    def replaced(self, d: Definition) -> "_Registration":
        """Its successor, which takes all calls from here on; those that run here go on. A session cannot have a function
        twice, so the successor has one of its own. Raises Conflict, which changes nothing."""
        override = d.override or _is_sole(d.name, self.session)
        own = _native.Session(self.session.address, self.session.namespace, start=False)
        try:
            successor = _Registration(d, own, override)
        except BaseException:
            own.close()
            raise
        successor.has_own_session = True
        successor.start()
        self.provided._close()
        return successor


def _is_async(f: Callable[..., Any]) -> bool:
    return _signature.is_async(f)


def _is_sole(name: str, session: _native.Session) -> bool:
    """Whether no other session provides a function."""
    found = [row for row in _native.list_functions(session, name) if row[0] == name]
    return all(provider[0] == session.serial for row in found for provider in row[-1])


def end(registrations: Iterable[_Registration]) -> None:
    """Takes no more calls, and waits for those that run. What one of them calls it from is not waited for."""
    all = list(registrations)
    for r in all:
        r.provided._close()
    _wait(lambda: all)
    for r in all:
        for w in r.workers:
            if w.over and r.pid == os.getpid() and w is not threading.current_thread():
                w.join()
        if r.has_own_session and r.pid == os.getpid() and not r.is_called_here():
            r.session.close()


def _wait(which: Callable[[], Iterable[_Registration]]) -> None:
    """Waits until the work of registrations is over. An interrupt ends the wait, and no more."""
    with _changed:
        while not _changed.wait_for(lambda: all(r.is_over() for r in which()), _LOOK):
            pass


class Functions:
    """Functions that this process provides, until they are closed.

    >>> @baton.function("doc/plus")
    ... def plus(x: int, y: int = 1) -> int:
    ...     return x + y
    >>> provided = baton.start_functions(plus)
    >>> provided.names, baton.call("doc/plus", 2), provided.remove("doc/plus"), provided.names
    (['doc/plus'], 3, True, [])
    >>> provided.close()
    >>> provided.join()  # at once: it takes no calls any more
    """

    def __init__(self, definitions: Iterable[Definition], session: _native.Session) -> None:
        self._all: dict[str, _Registration] = {}
        self._ending: list[_Registration] = []
        self._session = session
        former = _provided_by(session)
        with _changed:
            _started.append(self)
        try:
            self._start([(d, *former.get(d.name, (None, None))) for d in definitions])
        except BaseException:
            self.close()
            raise

    def _start(self, all: "list[tuple[Definition, Functions | None, _Registration | None]]") -> None:
        """Provides definitions: anew, or in the place of what the session provides under their names."""
        for d, _, r in all:
            if r is not None:
                _check_replaceable(r, d)
        for d, _, r in all:
            if r is not None and not r.provided.current:
                end([r])
            if r is None or not r.provided.current:
                self._all[d.name] = _Registration(d, self._session, d.override)
                self._all[d.name].start()
        again = [
            (d, owner, r) for d, owner, r in all if owner is not None and r is not None and d.name not in self._all
        ]
        for d, owner, r in again:
            if not r.may_become(d):
                successor = r.replaced(d)
                with _changed:
                    owner._all[d.name] = successor
                    owner._ending.append(r)
        # What may fail is over: it has left the functions where they were.
        with _changed:
            for d, owner, _ in again:
                r = owner._all.pop(d.name, None)
                if r is None:
                    continue  # it was removed meanwhile
                self._all[d.name] = r
                if r.definition is not d:
                    r.become(d)
            _changed.notify_all()

    @property
    def names(self) -> list[str]:
        """Those that take calls still: not those that were removed, replaced by another provider, or defined and started
        anew."""
        return [name for name, r in list(self._all.items()) if r.provided.current]

    def remove(self, name: str) -> bool:
        """Takes no more calls of one, and waits for those that run. Whether it was provided."""
        with _changed:
            found = self._all.pop(name, None)
            if found is not None:
                self._ending.append(found)
        if found is not None:
            self._end([found])
        return found is not None

    def join(self) -> None:
        """Waits until none takes calls any more: all were closed, removed or replaced, or the session was closed.

        Raises SessionLost if the broker has ended the session.
        """
        _wait(lambda: [*self._all.values(), *self._ending])
        self._session._check_lost()

    def close(self) -> None:
        """Takes no more calls, and waits for those that run. A call that itself calls this is not waited for. If an
        interrupt ends the wait, the interpreter's exit waits for them, as does another call of this."""
        with _changed:
            self._ending += self._all.values()
            self._all.clear()
            all = list(self._ending)
        self._end(all)
        with _changed:
            if self in _started:
                _started.remove(self)

    def _end(self, all: list[_Registration]) -> None:
        end(all)
        with _changed:
            self._ending = [r for r in self._ending if r not in all]  # which have the functions open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<baton.Functions {', '.join(self._all) or '(none)'}>"


def _provided_by(session: _native.Session) -> dict[str, tuple[Functions, _Registration]]:
    """What a session provides, and what ends still, with what it was started by."""
    found = {}
    with _changed:
        for started in of(session):
            for r in [*started._ending, *started._all.values()]:
                found[r.definition.name] = started, r
    return found


def _check_replaceable(r: _Registration, d: Definition) -> None:
    """Raises Conflict where a definition cannot take the place of what the session provides."""
    if r.is_called_here():
        raise Conflict(f"{d.name} runs in this thread, whose session provides it already (start it in another thread)")
    if not r.provided.current:
        return
    if r.definition is d:
        what = "close what start_functions has returned, or define the function anew"
        raise Conflict(f"{d.name} is provided by this session already ({what})")
    if place(r.definition.function) != place(d.function):
        by = place(r.definition.function)
        raise Conflict(f"{d.name} is provided by this session already, by {by} (close that, or choose another name)")


def of(session: _native.Session) -> list[Functions]:
    """What was started in a session."""
    return [started for started in _started if started._session is session]


def of_name(name: str, session: _native.Session) -> Definition | None:
    """What a session provides under a name."""
    found = _provided_by(session).get(name)
    return found[1].definition if found is not None and found[1].provided.current else None


def _at_exit() -> None:
    """Ends all threads while the interpreter is there, which those that wait come back to."""
    with _calls.ending():  # else a function may wait for the end of a call that waits for it
        while _started:
            _started[-1].close()
    _calls.end()
    _coroutines.end()


def _in_child() -> None:
    """A child provides nothing, and its threads are the parent's."""
    global _changed, _started
    _changed = threading.Condition()
    _started = []


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
