"""Weights from a trainer to those that infer with them: versions under a name, sent as often as one likes.

    sender = baton.torch.weights.Sender("actor")          # in the trainer
    sender.send(model, meta={"step": step})

    receiver = baton.torch.weights.Receiver("actor", into=model)   # in each of the others
    receiver.receive()

A version is whole: nobody sees half of it. What has not changed since the one before is not copied again. One that
joins late has the newest at once, and one that is slow skips what came between.

Ownership: a version's memory is free when sender and receivers have gone on to others. Concurrency: one thread at a
time uses a sender or a receiver. Death: the newest version stays when its sender has ended, until the name is deleted
or its broker ends.
"""

import collections
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch

import baton
from baton import _default
from baton._errors import InvalidArgument
from baton._native import Bundle, Tensor
from baton.torch import _members, _modules

__all__ = ["Receiver", "Sender"]


class Sender:
    """Sends versions of a module, or of tensors by name.

    name: of Baton. keep: how many versions the sender holds itself. Raises InvalidArgument for fewer than one: what
    has not changed is taken from the last.

    >>> layer = torch.nn.Linear(2, 1)
    >>> sender = baton.torch.weights.Sender("doc/sent")
    >>> sender.send(layer, meta={"step": 1}), sender.send(layer), sender.version
    (1, 2, 2)
    >>> baton.delete("doc/sent")
    """

    def __init__(self, name: str, keep: int = 2) -> None:
        if keep < 1:
            raise InvalidArgument(f"keep={keep} (keep one version at least)")
        self.name, self.version = name, 0
        self._kept: collections.deque[dict[str, Tensor]] = collections.deque(maxlen=keep)
        self._token, self._sent = secrets.token_hex(8), 0
        self._changed: dict[str, int] = {}  # by path: which of the versions sent from here changed it last
        self._home: dict[str, int] = {}  # by path: with which of them it was copied
        self._copied: dict[int, int] = {}  # by version: the bytes that were copied with it, which are free together

    def send(
        self,
        weights: "torch.nn.Module | Mapping[str, torch.Tensor]",
        meta: Any = None,
        changed: Iterable[str] | None = None,
    ) -> int:
        """Publishes a version, copied once as far as it has changed; its number.

        meta: what JSON can hold. changed: the paths of what has changed; without them bytes are compared. Raises
        InvalidArgument for a path that is not there, and as `baton.set`.
        """
        given = _members.by_path(weights)
        tensors = _modules.on_cpu(given)
        if isinstance(changed, str):
            raise InvalidArgument(f"changed is the text {changed!r} (give a list of paths)")
        named = None if changed is None else frozenset(changed)  # once: it may be an iterator
        unknown = (named or frozenset()) - tensors.keys()
        if unknown:
            raise InvalidArgument(f"changed names {sorted(map(str, unknown))}, which are not sent (name what is)")
        if named:  # tied weights change together, and `named_parameters` names one of them
            lies = {k: t.untyped_storage().data_ptr() for k, t in given.items() if t.layout is torch.strided}
            storages = {lies[k] for k in named & lies.keys()}
            named |= {k for k, at in lies.items() if at in storages}
        before = self._kept[-1] if self._kept else {}
        fresh = {k: t for k, t in tensors.items() if _differs(t, before.get(k), None if named is None else k in named)}
        again = self._scattered({k: t for k, t in tensors.items() if k not in fresh})
        copied = fresh | {k: before[k]._torch_to_read() for k in again}
        shared = dict(_default.session().share(copied, copy=True).items()) if copied else {}
        version = {k: shared[k] if k in shared else before[k] for k in tensors}
        self._sent += 1  # also where it then fails: it may have come to receivers
        paths = {k: self._sent if k in fresh else self._changed[k] for k in tensors}
        home = {k: self._sent if k in copied else self._home[k] for k in tensors}
        sizes = {n: size for n, size in self._copied.items() if n in home.values()}
        sizes[self._sent] = sum(_bytes(t) for t in copied.values())
        about = {"sender": self._token, "sent": self._sent, "changed": paths, "meta": meta}
        self.version = _default.session().set(self.name, version, meta=about)
        self._kept.append(version)
        self._changed, self._home, self._copied = paths, home, sizes
        return self.version

    def _scattered(self, unchanged: "Mapping[str, torch.Tensor]") -> list[str]:
        """Which of the tensors that have not changed are to be copied once more: what was copied together is free
        together, so a few that stay would keep all the others of their version. What is kept for a version is at most
        twice its bytes."""
        used: dict[int, list[str]] = {}
        for k in unchanged:
            used.setdefault(self._home[k], []).append(k)
        size = {n: sum(_bytes(unchanged[k]) for k in paths) for n, paths in used.items()}
        most, again = 2 * sum(size.values()), []
        for n in sorted(used, key=lambda n: size[n] / max(self._copied[n], 1)):
            if sum(self._copied[n] for n in used) <= most:
                break
            again += used.pop(n)
        return again


