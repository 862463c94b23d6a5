"""Modules of torch over shared memory: their parameters shared in place, or published as revisions.

A shared module's parameters are the tensors of a live bundle, each in a storage of its own, as torch has them: what
is saved of one is that one. They are shared for torch too (`is_shared()`), whose queues send them on without a copy.

Ownership: a parameter that was bound keeps its memory, and so does a tensor that was made from it (`p.data`,
`p.detach()`). Concurrency: as of torch. Hostile peers: a process that may load a live module may write it.
Death: the name, and with it the memory, stays until it is deleted.
"""

import functools
from collections.abc import Collection, Container, Mapping
from typing import Any

import torch

import baton
from baton import _default, _native
from baton._errors import InvalidArgument
from baton._native import Bundle, Session, Tensor
from baton.torch import _members, _storages

__all__ = ["cuda_pool", "load_module", "publish_module", "share_module"]


def share_module(module: torch.nn.Module, name: str | None = None, *, ephemeral: bool = False) -> Bundle:
    """Moves parameters and buffers into shared memory, in place, and sets the bundle of them as a live name.

    Parameters stay the same objects: optimizers and hooks remain valid, tied ones stay tied, and views that were made
    of them before follow. Gradients that there are move too, as by torch's `share_memory()`, and are not in the
    bundle. Others bind themselves to the memory by `load_module`, of the name, or of the bundle that is the argument
    of their process: then no name is needed, and none is left for the next run. ephemeral: the name goes with this
    session. A tensor that was made in inference mode gives its place to a new one. With a torch that cannot exchange
    a storage's memory (see `install`) views of before keep the former memory. Raises InvalidArgument for a module that
    is not on the CPU or has what only torch knows, OutOfMemory.

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
    _members.check_module(module)
    before = _members.tensors(module)
    _members.check_made(before)
    _check_shareable(before)
    own = dict(before)
    session = _default.session()
    with torch.inference_mode(False), torch.no_grad():  # see `take`
        to_bind = _members.bindable(own)
        for path, t in own.items():
            if t.is_conj() or t.is_neg():  # what torch has put off; the memory has it done
                own[path] = t.resolve_conj().resolve_neg()
                if to_bind[path] is t:
                    t.data = own[path]
        gradients = [t.grad for t in own.values() if t.is_leaf and t.grad is not None]
        dense = [g for g in gradients if g.is_cpu and g.layout == torch.strided and not g.is_nested]
        if not _storages.moves():
            own = dict(zip(own, _copied(own.values()), strict=True))
            for g, copy in zip(dense, _copied(dense), strict=True):
                g.data = copy
        pieces = _shared([t.untyped_storage() for t in (*own.values(), *dense)])
        bundle = session.bundle({path: _part_of(pieces, t, session) for path, t in own.items()})
        for path, t in to_bind.items():
            if t is not own[path]:
                t.data = _over(own[path].untyped_storage(), own[path])
        if name is not None:
            session.set(name, bundle, live=True, ephemeral=ephemeral)
        _members.replace(module, before, to_bind)
    return bundle


def load_module(
    module: torch.nn.Module, name_or_bundle: "str | Bundle", copy: bool = False, *, timeout: float | None = 0.0
) -> Bundle:
    """Binds a module of the same architecture to the memory of a name or bundle, or copies from it.

    A live bundle is bound in place: what one process writes the others read. A published revision is
    bound copy-on-write: what is written stays in this process. copy=True copies into the module's own
    memory. A tensor that was made in inference mode cannot be bound, and gives its place to a new one. timeout:
    how many seconds to wait for the name to be set; None: no limit. Raises NotFound, InvalidArgument if
    paths, shapes or types differ.

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
    _members.check_module(module)
    bundle = baton.get(name_or_bundle, timeout) if isinstance(name_or_bundle, str) else name_or_bundle
    if not isinstance(bundle, Bundle):
        raise InvalidArgument(f"a {type(bundle).__name__} is neither a name nor a bundle (give one of them)")
    take(module, bundle, None if copy else ())
    return bundle


