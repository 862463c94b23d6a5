"""Torch's storages in shared memory.

A storage of the CPU moves in place: torch exchanges its memory (`UntypedStorage._swap_data_ptr_`), and every
view of it follows, as after torch's own `share_memory_`. One piece of shared memory is one storage in each
process.

Ownership: a storage holds the memory that it lies in. Concurrency: any thread; a caller that moves a storage sees to
it that no thread reads or writes it meanwhile, as with torch. Fork: a child has what it inherited.
"""

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from baton import _native
from baton._native import Tensor

Storage: Any = torch.UntypedStorage

# What was a storage's memory while others than torch saw it, by the id of the storage.
_former: dict[int, Any] = {}

# Storages of which a capsule of DLPack was made. NumPy's own views torch notes itself.
_seen: "weakref.WeakSet[Any]" = weakref.WeakSet()


def see(storage: Any) -> None:
    """Notes that others than torch may look at a storage's memory."""
    _seen.add(storage)


# One thread moves at a time: two of them may have the same storage. What Python runs in between, a finalizer or a
# signal's handler, may put something as well.
_moving = threading.RLock()


def moves() -> bool:
    """Whether this torch exchanges the memory of storages, which is tried."""
    try:
        seen: Any = torch.arange(4, dtype=torch.uint8)
        part = seen[1:3]
        new = torch.full((4,), 9, dtype=torch.uint8).untyped_storage()
        Storage._swap_data_ptr_(seen.untyped_storage(), new)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool(part[0] == 9 and part[1] == 9 and list(new) == [0, 1, 2, 3])


def born(nbytes: int) -> Any:
    """A new storage in shared memory."""
    if not nbytes:
        return Storage(0)
    (storage,) = _native.storages_over([_native.empty(nbytes, "uint8", 0.0, None, None)])
    return storage


def in_place(storage: Any) -> Tensor | None:
    """The bytes of a storage that lies in Baton's memory."""
    if storage.device.type != "cpu" or not storage.nbytes():
        return None
    return _native.storage_in_place(storage)


def moved(storages: Sequence[Any], *, anyway: bool = False) -> list[Tensor]:
    """The bytes of storages of the CPU, which are moved into Baton's memory unless they lie there. anyway: also those
    that lie in a file of torch's, where processes that have the file do not follow."""
    with _moving:
        tensors, former = _native.move_storages(list(storages), _seen or None, anyway)
        _keep(former)
    return tensors


def whole(t: Any) -> Tensor | None:
    """The tensor of torch's plain tensor that is all of its storage, which is moved; None of another one."""
    with _moving:
        parts = _native.take_whole(t, _seen or None)
        if parts is None:
            return None
        tensor, former = parts
        _keep(former)
    return tensor


def apart(value: Any) -> tuple[Any, list[Tensor], bytes] | None:
    """What a value of plain containers is without torch's plain tensors, whose storages are moved; the bytes of
    these; the tensors' records. None of another value."""
    with _moving:
        parts = _native.take_apart(value, _seen or None)
        if parts is None:
            return None
        rest, tensors, records, former = parts
        _keep(former)
    return rest, tensors, records


def over(tensors: Sequence[Tensor]) -> list[Any]:
    """The storages of bytes in Baton's memory: those that this process has over them already, else new ones."""
    return _native.storages_over(list(tensors))


def laziness(t: Any) -> int:
    """What torch does when it reads a view: 2 to conjugate, 1 to negate, 3 both."""
    return (2 if t.is_conj() else 0) + (1 if t.is_neg() else 0)


def as_lazy(t: Any, laziness: int) -> Any:
    """The view of the same storage that is conjugated, negated, or both, when it is read: or no longer is."""
    if laziness & 2:
        t = torch.conj(t)
    if laziness & 1:
        t = torch._neg_view(t)
    return t


def _keep(former: list[tuple[Any, Any]]) -> None:
    """Keeps what was the memory of storages as long as these live: arrays of others look there."""
    for storage, memory in former:
        _former[id(storage)] = memory
        weakref.finalize(storage, _former.pop, id(storage), None).atexit = False


def _in_child() -> None:
    global _moving
    _moving = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
