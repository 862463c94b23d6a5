"""Views of tensors in frameworks. One is imported when a view is asked for, never by `import baton`."""

import weakref
from typing import TYPE_CHECKING, Any

from baton._errors import Unsupported

if TYPE_CHECKING:
    import jax as _jax
    import numpy as np
    import torch as _torch

    from baton._native import Tensor

# What the buffer protocol has a letter for.
_NATIVE = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)

_torchs: "weakref.WeakKeyDictionary[type, frozenset[str]]" = weakref.WeakKeyDictionary()

# What has less than a byte.
_NARROW = frozenset("int1 int2 int4 uint1 uint2 uint4 float4 float6".split())


def numpy(x: "Tensor") -> "np.ndarray[Any, Any]":
    """The array of a tensor's memory; types of ml_dtypes where NumPy has none."""
    import numpy as np

    if x.device != "cpu":
        raise Unsupported(f"NumPy does not reach {x.device} (copy it by x.cpu() first)")
    # By a memoryview: where NumPy is refused a buffer it asks `__array__`, which asks here, and never says why.
    if x.dtype in _NATIVE:
        return np.asarray(memoryview(x))
    try:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, x.dtype))
    except (ImportError, AttributeError):
        raise TypeError(
            f"NumPy has no {x.dtype}: install ml_dtypes, use x.torch() or x.jax() where they know it, "
            'or look at the bits by x.view("uint8")'
        ) from None
    if x.dtype.split("_")[0] in _NARROW:
        raise TypeError(
            f"NumPy has a byte for each {x.dtype}, which lie packed here: look at the bits by "
            'x.reshape(-1).view("uint8"), or send a.view("uint8") of the array'
        )
    bits = {1: "uint8", 2: "uint16", 4: "uint32"}[dtype.itemsize]
    return np.asarray(memoryview(x.view(bits))).view(dtype)


def array(x: "Tensor", dtype: Any = None, copy: bool | None = None) -> "np.ndarray[Any, Any]":
    """`__array__`: the view, or a copy where a dtype or the caller needs one."""
    import numpy as np

    return np.array(numpy(x), dtype=dtype, copy=copy)


def torch(x: "Tensor") -> "_torch.Tensor":
    """The torch tensor of a tensor's memory."""
    import torch
    import torch.utils.dlpack

    try:
        return torch.utils.dlpack.from_dlpack(x)
    except (BufferError, RuntimeError, ValueError) as e:
        raise TypeError(f'torch has no {x.dtype}: look at the bits by x.view("uint8").torch()') from e


def jax(x: "Tensor") -> "_jax.Array":
    """The JAX array of a tensor's memory."""
    import jax.dlpack

    try:
        a: _jax.Array = jax.dlpack.from_dlpack(x)
    except (TypeError, RuntimeError) as e:
        raise TypeError(
            f"JAX takes no {x.dtype} with strides {x.strides}: copy it by baton.share(x, copy=True) if it is "
            'strided, or look at the bits by x.view("uint8").jax()'
        ) from e
    return a


def torch_fields(kind: type) -> frozenset[str]:
    """The fields of a class that are annotated as tensors of torch's, perhaps None."""
    found = _torchs.get(kind)
    if found is None:
        import typing

        import torch

        try:
            hints = typing.get_type_hints(kind)
        except (AttributeError, NameError, SyntaxError, TypeError, ValueError):  # an annotation is only text, perhaps
            hints = {}
        found = frozenset(k for k, hint in hints.items() if torch.Tensor in (hint, *typing.get_args(hint)))
        _torchs[kind] = found
    return found
