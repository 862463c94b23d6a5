"""Conversions of arguments, which are those of every language (protocol/testdata/conversions.json), and functions that linger."""

import functools
import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import baton
import ml_dtypes
import numpy as np
import pytest
from baton import _default, _native
from function_kit import nothing_is_defined  # noqa: F401 - a fixture

TABLE = json.loads((Path(__file__).resolve().parents[2] / "protocol/testdata/conversions.json").read_text())


def value_of(text: str) -> Any:
    kind, _, rest = text.partition(" ")
    match kind:
        case "none":
            return None
        case "bool":
            return rest == "true"
        case "int":
            return int(rest)
        case "float":
            return float(rest)
        case "str":
            return rest
        case "bytes":
            return bytes.fromhex(rest)
        case "list" | "tuple" | "dict":
            return {"list": [], "tuple": (), "dict": {}}[kind]
        case "dtype":
            return np.dtype(rest)
        case "tensor":
            return baton.share(array_of(rest))
    raise AssertionError(text)


def array_of(text: str) -> np.ndarray:
    dtype, shape, data = text.split()
    dt = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    return np.frombuffer(bytes.fromhex(data), dt).reshape(() if shape == "0d" else (1,))


def is_same(got: Any, want: Any) -> bool:
    if isinstance(want, baton.Tensor):
        return (
            isinstance(got, baton.Tensor)
            and got.numpy().tobytes() == want.numpy().tobytes()
            and got.shape == want.shape
        )
    if isinstance(want, np.dtype):
        return str(got) == str(want)
    if isinstance(want, float) and type(got) is float:
        return got == want and math.copysign(1, got) == math.copysign(1, want) or math.isnan(got) and math.isnan(want)
    return type(got) is type(want) and got == want


class Provider:
    """Functions with parameters of any types, as a provider in another language has them."""

    def __init__(self) -> None:
        self.runs = 0

    def provide(self, name: str, parameters: list[dict[str, Any]]) -> tuple[_native.Provided, threading.Thread]:
        def run(*args: Any, **named: Any) -> Any:
            self.runs += 1
            return args[0] if args else None

        text = json.dumps({"parameters": parameters})
        provided = _native.provide(_default.session(), name, text, 1, False, False, False, 0.0, None)
        thread = threading.Thread(target=provided._work, args=([run],))
        thread.start()
        return provided, thread


@pytest.fixture
def provider():
    return Provider()


def test_conversions_are_those_of_every_language(provider, name):
    assert len(TABLE["values"]) > 150
    by_types: dict[str, list[tuple[str, str]]] = {}
    for given, types, gives in TABLE["values"]:
        by_types.setdefault(types, []).append((given, gives))
    for at, (types, rows) in enumerate(by_types.items()):
        provided, thread = provider.provide(f"{name}/{at}", [{"name": "x", "type": types}])
        f = baton.get_function(f"{name}/{at}")
        for given, gives in rows:
            given_too = [value_of(given)]
            if given.startswith("tensor") and " 0d " in given and "tensor" not in types and types != "any":
                given_too.append(array_of(given.removeprefix("tensor "))[()])  # a scalar of NumPy
            for v in given_too:
                before = provider.runs
                if gives == "refused":
                    with pytest.raises(baton.InvalidArgument, match="parameter x"):
                        f(v)
                    assert provider.runs == before, (given, types)
                else:
                    got = f(v)
                    assert is_same(got, value_of(gives)), (given, types, got)
        provided._close()
        thread.join()


def test_arguments_are_bound_as_in_every_language(provider, name):
    parameters = [
        {"name": "p", "type": "int64", "by": "position"},
        {"name": "a", "type": "int64"},
        {"name": "b", "type": "float", "by": "name", "default": 2.0},
    ]
    provided, thread = provider.provide(name, parameters)
    f = baton.get_function(name)
    for text, outcome in TABLE["calls"]:
        given = [part.rpartition("=") for part in text.split(" | ") if part]
        args = [value_of(v) for key, _, v in given if not key]
        named = {key: value_of(v) for key, _, v in given if key}
        before = provider.runs
        if outcome == "given":
            f(*args, **named)
            continue
        with pytest.raises(baton.InvalidArgument) as e:
            f(*args, **named)
        assert re.search(rf"\b{outcome}\b", str(e.value).split("; the function takes")[0]), (text, e.value)
        assert provider.runs == before
    provided._close()
    thread.join()


def test_a_function_that_lingers_is_listed_and_not_called(name):
    @baton.function(f"{name}/stays", linger=3600)
    def stays() -> None: ...

    @baton.function(f"{name}/goes")
    def goes() -> None: ...

    baton.start_functions(stays, goes).close()
    assert [(f.name, f.providers) for f in baton.functions(f"{name}/*")] == [(f"{name}/stays", [])]
    with pytest.raises(baton.NoProvider):
        baton.call(f"{name}/stays")
    with pytest.raises(baton.NotFound):
        baton.call(f"{name}/goes")
    baton.remove_function(f"{name}/stays", everywhere=True)
    with pytest.raises(baton.InvalidArgument, match="linger"):
        baton.function(f"{name}/wrong", linger=-1)(stays)


def partly(k: int, x: np.ndarray, *, by: int = 2) -> str:
    """Says what it has."""
    return f"{k} {type(x).__name__} {by}"


class Called:
    def __call__(self, x: np.ndarray) -> str:
        return type(x).__name__


class Counted:
    async def __call__(self, x: np.ndarray) -> str:
        return type(x).__name__


def test_what_is_called_has_the_annotations(name):
    given = {
        "partial": (functools.partial(functools.partial(partly, 1), by=3), "(x: tensor, *, by: int = 3) -> str"),
        "callable": (Called(), "(x: tensor) -> str"),
        "bound": (functools.partial(Called()), "(x: tensor) -> str"),
        "async": (Counted(), "(x: tensor) -> str"),
    }
    made = [baton.function(f"{name}/{kind}")(f) for kind, (f, _) in given.items()]
    with baton.start_functions(*made):
        for kind, (_, signature) in given.items():
            f = baton.get_function(f"{name}/{kind}")
            assert f.signature == signature
            assert f(np.zeros(1)) == ("1 ndarray 3" if kind == "partial" else "ndarray")
        assert baton.get_function(f"{name}/partial").doc == "Says what it has."


def test_a_longer_docstring_ends_with_dots(name):
    def f() -> None: ...

    f.__doc__ = "€" * 4000
    with baton.start_functions(baton.function(name)(f)):
        doc = baton.get_function(name).doc
        assert doc == "€" * (len(doc) - 1) + "…" and 8_180 < len(doc.encode()) <= 8_192


def test_what_cannot_be_called_is_named(name):
    @baton.function(name)
    def f(x: int) -> int:
        return x

    with baton.start_functions(f):
        assert baton.call(name, 10**4095) == 10**4095
        for x in 10**4096, [10**4096]:
            with pytest.raises(baton.InvalidArgument, match="the argument x: .*4096 digits") as e:
                baton.call(name, x)
            assert "Int" not in str(e.value)
    for call in baton.call, _default.session().call:
        with pytest.raises(TypeError) as wrong:
            call(None)
        assert "function_name is a str" in str(wrong.value)
