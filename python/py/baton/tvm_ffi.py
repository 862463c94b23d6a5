"""Functions of tvm-ffi's global table: those of this process are served to others, and those of others stand in it.

    baton.tvm_ffi.serve("vision.*")        # in a process that has them, in C++ or Python
    baton.tvm_ffi.export("vision/*")       # in another: tvm_ffi.get_global_func("vision.blur") calls it there

A name has dots in tvm-ffi and slashes in Baton; a version stands behind an @ in both.

Ownership: what `serve` and `export` return ends them; a function that was taken out of the table before works on.
Tensors are the same memory on both sides if that is Baton's, and are copied into it once if it is not; what is
lent for a call is not kept. Concurrency, fork and death: as with all functions. Needs tvm-ffi.
"""

import ctypes
import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Self

import tvm_ffi
from tvm_ffi import registry

from baton import _default, _errors, _native, _provided, _signature
from baton._errors import Conflict, InvalidArgument, NotFound, RemoteError

__all__ = ["Exported", "export", "serve"]

_core: Any = tvm_ffi.core

# What both sides have alike.
_ALIKE = frozenset({type(None), bool, int, float, str, bytes, _native.Tensor})


def serve(
    *functions: str,
    prefix: str | None = None,
    concurrency: int = 1,
    idempotent: bool = False,
    exclusive: bool = False,
    override: bool = False,
    session: _native.Session | None = None,
) -> _provided.Functions:
    """Provides functions of tvm-ffi's global table, which any process calls, until what it returns is closed.

    functions: their names there; `*` stands for any characters, and matches tvm-ffi's own ("ffi.…") only behind a "ffi."
    that is written out. prefix: stands before their names, with a slash. The rest is as of `baton.function`.
    What a function takes is looked at before anything is sent if the table knows it, as of those that C++ has put
    there. Raises NotFound if there is none, and InvalidArgument for a name that could not be mapped back.

    >>> f = tvm_ffi.register_global_func("doc.tvm.twice", lambda x: 2 * x)
    >>> with baton.tvm_ffi.serve("doc.tvm.*") as served:
    ...     served.names, baton.call("doc/tvm/twice", 4)
    (['doc/tvm/twice'], 8)
    >>> tvm_ffi.remove_global_func("doc.tvm.twice")
    """
    if not 1 <= concurrency <= 1024:
        raise InvalidArgument(f"a concurrency of {concurrency} is not 1 to 1024")
    definitions = []
    for name in _chosen(functions, registry.list_global_func_names(), "tvm-ffi's global table has no function"):
        f = tvm_ffi.get_global_func(name, allow_missing=True)
        if f is None:
            raise NotFound(f"tvm-ffi's global table has no function {name}")
        full = _with_prefix(prefix, "/", _name_here(name))
        made = _served(f, name, _schema(name))
        definitions.append(_provided.Definition(full, made, concurrency, idempotent, exclusive, override))
    return _provided.Functions(definitions, session or _default.session())


def export(
    *functions: str,
    prefix: str | None = None,
    override: bool = False,
    timeout: float | None = None,
    wait: float | None = None,
    session: _native.Session | None = None,
) -> "Exported":
    """Puts functions that processes provide into tvm-ffi's global table: C++ and Python get them there by name.

    functions: their names; `*` stands for any characters. prefix: stands before their names in the table, with a dot.
    override: takes the place of what the table has under the name. timeout: how many seconds a call takes at most.
    wait: how long this, and each call, waits for a provider if there is none. Raises NotFound, and Conflict if the
    table has one of that name.

    >>> @baton.function("doc/tvm/scale")
    ... def scale(x: baton.Tensor, by: float) -> baton.Tensor:
    ...     x.numpy()[:] *= by
    ...     return x
    >>> with baton.start_functions(scale), baton.tvm_ffi.export("doc/tvm/*") as exported:
    ...     exported.names, tvm_ffi.get_global_func("doc.tvm.scale")(baton.full(2, 3.0), 2.0).tolist()
    (['doc.tvm.scale'], [6.0, 6.0])
    """
    s = session or _default.session()
    if any("*" in name for name in functions):
        listed = [f.name for f in s.functions() if f.providers]
    else:
        listed = []
    exported = Exported()
    try:
        for name in _chosen(functions, listed, "no function is registered as"):
            f = s.get_function(name, wait=wait)
            if timeout is not None:
                f = f.options(timeout=timeout)
            exported._put(_with_prefix(prefix, ".", _name_there(name)), f, override)
    except BaseException:
        exported.close()
        raise
    return exported


