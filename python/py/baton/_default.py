"""This process's default session, and what fork does to it.

Ownership: one session for the process, opened by the first call that needs it; the process's end ends
it. Concurrency: any thread may call. Fork: the child gets a session of its own at its first call;
objects that it inherited can be dropped, and raise Closed where they would need the parent's session.
"""

import os
import threading

from baton import _native

_lock = threading.Lock()
_session: _native.Session | None = None


def session() -> _native.Session:
    """The default session: the broker at $BATON_ADDRESS, else the user's, started on first use."""
    global _session
    s = _session
    if s is not None and not s.closed:
        return s
    with _lock:
        if _session is None or _session.closed:
            _session = _native.Session()
        return _session


def reopen_topic(name: str, token: str) -> _native.Topic:
    """Opens a pickled topic in the default session."""
    return session().topic(name) if name else session().private_topic(token)


def reopen_queue(name: str, token: str) -> _native.Queue:
    """Opens a pickled queue in the default session."""
    return session().queue(name) if name else session().private_queue(token)


def _in_child() -> None:
    global _lock, _session
    _native.forked()
    _lock = threading.Lock()
    _session = None


os.register_at_fork(after_in_child=_in_child)
