"""Modules of torch over shared memory: their parameters shared in place, or published as revisions.

A shared module's parameters lie in a live bundle, in a segment of its own, which torch maps by its
descriptor: so they are shared for torch too (`is_shared()`), and its own queues send them on without a copy.

Ownership: a parameter that was bound keeps its last bundle; a tensor that was made from it (`p.data`,
`p.detach()`) does not. Concurrency: as of torch. Hostile peers: who may load a live module may write it.
Death: the name, and with it the memory, stays until it is deleted.
"""

import functools
import os
import re
import weakref
from collections.abc import Collection, Mapping
from typing import Any

import torch

import baton
from baton import _default, _native
from baton._errors import InvalidArgument
from baton._native import Bundle, Session, Tensor

__all__ = ["cuda_pool", "load_module", "publish_module", "share_module"]

# Types that no other library knows: of less than a byte, of no meaning, quantized.
_OF_TORCH_ALONE = re.compile(r"torch\.(u?int[1-7]|bits.*|qu?int.*)")


def share_module(module: torch.nn.Module, name: str | None = None, *, ephemeral: bool = False) -> Bundle:
    """Moves parameters and buffers into one bundle, in place, and sets it as a live name.

    Parameters stay the same objects: optimizers and hooks remain valid, tied ones stay tied. Others bind
    themselves to the memory by `load_module`, of the name, or of the bundle that is the argument of their
    process: then no name is needed, and none is left for the next run. ephemeral: the name goes with this
    session. Raises InvalidArgument for a module that is not on the CPU or has what only torch knows,
    OutOfMemory.

    >>> shared = torch.nn.Linear(3, 1)
    >>> baton.torch.share_module(shared, "doc/shared").keys()
    ['weight', 'bias']
    >>> shared.weight.is_shared()
    True
    >>> baton.delete("doc/shared")
    >>> worker = torch.nn.Linear(3, 1)
    >>> baton.torch.load_module(worker, baton.torch.share_module(torch.nn.Linear(3, 1))).keys()
    ['weight', 'bias']
    """
    default = _default.session()
    session = Session(default.address, default.namespace)  # its segment holds nothing but the module
    with torch.inference_mode(False), torch.no_grad():  # see `take`
        own = _tensors(module)
        for t in own.values():
            if t.is_conj() or t.is_neg():  # what torch has put off; the memory has it done
                t.data = t.resolve_conj().resolve_neg()
        bundle = session.bundle(_moved(session, own))
        if name is not None:
            (default if ephemeral else session).set(name, bundle, live=True, ephemeral=ephemeral)
        _bind(own, dict(bundle.items()), bundle)
    return bundle


def load_module(
    module: torch.nn.Module, name_or_bundle: "str | Bundle", copy: bool = False, *, timeout: float | None = 0.0
) -> Bundle:
    """Binds a module of the same architecture to the memory of a name or bundle, or copies from it.

    A live bundle is bound in place: what one process writes the others read. A published revision is
    bound copy-on-write: what is written stays in this process. copy=True copies into the module's own
    memory. timeout: how many seconds to wait for the name to be set; None: for ever. Raises NotFound,
    InvalidArgument where paths, shapes or types differ.

    >>> shared, worker = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    >>> bundle = baton.torch.share_module(shared, "doc/shared")
    >>> baton.torch.load_module(worker, "doc/shared").live
    True
    >>> with torch.no_grad():
    ...     shared.bias.fill_(7.0)
    Parameter containing:
    tensor([7.], requires_grad=True)
    >>> worker.bias.item()
    7.0
    >>> baton.delete("doc/shared")
    """
    bundle = baton.get(name_or_bundle, timeout) if isinstance(name_or_bundle, str) else name_or_bundle
    take(module, bundle, None if copy else ())
    return bundle


