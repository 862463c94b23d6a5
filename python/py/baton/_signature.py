"""What a function takes and gives, as its registration describes it.

Types are those of values, joined by `|`: what an annotation cannot say is `any`. Callers in all languages look at them
before they send anything.
"""

import collections.abc
import dataclasses
import functools
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from baton._native import Bundle, Function, Tensor


class Int64:
    """Stands for an integer of 64 bits in annotations."""


_PLAIN: dict[Any, str] = {
    None: "none",
    type(None): "none",
    bool: "bool",
    int: "int",
    Int64: "int64",
    float: "float",
    str: "str",
    bytes: "bytes",
    list: "list",
    tuple: "tuple",
    dict: "dict",
    Tensor: "tensor",
    Bundle: "dict",
    collections.abc.Sequence: "list|tuple",
    collections.abc.Iterable: "list|tuple",
    collections.abc.Mapping: "dict",
    collections.abc.MutableMapping: "dict",
    collections.abc.MutableSequence: "list",
    collections.abc.Callable: "function",
    Callable: "function",
    Function: "function",
}
_GENERATORS = {
    collections.abc.Generator,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
}
_MOST_DOC = 8 << 10  # bytes: a description has 16 KiB
_MOST_CLASS = 512  # bytes
_CUT = "…"  # at the end of what is longer
# Classes of other libraries, none of which is imported for that.
_ARRAYS = {"numpy.ndarray", "torch.Tensor", "jax.Array", "jaxlib._jax.Array", "cupy.ndarray"}
_NAMED = {
    "numpy.dtype": "dtype",
    "torch.dtype": "dtype",
    "torch.device": "device",
    "tvm_ffi._dtype.dtype": "dtype",
    "tvm_ffi.core.Device": "device",
}


def _full_name(cls: Any) -> str:
    name = f"{getattr(cls, '__module__', '')}.{getattr(cls, '__qualname__', '')}"
    return {"torch._tensor.Tensor": "torch.Tensor", "jax._src.basearray.Array": "jax.Array"}.get(name, name)


