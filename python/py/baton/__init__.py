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

Times are in seconds: a timeout of None waits without a limit, 0 does not wait. Leaving: `close` of a topic
or queue, and the end of a `with` over one, closes it for all processes; dropping the object leaves it open
for the others.

Errors: every call of a session, and of what was made with it, may raise Closed once the session was closed,
SessionLost once a broker has ended it, and BrokerLost or Timeout if it needs a broker and none answers; those
of this module, which may open the session first, also what `connect` raises. A value of a wrong type raises
TypeError. A docstring names what its function raises besides.
"""

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton import _default, _native
from baton._errors import (
    BrokerLost,
    Busy,
    Cancelled,
    Closed,
    Conflict,
    Empty,
    Error,
    Expired,
    Full,
    HostLost,
    InternalError,
    InvalidArgument,
    InvalidHandle,
    NoBroker,
    NoProvider,
    NotFound,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    ProviderDied,
    QuotaExceeded,
    ReadOnly,
    RemoteError,
    SessionLost,
    Timeout,
    TooMany,
    Unreachable,
    Unsupported,
    VersionError,
    register_error,
)
from baton._native import (
    Bundle,
    Call,
    Function,
    Handle,
    Message,
    Parts,
    Queue,
    Reader,
    Session,
    Tensor,
    Topic,
    Watch,
    __version__,
    wait_any,
)
from baton._pickle import pickle_handles

__all__ = [
    "BrokerLost", "Bundle", "Busy", "Call", "Cancelled", "Closed", "Conflict", "Empty", "Error", "Expired", "Full",
    "Function", "FunctionInfo", "Functions", "Handle", "HostLost", "InternalError", "InvalidArgument",
    "InvalidHandle", "Message", "Namespace", "NoBroker", "NoProvider", "NotFound", "OutOfMemory", "Parts",
    "PermissionDenied", "ProtocolError", "ProviderDied", "ProviderInfo", "Queue", "QuotaExceeded", "ReadOnly",
    "Reader", "RemoteError", "Session", "SessionLost", "Tensor", "Timeout", "TooMany", "Topic", "Unreachable",
    "Unsupported", "VersionError", "Watch", "__version__", "bind", "call", "connect", "current_call", "delete",
    "empty", "empty_like", "full", "function", "functions", "functions_of", "get", "get_function", "load", "names",
    "open", "pickle_handles", "queue", "register_error", "remove_function", "serve_functions", "set", "share",
    "start_functions", "stats", "topic", "wait_any", "watch", "zeros",
]  # fmt: skip

if TYPE_CHECKING:
    from baton._functions import (
        FunctionInfo,
        Namespace,
        ProviderInfo,
        bind,
        call,
        current_call,
        function,
        functions,
        functions_of,
        get_function,
        remove_function,
        serve_functions,
        start_functions,
    )
    from baton._provided import Functions

# What is imported when it is first used: asyncio and others that it needs take longer than all of this package.
_LATER = frozenset({
    "FunctionInfo", "Functions", "Namespace", "ProviderInfo", "bind", "call", "current_call", "function", "functions",
    "functions_of", "get_function", "remove_function", "serve_functions", "start_functions",
})  # fmt: skip

Mapping.register(Bundle)


def __getattr__(name: str) -> Any:
    if name == "torch":  # baton.torch without importing torch before
        return importlib.import_module("baton.torch")
    if name in _LATER:
        found = globals()[name] = getattr(importlib.import_module("baton._functions"), name)
        return found
    raise AttributeError(f"module 'baton' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, for completion: without what this file imports for itself."""
    return [*__all__, "torch"]


def connect(
    address: str | None = None, namespace: str | None = None, start: bool = True, timeout: float | None = 30.0
) -> Session:
    """Opens a session of its own; the functions of this module use the process's default one.

    address: the broker's socket. Without one: $BATON_ADDRESS (a broker is awaited there, never started),
    else the user's broker, which is started unless start=False. namespace: where names live, default
    $BATON_NAMESPACE or "default". timeout: seconds to wait for the broker; None: no limit. Any thread may use
    the session; `close`, or the end of a `with`, ends it. Raises NoBroker, Timeout of a broker that does not
    answer, VersionError, PermissionDenied, TooMany.

    >>> with baton.connect(namespace="doc") as s:
    ...     s.namespace, s.names()
    ('doc', [])
    """
    return Session(address=address, namespace=namespace, start=start, timeout=timeout)