def take(module: torch.nn.Module, bundle: Bundle, copied: Collection[str] | None) -> None:
    """Binds a module to a bundle, or copies the tensors of some paths; None: of all."""
    own, theirs = _tensors(module), dict(bundle.items())
    for path in own.keys() - theirs.keys() if len(own) > len(theirs) else ():
        if path in _not_in_state_dict(module):
            del own[path]  # a state dict has none of these
    if own.keys() != theirs.keys():
        raise InvalidArgument(
            f"the module has {sorted(own.keys() - theirs.keys())} and the bundle {sorted(theirs.keys() - own.keys())} "
            "which the other has not (load a module of the same architecture)"
        )
    for path, t in own.items():
        x = theirs[path]
        if t.shape != x.shape or name_of(t.dtype) != x.dtype:
            raise InvalidArgument(
                f"{path} is {t.dtype}{list(t.shape)} in the module and {x.dtype}{list(x.shape)} in the bundle "
                "(load a module of the same architecture)"
            )
    if copied == ():
        # In inference mode torch would make tensors of which a parameter has no gradient ever after.
        with torch.inference_mode(False), torch.no_grad():
            _bind(own, theirs, bundle)
        return
    with torch.no_grad():
        for path in own if copied is None else own.keys() & copied:
            own[path].copy_(theirs[path]._torch_to_read())


def publish_module(module: torch.nn.Module, name: str, meta: Any = None) -> int:
    """Publishes parameters and buffers as a revision of a name, copied once; its number.

    meta: what JSON can hold, such as the step of the weights, which readers find as `meta` of the Bundle.
    Raises as `baton.set`.

    >>> baton.torch.publish_module(torch.nn.Linear(3, 1), "doc/weights", meta={"step": 9})
    1
    >>> baton.get("doc/weights").meta
    {'step': 9}
    >>> baton.delete("doc/weights")
    """
    return _default.session().set(name, on_cpu(by_path(module)), meta=meta)