def types_of(annotation: Any) -> str:
    """The types of an annotation."""
    if annotation is inspect.Parameter.empty:
        return "any"
    try:
        if annotation in _PLAIN:
            return _PLAIN[annotation]
    except TypeError:  # one that has no hash
        return "any"
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return types_of(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return _joined(types_of(a) for a in typing.get_args(annotation))
    if origin is typing.Literal:
        return _joined(types_of(type(v)) for v in typing.get_args(annotation))
    if origin is not None:
        return types_of(origin)
    name = _full_name(annotation)
    if name in _ARRAYS:
        return "tensor"
    if name in _NAMED:
        return _NAMED[name]
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _class_name(f"{annotation.__module__}:{annotation.__qualname__}")
    return "any"


def _class_name(name: str) -> str:
    """The name of a class as a type; any where a description has no such name, as of one that is made with a space in it."""
    is_name = name.isprintable() and not set(name) & set(" |") and len(name.encode()) <= _MOST_CLASS
    return name if is_name else "any"


def _joined(all: Any) -> str:
    found = list(dict.fromkeys(t for one in all for t in one.split("|")))
    return "any" if "any" in found else "|".join(found)


def _default(value: Any) -> Any:
    """The tree of a default, where it is a scalar; None where callers are not told."""
    if value is None or isinstance(value, bool):
        return (value,)
    if isinstance(value, int) and abs(value) < 1 << 53:
        return (int(value),)
    if isinstance(value, float) and math.isfinite(value):
        return (float(value),)
    if isinstance(value, str) and len(value) < 256 and value.isprintable():
        return (str(value),)
    return None


def _bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a functools.partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What has the annotations of a function: of a functools.partial its function, of an object the __call__ of its class."""
    function = _bound(function)
    if inspect.isroutine(function) or isinstance(function, type) or hasattr(function, "__wrapped__"):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - it is there


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters, and of its result. What a partial has bound is no parameter."""
    function = _called(function)
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that is there for type checkers alone
        return {k: v for k, v in getattr(function, "__annotations__", {}).items() if not isinstance(v, str)}


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it runs in a loop."""
    function = _called(function)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def gives_parts(function: Callable[..., Any]) -> bool:
    """Whether it is a generator, or an asynchronous one: what it yields are the parts of its calls."""
    function = _called(function)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _part(annotation: Any) -> Any:
    """What a generator yields that is annotated so."""
    args = typing.get_args(annotation)
    return args[0] if typing.get_origin(annotation) in _GENERATORS and args else inspect.Parameter.empty


def describe(function: Callable[..., Any], nats: bool = False) -> str:
    """The description of a function, as JSON."""
    described: dict[str, Any] = {}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one of C that has none
        signature = None
    hints = _hints(function)
    if signature is not None:
        described["parameters"] = [_parameter(p, hints) for p in signature.parameters.values()]
        result = hints.get("return", inspect.Parameter.empty)
        result = types_of(_part(result) if gives_parts(function) else result)
        if result != "any":
            described["result"] = result
    if gives_parts(function):
        described["parts"] = True
    if nats:
        described["nats"] = True
    if doc := inspect.getdoc(_bound(function)):
        described["doc"] = _shortened(doc.encode(errors="replace"))
    return json.dumps(described)


def _shortened(doc: bytes) -> str:
    """What callers see of a doc: of a longer one its beginning."""
    if len(doc) <= _MOST_DOC:
        return doc.decode()
    return doc[: _MOST_DOC - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _parameter(p: inspect.Parameter, hints: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"name": p.name, "type": types_of(hints.get(p.name, inspect.Parameter.empty))}
    if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
        told["by"] = "position"
    elif p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD):
        told["by"] = "name"
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        told["many"] = True
    if p.default is not p.empty:
        default = _default(p.default)
        if default is None:
            told["optional"] = True
        else:
            told["default"] = default[0]
    return told


def _torch_dtype(name: str) -> Any:
    return getattr(sys.modules["torch"], name, name)


# What is made of a value for a parameter that is annotated with a class: of what class it comes, and how.
_MADE: dict[str, tuple[type, Callable[[Any, Any], Any]]] = {
    "numpy.ndarray": (Tensor, lambda _, v: v.numpy()),
    "torch.Tensor": (Tensor, lambda _, v: v.torch()),
    "jax.Array": (Tensor, lambda _, v: v.jax()),
    "numpy.dtype": (str, lambda dtype, v: dtype(v)),
    "torch.dtype": (str, lambda _, v: _torch_dtype(v)),
    "torch.device": (str, lambda device, v: device(v)),
}


_Maker = Callable[[Any], Any]
_LISTS = {list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Iterable}
_DICTS = {dict, collections.abc.Mapping, collections.abc.MutableMapping}


def _taken(annotation: Any) -> _Maker | None:
    """What makes of a Tensor the array that a parameter is annotated with, and of a text the dtype or the device; and of
    the items of a list, tuple or dict what their annotations say."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _taken(args[0])
    if origin in (typing.Union, types.UnionType):
        # One that takes the value as it is leaves it so.
        makers = [make for one in args if (make := _taken(one)) is not None and not _is_plain_in(one, args)]
        return _one_after_the_other(makers)
    if origin in _LISTS and len(args) == 1:
        return _items(_taken(args[0]))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _items(_taken(args[0]))
    if origin is tuple:
        return _places([_taken(one) for one in args])
    if origin in _DICTS and len(args) == 2:
        return _values(_taken(args[1]))
    c = origin or annotation
    known = _MADE.get(_full_name(c))
    if known is None:
        return None
    of, convert = known
    return lambda v: convert(c, v) if isinstance(v, of) else v


def _is_plain_in(one: Any, args: tuple[Any, ...]) -> bool:
    """Whether a union with a class has what that class is made of, too."""
    known = _MADE.get(_full_name(typing.get_origin(one) or one))
    return known is not None and known[0] in args


def _one_after_the_other(makers: list[_Maker]) -> _Maker | None:
    if len(makers) < 2:
        return makers[0] if makers else None

    def make(v: Any) -> Any:
        for one in makers:
            made = one(v)
            if made is not v:
                return made
        return v

    return make


def _items(make: _Maker | None) -> _Maker | None:
    """What makes the items of a list or tuple."""
    if make is None:
        return None
    return lambda v: type(v)(map(make, v)) if type(v) in (list, tuple) else v


def _places(makers: list[_Maker | None]) -> _Maker | None:
    """What makes the items of a tuple of so many."""
    if not any(makers):
        return None

    def make(v: Any) -> Any:
        if type(v) not in (list, tuple) or len(v) != len(makers):
            return v
        return type(v)(x if one is None else one(x) for one, x in zip(makers, v, strict=True))

    return make


def _values(make: _Maker | None) -> _Maker | None:
    """What makes the values of a dict."""
    if make is None:
        return None
    return lambda v: {k: make(x) for k, x in v.items()} if type(v) is dict else v


def adapted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given arrays, dtypes and devices of the kinds that its annotations name in the place of Baton's."""
    hints = _hints(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return function
    makers = {p.name: make for p in parameters if p.name in hints and (make := _taken(hints[p.name]))}
    if not makers:
        return function
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    rest, more = (
        next((p.name for p in parameters if p.kind == kind), "")
        for kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    )

    def made(name: str, v: Any) -> Any:
        make = makers.get(name)
        return v if make is None else make(v)

    def call(*args: Any, **named: Any) -> Any:
        n = len(by_position)
        given = [made(by_position[i] if i < n else rest, v) for i, v in enumerate(args)]
        return function(*given, **{name: made(name if name in by_name else more, v) for name, v in named.items()})

    return call


def name_for(function: Callable[..., Any]) -> str:
    """The name that a function has where none is given: its module's and its own."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not name:
        raise ValueError(f'{function!r} has no name of its own: give it one, @baton.function("…")')
    if module == "__main__":
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        hint = "" if spec is None else f" (as {spec.name.replace('.', '/')}/{name})"
        raise ValueError(f'{name} is a function of __main__: give it a name, @baton.function("…"){hint}')
    if "<" in name:
        raise ValueError(f'{name} stands inside another function: give it a name, @baton.function("…")')
    return f"{module}.{name}".replace(".", "/")