def take(module: torch.nn.Module, bundle: Bundle, copied: Collection[str] | None) -> None:
    """Binds a module to a bundle, or copies the tensors of some paths; None: of all."""
    own, theirs = _members.tensors(module), dict(bundle.items())
    extra = _extra_state(module, own, theirs)
    for path in own.keys() - theirs.keys() if len(own) > len(theirs) else ():
        if path in _members.not_in_state_dict(module):
            del own[path]  # a state dict has none of these
    if own.keys() != theirs.keys():
        raise InvalidArgument(
            f"the module has {sorted(own.keys() - theirs.keys())} and the bundle {sorted(theirs.keys() - own.keys())} "
            "which the other has not (load a module of the same architecture)"
        )
    _members.check_memory(own)
    for path, t in own.items():
        x = theirs[path]
        if copied == () and t.is_cpu != (x.device == "cpu"):
            raise InvalidArgument(
                f"{path} lies on {t.device} in the module and on {x.device} in the bundle (use copy=True)"
            )
        if t.shape != x.shape or name_of(t.dtype) != x.dtype:
            raise InvalidArgument(
                f"{path} is {t.dtype}{list(t.shape)} in the module and {x.dtype}{list(x.shape)} in the bundle "
                "(load a module of the same architecture)"
            )
    if copied == ():
        # In inference mode torch would make tensors of which a parameter has no gradient ever after.
        with torch.inference_mode(False), torch.no_grad():
            to_bind = _members.bindable(own)
            _bind(to_bind, theirs, bundle, own)
            _members.replace(module, own, to_bind)
    else:
        # What was made in inference mode is written there alone; of others it can be written there, too.
        inference = torch.is_inference_mode_enabled() or any(t.is_inference() for t in own.values())
        with torch.inference_mode(inference), torch.no_grad():
            for path in own if copied is None else _with_tied(own, copied):
                own[path].copy_(theirs[path]._torch_to_read())
    for path, (part, x) in extra.items():
        if copied is None or copied == () or path in copied:
            part.set_extra_state(x._torch_to_read().clone())


def _with_tied(own: Mapping[str, torch.Tensor], copied: Container[str]) -> list[str]:
    """Paths in their order, and with each the others that lie in the same memory: the last one's value stays there,
    whichever of them has changed."""

    def place(t: torch.Tensor) -> tuple[Any, ...]:
        return t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride()

    written = {place(t) for path, t in own.items() if path in copied}
    return [path for path, t in own.items() if place(t) in written]


def _extra_state(
    module: torch.nn.Module, own: Mapping[str, torch.Tensor], theirs: dict[str, Tensor]
) -> dict[str, tuple[torch.nn.Module, Tensor]]:
    """Takes the extra state out of what a bundle has: by path, with the module that takes it."""
    unknown = theirs.keys() - own.keys()
    takers = _members.takers_of_extra_state(module) if unknown else {}
    return {path: (takers[path], theirs.pop(path)) for path in unknown & takers.keys()}


def publish_module(module: torch.nn.Module, name: str, meta: Any = None) -> int:
    """Publishes parameters, buffers and extra state as a revision of a name, copied once; its number.

    meta: what JSON can hold, such as the step of the weights, which readers find as `meta` of the Bundle.
    Raises InvalidArgument for an extra state that is no tensor, and as `baton.set`.

    >>> baton.torch.publish_module(torch.nn.Linear(3, 1), "doc/weights", meta={"step": 9})
    1
    >>> baton.get("doc/weights").meta
    {'step': 9}
    >>> baton.delete("doc/weights")
    """
    _members.check_module(module)
    session, tensors = _default.session(), on_cpu(_members.by_path(module))
    # Also what lies in Baton's memory already: a module that is trained on must not write into a revision.
    return session.set(name, session.share(tensors, copy=True) if tensors else tensors, meta=meta)


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by path in the machine's memory."""
    return {path: t.detach() if t.is_cpu else t.detach().cpu() for path, t in tensors.items()}


def cuda_pool() -> Any:
    """The memory pool of torch's current GPU that lies in Baton's slabs: one for each GPU and process.

    What is allocated under `with torch.cuda.use_mem_pool(pool)` is handed over without a copy: others map
    the slab once, and torch uses the bytes anew when they have no holder any more. It works with every
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
    return str(dtype).removeprefix("torch.").replace("fn_x2", "fnx2")  # two elements in a byte have another name there


def _check_shareable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises InvalidArgument for what cannot lie in the machine's shared memory, or has no meaning there."""
    for path, t in tensors.items():
        if t.device.type != "cpu":
            way = '.to_empty(device="cpu")' if t.is_meta else ".cpu()"
            raise InvalidArgument(f"{path} lies on {t.device} (move the module by {way} first)")
    _members.check_elements(tensors)


