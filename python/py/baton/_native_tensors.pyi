"""Tensors, handles and bundles: classes of `baton._native`."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Self, SupportsIndex, TypeAlias, final

import jax
import numpy as np
import torch

__all__ = ["Bundle", "Handle", "Tensor"]

_Place: TypeAlias = tuple[str, str]

@final
class Tensor:
    """A view of shared memory: shape, strides in elements, dtype. Slices and reshapes are views of the same storage.
    np.asarray(x), memoryview(x) and torch.from_dlpack(x) look at the memory itself.

    Published names and topic messages arrive read-only; queue items, live names and opened handles may be written where
    the handle may. What was sent is not written any more by its sender.
    """

    __dlpack_c_exchange_api__: Any
    __c_dlpack_exchange_api__: int
    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
    @property
    def dtype(self) -> str:
        """What an element is, as ml_dtypes names it: "float32", "bfloat16"."""
    @property
    def device(self) -> str:
        """Where the memory is: "cpu", or "cuda:0" as this process counts."""
    @property
    def ndim(self) -> int:
        """The number of dimensions."""
    @property
    def size(self) -> int:
        """The number of elements."""
    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
    @property
    def readonly(self) -> bool:
        """Whether the tensor must not be written."""
    @property
    def T(self) -> Tensor:
        """The view with its dimensions reversed."""
    def transpose(self, a: int, b: int) -> Tensor:
        """The view with two dimensions exchanged."""
    def reshape(self, *shape: Any) -> Tensor:
        """The view of another shape; one extent may be -1. The elements must be contiguous."""
    def view(self, dtype: Any) -> Tensor:
        """The same bits as another dtype; the last dimension shrinks or grows with its size."""
    def as_strided(self, shape: Any, strides: Any) -> Tensor:
        """The view of any shape and strides (in elements) inside the storage."""
    def as_readonly(self) -> Tensor:
        """The same tensor, read-only."""
    def __eq__(self, other: object, /) -> Any: ...
    def __ne__(self, other: object, /) -> Any: ...
    def __hash__(self) -> int: ...
    def to(self, device: str, *, stream: Any = None) -> Tensor:
        """The tensor on a device, "cuda:0" or "cpu": itself if it is there, else a copy. To a GPU it is copied after
        the work of a stream and not waited for; to the CPU it is waited for. stream: None (the legacy default one),
        a number, or torch's or CuPy's object.
        """
    def cpu(self, *, stream: Any = None) -> Tensor:
        """The tensor in the machine's memory: to("cpu")."""
    def pin_memory(self, device: str = "cuda") -> Tensor:
        """The tensor, whose memory a GPU's driver knows from now on: copies by other libraries run beside the
        processor too; they keep the tensor until their stream has passed. A slab is registered once and whole.
        Raises Unsupported.
        """
    def written(self, timeout: float | None = None) -> None:
        """Waits until the sender's stream has written a tensor on a GPU; for one on the CPU it does nothing.
        timeout: seconds to wait; None: no limit. Raises Timeout; Expired when the sender ended before it had
        written.
        """
    def copy_from(self, a: Any, *, stream: Any = None) -> None:
        """Copies an array of the same shape and dtype into the tensor. If one of the two lies on a GPU it is done
        after the work of a stream, and waited for unless it goes from the CPU to a GPU.
        """
    def item(self) -> Any:
        """The value of the only element."""
    def tolist(self) -> Any:
        """The elements as nested lists of Python's numbers."""
    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy array of the same memory; read-only if the tensor is. Types that NumPy has not need ml_dtypes."""
    def torch(self) -> torch.Tensor:
        """A torch tensor of the same memory. What is written to that of a read-only tensor stays there."""
    def jax(self) -> jax.Array:
        """A JAX array of the same memory. JAX holds arrays to be constant: do not write the tensor then."""
    def handle(self, lease: float | None = 30.0) -> Handle:
        """A handle to carry by any means. The broker keeps the tensor for `lease` seconds, whatever becomes of this
        process; None: until this session ends.
        """
    def _file(self) -> tuple[int, int, int] | None: ...
    def _torch_to_read(self) -> Any: ...
    def _repr_html_(self) -> str: ...
    def release(self) -> None:
        """Ends this object, which raises Closed from then on. Arrays made from it keep the memory."""
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        version: tuple[int, int] | None = None,
    ) -> Any: ...
    def __dlpack_info__(self) -> tuple[int, int]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __getitem__(self, key: Any, /) -> Tensor: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __contains__(self, value: Any, /) -> NoReturn: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __deepcopy__(self, _memo: Any) -> Tensor: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any: ...
    def __copy__(self) -> Tensor: ...

@final
class Handle:
    """Where a tensor is and what it looks like: plain JSON, to be carried by any means and opened by any process of
    the same broker.
    """

    @staticmethod
    def from_json(json: str) -> Handle:
        """staticmethod(function) -> method

        Convert a function to be a static method.

        A static method does not receive an implicit first argument. To declare a static method, use this idiom:

        class C: @staticmethod def f(arg1, arg2, argN): ...

        It can be called either on the class (e.g. C.f()) or on an instance (e.g. C().f()). Both the class and the
        instance are ignored, and neither is passed implicitly as the first argument to the method.

        Static methods in Python are similar to those found in Java or C++. For a more advanced concept, see the
        classmethod builtin.
        """
    def to_json(self) -> str:
        """The JSON."""
    @property
    def host(self) -> str:
        """The broker's instance that has the memory."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
    @property
    def dtype(self) -> str:
        """What an element is."""
    @property
    def readonly(self) -> bool:
        """Whether the tensor opens read-only."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, tuple[str]]: ...

@final
class Bundle(Mapping[str, Tensor]):  # registered as one: keys, values and items are lists
    """Tensors under their paths, in their order: a mapping. `value` is the same with its structure."""

    @property
    def value(self) -> Any:
        """The tensors with the structure that was set or shared."""
    @property
    def meta(self) -> Any:
        """What was set along as meta; None when nothing was."""
    @property
    def revision(self) -> int:
        """The number of the name's revision; 0 of a bundle that is not of a name."""
    @property
    def age(self) -> float:
        """How many seconds ago the revision was set, also on another host; 0.0 of a bundle that is not of a name, or
        came from a pickle.
        """
    @property
    def stale(self) -> bool:
        """Of a name of several hosts: whether the broker could not say, when it was taken, that it is the newest
        revision.
        """
    @property
    def live(self) -> bool:
        """Whether all sessions may write it in place, so that reads may tear."""
    def keys(self) -> list[str]:  # type: ignore[override]
        """The paths."""
    def values(self) -> list[Tensor]:  # type: ignore[override]
        """The tensors."""
    def items(self) -> list[tuple[str, Tensor]]:  # type: ignore[override]
        """Paths and tensors."""
    def get(self, path: str, default: Any = None) -> Any:
        """The tensor of a path, else the default."""
    def numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """NumPy arrays of the same memory, by path."""
    def torch(self) -> dict[str, torch.Tensor]:
        """torch tensors of the same memory, by path: fit for `load_state_dict`. What is written to those of a
        read-only bundle stays in this process; tied ones stay tied.
        """
    def jax(self) -> dict[str, jax.Array]:
        """JAX arrays of the same memory, by path."""
    def release(self) -> None:
        """Releases this bundle. Tensors and arrays taken from it keep their memory."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any: ...
    def _hand_over(self) -> tuple[Any, tuple[list[str], list[str], bytes, bytes, int, bool, _Place]]: ...
    def _parts(self) -> tuple[list[str], bytes, bytes]: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any) -> Bundle: ...
    def __getitem__(self, path: str, /) -> Tensor: ...
    def __contains__(self, path: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