def _bytes(t: torch.Tensor) -> int:
    return t.numel() * t.element_size()


def _differs(t: torch.Tensor, before: Tensor | None, changed: bool | None) -> bool:
    if before is None or tuple(t.shape) != before.shape or _modules.name_of(t.dtype) != before.dtype:
        return True
    if changed is not None:
        return changed
    seen = before._torch_to_read()
    t = t.resolve_conj().resolve_neg()  # what torch has put off is done in the version
    raw = t.contiguous().view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8)
    return not torch.equal(raw, seen.reshape(-1).view(torch.uint8).view(raw.shape))


def _is_about(meta: Any) -> bool:
    """Whether a sender wrote what stands beside a version, and not another publisher of the name."""
    return (
        isinstance(meta, dict)
        and meta.keys() == {"sender", "sent", "changed", "meta"}
        and type(meta["sender"]) is str
        and type(meta["sent"]) is int
        and isinstance(meta["changed"], dict)
        and all(type(n) is int for n in meta["changed"].values())
    )


class Receiver:
    """Receives versions.

    name: the sender's. into: a module that each version is bound to, or copied into. copy: copies, also where no
    module is given; else what is received is seen where it lies, copy-on-write.

    >>> layer, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> sender = baton.torch.weights.Sender("doc/weights")
    >>> sender.send(layer, meta={"step": 1})
    1
    >>> receiver = baton.torch.weights.Receiver("doc/weights", into=other)
    >>> receiver.receive(timeout=10) is other, torch.equal(other.weight, layer.weight)
    (True, True)
    >>> receiver.version, receiver.meta, sorted(receiver.changed)
    (1, {'step': 1}, ['bias', 'weight'])
    >>> baton.delete("doc/weights")
    """

    def __init__(self, name: str, into: "torch.nn.Module | None" = None, copy: bool = False) -> None:
        self.name, self.into, self.copy = name, into, copy
        self.version, self.meta = 0, None
        self.changed: frozenset[str] = frozenset()
        self._watch = baton.watch(name)
        self._last: tuple[str, int] | None = None  # the sender of what was received last, and its number there
        self._held: Bundle | None = None

    def receive(self, timeout: float | None = None) -> Any:
        """Waits for a version newer than the last one received, and takes it: the module, or the tensors by path.

        timeout: in seconds; None waits for ever, 0 only looks. Raises Timeout; InvalidArgument where the module is
        of another architecture.
        """
        bundle = self._watch.receive(timeout)
        meta = bundle.meta  # read anew at each look
        about = meta if _is_about(meta) else None
        if about is not None and self._last is not None and self._last[0] == about["sender"]:
            changed = frozenset(k for k, sent in about["changed"].items() if sent > self._last[1])
        else:
            changed = frozenset(bundle.keys())
        if self.into is not None:
            _modules.take(self.into, bundle, changed if self.copy else ())
            got: Any = self.into
        else:
            got = {k: t.clone() for k, t in bundle.torch().items()} if self.copy else bundle.torch()
        self._held = None if self.copy else bundle
        self._last = None if about is None else (about["sender"], about["sent"])
        self.meta = meta if about is None else about["meta"]
        self.version, self.changed = bundle.revision, changed
        return got

    def close(self) -> None:
        """Ends the watching. What was received stays."""
        self._watch.close()
        self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
