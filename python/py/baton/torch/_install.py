"""What torch's own ways of sharing make of storages in Baton's memory: all of them, after `install`.

Torch hands a storage over by its reducer in ForkingPickler's table, which tensors, parameters, sparse and nested
tensors end in, and moves it into shared memory by a method of UntypedStorage. Both are replaced at the first
tensor of torch's that Baton makes: one that lies in Baton's memory stays there, and goes as a handle. After
`install` what lies elsewhere is moved there first.

Concurrency: any thread. Fork and spawn: children inherit it. Death: as of any handle.
"""

import contextlib
import functools
import multiprocessing
import multiprocessing.process
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import torch.overrides
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions

from baton import _default, _native
from baton._errors import Error, InvalidHandle, SessionLost
from baton._native import Tensor
from baton.torch import _storages
from baton.torch._storages import Storage

_STRIDED: Any = torch.strided


class Installed(NamedTuple):
    """What `install` has made active.

    storages: what torch shares of the CPU moves into Baton's memory. False with a torch that cannot exchange a
    storage's memory: then torch shares as ever. collate: batches of DataLoader's workers are born there.
    """

    storages: bool
    collate: bool


_active = Installed(False, False)


def install() -> Installed:
    """Lets stock torch share CPU tensors in Baton's memory, here and in the processes started from here.

    Queues, pipes, pools and arguments of torch.multiprocessing, DataLoader and executors hand handles over in place
    of files, `share_memory_()` moves into memory that is warm, and `default_collate` makes batches there. The
    meaning stays torch's: sender and receivers see what each other writes. Raises NoBroker.

    >>> baton.torch.install()
    Installed(storages=True, collate=True)
    >>> x = torch.arange(4)
    >>> view = x[1:]
    >>> x.share_memory_()[0].fill_(9), baton.share(view, copy=False).shape, x.is_shared()
    (tensor(9), (3,), True)
    >>> baton.torch.uninstall()
    """
    _default.session()
    return _activate()


def _activate() -> Installed:
    """As `install`, of a process that was started by one that has it: it needs no broker before it shares."""
    global _active
    recognise()
    able = _storages.moves()
    _active = Installed(able, able)
    if able:
        # Each process that is started from here gets a copy, before its arguments.
        _config()["baton.torch"] = _Inherited()
    return _active


def uninstall() -> None:
    """Undoes `install` in this process: what lies in Baton's memory stays there.

    >>> baton.torch.uninstall()
    >>> baton.torch._install.moves()
    False
    """
    global _active
    _active = Installed(False, False)
    _config().pop("baton.torch", None)


def _config() -> dict[str, Any]:
    config: dict[str, Any] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    return config


class _Inherited:
    """Installs where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], "_Inherited"], tuple[()]]:
        return _inherit, ()


def _inherit() -> _Inherited:
    _activate()
    return _Inherited()


class _Stock(NamedTuple):
    """What torch has of its own."""

    reduce: Callable[[Any], Any]
    share_memory_: Callable[..., Any]
    is_shared: Callable[[Any], bool]
    new_shared: Callable[..., Any]
    reduce_tensor: Callable[[Any], Any]
    dlpack: Callable[..., Any]
    resize: Callable[..., Any]
    dumps: Callable[..., Any]


_stock: _Stock | None = None


def recognise() -> None:
    """Has torch know the storages that lie in Baton's memory."""
    global _stock
    if _stock is not None:
        return
    _stock = _Stock(
        reductions.reduce_storage,
        Storage.share_memory_,
        Storage.is_shared,
        Storage._new_shared.__func__,
        reductions.reduce_tensor,
        torch.Tensor.__dlpack__,
        Storage.resize_,
        ForkingPickler.dumps.__func__,  # type: ignore[attr-defined]
    )
    reductions.reduce_storage = _reduce
    ForkingPickler.register(Storage, _reduce)
    ForkingPickler.register(torch.Tensor, _reduce_tensor)
    Storage.share_memory_ = _share_memory
    Storage.is_shared = _is_shared
    Storage._new_shared = classmethod(_new_shared)
    torch.Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]
    Storage.resize_ = _resize
    ForkingPickler.dumps = classmethod(_dumps)  # type: ignore[assignment]


def _torchs() -> _Stock:
    assert _stock is not None
    return _stock


def moves() -> bool:
    """Whether what torch shares of the CPU moves into Baton's memory."""
    return _active.storages


def movable(storage: Any) -> bool:
    """Whether a storage goes by Baton's road: it lies in Baton's memory, or moves there."""
    if not _active.storages:
        return _storages.in_place(storage) is not None
    if storage.device.type != "cpu" or not storage.nbytes():
        return False
    return not _torchs().is_shared(storage)  # others have it: it stays where they see it


def shared(storage: Any) -> Tensor | None:
    """The bytes of a storage in Baton's memory, moved there where that is installed; None where torch shares it."""
    return _again(_storages.moved, [storage])[0] if movable(storage) else None


def _again(f: Callable[..., Any], *args: Any) -> Any:
    """Calls what goes on in the next session where the last one is lost: torch's callers know nothing of sessions."""
    try:
        return f(*args)
    except SessionLost:
        return f(*args)


def _reduce(storage: Any) -> Any:
    handle = _again(_handed_over, storage) if isinstance(storage, Storage) else None
    if handle is None:
        return _torchs().reduce(storage)
    return rebuild_storage, handle


def _handed_over(storage: Any) -> Any:
    x = shared(storage)
    return None if x is None else _native.hand_over(x)


