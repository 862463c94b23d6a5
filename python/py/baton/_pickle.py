"""What a pickle has of tensors and bundles: their bytes, or a handle where it goes to a process at once.

`pickle`, cloudpickle, `joblib.dump` and `torch.save` write to files and to other machines: they get the
bytes. The picklers that carry arguments to processes of this machine get handles: multiprocessing's
ForkingPickler, with whatever is built on it, and loky's, which joblib brings as well. Each has a table of
its own, which is filled now, or when its module is imported.

Ownership: a handle keeps its tensor until it was unpickled once. Concurrency: any thread; `pickle_handles`
is for the thread, or the task of asyncio, that enters it.
"""

import contextlib
import contextvars
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from baton import _default, _later, _native
from baton._native import Bundle, Tensor

_handing: contextvars.ContextVar[bool] = contextvars.ContextVar("handing", default=False)


@contextlib.contextmanager
def pickle_handles() -> Iterator[None]:
    """Within it, every pickler writes handles of tensors and bundles, never the bytes.

    A handle leads to the same memory, in processes of this machine that reach the same broker. It keeps the
    tensor until it is unpickled once, or until 30 s after the end of the session that pickled it.

    >>> x = baton.zeros(1 << 20)
    >>> with baton.pickle_handles():
    ...     data = pickle.dumps(x)
    >>> len(data) < 1000, len(pickle.dumps(x)) > 1 << 22
    (True, True)
    >>> pickle.loads(data)[:1].numpy()[0] = 7
    >>> x[0].item()
    7.0
    """
    token = _handing.set(True)
    try:
        yield
    finally:
        _handing.reset(token)


def reduce_tensor(x: Tensor, protocol: int) -> Any:
    """What `Tensor.__reduce_ex__` is."""
    if _handing.get():
        return _native.hand_over(x)
    if _is_torchs():
        return x._torch_to_read().__reduce_ex__(protocol)
    from pickle import PickleBuffer  # whose module most programs never need

    buffer, strides = _packed(x if x.device == "cpu" else x.cpu())
    data = PickleBuffer(buffer) if protocol >= 5 else bytes(buffer)
    return load_tensor, (data, x.dtype, x.shape, strides)


def reduce_bundle(b: Bundle, protocol: int) -> Any:
    """What `Bundle.__reduce_ex__` is."""
    if _handing.get():
        return b._hand_over()
    if _is_torchs():
        return OrderedDict, (), None, None, iter(b.torch().items())
    names, tree, meta = b._parts()
    return load_bundle, (b.values(), names, tree, meta)


def load_tensor(data: Any, dtype: str, shape: Sequence[int], strides: Sequence[int] | None) -> Tensor:
    """The tensor of a pickle's bytes, in memory of its own: of the default session."""
    session = _default.session()
    if not len(memoryview(data)):
        return session.empty(shape, dtype)
    x: Tensor = session.share(data, copy=True).view(dtype)
    return x.reshape(shape) if strides is None else x.as_strided(shape, strides)


def load_bundle(tensors: list[Tensor], names: list[str], tree: bytes, meta: bytes) -> Bundle:
    """The bundle of a pickle's tensors."""
    return _native.bundle_of(tensors, names, tree, meta)


def _packed(x: Tensor) -> tuple[memoryview | bytes, Sequence[int] | None]:
    """The elements' bytes side by side, and the strides where they are in another order than C's."""
    if not x.size:
        return b"", None
    dense = _native.dense(x)
    if dense is not None:
        flat, in_order = dense
        return memoryview(flat), None if in_order else x.strides
    width = x.nbytes // x.size
    return memoryview(x if width > 8 else x.view(f"uint{8 * width}")).tobytes(), None


def _is_torchs() -> bool:
    """Whether torch.save is pickling: what it writes is read by torch.load, which knows torch's types alone."""
    if "torch.serialization" not in sys.modules:
        return False
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.serialization":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _register(module: ModuleType) -> None:
    """Enters both types in the table of a module's pickler."""
    module.register(Tensor, _native.hand_over)
    module.register(Bundle, Bundle._hand_over)


_MODULES = ["multiprocessing.reduction", "loky.backend.reduction", "joblib.externals.loky.backend.reduction"]


_later.when_imported(_MODULES, _register)