def _copied(tensors: Collection[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors over copies of their storages in shared memory, for a torch that cannot exchange a storage's memory."""
    copies: dict[int, Any] = {}
    for t in tensors:
        storage = t.untyped_storage()
        if storage._cdata not in copies and storage.nbytes() and _storages.in_place(storage) is None:
            copies[storage._cdata] = _storages.born(storage.nbytes()).copy_(storage)
    storages = [copies.get(t.untyped_storage()._cdata) for t in tensors]
    return [t if s is None else _over(s, t) for t, s in zip(tensors, storages, strict=True)]


def _over(storage: Any, t: torch.Tensor) -> torch.Tensor:
    """A tensor's like over another storage."""
    return torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.shape, t.stride())


def _shared(storages: Collection[Any]) -> dict[int, Tensor]:
    """Moves storages into shared memory, in place; the tensors of their bytes, by their addresses there."""
    different = {s._cdata: s for s in storages}.values()
    for s in different:
        _mark_empty(s)
    full = [s for s in different if s.nbytes()]
    return {s.data_ptr(): x for s, x in zip(full, _storages.moved(full, anyway=True), strict=True)}


def _mark_empty(storage: Any) -> None:
    """Says to torch that a storage without a byte is shared, in torch's own way: it has nothing to move."""
    if not storage.nbytes():
        storage.share_memory_()


def _part_of(pieces: Mapping[int, Tensor], t: torch.Tensor, session: Session) -> Tensor:
    """The tensor that is a view of a storage, as that of the storage's bytes."""
    if not t.numel():
        return session.empty(tuple(t.shape), t.dtype)
    raw = pieces[t.untyped_storage().data_ptr()][t.storage_offset() * t.element_size() :]
    return raw[: raw.nbytes - raw.nbytes % t.element_size()].view(t.dtype).as_strided(t.shape, t.stride())


def _bind(
    own: Mapping[str, torch.Tensor],
    theirs: Mapping[str, Tensor],
    bundle: Bundle,
    before: Mapping[str, torch.Tensor],
) -> None:
    """Lets a module's tensors be those of the bundle.

    before: where those lie that the module has now. What lies apart there stays apart, but in a live bundle.
    """
    seen = bundle.torch()
    _part({path: before[path] for path in own if theirs[path].readonly}, seen)
    _join({path: theirs[path] for path in own if not theirs[path].readonly and theirs[path].device == "cpu"}, seen)
    for path, t in own.items():
        t.data = seen[path]  # which holds the memory


def _join(live: Mapping[str, Tensor], seen: dict[str, torch.Tensor]) -> None:
    """Puts tensors of shared memory over the storages that this process has there, one for all whose memory overlaps,
    as they were where they come from."""
    groups: list[list[str]] = []
    end = 0
    for start, stop, path in sorted((*_span(seen[path]), path) for path in live if seen[path].numel()):
        if start >= end:
            groups.append([])
        groups[-1].append(path)
        end = max(end, stop)
    pieces = []
    for group in groups:
        start, end = _span(seen[group[0]])[0], max(_span(seen[path])[1] for path in group)
        pieces.append(live[group[0]].as_strided((1,), (1,)).view("uint8").as_strided((end - start,), (1,)))
    for group, storage in zip(groups, _storages.over(pieces), strict=True):
        for path in group:
            t = seen[path]
            at, odd = divmod(t.data_ptr() - storage.data_ptr(), t.element_size())
            if not odd:  # torch counts in elements: one that lies between them stays by itself
                seen[path] = torch.empty(0, dtype=t.dtype).set_(storage, at, t.shape, t.stride())
    for path in live:
        _mark_empty(seen[path].untyped_storage())


def _part(own: Mapping[str, torch.Tensor], seen: dict[str, torch.Tensor]) -> None:
    """Gives what lies apart in a module, and in one place in a bundle, copies: the first stays, the others get them."""
    here: list[str] = []  # paths whose memory reaches into that of the next one
    copies: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    end = 0
    for start, stop, path in sorted((*_span(seen[path]), path) for path in own):
        if start >= end:
            here, end = [path], stop
            continue
        end, lies = max(end, stop), seen[path]
        if all(_meet(own[path], own[other]) for other in here if _meet(lies, seen[other])):
            here.append(path)
            continue
        for other, whole, copy in copies:  # tied to one that has a copy: they share it
            if _meet(own[path], own[other]) and _span(whole) == _span(lies) and whole.stride() == lies.stride():
                seen[path] = copy
                break
        else:
            seen[path] = lies.clone()
            copies.append((path, lies, seen[path]))


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory of two tensors overlaps."""
    (first, first_end), (second, second_end) = _span(a), _span(b)
    return first < second_end and second < first_end


def _span(t: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's memory begins and ends."""
    at = t.data_ptr()
    if t.is_contiguous():
        return at, at + t.nbytes
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return at, at + (last + 1) * t.element_size() if t.numel() else at