class Exported:
    """Functions that stand in tvm-ffi's global table, until they are taken out of it.

    >>> @baton.function("doc/tvm/add")
    ... def add(x: int, y: int) -> int:
    ...     return x + y
    >>> with baton.start_functions(add):
    ...     exported = baton.tvm_ffi.export("doc/tvm/add", prefix="far")
    ...     f = tvm_ffi.get_global_func("far.doc.tvm.add")
    ...     exported.names, f(1, 2)
    (['far.doc.tvm.add'], 3)
    >>> exported.close()
    >>> exported.names, tvm_ffi.get_global_func("far.doc.tvm.add", allow_missing=True)
    ([], None)
    """

    def __init__(self) -> None:
        self._all: dict[str, tvm_ffi.Function] = {}

    def _put(self, name: str, f: _native.Function, override: bool) -> None:
        if not override and tvm_ffi.get_global_func(name, allow_missing=True) is not None:
            raise Conflict(f"tvm-ffi's global table has {name} already (override=True replaces it, prefix= renames)")
        made = tvm_ffi.convert_func(_exported(f), tensor_cls=_native.Tensor)
        self._all[name] = tvm_ffi.register_global_func(name, made, override=override)

    @property
    def names(self) -> list[str]:
        """Their names in the table: not of those that were replaced there meanwhile."""
        return [name for name, f in self._all.items() if self._stands(name, f)]

    @staticmethod
    def _stands(name: str, f: tvm_ffi.Function) -> bool:
        there = tvm_ffi.get_global_func(name, allow_missing=True)
        return there is not None and there.same_as(f)

    def close(self) -> None:
        """Takes them out of the table. One that was taken from there before works on."""
        while self._all:
            name, f = self._all.popitem()
            if self._stands(name, f):
                tvm_ffi.remove_global_func(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<baton.tvm_ffi.Exported {', '.join(self._all)}>"


def _chosen(wanted: Iterable[str], there: list[str], none: str) -> list[str]:
    """The names that are wanted, each once."""
    found: dict[str, None] = {}
    for name in wanted:
        if "*" not in name:
            found[name] = None
            continue
        own = name.startswith("ffi.")
        pattern = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
        matching = [n for n in sorted(there) if pattern.fullmatch(n) and (own or not n.startswith("ffi."))]
        if not matching:
            raise NotFound(f"{none} {name}")
        found.update(dict.fromkeys(matching))
    if not found:
        raise InvalidArgument("no function is named (give names, or a pattern)")
    return list(found)


def _name_here(name: str) -> str:
    """Baton's name of one that tvm-ffi has."""
    base, at, version = name.partition("@")
    if "/" in base:
        raise InvalidArgument(
            f"the name {name} has a slash, which would be a dot when it is mapped back (register it under another name)"
        )
    full = base.replace(".", "/") + at + version
    try:
        _native.check_function(full)
    except InvalidArgument as e:
        raise InvalidArgument(f"the name {name} cannot be one of Baton's: {e}") from None
    return full


def _name_there(name: str) -> str:
    """tvm-ffi's name of one of Baton's."""
    base, at, version = name.partition("@")
    return base.replace("/", ".") + at + version


def _with_prefix(prefix: str | None, between: str, name: str) -> str:
    return name if prefix is None else f"{prefix}{between}{name}"


# Values.


def _to_baton(v: Any) -> Any:
    """A value of tvm-ffi's as one that a call takes."""
    if type(v) in _ALIKE:
        return v
    if isinstance(v, tvm_ffi.Tensor):
        return _lent(v) if v.__chandle__() == 0 else v
    if isinstance(v, (list, tvm_ffi.Array, tvm_ffi.List)):
        return [_part(x) for x in v]
    if isinstance(v, tuple):  # a Shape, too
        return tuple(_part(x) for x in v)
    if isinstance(v, (dict, tvm_ffi.Map, tvm_ffi.Dict)):
        return {_part(k): _part(x) for k, x in v.items()}
    if isinstance(v, tvm_ffi.Function):
        return _served(v, "a function", None)
    if isinstance(v, (ctypes.c_void_p, tvm_ffi.Object)):
        raise TypeError(f"{type(v).__name__} is opaque: a call takes what another process can read, and no address")
    return v  # types and devices, and what Baton refuses


def _part(v: Any) -> Any:
    """As `_to_baton`, of what stands in a list or a map, where a device is a text."""
    if isinstance(v, tvm_ffi.Device):
        return "cpu" if v.type == "cpu" else str(v)
    return _to_baton(v)


def _to_tvm(v: Any) -> Any:
    """A value of Baton's as one that tvm-ffi takes."""
    if type(v) in _ALIKE or hasattr(type(v), "__dlpack__"):
        return v
    if isinstance(v, (list, tuple)):
        return [_to_tvm(x) for x in v]
    if isinstance(v, dict):
        return {_to_tvm(k): _to_tvm(x) for k, x in v.items()}
    if dataclasses.is_dataclass(v) and not isinstance(v, type):
        return {f.name: _to_tvm(getattr(v, f.name)) for f in dataclasses.fields(v)}
    if isinstance(v, (int, float, str, bytes, tvm_ffi.Object)):
        return v
    if callable(v) and not isinstance(v, type):
        return tvm_ffi.convert_func(_exported(v), tensor_cls=_native.Tensor)
    raise TypeError(f"tvm-ffi has no value for a {type(v).__name__}")


def _lent(t: tvm_ffi.Tensor) -> _native.Tensor:
    """A tensor that is lent for this call: of what is not Baton's memory a copy."""
    dtype, device = t.dtype, t.device
    of_elements = (dtype.type_code, dtype.bits, dtype.lanes)
    return _native.of_lent(
        t.data_ptr(), t.shape, t.strides, of_elements, (int(device.dlpack_device_type()), device.index)
    )


# Calls.


def _exported(f: Callable[..., Any]) -> Callable[..., Any]:
    """What tvm-ffi calls in the place of a function of Baton's."""
    alike = _ALIKE.issuperset

    def call(*args: Any) -> Any:
        try:
            if alike(map(type, args)):
                value = f(*args)
            else:
                args, named = _arguments(args)
                value = f(*args, **named)
        except Exception as e:
            raise _raised_there(e) from e
        return value if type(value) in _ALIKE else _to_tvm(value)

    return call


def _arguments(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position, and those by name, which tvm-ffi has behind a mark."""
    for i, v in enumerate(args):
        if isinstance(v, tvm_ffi.Object) and v.same_as(_core.KWARGS):
            rest = args[i + 1 :]
            if len(rest) % 2 or not all(isinstance(name, str) for name in rest[::2]):
                raise TypeError("behind the mark of arguments by name stand pairs of a name and a value")
            named = {str(name): _to_baton(x) for name, x in zip(rest[::2], rest[1::2], strict=True)}
            return tuple(map(_to_baton, args[:i])), named
    return tuple(map(_to_baton, args)), {}


def _served(f: tvm_ffi.Function, name: str, schema: Any) -> Callable[..., Any]:
    """What Baton calls in the place of a function of tvm-ffi's."""
    alike = _ALIKE.issuperset

    def call(*args: Any) -> Any:
        if not alike(map(type, args)):
            args = tuple(map(_to_tvm, args))
        try:
            value = f(*args)
        except RuntimeError as e:  # of a kind that has no class
            raise _raised_here(e) from e.__cause__
        return value if type(value) in _ALIKE else _to_baton(value)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = None
    _describe(call, schema)
    return call


# Errors.

# Frames as Python writes them, the innermost last; as Go and Rust do, the innermost first.
_PYTHON = re.compile(r'^[ |]*File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_OTHERS = re.compile(r"^(?: *\d+: )?(?P<function>\S.*)\n\s+(?:at )?(?P<file>\S+?):(?P<line>\d+)\b", re.MULTILINE)


def _backtrace(trace: str) -> str:
    """The trace of an error as tvm-ffi has it: the innermost frame first."""
    frames = list(_PYTHON.finditer(trace))[::-1] or list(_OTHERS.finditer(trace))
    return "".join(f'  File "{m["file"]}", line {m["line"]}, in {m["function"]}\n' for m in frames)


def _raised_there(e: Exception) -> BaseException:
    """An error of a call as tvm-ffi carries it: with its kind, message, and the frames of where it was raised."""
    remote = e if isinstance(e, RemoteError) else e.__cause__
    if not isinstance(remote, RemoteError) or not remote.type:
        return e  # by its class
    kind, message = remote.type, remote.message
    if kind.startswith("baton."):  # an error of the provider's own calls, and not of this one
        kind, message = "baton.Remote", str(remote)
    carried = _core.Error(kind, message, _backtrace(remote.trace))
    try:
        made: BaseException = carried.py_error()
    except Exception:  # noqa: BLE001 - of a class that is made otherwise
        made = RuntimeError(message)
        made.__tvm_ffi_error__ = carried  # type: ignore[attr-defined]
    return made


def _raised_here(e: RuntimeError) -> BaseException:
    """An error of tvm-ffi's as Baton tells it: of the kind that it has in C++, too."""
    carried: Any = getattr(e, "__tvm_ffi_error__", None)
    if carried is None or carried.kind == "RuntimeError" or type(e) is not RuntimeError:
        return e
    made = RemoteError(f"{carried.kind}: {carried.message}")
    made.detail = {"kind": carried.kind, "message": carried.message}  # type: ignore[misc]
    return made.with_traceback(e.__traceback__)


def _name_error(kind: str, cls: type[BaseException]) -> None:
    """Has tvm-ffi know a class of errors by the name that it has in Baton, unless it knows either already."""
    if kind not in _core.ERROR_NAME_TO_TYPE and cls not in _core.ERROR_TYPE_TO_NAME:
        tvm_ffi.register_error(kind, cls)


_errors.also_register(_name_error)


# Signatures.

_TYPES: dict[str, Any] = {
    "None": None,
    "int": _signature.Int64,
    "bool": bool,
    "float": float,
    "str": str,
    "bytes": bytes,
    "Tensor": _native.Tensor,
    "Array": list | tuple,
    "List": list | tuple,
    "list": list | tuple,
    "tuple": list | tuple,
    "Map": dict,
    "Dict": dict,
    "dict": dict,
    "dtype": tvm_ffi.dtype | str,
    "Device": tvm_ffi.Device | str,
}


def _schema(name: str) -> Any:
    """What tvm-ffi's global table knows of a function's types; None of most that Python has put there."""
    text = registry.get_global_func_metadata(name).get("type_schema")
    if text is None:
        return None
    schema = _core.TypeSchema.from_json_str(text)
    return schema if schema.origin == "Callable" and (schema.named_args or {}).get("params") is not None else None


def _annotation(schema: Any) -> Any:
    if schema.origin in ("Optional", "Union"):
        parts = [_annotation(s) for s in schema.args]
        if schema.origin == "Optional":
            parts.append(None)
        return functools.reduce(operator.or_, dict.fromkeys(parts))
    if schema.type_key == "ffi.BigInt":
        return int
    return _TYPES.get(schema.origin, Any)


def _describe(call: Callable[..., Any], schema: Any) -> None:
    """Says what a function takes, for `_signature`."""
    if schema is None:
        return
    groups = schema.named_args
    types = {f"arg{i}": _annotation(s) for i, s in enumerate(groups["params"])}
    result = _annotation(groups["return"][0])
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, kind, annotation=t) for name, t in types.items()]
    call.__signature__ = inspect.Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
    call.__annotations__ = {**types, "return": result}