def opened(open_: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a handle leads to. Where the session is lost it is opened in the next one: its maker may be there already.
    Raises SessionLost for what lay in the memory of the lost one."""
    try:
        return open_(*arguments)
    except SessionLost:
        pass
    except InvalidHandle:
        # Of another broker. The session may be lost without having noticed it: then that one has the next.
        with contextlib.suppress(SessionLost):
            _default.session_at(*arguments[-1])._check_lost()
    try:
        return open_(*arguments)
    except InvalidHandle as e:
        what = f"the memory of an item went with the session that it was made in, which is lost: {e}"
        raise SessionLost(what) from None


def _reduce_tensor(t: Any) -> Any:
    """As torch's reducer, which forgets that a view is to be conjugated or negated."""
    laziness = _storages.laziness(t) if t.is_cpu and t.layout is _STRIDED else 0
    if not laziness:
        return _torchs().reduce_tensor(t)
    return rebuild_lazy, (_storages.as_lazy(t.detach(), laziness), laziness, t.requires_grad)


def rebuild_lazy(t: Any, laziness: int, requires_grad: bool) -> Any:
    """The view that is conjugated or negated when it is read."""
    return _storages.as_lazy(t, laziness).requires_grad_(requires_grad)


def rebuild_storage(open_: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Any:
    """The storage of a handle."""
    return _storages.over([opened(open_, arguments)])[0]


class _Apart:
    """A value of torch's plain tensors, all of which one lease keeps until it is unpickled."""

    def __init__(self, rest: Any, pieces: list[Tensor], records: bytes, of: tuple[int, int] | None) -> None:
        names = [str(k) for k in range(len(pieces))]
        open_, arguments = _native.bundle_of(pieces, names, b"", b"")._hand_over()
        parts = open_, arguments, None if rest is ... else rest, records
        self.reduced = (rebuild_value, parts) if of is None else (rebuild_item, (of, parts))

    def __reduce__(self) -> Any:
        return self.reduced


def rebuild_value(open_: Callable[..., Any], arguments: tuple[Any, ...], rest: Any, records: bytes) -> Any:
    """The value of a handle of its pieces."""
    return _native.put_together(... if rest is None else rest, opened(open_, arguments).values(), records)


def rebuild_item(of: tuple[int, int], parts: Any) -> Any:
    """The value that a DataLoader's worker sent. One that cannot be opened is an error at its turn, and the items behind
    it come: without it the trainer would wait for its number. of: that number, and the worker's."""
    try:
        return rebuild_value(*parts)
    except Error as e:
        return _failed(of, e, "from")


def _dumps(cls: Any, obj: Any, protocol: Any = None) -> Any:
    """See ForkingPickler.dumps, by which queues and pipes pickle."""
    try:
        # Of a queue this is its thread, where an error is an item that is left out. What is torch's goes on in the
        # next session; what is of the lost one says so again.
        return _again(_dumped, cls, obj, protocol)
    except Exception as e:
        told = told_instead(obj, e)
        if told is None:
            raise
        return _torchs().dumps(cls, told, protocol)


def _dumped(cls: Any, obj: Any, protocol: Any) -> Any:
    parts = _storages.apart(obj) if _active.storages else None
    value = _Apart(*parts, _of_worker(obj)) if parts is not None and parts[1] else obj
    return _torchs().dumps(cls, value, protocol)


def told_instead(item: Any, e: Exception) -> Any:
    """Where a DataLoader's worker sends an item that cannot be sent: what it sends of any other error, which the
    trainer then raises. Torch's queues print such an error in a thread and leave the item out, for which the trainer
    would wait. None in other processes, and of other items."""
    of = _of_worker(item)
    return None if of is None else _failed(of, e, "in")


def _of_worker(item: Any) -> tuple[int, int] | None:
    """The number of an item that a DataLoader's worker sends, and the worker's; None in other processes, and of others."""
    worker = torch.utils.data.get_worker_info()
    if worker is None or type(item) is not tuple or len(item) != 2 or type(item[0]) is not int:
        return None
    return item[0], worker.id


def _failed(of: tuple[int, int], e: Exception, where: str) -> Any:
    """What the trainer's DataLoader raises at the turn of an item."""
    wrapper: Any = ExceptionWrapper
    return of[0], wrapper((type(e), e, e.__traceback__), where=f"{where} DataLoader worker process {of[1]}")


@functools.wraps(Storage.share_memory_)
def _share_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Moves the storage to shared memory; see torch.Tensor.share_memory_."""
    return self if shared(self) is not None else _torchs().share_memory_(self, *args, **kwargs)


@functools.wraps(Storage.is_shared)
def _is_shared(self: Any) -> bool:
    return _torchs().is_shared(self) or _storages.in_place(self) is not None


_has_torch_function: Any = torch.overrides.has_torch_function_unary


@functools.wraps(torch.Tensor.__dlpack__)
def _dlpack(self: Any, *args: Any, **kwargs: Any) -> Any:
    """See torch.Tensor.__dlpack__; what the capsule shows stays valid where the storage moves."""
    capsule = _torchs().dlpack(self, *args, **kwargs)  # first: what it refuses it says itself
    if not _has_torch_function(self) and self.is_cpu:
        _storages.see(self.untyped_storage())
    return capsule


def _resize(self: Any, size: int) -> Any:
    """See torch.UntypedStorage.resize_. Memory that others have is let go of, and never grows."""
    if size or not _active.storages or _storages.in_place(self) is None:
        return _torchs().resize(self, size)
    self._swap_data_ptr_(Storage(0))
    return self


def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
    if _active.collate and torch.device(device).type == "cpu":
        return _again(_storages.born, size)
    return _torchs().new_shared(cls, size, device=device)
