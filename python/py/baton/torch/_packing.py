"""Any object as a message: a pickle, and beside it the tensors of shared memory that it names.

The pickle names storages and Baton's tensors by their number in the message; no element of a tensor is ever in
it. Buffers of NumPy's arrays lie beside it too, as copies that their receiver alone has.

Ownership: a message holds what it names. Concurrency: any thread. Hostile peers: a pickle runs what it names, as
every queue of multiprocessing's; a process that may put may do that.
"""

import io
import pickle
import threading
from typing import Any

import torch

from baton import _native, _pickler
from baton._native import Tensor
from baton.torch import _install, _storages
from baton.torch._storages import Storage

# What stands in a message. Of torch's plain tensor that is all of its storage: the tensor. Of a value of torch's plain tensors in plain containers: the pickle of what it is without
# them, the pieces of shared memory in which they lie, and the tensors' records. Of another: the pickle, the tensors of
# the storages and Baton's tensors that it names by number, and its buffers.
Message = Tensor | tuple[Any, list[Tensor], Any] | tuple[Any, list[Tensor], list[Tensor], list[Any]]

_Torch: Any = torch.Tensor
_Parameter: Any = torch.nn.Parameter
_STRIDED: Any = torch.strided


class _Pickler(_pickler.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        self.storages: list[Any] = []
        self.numbers: dict[int, int] = {}  # of storages
        self.tensors: list[Tensor] = []
        super().__init__(file)

    def reducer_override(self, ob: Any) -> Any:
        kind = type(ob)
        if kind is _Torch or kind is _Parameter:
            return self._tensor(ob, kind is _Parameter)
        if kind is Storage:
            n = self._storage(ob)
            return NotImplemented if n is None else (_storage, (n,))
        if kind is Tensor:
            self.tensors.append(ob)
            return _own, (len(self.tensors) - 1,)
        return super().reducer_override(ob)

    def _storage(self, s: Any) -> int | None:
        """Its number; None of one that goes by torch's road."""
        n = self.numbers.get(s._cdata)
        if n is None and _install.movable(s):
            n = self.numbers[s._cdata] = len(self.storages)
            self.storages.append(s)
        return n

    def _tensor(self, t: Any, parameter: bool) -> Any:
        grad = t.requires_grad
        if t.layout is not _STRIDED or t.is_nested or (grad and not t.is_leaf) or t._backward_hooks:
            return NotImplemented  # torch's own reducer has them, and its errors and warnings
        n = self._storage(t.untyped_storage())
        if n is None:
            return NotImplemented
        lazy = _storages.laziness(t)
        place = (n, t.dtype, t.storage_offset(), tuple(t.shape), t.stride())
        if not (grad or parameter or lazy):
            return _tensor, place
        return _special, (*place, grad, parameter, lazy)


# The storages and tensors of the message that this thread unpacks.
_here = threading.local()


def _storage(n: int) -> Any:
    return _here.storages[n]


def _own(n: int) -> Any:
    return _here.tensors[n]


def _tensor(n: int, dtype: Any, offset: int, shape: Any, strides: Any) -> Any:
    return torch.empty(0, dtype=dtype).set_(_here.storages[n], offset, shape, strides)


def _special(n: int, dtype: Any, offset: int, shape: Any, strides: Any, grad: bool, parameter: bool, lazy: int) -> Any:
    """A parameter, one that requires a gradient, a view that is conjugated or negated when it is read."""
    t = _storages.as_lazy(_tensor(n, dtype, offset, shape, strides), lazy)
    if parameter:
        return _Parameter(t, requires_grad=grad)
    return t.requires_grad_(grad)


def pack(ob: Any) -> Message:
    """An object as a message. Storages of torch's on the CPU move into Baton's memory."""
    moves = _install.moves()
    if moves and type(ob) is _Torch and (whole := _storages.whole(ob)) is not None:
        return whole
    parts = _storages.apart(ob) if moves else None
    if parts is not None:
        rest, pieces, records = parts
        return None if rest is ... else _pickler.apart(pickle.dumps(rest, 5)), pieces, _pickler.apart(records)
    file = io.BytesIO()
    p = _Pickler(file)
    p.dump(ob)
    storages = _storages.moved(p.storages) if p.storages else []
    return _pickler.apart(file.getvalue()), storages, p.tensors, p.beside()


def has_memory(message: Message) -> bool:
    """Whether more than a short pickle is in a message."""
    if type(message) is Tensor:
        return True
    data, *beside = message
    return type(data) is memoryview or any(type(part) is list and part for part in beside)


def unpack(message: Message) -> Any:
    """The object of a message."""
    if type(message) is Tensor:
        return _native.put_whole(message)
    if len(message) == 3:
        data, pieces, records = message
        return _native.put_together(... if data is None else pickle.loads(data), pieces, bytes(records))
    data, storages, tensors, buffers = message
    before = getattr(_here, "storages", None), getattr(_here, "tensors", None)
    _here.storages, _here.tensors = _storages.over(storages) if storages else [], tensors
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        _here.storages, _here.tensors = before
