"""Views of tensors in NumPy. NumPy is imported when one is asked for, never by `import baton`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from baton._native import Tensor

# What the buffer protocol has a letter for.
_NATIVE = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)


def numpy(x: "Tensor") -> "np.ndarray[Any, Any]":
    """The array of a tensor's memory; types of ml_dtypes where NumPy has none."""
    import numpy as np

    if x.dtype in _NATIVE:
        return np.asarray(x)
    try:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, x.dtype))
    except (ImportError, AttributeError):
        raise TypeError(
            f"NumPy has no {x.dtype}: install ml_dtypes, use torch.from_dlpack(x), "
            'or look at the bits by x.view("uint8")'
        ) from None
    bits = {1: "uint8", 2: "uint16"}[dtype.itemsize]
    return np.asarray(x.view(bits)).view(dtype)


def array(x: "Tensor", dtype: Any = None, copy: bool | None = None) -> "np.ndarray[Any, Any]":
    """`__array__`: the view, or a copy where a dtype or the caller needs one."""
    import numpy as np

    return np.array(numpy(x), dtype=dtype, copy=copy)
