"""TensorDicts as values: what is sent of one, and the one that is made of that.

A TensorDict goes as the tensors of its entries, nested as they are, with the sizes, names and device that it has, and
its non-tensor data as values. This module is imported by a process that has imported tensordict itself, and by no
other.

Concurrency: any thread. Hostile peers: fields are unchecked data from another process; what makes no TensorDict stays a
dict.
"""

from collections.abc import Callable, Iterator
from typing import Any

import tensordict
from tensordict import NonTensorData, NonTensorStack, TensorDict

from baton import _native

# What a value calls it: the name under which every version of tensordict has it.
NAME = "tensordict:TensorDict"

_is_collection: Callable[[Any], bool] = tensordict.is_tensor_collection
_is_tensorclass: Callable[[Any], bool] = tensordict.is_tensorclass

Path = tuple[str, ...]


def taken_apart(value: Any) -> tuple[str | None, dict[str, Any]] | None:
    """The name of a TensorDict's class and the fields that stand for it; no name: that of the value's own class,
    which is a tensorclass. None of another value. Raises TypeError for a collection of another kind."""
    if type(value) is TensorDict:
        return NAME, _fields(value)
    if not _is_collection(value):
        return None
    if not _is_tensorclass(value) or isinstance(value, NonTensorData):
        raise TypeError(_refused(value, ()))
    return None, _fields(value.to_tensordict())


def _fields(td: TensorDict) -> dict[str, Any]:
    nested: dict[Path, dict[str, Any]] = {}
    data: dict[Path, dict[str, Any]] = {}
    source = _source(td, (), nested, data)
    return {"source": source, **_about(td), "nested": nested, "data": data}


def _about(td: TensorDict) -> dict[str, Any]:
    names = td.names
    return {
        "batch_size": list(td.batch_size),
        "names": None if all(name is None for name in names) else list(names),
        "device": None if td.device is None else str(td.device),
    }


def _source(td: TensorDict, at: Path, nested: dict[Path, Any], data: dict[Path, Any]) -> dict[str, Any]:
    source: dict[str, Any] = {}
    for key, entry in td.items():
        path = (*at, key)
        if isinstance(entry, NonTensorData):
            data[path] = {"value": entry.data}
        elif isinstance(entry, NonTensorStack):
            data[path] = {"stack": list(entry.tolist())}
        elif type(entry) is TensorDict:
            nested[path] = _about(entry)
            source[key] = _source(entry, path, nested, data)
        elif _is_collection(entry):
            raise TypeError(_refused(entry, path))
        else:
            source[key] = entry
    return source


def _refused(value: Any, path: Path) -> str:
    where = f'"{"/".join(path)}" of the TensorDict' if path else "the value"
    return (
        f"{where} is a {type(value).__name__}: TensorDicts of tensors, other TensorDicts and non-tensor data are carried, "
        "and a tensorclass alone (make it one by .contiguous() or .to_tensordict(), or send its parts)"
    )


def put_together(cls: Any, fields: dict[str, Any]) -> Any:
    """The TensorDict of such fields, or the tensorclass; the fields themselves where they make none. None of another
    class."""
    if cls is not TensorDict and not _is_tensorclass(cls):
        return None
    try:
        tensors: list[Any] = []
        _collect(fields["source"], (), fields["nested"], tensors)
        # At once: read-only ones of one storage need one mapping.
        bundle = _native.bundle_of(tensors, [str(i) for i in range(len(tensors))], b"", b"")
        td = _made(fields["source"], (), fields, fields, iter(bundle.torch().values()))
        return td if cls is TensorDict else cls.from_tensordict(td)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return fields


def _collect(source: dict[str, Any], at: Path, nested: dict[Path, Any], into: list[Any]) -> None:
    """The tensors of all entries, in their order."""
    for key, entry in source.items():
        if (*at, key) in nested:
            _collect(entry, (*at, key), nested, into)
        else:
            into.append(entry)


def _made(
    source: dict[str, Any], at: Path, about: dict[str, Any], fields: dict[str, Any], tensors: Iterator[Any]
) -> TensorDict:
    """The TensorDict of a path; `about` says what it is, `fields` has what stands by path, `tensors` the entries."""
    nested, entries = fields["nested"], {}
    for key, entry in source.items():
        inner = (*at, key)
        entries[key] = _made(entry, inner, nested[inner], fields, tensors) if inner in nested else next(tensors)
    td = TensorDict(entries, batch_size=about["batch_size"], names=about["names"], device=about["device"])
    for path, what in fields["data"].items():
        if path[:-1] == at:
            made: Any = (
                NonTensorStack.from_list(what["stack"])
                if "stack" in what
                else NonTensorData(what["value"], batch_size=td.batch_size)
            )
            td.set(path[-1], made)
    return td