def by_path(weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """A module's parameters and buffers, or tensors. Raises InvalidArgument for what is neither."""
    tensors = _tensors(weights) if isinstance(weights, torch.nn.Module) else weights
    if not isinstance(tensors, Mapping):
        raise InvalidArgument(f"weights of type {type(weights).__name__} (give a module, or tensors by name)")
    for path, t in tensors.items():
        if not isinstance(path, str) or not isinstance(t, torch.Tensor):
            raise InvalidArgument(
                f"weights have {type(t).__name__} at {path!r} (give tensors by name, without nesting)"
            )
        if t.is_meta:
            raise InvalidArgument(f"{path} lies on meta (give it memory by .to_empty first)")
    return tensors


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by path in the machine's memory."""
    return {path: t.detach() if t.is_cpu else t.detach().cpu() for path, t in tensors.items()}


def cuda_pool() -> Any:
    """The memory pool of torch's current GPU that lies in Baton's slabs: one for each GPU and process.

    What is allocated under `with torch.cuda.use_mem_pool(pool)` is handed over without a copy: others map
    the slab once, and torch uses the bytes anew when nobody holds them any more. It works with every
    backend of torch's own but expandable segments. Raises InvalidArgument without CUDA in torch.

    >>> with torch.cuda.use_mem_pool(baton.torch.cuda_pool()):  # doctest: +SKIP
    ...     x = torch.empty(1000, device="cuda")
    """
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise InvalidArgument("this torch was built without CUDA (install one with CUDA)")
    _native.allocate_on_gpus_in(_default.session())
    return _cuda_pool(torch.cuda.current_device())


# Pools and allocator stay to the end of the process: many versions of torch keep no allocator that a pool was made
# with, and free by cudaFree what outlives its pool. A pool has the allocator on the GPU on which it was made.
@functools.cache
def _cuda_pool(_device: int) -> Any:
    cuda: Any = torch.cuda
    return cuda.MemPool(_cuda_allocator().allocator())


@functools.cache
def _cuda_allocator() -> Any:
    cuda: Any = torch.cuda
    return cuda.memory.CUDAPluggableAllocator(_native.__file__, "baton_cuda_alloc", "baton_cuda_free")


@functools.cache
def name_of(dtype: torch.dtype) -> str:
    """As Baton names a type."""
    return str(dtype).removeprefix("torch.")


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by path, tied ones under each of theirs."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        # Where named_parameters and named_buffers look, which take several times as long.
        for found, own in ((parameters, part._parameters), (buffers, part._buffers)):
            for name, t in own.items():
                if t is not None:
                    found[f"{path}.{name}" if path else name] = t
    return parameters | buffers


def _not_in_state_dict(module: torch.nn.Module) -> set[str]:
    """The paths of buffers that are not persistent."""
    parts = module.named_modules(remove_duplicate=False)
    return {f"{path}.{name}" if path else name for path, part in parts for name in part._non_persistent_buffers_set}


def _moved(session: Session, tensors: Mapping[str, torch.Tensor]) -> dict[str, Tensor]:
    """Copies each of torch's storages once; the tensors as the same views of the copies."""
    whole: dict[int, torch.Tensor] = {}
    types: dict[int, torch.dtype] = {}
    for path, t in tensors.items():
        if t.device.type != "cpu":
            way = '.to_empty(device="cpu")' if t.is_meta else ".cpu()"
            raise InvalidArgument(f"{path} lies on {t.device} (move the module by {way} first)")
        if t.layout != torch.strided:
            raise InvalidArgument(f"{path} is a {t.layout} tensor (make it dense by .to_dense() first)")
        if _OF_TORCH_ALONE.fullmatch(str(t.dtype)):
            raise InvalidArgument(f"{path} is {t.dtype}, which only torch has (keep its bytes, .view(torch.uint8))")
        storage = t.untyped_storage()
        if storage.nbytes() > 0:
            whole[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)
            types[storage.data_ptr()] = t.dtype
    # Those of a type side by side, the type of most bytes last: each is mapped from the file's beginning.
    bytes_of = {d: sum(whole[at].nbytes for at in whole if types[at] == d) for d in types.values()}
    whole = dict(sorted(whole.items(), key=lambda item: (bytes_of[types[item[0]]], str(types[item[0]]))))
    copies = session.share({str(at): raw for at, raw in whole.items()}, copy=True) if whole else {}
    moved = {}
    for path, t in tensors.items():
        if t.numel() == 0:
            moved[path] = session.empty(tuple(t.shape), t.dtype)
            continue
        raw = copies[str(t.untyped_storage().data_ptr())][t.storage_offset() * t.element_size() :]
        moved[path] = raw[: raw.nbytes - raw.nbytes % t.element_size()].view(t.dtype).as_strided(t.shape, t.stride())
    return moved


def _bind(own: Mapping[str, torch.Tensor], theirs: Mapping[str, Tensor], bundle: Bundle) -> None:
    """Lets a module's tensors be those of the bundle."""
    seen: dict[str, torch.Tensor] | None = None
    to_map: dict[tuple[int, int, str], list[tuple[torch.Tensor, Tensor, int]]] = {}
    files: dict[tuple[int, int, str], int] = {}
    try:
        for path, t in own.items():
            x = theirs[path]
            where = None if x.readonly else x._file()
            if where is None:
                seen = bundle.torch() if seen is None else seen
                t.data = seen[path]  # which holds the memory
                _hold(t, None)
                continue
            fd, _, at = where
            stat = os.fstat(fd)
            file = (stat.st_dev, stat.st_ino, x.dtype)
            if files.setdefault(file, fd) != fd:
                os.close(fd)
            to_map.setdefault(file, []).append((t, x, at))
        for file, tensors in to_map.items():
            _map(files[file], tensors)
            for t, _, _ in tensors:
                _hold(t, bundle)
    finally:
        for fd in files.values():
            os.close(fd)


# By the id of a tensor that was bound to a mapping of torch's own: the bundle that it holds, the last one.
_bundles: dict[int, Bundle | None] = {}


def _hold(t: torch.Tensor, bundle: Bundle | None) -> None:
    """Lets a tensor hold a bundle until it ends or is bound to another one."""
    if id(t) in _bundles:
        _bundles[id(t)] = bundle
    elif bundle is not None:
        _bundles[id(t)] = bundle
        weakref.finalize(t, _bundles.pop, id(t), None).atexit = False


def _map(fd: int, tensors: list[tuple[torch.Tensor, Tensor, int]]) -> None:
    """Puts tensors of one type over a mapping of torch's own.

    A mapping for each type, no longer than it must be: `torch.save` writes the whole of a storage, and
    refuses one that is seen as two types.
    """
    end = max(at + _reach(x) for _, x, at in tensors)
    mapped: Any = torch.UntypedStorage  # its method has no stub
    storage = mapped._new_shared_fd_cpu(fd, end)
    for t, x, at in tensors:
        dtype: Any = getattr(torch, x.dtype)
        t.data = torch.empty(0, dtype=dtype).set_(storage, at // dtype.itemsize, x.shape, x.strides)


def _reach(x: Tensor) -> int:
    """The bytes from a tensor's first element to behind its last."""
    last = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True))
    return (last + 1) * (x.nbytes // x.size)
