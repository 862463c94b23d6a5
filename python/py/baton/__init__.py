"""Pass the handle, not the tensor: hands tensors to other processes of this machine without copies.

    import baton

    t = baton.topic("batches")
    t.send({"image": x, "label": y})           # in one process
    for m in t.reader():                       # in another
        m["image"].numpy()

Ownership: a tensor counts a reference, which its end, or the end of the last array made from it, gives
back; what was sent is held for its receivers. Concurrency: every object may be used from any thread;
waits let the interpreter go and answer Ctrl-C. Hostile peers: what another process wrote is checked,
and raises an error. Death: what a process held is given back when it dies in any way; what it sent is
still received.
"""

from typing import Any

from baton import _default
from baton._errors import (
    BrokerLost,
    Busy,
    Closed,
    Conflict,
    Empty,
    Error,
    Expired,
    Full,
    InternalError,
    InvalidArgument,
    InvalidHandle,
    NoBroker,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    QuotaExceeded,
    ReadOnly,
    Timeout,
    TooMany,
    Unsupported,
    VersionError,
)
from baton._native import Bundle, Handle, Message, Queue, Reader, Session, Tensor, Topic, Watch

__all__ = [
    "BrokerLost", "Bundle", "Busy", "Closed", "Conflict", "Empty", "Error", "Expired", "Full", "Handle",
    "InternalError", "InvalidArgument", "InvalidHandle", "Message", "NoBroker", "NotFound", "OutOfMemory",
    "PermissionDenied", "ProtocolError", "Queue", "QuotaExceeded", "ReadOnly", "Reader", "Session", "Tensor",
    "Timeout", "TooMany", "Topic", "Unsupported", "VersionError", "Watch", "connect", "delete", "empty", "full",
    "get", "names", "open", "queue", "set", "share", "stats", "topic", "watch", "zeros",
]  # fmt: skip


def connect(
    address: str | None = None, namespace: str | None = None, start: bool = True, timeout: float | None = 30.0
) -> Session:
    """Opens a session of its own; the functions of this module use the process's default one.

    address: the broker's socket. Without one: $BATON_ADDRESS (a broker is awaited there, never started),
    else the user's broker, which is started unless start=False. namespace: where names live, default
    $BATON_NAMESPACE or "default". Raises NoBroker.
    """
    return Session(address=address, namespace=namespace, start=start, timeout=timeout)


def empty(shape: Any, dtype: Any = "float32") -> Tensor:
    """A tensor to fill: shared memory aligned to 256 bytes, with whatever was there before.

    Raises OutOfMemory, QuotaExceeded, InvalidArgument.
    """
    return _default.session().empty(shape, dtype)


def zeros(shape: Any, dtype: Any = "float32") -> Tensor:
    """A tensor of zeros. Errors as of `empty`."""
    return _default.session().zeros(shape, dtype)


def full(shape: Any, value: Any, dtype: Any = None) -> Tensor:
    """A tensor of one value; without a dtype that of the value. Errors as of `empty`."""
    return _default.session().full(shape, value, dtype)


def share(a: Any, copy: bool | None = None) -> Tensor:
    """Copies an array (anything with `__dlpack__` or a buffer) once into shared memory.

    A tensor of Baton's is given back as it is. copy=True always copies, copy=False refuses what would
    have to be. Raises TypeError for what is no array, OutOfMemory.
    """
    return _default.session().share(a, copy)


def topic(name: str | None = None, **options: Any) -> Topic:
    """Opens or makes a topic: each reader sees every message. See `Session.topic` for the options."""
    return _default.session().topic(name, **options)


def queue(name: str | None = None, **options: Any) -> Queue:
    """Opens or makes a queue: each item to one taker. See `Session.queue` for the options."""
    return _default.session().queue(name, **options)


def set(name: str, value: Any, *, live: bool = False, ephemeral: bool = False) -> int:
    """Publishes a revision of a name and returns its number. See `Session.set`."""
    return _default.session().set(name, value, live=live, ephemeral=ephemeral)


def get(name: str, timeout: float | None = 0.0) -> Bundle:
    """The newest revision of a name, waiting `timeout` seconds for one. Raises NotFound."""
    return _default.session().get(name, timeout)


def watch(name: str) -> Watch:
    """Follows a name: the current revision at once, then always the newest."""
    return _default.session().watch(name)


def names(pattern: str = "") -> list[str]:
    """The names that are set; in a pattern * stands for any run of characters."""
    return _default.session().names(pattern)


def delete(name: str) -> None:
    """Removes a name; what was got of it stays. Raises NotFound."""
    _default.session().delete(name)


def open(handle: Handle | str, readonly: bool = False) -> Tensor:
    """The tensor of a handle, or of its JSON. Raises Expired, InvalidHandle."""
    return _default.session().open(handle, readonly=readonly)


def stats() -> dict[str, int]:
    """What this process's default session has and did."""
    return _default.session().stats()
