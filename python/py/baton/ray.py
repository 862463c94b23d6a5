"""Ray's tensors by Baton: a tensor transport for Ray's actors of one machine.

    import baton.ray

    baton.ray.register()                      # before a class names it, in the process that makes the actors

    @ray.remote(enable_tensor_transport=True)
    class Rollout:
        @ray.method(tensor_transport="BATON")
        def batch(self) -> torch.Tensor: ...

What such a method returns, and what `ray.put(x, _tensor_transport="BATON")` is given, is copied once into Baton's
memory, unless it lies there. Ray carries handles; an actor that takes the tensors sees the same memory, copy-on-write.

Ownership: a lease of the source's session keeps the tensors as long as Ray counts references to the object. Death: with
its actor an object is gone, as Ray says; what others have taken of it stays theirs. Concurrency: any thread.
It uses what Ray calls its public API (alpha); Ray 2.60 is what it was tested with.
"""

import importlib
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from baton import _default, _native
from baton._errors import InvalidHandle
from baton._native import Bundle, Handle, Session

__all__ = ["BatonTransport", "register"]

# By its name: Ray is installed where it is used, and not where this package is checked.
_ray: Any = importlib.import_module("ray")
_Manager: Any = _ray.experimental.TensorTransportManager
_Metadata: Any = _ray.experimental.TensorTransportMetadata

_registered: set[str] = set()


def register(name: str = "BATON") -> None:
    """Makes the transport known to Ray, for what this process defines from now on; its actors get it from here.

    name: what `tensor_transport=` calls it. Once is enough; a second time does nothing. Raises ValueError if Ray
    has another transport of that name.

    >>> baton.ray.register()
    """
    if name.upper() in _registered:
        return
    _ray.experimental.register_tensor_transport(name, ["cpu"], BatonTransport, torch.Tensor)
    _registered.add(name.upper())


@dataclass
class BatonMetadata(_Metadata):  # type: ignore[misc]
    """What Ray carries of an object: handles of its tensors, under one lease, and whose they are.

    broker: the instance that has the memory. node: the address of the source's machine, for messages.
    """

    handles: list[str] = field(default_factory=list)
    broker: str = ""
    node: str = ""


_metadata: Any = BatonMetadata


class _Held:
    """An object of this process's: the tensors, and the handles that a lease keeps."""

    def __init__(self, session: Session, tensors: list[Any]) -> None:
        shared = session.share({str(i): t.detach() for i, t in enumerate(tensors)})
        self.session = session
        self.bundle = session.bundle({k: x.as_readonly() for k, x in shared.items()})
        self.handles = _native.lend(self.bundle)

    def end(self) -> None:
        """Ends the lease."""
        _native.end_lease(self.session, self.handles)


class BatonTransport(_Manager):  # type: ignore[misc]
    """The transport, of which Ray makes one for each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def tensor_transport_backend(self) -> str:
        """Its name."""
        return "BATON"

    @staticmethod
    def is_one_sided() -> bool:
        """The source takes no part when its tensors are taken."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """There is nothing under way that could be aborted."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether it has is found when it takes a tensor: to ask it would wait for it."""
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Any:
        """In the source: copies tensors into Baton's memory, and makes handles of them."""
        meta = [(t.shape, t.dtype) for t in rdt_object]
        devices = {t.device.type for t in rdt_object}
        if not rdt_object or devices != {"cpu"}:  # others Ray refuses, by the name of the device
            return _metadata(meta, next(iter(sorted(devices - {"cpu"})), None))
        with self._lock:
            held = self._held.get(obj_id)
            if held is None:  # else the task runs once more
                held = self._held[obj_id] = _Held(_default.session(), rdt_object)
        broker = Handle.from_json(held.handles[0]).host
        return _metadata(meta, "cpu", held.handles, broker, _ray.util.get_node_ip_address())

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        """Nothing has to be agreed on."""
        return _ray.experimental.CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """In the receiving process: the tensors where they lie, copy-on-write, or copied into buffers.

        Raises InvalidHandle if the source has another broker, as on another machine; Expired if it has ended.
        """
        meta: BatonMetadata = tensor_transport_metadata
        if not meta.handles:
            return []
        tensors = list(_opened(meta).torch().values())
        if not target_buffers:
            return tensors
        for buffer, t in zip(target_buffers, tensors, strict=True):
            buffer.copy_(t)
        return target_buffers

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        """Never called: the transport is one-sided."""
        raise NotImplementedError("the transport is one-sided")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        """In the source, when Ray counts no reference: ends the lease."""
        with self._lock:
            held = self._held.pop(obj_id, None)
        if held is not None:
            held.end()

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Nothing has to be undone."""


def _opened(meta: BatonMetadata) -> Bundle:
    session = _default.session()
    try:
        names = [str(i) for i in range(len(meta.handles))]
        return _native.open_bundle(session, meta.handles, names, b"", b"", 0, False)
    except InvalidHandle as e:
        raise InvalidHandle(
            f"the tensors lie on {meta.node}, with Baton's broker {meta.broker}, which is not the one of this actor on "
            f"{_ray.util.get_node_ip_address()}: {e} (place both actors on one machine, with one BATON_ADDRESS, or use "
            "Ray's object store or NIXL between machines)"
        ) from e