def empty(
    shape: Any,
    dtype: Any = "float32",
    *,
    timeout: float | None = 0.0,
    pages: str | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor to fill: shared memory aligned to 256 bytes, with whatever was there before.

    timeout: how many seconds to wait for memory if it is full; None: no limit. pages: "2M" or "1G", to
    lie in huge pages of those that the machine has reserved (`baton doctor` shows them). device: a GPU,
    "cuda:0" as this process counts or "cuda:GPU-…". Raises OutOfMemory, QuotaExceeded, InvalidArgument;
    Unsupported without a driver or such pages, NotFound for a GPU that is not there.

    >>> x = baton.empty((2, 3), "int16")
    >>> x.shape, x.dtype, x.nbytes
    ((2, 3), 'int16', 12)
    """
    return _native.empty(shape, dtype, timeout, pages, device)


def zeros(
    shape: Any,
    dtype: Any = "float32",
    *,
    timeout: float | None = 0.0,
    pages: str | None = None,
    device: str | None = None,
    stream: Any = None,
) -> Tensor:
    """A tensor of zeros. Errors, timeout and pages as of `empty`.

    On a GPU a stream writes them (None: the legacy default one; a number, or torch's or CuPy's stream),
    and other streams that the tensor is given to wait for it.

    >>> baton.zeros(3).numpy().tolist()
    [0.0, 0.0, 0.0]
    """
    s, timeout = _default.within(timeout)
    return s.zeros(shape, dtype, timeout=timeout, pages=pages, device=device, stream=stream)


def full(
    shape: Any,
    value: Any,
    dtype: Any = None,
    *,
    timeout: float | None = 0.0,
    pages: str | None = None,
    device: str | None = None,
    stream: Any = None,
) -> Tensor:
    """A tensor of one value; without a dtype that of the value. Errors, timeout, pages and device as of `zeros`.

    >>> baton.full((2,), 7).numpy().tolist(), baton.full((2,), 7).dtype
    ([7, 7], 'int64')
    """
    s, timeout = _default.within(timeout)
    return s.full(shape, value, dtype, timeout=timeout, pages=pages, device=device, stream=stream)


def empty_like(a: Any, *, timeout: float | None = 0.0, pages: str | None = None) -> Any:
    """Room for a tensor like an array, or for a Bundle like a nested structure, in one storage.

    It is C-contiguous, whatever the array is. timeout, pages and errors as of `empty`. Like an array on a GPU it lies
    on that.

    >>> b = baton.empty_like({"w": np.zeros((2, 3)), "b": np.zeros(3)})
    >>> {path: t.shape for path, t in b.items()}
    {'w': (2, 3), 'b': (3,)}
    """
    s, timeout = _default.within(timeout)
    return s.empty_like(a, timeout=timeout, pages=pages)


def share(a: Any, copy: bool | None = None, *, device: str | None = None, stream: Any = None) -> Any:
    """Copies an array (anything with `__dlpack__` or a buffer) once into shared memory: a Tensor.

    Of a nested structure (dict, list, tuple, dataclass) all arrays are copied into one storage: a Bundle.
    What lies in shared memory already is referenced; copy=True copies it too, copy=False refuses what
    must be copied. An array on a GPU stays on it; there copy=False lends it as it lies, as long as this
    process lives, to processes that have it then; later that raises Expired. It is kept while it is held, and
    refused with Unsupported if the driver cannot lend it. device: copies one array to that device, by a
    stream. Raises TypeError for what is no array, OutOfMemory, InvalidArgument.

    >>> baton.share(np.arange(3)).numpy().tolist()
    [0, 1, 2]
    >>> baton.share({"x": np.arange(3), "y": [np.ones(2)]}).keys()
    ['x', 'y/0']
    """
    return _default.session().share(a, copy, device=device, stream=stream)


def load(path: "str | os.PathLike[str]") -> Any:
    """The tensor of a .npy, or the Bundle of a .npz or .safetensors: the file mapped, read-only.

    Nothing is read until it is looked at, and processes that load one file share its pages. Sending
    copies once. Replace such a file by renaming a new one over it; one that is cut short ends its
    readers. Raises FileNotFoundError and other OSErrors, InvalidArgument for what is no such file.

    >>> path = os.path.join(tempfile.mkdtemp(), "x.npz")
    >>> np.savez(path, x=np.arange(3), y=np.ones((2, 2)))
    >>> {name: t.shape for name, t in baton.load(path).items()}
    {'x': (3,), 'y': (2, 2)}
    """
    return _default.session().load(path)


def topic(
    name: str | None = None,
    *,
    depth: int | None = None,
    overwrite: bool | None = None,
    description: int | None = None,
    linger: float | None = None,
    create: bool = True,
) -> Topic:
    """Opens or makes a topic: each reader sees every message. Without a name: a private one.

    name: tokens of A-Z a-z 0-9 _ - joined by /, as of every name, 200 bytes at most.
    depth: how many messages of each sender are kept (default 8). overwrite=False: lossless, `send`
    waits for the slowest reader. description: bytes that a message's description has in place (default
    1024; a longer one costs a storage). linger: seconds that it stays after its last user (default 60).
    create=False: only what exists. Options left out take what exists. Raises Conflict, InvalidArgument,
    NotFound, TooMany.

    >>> t = baton.topic(depth=2)
    >>> for i in range(3):
    ...     t.send({"x": np.arange(i)}, meta={"i": i})
    >>> [m.meta["i"] for m in (t.reader(start="last").receive(),)]
    [2]
    """
    return _default.session().topic(
        name, depth=depth, overwrite=overwrite, description=description, linger=linger, create=create
    )


def queue(
    name: str | None = None,
    *,
    depth: int | None = None,
    redeliver: bool | None = None,
    description: int | None = None,
    linger: float | None = None,
    create: bool = True,
) -> Queue:
    """Opens or makes a queue: each item to one taker, which may write it. Without a name: a private one.

    depth: how many items of each sender wait in it before `put` does (default 64). redeliver=True: an
    item whose taker dies before releasing it goes to another. The other options and the errors are those
    of `topic`.

    >>> q = baton.queue(depth=2)
    >>> q.put({"x": np.arange(3), "label": 1})
    >>> item = q.get()
    >>> item["x"].shape, item["label"], q.qsize()
    ((3,), 1, 0)
    """
    return _default.session().queue(
        name, depth=depth, redeliver=redeliver, description=description, linger=linger, create=create
    )


def set(name: str, value: Any, *, live: bool = False, ephemeral: bool = False, meta: Any = None) -> int:
    """Publishes a revision of a name and returns its number.

    live=True: one memory that all sessions may write in place. ephemeral=True: deleted with this session.
    meta: what JSON can hold, which readers find as `meta` of the Bundle. A name that was live is published
    from then on when it is set without live=True, and the other way round. Raises OutOfMemory; TypeError for
    what is of a type that a value or meta cannot hold, and InvalidArgument for a nan in meta and the like.

    >>> baton.set("doc/weights", {"w": np.ones(2)}), baton.set("doc/weights", {"w": np.zeros(2)}, meta={"step": 9})
    (1, 2)
    >>> b = baton.get("doc/weights")
    >>> b.revision, b.meta, b["w"].numpy().tolist(), b["w"].readonly
    (2, {'step': 9}, [0.0, 0.0], True)
    >>> baton.watch("doc/weights").receive().revision
    2
    >>> baton.delete("doc/weights")
    """
    return _default.session().set(name, value, live=live, ephemeral=ephemeral, meta=meta)


def get(name: str, timeout: float | None = 0.0) -> Bundle:
    """The newest revision of a name, waiting `timeout` seconds for one (None: no limit).

    What is published arrives read-only, what is live may be written. With 0 it does not wait
    for a revision, and for a broker that is away 30 s at most. Raises NotFound, InvalidArgument.

    >>> baton.set("doc/step", {"x": np.arange(3)})
    1
    >>> baton.get("doc/step", timeout=5)["x"].tolist()
    [0, 1, 2]
    >>> baton.delete("doc/step")
    """
    s, timeout = _default.within(timeout)
    return s.get(name, timeout)


def watch(name: str) -> Watch:
    """Follows a name, which need not be set yet: the current revision at once, then always the newest.

    Revisions that came and went between two looks are skipped. Raises InvalidArgument.

    >>> w = baton.watch("doc/step")
    >>> [baton.set("doc/step", {"x": np.zeros(1)}) for _ in range(3)]
    [1, 2, 3]
    >>> w.receive(timeout=5).revision
    3
    >>> baton.delete("doc/step")
    """
    return _default.session().watch(name)


def names(pattern: str = "") -> list[str]:
    """The names that are set; in a pattern * stands for any run of characters, "" for all of them.

    >>> [baton.set(f"doc/{agent}", {"x": np.zeros(1)}) for agent in ("actor", "critic")]
    [1, 1]
    >>> baton.names("doc/a*")
    ['doc/actor']
    >>> for name in baton.names("doc/*"):
    ...     baton.delete(name)
    """
    return _default.session().names(pattern)


def delete(name: str) -> None:
    """Removes a name; what was got of it stays. Raises NotFound.

    >>> baton.delete("doc/nothing")
    Traceback (most recent call last):
    baton.NotFound: ...
    """
    _default.session().delete(name)


def open(handle: Handle | str, readonly: bool = False, timeout: float | None = 30.0) -> Tensor:
    """The tensor of a handle, or of its JSON, where it lies: writable if the handle is, unless readonly=True.

    The bytes of a handle of another host are brought here first, where both brokers run with --span, and are
    read-only; timeout: how many seconds that may take, None: no limit.

    Raises Expired when the memory is used for something else, InvalidHandle for what is no handle of this
    broker's, nor of a host that is reached from here; for handles of other hosts also Unreachable, HostLost,
    Unsupported, OutOfMemory.

    >>> text = baton.share(np.arange(3)).handle().to_json()  # goes to another process by any means
    >>> baton.open(text).tolist()
    [0, 1, 2]
    """
    return _default.session().open(handle, readonly=readonly, timeout=timeout)


def stats() -> dict[str, int]:
    """What this process's default session has and did.

    granted: bytes that the broker has given it; live: storages of its own that were not yet found
    free; warm: those ready to be used again; recycled: how often one was found free; handovers: messages sent.

    Of handles in pickles, of all processes of the broker, if it answers in a moment: pickles_unread: those that
    were not read; pickles_oldest: since the oldest of them was pickled, in seconds; pickles_may_go: those old enough
    to be given up if memory is refused; pickles_given_up: how many were.

    >>> x = baton.zeros(3)
    >>> baton.stats()["live"] > 0
    True
    """
    return _default.session().stats()
