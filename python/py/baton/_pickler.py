"""Pickles whose arrays lie beside them, as copies that their receiver alone has and may write.

Ownership: a pickler holds the buffers of what it has pickled. Concurrency: one thread uses a pickler.
"""

import functools
import io
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

from baton import _native

# Buffers of fewer bytes stand in the pickle, and pickles of more beside the structure of the message.
_SHORT = 1024
_LONG = 2048


class Pickler(ForkingPickler):
    """Pickles into a file of bytes; buffers that are long are left to `beside`."""

    def __init__(self, file: io.BytesIO) -> None:
        self._buffers: list[memoryview] = []
        numpy: Any = sys.modules.get("numpy")
        self._array = None if numpy is None else numpy.ndarray
        # Of the list, and not of the pickler: one that refers to itself would keep all that it has met for long.
        super().__init__(file, 5, True, functools.partial(_in_band, self._buffers))

    def reducer_override(self, ob: Any) -> Any:
        """As of `pickle.Pickler`: the copy of an array that may not be written, since its receiver may write it, and of
        one with gaps or in an order of its own, which a pickle of multiprocessing's has in C's order."""
        if type(ob) is self._array and not (ob.flags.writeable and ob.flags.forc):
            return ob.copy(order="A").__reduce_ex__(5)
        return NotImplemented

    def beside(self) -> list[Any]:
        """What `pickle.loads` needs as buffers: no two share a byte, and none is memory of others."""
        return _native.own_buffers(self._buffers) if self._buffers else []


def _in_band(beside: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    raw = buffer.raw()
    if raw.nbytes < _SHORT or raw.readonly:
        return True
    beside.append(raw)
    return False


def apart(data: bytes) -> Any:
    """Long data beside the structure of the message, which would write it as text."""
    return memoryview(data) if len(data) > _LONG else data
