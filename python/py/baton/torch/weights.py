"""Weights from a trainer to those that infer with them: versions under a name, sent as often as one likes.

    sender = baton.torch.weights.Sender("actor")          # in the trainer
    sender.send(model, meta={"step": step})

    receiver = baton.torch.weights.Receiver("actor", into=model)   # in each of the others
    receiver.receive()

A version is whole: no reader sees half of it. What has not changed since the one before is not copied again. One that
joins late has the newest at once, and one that is slow skips what came between.

Ownership: a version's memory is free when sender and receivers have gone on to others. Concurrency: one thread at a
time uses a sender or a receiver; any may close a receiver. Fork: a sender begins anew in the child, a receiver goes on.
Death: the newest version stays when its sender has ended, until the name is deleted or its broker ends. If the
session is lost both raise SessionLost once, and go on in the next session.
"""

import collections
import operator
import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, Self

import torch

import baton
from baton import _default, _native
from baton._errors import Closed, InvalidArgument, SessionLost
from baton._native import Bundle, Tensor
from baton.torch import _members, _modules

__all__ = ["Receiver", "Sender"]

# Of which each process has another one.
_process = object()


def _in_child() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_in_child)


class _Version(NamedTuple):
    """What a sender has published, and what the next version is compared with."""

    tensors: dict[str, Tensor]
    changed: dict[str, int]  # by path: which of the versions sent from here changed it last
    home: dict[str, int]  # by path: with which of them it was copied
    copied: dict[int, int]  # by version: the bytes that were copied with it, which are free together


_NONE = _Version({}, {}, {}, {})


class Sender:
    """Sends versions of a module, or of tensors by name.

    name: of Baton. keep: how many versions the sender holds itself. Raises InvalidArgument for fewer than one: what
    has not changed is taken from the last.

    Pickled, copied, or inherited by a fork it is another sender of the name, whose first version is copied whole.

    >>> layer = torch.nn.Linear(2, 1)
    >>> sender = baton.torch.weights.Sender("doc/sent")
    >>> sender.send(layer, meta={"step": 1}), sender.send(layer), sender.version
    (1, 2, 2)
    >>> baton.delete("doc/sent")
    """

    def __init__(self, name: str, keep: int = 2) -> None:
        _check_name(name)
        self.name, self.version = name, 0
        self._kept: collections.deque[_Version] = collections.deque(maxlen=_count(keep))
        self._session: _native.Session | None = None  # whose memory is kept

    def _begin(self, session: _native.Session) -> None:
        """Begins anew: receivers tell by the token which versions are to be compared with each other."""
        self._session, self._process, self._token, self._sent = session, _process, secrets.token_hex(8), 0
        self._kept.clear()
        self._doubtful: frozenset[str] = frozenset()  # paths of which receivers may have what is not in the last kept

    def send(
        self,
        weights: "torch.nn.Module | Mapping[str, torch.Tensor]",
        meta: Any = None,
        changed: Iterable[str] | None = None,
    ) -> int:
        """Publishes a version, copied once as far as it has changed; its number.

        Of a module go parameters, buffers, and extra state that is a tensor. meta: what JSON can hold. changed: the
        paths of what has changed; without them bytes are compared. Raises InvalidArgument for a path that is not
        there, for an extra state that is no tensor, and all else as `baton.set`. After a SessionLost the next version is
        copied whole.
        """
        session = _default.session()
        if self._session is not session or self._process is not _process:
            self._begin(session)
        given = _members.by_path(weights)
        tensors = _modules.on_cpu(given)
        named = _paths(changed)
        unknown = (named or frozenset()) - tensors.keys()
        if unknown:
            raise InvalidArgument(f"changed names {sorted(map(str, unknown))}, which are not sent (name what is)")
        if named:  # tied weights change together, and `named_parameters` names one of them
            lies = {k: t.untyped_storage().data_ptr() for k, t in given.items() if t.layout is torch.strided}
            storages = {lies[k] for k in named & lies.keys()}
            named |= {k for k, at in lies.items() if at in storages}
        last = self._kept[-1] if self._kept else _NONE
        before = last.tensors
        fresh = {k: t for k, t in tensors.items() if _differs(t, before.get(k), None if named is None else k in named)}
        again = _scattered({k: t for k, t in tensors.items() if k not in fresh}, last)
        copied = fresh | {k: before[k]._torch_to_read() for k in again}
        shared = dict(session.share(copied, copy=True).items()) if copied else {}
        version = {k: shared[k] if k in shared else before[k] for k in tensors}
        self._sent += 1
        sent = self._sent
        differs = fresh.keys() | self._doubtful
        paths = {k: sent if k in differs else last.changed[k] for k in tensors}
        home = {k: sent if k in copied else last.home[k] for k in tensors}
        sizes = {n: size for n, size in last.copied.items() if n in home.values()}
        sizes[sent] = sum(_bytes(t) for t in copied.values())
        about = {"sender": self._token, "sent": sent, "changed": paths, "meta": meta}
        # Where this fails, be it by Ctrl-C, the version may have come to receivers all the same, and the next is
        # compared with the one before: what differs now counts as changed then, whatever it is by that time.
        self._doubtful |= fresh.keys()
        self.version = session.set(self.name, version, meta=about)
        self._kept.append(_Version(version, paths, home, sizes))
        self._doubtful = frozenset()
        return self.version

    def __reduce__(self) -> "tuple[type[Self], tuple[str, int | None]]":
        return type(self), (self.name, self._kept.maxlen)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(f"the name is of type {type(name).__name__} (give a str)")
    _native.check_name(name)


