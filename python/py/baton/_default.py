"""This process's sessions: the default one, those that pickles lead to, and what fork does to them.

Ownership: one default session for the process, opened by the first call that needs it; the process's
end ends it. If a broker ends it before, one call raises SessionLost, and the next that needs a session
opens another. Concurrency: any thread may call. Fork: the sessions stay as they are here, and lead to
sessions of the child's own.
"""

import atexit
import os
import sys
import threading
import time

from baton import _native
from baton._errors import NoBroker

# A broker's socket and a namespace.
Place = tuple[str, str]

_lock = threading.RLock()  # a finalizer may open one as well
_session: _native.Session | None = None
_others: dict[Place, _native.Session] = {}


def session(timeout: float | None = 30.0) -> _native.Session:
    """The default session: the broker at $BATON_ADDRESS, else the user's, started on first use."""
    global _session
    s = _session
    if s is not None and not s.closed:
        return s
    until = None if timeout is None else time.monotonic() + timeout
    if not _lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)):
        raise NoBroker("another thread is still opening the session (give it more time)")
    try:
        if _session is None or _session.closed:
            if _session is not None:
                _session._say_lost()  # once; after that error the module goes on with another session
            _session = _native.Session(timeout=None if until is None else max(until - time.monotonic(), 0))
            _native.set_default(_session)
        return _session
    finally:
        _lock.release()


def within(timeout: float | None) -> tuple[_native.Session, float | None]:
    """The default session for a call with a timeout, and what is left of that.

    The broker is awaited no longer than the call may take. One that only polls waits for nothing else,
    and for the broker as a call without a timeout does.
    """
    s = _session
    if s is not None and not s.closed:
        return s, timeout
    if timeout is None:
        return session(None), None
    if not timeout > 0:
        return session(), timeout
    until = time.monotonic() + timeout
    return session(timeout), max(until - time.monotonic(), 0)


def program() -> str:
    """What listings call a session that is not named: the script, or the module that runs."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name != "__main__":
        name = spec.name.removesuffix(".__main__")
    else:
        name = os.path.basename(sys.argv[0]) if sys.argv else ""
        if name == "-":
            name = "python (stdin)"
    return name.encode(errors="replace")[:48].decode(errors="ignore") if name not in ("", "-c") else "python"


def session_at(address: str, namespace: str) -> _native.Session:
    """The session with a broker and namespace that a pickle names; the default one where that is it."""
    default = os.environ.get("BATON_NAMESPACE") or "default"
    if (address, namespace) in (("", ""), (_native.default_address(), default)):
        return session()
    with _lock:
        s = _others.get((address, namespace))
        if s is None or s.closed:
            if s is not None:
                s._say_lost()
            s = _others[address, namespace] = _native.Session(address, namespace)
        return s


def reopen_tensor(handle: str, place: Place) -> _native.Tensor:
    """Opens a pickled tensor."""
    return session_at(*place).open(handle)


def reopen_bundle(
    handles: list[str], names: list[str], tree: bytes, meta: bytes, revision: int, live: bool, place: Place
) -> _native.Bundle:
    """Opens a pickled bundle."""
    return _native.open_bundle(session_at(*place), handles, names, tree, meta, revision, live)


def reopen_topic(name: str, token: str, place: Place) -> _native.Topic:
    """Opens a pickled topic."""
    s = session_at(*place)
    return s.topic(name) if name else s._private_topic(token)


def reopen_queue(name: str, token: str, place: Place) -> _native.Queue:
    """Opens a pickled queue."""
    s = session_at(*place)
    return s.queue(name) if name else s._private_queue(token)


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held the parent's


os.register_at_fork(after_in_child=_in_child)
# What streams of this process have not written when it ends is lost with it, though it was sent.
atexit.register(_native.finish_devices)