def _count(keep: Any) -> int:
    """How many versions are kept."""
    try:
        count = operator.index(keep)
    except TypeError:
        raise InvalidArgument(f"keep={keep!r} is no whole number (say how many versions to keep)") from None
    if not 1 <= count <= sys.maxsize:
        raise InvalidArgument(f"keep={count} (keep one version at least, and no more than there can be)")
    return count


def _paths(changed: Any) -> frozenset[str] | None:
    """What has changed, as the program says."""
    if changed is None:
        return None
    if isinstance(changed, str):
        raise InvalidArgument(f"changed is the text {changed!r} (give a list of paths)")
    if not isinstance(changed, Iterable):
        raise InvalidArgument(f"changed is {changed!r} (give a list of paths)")
    named = list(changed)  # once: it may be an iterator
    for path in named:
        if not isinstance(path, str):
            raise InvalidArgument(f"changed has {path!r}, which is no path (give texts, such as 'layer.weight')")
    return frozenset(named)


def _scattered(unchanged: "Mapping[str, torch.Tensor]", last: _Version) -> list[str]:
    """Which of the tensors that have not changed are to be copied once more: what was copied together is free
    together, so a few that stay would keep all the others of their version. What is kept for a version is at most
    twice its bytes."""
    used: dict[int, list[str]] = {}
    for k in unchanged:
        used.setdefault(last.home[k], []).append(k)
    size = {n: sum(_bytes(unchanged[k]) for k in paths) for n, paths in used.items()}
    most, again = 2 * sum(size.values()), []
    for n in sorted(used, key=lambda n: size[n] / max(last.copied[n], 1)):
        if sum(last.copied[n] for n in used) <= most:
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
    return not torch.equal(_raw(t), _raw(seen))


def _raw(t: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements in C's order. Of a dimension of one element torch lets any stride be."""
    t = t.contiguous()
    return t.as_strided((t.numel(),), (1,)).view(torch.uint8)


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

    name: the sender's. into: a module that each version is bound to, or copied into, and whose `set_extra_state`
    gets what the sender's module gave. copy: copies, also if no module is given; else what is received is seen
    where it lies, copy-on-write. Raises InvalidArgument for an `into` that is no module or has no memory yet.

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
        _check_name(name)
        if into is not None:
            _members.check_module(into, "into")
            _members.check_memory(_members.tensors(into))
        self.name, self.into, self.copy = name, into, copy
        self.version, self.meta = 0, None
        self.changed: frozenset[str] = frozenset()
        self._watch, self._lost, self._closed = baton.watch(name), False, False
        self._last: tuple[str, int] | None = None  # the sender of what was received last, and its number there
        self._held: Bundle | None = None

    def receive(self, timeout: float | None = None) -> Any:
        """Waits for a version newer than the last one received, and takes it: the module, or the tensors by path.

        timeout: in seconds; None waits without a limit, 0 only looks. Raises Timeout; Closed when another thread closes
        the receiver; InvalidArgument if the module is of another architecture; SessionLost once, after which the
        next call receives what the name has then, or raises NoBroker within the timeout; BrokerLost if a version
        lies in memory that this process has not mapped yet, and the broker, which gives it, stays away for the timeout.
        """
        if self._lost and not self._closed:
            session, timeout = _default.within(timeout)
            self._watch, self._lost = session.watch(self.name), False
        if self._closed:
            self._watch.close()  # of another thread's close, which came between
            raise Closed(f"the receiver of {self.name} is closed")
        try:
            bundle = self._watch.receive(timeout)
        except SessionLost:
            self._lost = True
            raise
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
        """Ends the watching: a thread that waits in `receive` raises Closed. What was received stays."""
        self._closed = True  # before the watch, in whose place a lost session may put another one
        self._watch.close()
        self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a receiver belongs to its process: make one of the name there")
