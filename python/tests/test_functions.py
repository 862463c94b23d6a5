"""Functions: what calls carry, signatures, errors, names."""

import dataclasses
import inspect
import json
import math
import os
import subprocess
import sys
import traceback
from pathlib import Path

import baton
import numpy as np
import pytest
from baton import _native
from conftest import BATON, PATIENCE, command, listing
from function_kit import ECHO, FAILS, SIGNED, nothing_is_defined, provider  # noqa: F401


@dataclasses.dataclass
class Point:
    x: int
    y: object


def test_values_of_every_kind_go_there_and_back(child, name):
    provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    plain = [
        None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**200), 0.5, math.inf, -0.0, "", "text ä\0", b"", b"\0\xff",
        [], (), {}, [1, [2.5, "x", None]], (1, (b"y",)), {"a": {1: "b", (2, "c"): None}}, {"$": 1},
    ]  # fmt: skip
    for v in plain:
        got = f(v)
        assert got == v and type(got) is type(v), v
        assert f(1, v, x=v) == ((1, v), {"x": v})
    assert math.isnan(f(math.nan)) and math.copysign(1, f(-0.0)) == -1
    assert f() == ((), {}) and f(*range(300)) == (tuple(range(300)), {})
    assert f(*plain, **{f"k{i}": v for i, v in enumerate(plain)})[0] == tuple(plain)
    assert f(np.float32(0.5)) == 0.5 and f(np.int16(3)) == 3 and f(np.bool_(True)) is True
    assert f(np.dtype("int16")) == "int16"
    # A dataclass of a module that only the caller has is a dict there.
    assert f(Point(1, [2])) == {"x": 1, "y": [2]}


def test_dataclasses_are_those_of_modules_that_both_have(name):
    @baton.function(name)
    def moved(p: Point, by: int) -> Point:
        assert type(p) is Point
        return Point(p.x + by, p.y)

    with baton.start_functions(moved):
        got = baton.call(name, Point(1, np.arange(3)), by=2)
        assert type(got) is Point and got.x == 3 and got.y.tolist() == [0, 1, 2]
        assert baton.get_function(name).signature == "(p: test_functions:Point, by: int) -> test_functions:Point"


TABLE = json.loads((Path(__file__).resolve().parents[2] / "protocol" / "testdata" / "functions.json").read_text())


@pytest.mark.parametrize(("given", "error"), TABLE["names"])
def test_names_of_functions_are_those_of_every_language(given, error):
    def decorated(f):
        baton.function(given)(f)

    def with_version(f):
        base, _, version = given.partition("@")
        baton.function(base, version=version)(f)

    for define in decorated, *([with_version] if given.count("@") == 1 else []):
        if error == "":
            define(test_names_of_functions_are_those_of_every_language)
            continue
        with pytest.raises(baton.InvalidArgument) as e:
            define(test_names_of_functions_are_those_of_every_language)
        assert str(e.value) == error


@pytest.mark.parametrize("row", TABLE["signatures"], ids=lambda row: row["error"][:60])
def test_signatures_that_may_be_provided_are_those_of_every_language(name, row):
    described = {"parameters": [{"name": n, "type": t} for n, t in row["parameters"]], "result": row["result"]}
    with baton.connect() as s:

        def provide():
            return _native.provide(s, name, json.dumps(described), 1, False, False, False, 0.0, None)

        if row["error"] == "":
            assert provide().current
            return
        with pytest.raises(baton.InvalidArgument) as e:
            provide()
        assert str(e.value) == row["error"]


def test_a_class_whose_name_is_none_of_a_type_is_any(name):
    odd = dataclasses.make_dataclass("Odd one", [("x", int)])

    @baton.function(name)
    def takes(x: odd | int, y: odd) -> odd: ...

    with baton.start_functions(takes):
        assert baton.get_function(name).signature == "(x: any, y: any)"


def test_a_version_that_is_a_release_is_newer_than_what_came_before_it(name):
    for version in "1.0-rc1", "1.0", "1.0-rc2":
        baton.function(name, version=version)(lambda version=version: version)
    with baton.start_functions():
        assert baton.call(name) == "1.0"


def test_tensors_and_arrays_go_there_and_back(child, name):
    provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    x = baton.share(np.arange(6, dtype="int16").reshape(2, 3))
    for given in (x, x.numpy(), np.arange(6, dtype="int16").reshape(2, 3), x.T.T):
        got = f(given)
        assert isinstance(got, baton.Tensor) and got.dtype == "int16" and got.tolist() == [[0, 1, 2], [3, 4, 5]]
    (args, named) = f(x, [np.ones(2), x], 7, np.zeros(1), y={"z": np.full(2, 5.0), "w": (x,)}, v=np.ones((1, 1)))
    assert args[0].tolist() == x.tolist() and args[1][0].tolist() == [1, 1] and args[1][1].tolist() == x.tolist()
    assert args[2] == 7 and args[3].tolist() == [0.0]
    assert named["y"]["z"].tolist() == [5, 5] and named["y"]["w"][0].tolist() == x.tolist()
    assert named["v"].tolist() == [[1.0]]


def test_a_function_writes_into_the_tensor_of_its_caller(child, name):
    provider(
        child,
        f"""
@baton.function({name!r})
def fill(out: np.ndarray, by: float) -> int:
    assert type(out) is np.ndarray
    out[:] = by
    return out.size
@baton.function({name + "/b"!r})
def readonly(x: baton.Tensor) -> bool:
    return x.readonly
""",
    )
    x = baton.zeros((2, 2))
    assert baton.call(name, x, by=3) == 4
    assert x.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert baton.call(name + "/b", x) is False and baton.call(name + "/b", x.as_readonly()) is True


def test_signature_and_doc_say_what_the_function_takes(child, name):
    c = provider(child, SIGNED.format(name=name))
    f = baton.get_function(name)
    assert f.name == name and f.doc == "Scales an image." and f.providers == 1
    assert f.signature == '(image: tensor, by: int|float = 2, /, *, mode: str = "fast", pad: int|none = null) -> tensor'
    wide = baton.get_function(name + "/wide")
    assert wide.signature == "(a: any, *rest: int, *, flag: bool, **more: list)"
    (info,) = baton.functions(name)
    assert (info.name, info.signature, info.doc, info.idempotent) == (name, f.signature, f.doc, True)
    (p,) = info.providers
    assert (p.pid, p.concurrency, p.running, p.stopped) == (c.pid, 3, 0, False)
    assert [i.name for i in baton.functions(name + "*")] == [name, name + "/num", name + "/wide"]


def test_what_a_function_does_not_take_is_refused_before_it_is_sent(child, name):
    provider(child, SIGNED.format(name=name))
    f, wide, num = (baton.get_function(name + end) for end in ("", "/wide", "/num"))
    for call, what in [
        (lambda: f(), "image is not given"),
        (lambda: f("text"), "image is tensor, and str is given"),
        (lambda: f(np.ones(2), "2"), "by is int|float"),
        (lambda: f(np.ones(2), by=2), "the parameter by is given by position alone"),
        (lambda: f(np.ones(2), 2, 3), "3 arguments by position are too many"),
        (lambda: f(np.ones(2), colour=1), "no parameter colour"),
        (lambda: f(np.ones(2), pad=1.5), "pad is int|none, and float is given"),
        (lambda: wide(1, 2, "x", flag=True), "rest is int, and str is given"),
        (lambda: wide(1), "flag is not given"),
        (lambda: wide(1, flag=True, z=3), "more is list, and int is given"),
        (lambda: num(1, 2, 3), "b is bool, and int is given"),
        (lambda: num(True, 2.0, 3), "i is int, and float is given"),
        (lambda: num(True, 2, (3,)), "f is float, and tuple is given"),
        (lambda: num(True, 2, {"a": 3}), "f is float, and dict is given"),
    ]:
        with pytest.raises(baton.InvalidArgument) as e:
            call()
        assert what in str(e.value) and name in str(e.value)
    with pytest.raises(baton.InvalidArgument, match="empty name"):
        f(np.ones(2), **{"": 1})


def test_numbers_become_what_the_function_takes_and_nothing_else_does(child, name):
    provider(child, SIGNED.format(name=name))
    num = baton.get_function(name + "/num")
    for given, want in [
        ((True, True, True), (True, 1, 1.0)),
        ((np.array(True), np.array(7), np.array(7)), (True, 7, 7.0)),
        ((np.bool_(False), np.int8(7), np.float32(0.5)), (False, 7, 0.5)),
        ((True, 2**80, 2**80), (True, 2**80, float(2**80))),
        ((True, np.array(2**64 - 1, "uint64"), 1), (True, 2**64 - 1, 1.0)),
    ]:
        got = num(*given)
        assert got == want and [type(v) for v in got] == [bool, int, float]


def test_what_cannot_be_sent_is_a_type_error_that_names_the_argument(child, name):
    provider(
        child,
        SIGNED.format(name=name)
        + f"""
@baton.function({name + "/bad"!r})
def bad(): return {{"a": [object()]}}
@baton.function({name + "/half"!r})
def half(): return "\\ud800"
""",
    )
    wide = baton.get_function(name + "/wide")
    for call, what in [
        (lambda: wide(object(), flag=True), "the argument a"),
        (lambda: wide(1, 2, object(), flag=True), "the argument 2"),
        (lambda: wide(1, flag=True, deep=[1, [object()]]), "the argument deep"),
        (lambda: wide(int, flag=True), "the argument a"),
    ]:
        with pytest.raises(TypeError, match=what):
            call()
    with pytest.raises(baton.InvalidArgument, match="^the argument a: .*surrogate") as e:
        wide("\ud800", flag=True)
    assert "give its bytes" in e.value.remedy and str(e.value).count("give its bytes") == 1
    with pytest.raises(TypeError, match="the result") as e:
        baton.call(name + "/bad")
    assert isinstance(e.value.__cause__, baton.RemoteError)
    with pytest.raises(ValueError, match="the result: .*surrogate") as e:  # the caller's arguments are right
        baton.call(name + "/half")
    assert not isinstance(e.value, baton.InvalidArgument)


def test_errors_of_builtin_types_are_raised_as_what_they_are(child, name):
    c = provider(child, FAILS.format(name=name))
    f = baton.get_function(name)
    for what in [
        ValueError("bad"), TypeError("bad"), KeyError("k"), IndexError("i"), RuntimeError("r"), ZeroDivisionError("z"),
        NotImplementedError("n"), FileNotFoundError("f"), PermissionError("p"), TimeoutError("t"), AssertionError("a"),
        Exception("e"), OSError("o"), StopAsyncIteration("s"),
    ]:  # fmt: skip
        alike = not isinstance(what, StopAsyncIteration)
        with pytest.raises(type(what) if alike else baton.RemoteError) as e:
            f(repr(what))
        if alike:
            assert type(e.value) is type(what) and e.value.args == what.args
            cause = e.value.__cause__
        else:
            cause = e.value
        assert isinstance(cause, baton.RemoteError)
        assert (cause.type, cause.message) == (type(what).__name__, str(what.args[0]))
        assert "in fail" in cause.trace and cause.provider and cause.cause is None
        assert any("in fail" in note for note in e.value.__notes__)
    assert f.providers == 1 and c.process.poll() is None


def test_other_errors_are_remote_errors(child, name):
    c = provider(child, FAILS.format(name=name))
    f = baton.get_function(name)
    for how, kind, message in [
        ("odd", "__main__.Odd", "it is odd"),
        ("registered", "test.Registered", "it is known"),
        ("exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", ""),
        ("baton", "baton.Timeout", "slow"),
        ("nested", "baton.NotFound", None),
        ("remote", "baton.Remote", "x"),
        ("mute", "__main__.fail.<locals>.Mute", None),
    ]:
        with pytest.raises(baton.RemoteError) as e:
            f(how)
        assert e.value.type == kind and name in str(e.value)
        assert message is None or e.value.message == message
    with pytest.raises(ValueError, match="outer") as e:
        f("cause")
    cause = e.value.__cause__.cause
    assert (cause.type, cause.message) == ("KeyError", "inner") and "in inner" in cause.trace and cause.cause is None
    assert c.process.poll() is None and f.providers == 1  # it goes on


GROUPS = """
import asyncio
async def fails(what):
    try:
        raise KeyError("within")
    except KeyError as e:
        raise what from e
@baton.function("{name}/group")
async def group():
    async with asyncio.TaskGroup() as all:
        all.create_task(fails(ValueError("the reason")))
        all.create_task(fails(OSError("another")))
@baton.function("{name}/deep")
def deep():
    e = ValueError("innermost")
    for _ in range(5):
        e = ExceptionGroup("around", [e, TypeError("beside")])
    raise RuntimeError("outer") from e
@baton.function("{name}/long")
def long():
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("x" * 300_000 + "last")
"""


def test_reasons_of_groups_and_causes_are_told_and_printed(child, name):
    provider(child, GROUPS.format(name=name))

    def printed(kind, what):
        with pytest.raises(kind) as e:
            baton.call(f"{name}/{what}")
        return e.value, "".join(traceback.format_exception(e.value))

    e, text = printed(baton.RemoteError, "group")
    assert e.type == "ExceptionGroup" and e.message.endswith(": ValueError: the reason; OSError: another")
    for part in ["in fails", "ValueError: the reason", "OSError: another", "KeyError: 'within'", "direct cause"]:
        assert part in e.trace and part in text, part
    e, text = printed(RuntimeError, "deep")
    assert str(e) == "outer" and "ValueError: innermost" in e.__cause__.trace and "ValueError: innermost" in text
    assert "ValueError: innermost; TypeError: beside" in e.__cause__.cause.message
    e, text = printed(ValueError, "long")
    trace = e.__cause__.trace
    assert len(trace) < 70_000 and "KeyError: 'first'" in trace and trace.endswith("last\n") and trace in text + "\n"


def test_causes_that_a_trace_leaves_out_are_printed(name, monkeypatch):
    @baton.function(name)
    def fails():
        raise ValueError("outer") from KeyError("inner")

    monkeypatch.setenv("BATON_NO_REMOTE_TRACES", "1")
    with baton.start_functions(fails), pytest.raises(ValueError, match="outer") as e:
        baton.call(name)
    assert "Caused by KeyError: inner" in "".join(traceback.format_exception(e.value))


class Registered(Exception):
    pass


def test_errors_that_both_sides_have_registered_are_raised(child, name):
    provider(child, FAILS.format(name=name))
    baton.register_error("test.Registered", Registered)
    try:
        with pytest.raises(Registered, match="it is known"):
            baton.call(name, "registered")
    finally:
        baton._errors._registered.clear()
    with pytest.raises(baton.Conflict):
        baton.register_error("ValueError", Registered)
    with pytest.raises(TypeError):
        baton.register_error("x", int)


def test_a_function_is_called_in_its_own_process_too(name):
    @baton.function(name, version="2", concurrency=2)
    def twice(x: int) -> int:
        return baton.call(name + "/inner", x) * 2

    @baton.function(name + "/inner")
    def inner(x: int) -> int:
        return x + 1

    assert inner(1) == 2
    with baton.start_functions(twice, inner) as started:
        assert sorted(started.names) == sorted([f"{name}@2", name + "/inner"])
        assert baton.call(name, 1) == 4 and baton.get_function(name, version="2")(2) == 6
        assert "inner" in repr(started)
        with pytest.raises(baton.Conflict):
            baton.start_functions(inner)
        assert baton.remove_function(name + "/inner") == 1
        with pytest.raises(baton.NotFound):
            baton.remove_function(name + "/inner")
        with pytest.raises((baton.NoProvider, baton.NotFound)):
            baton.call(name + "/inner", 1)
    assert started.names == []
    with pytest.raises((baton.NoProvider, baton.NotFound)):
        baton.call(name, 1)
    with pytest.raises(baton.NotFound):
        baton.start_functions(name + "/never")


def test_names_are_those_of_modules_or_given(tmp_path):
    def nested(): ...

    for bad in (lambda: baton.function()(nested), lambda: baton.function(lambda: 1)):
        with pytest.raises(baton.InvalidArgument, match="inside another function"):
            bad()
    for bad in ("a b", "", "a//b", "a/@1/b"):
        with pytest.raises(baton.InvalidArgument):
            baton.function(bad or "/")(nested)
    with pytest.raises(baton.InvalidArgument):
        baton.function("a@1", version="2")(nested)
    with pytest.raises(baton.InvalidArgument):
        baton.function("a", concurrency=0)(nested)
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "ops.py").write_text(
        "import baton\n@baton.function\ndef blur(x: int): return x\n"
        "class K:\n    @staticmethod\n    @baton.function(version='1.2')\n    def m(): return 5\n"
    )
    script = """
import baton, vision.ops
with baton.start_functions() as s: print(*s.names, baton.call("vision/ops/blur", 2), baton.bind("vision/ops/K").m())
def f(): pass
try: baton.function(f)
except baton.InvalidArgument as e: print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "vision/ops/blur vision/ops/K/m@1.2 2 5",
        'f is a function of __main__: give it a name, @baton.function("…")',
    ]


def test_a_namespace_has_functions_as_attributes(child, name):
    provider(child, ECHO.format(name=name + "/echo") + ECHO.format(name=name + "/other@3").replace("def echo", "def o"))
    there = baton.bind(name)
    assert there.echo(3) == 3 and there.echo is there.echo and there.other(4) == 4
    assert dir(there) == ["echo", "other"]
    with pytest.raises(AttributeError):
        there.missing
    assert not hasattr(there, "missing")


def test_a_provider_with_another_signature_conflicts(child, name):
    provider(child, SIGNED.format(name=name))

    @baton.function(name)
    def other(x: int): ...

    with pytest.raises(baton.Conflict):
        baton.start_functions(other)

    @baton.function(name + "/num", override=True)
    def num(x: int):
        return x

    with baton.start_functions(num):
        assert baton.call(name + "/num", 5) == 5
        assert baton.get_function(name + "/num").signature == "(x: int)"


def test_what_annotations_name_is_given(name):
    """Arrays and dtypes of NumPy, also among those that *args and **named take."""

    @baton.function(name)
    def given(x: np.ndarray, dtype: np.dtype | None, *rest: np.ndarray, last: np.dtype = None, **more: np.ndarray):
        return (
            [type(v).__name__ for v in (x, *rest, *more.values())],
            isinstance(dtype, np.dtype),
            str(dtype),
            str(last),
        )

    @baton.function(name + "/text")
    def text(dtype: str | np.dtype, *, any=None):
        return dtype, any

    with baton.start_functions(given, text):
        a = np.ones(1, "int16")
        back = baton.call(name, a, np.dtype("int16"), a, a, last=np.dtype("float32"), more=a, dtype_=a)
        assert back == (["ndarray"] * 5, True, "int16", "float32")
        assert baton.call(name, a, None)[1:] == (False, "None", "None")
        assert baton.call(name + "/text", np.dtype("bool"), any=np.dtype("int8")) == ("bool", "int8")
        f = baton.get_function(name)
        for n in (0, 64, -1):
            with pytest.raises(baton.InvalidArgument, match="ahead"):
                f.options(ahead=n)


def test_the_signature_of_what_is_decorated_stays():
    @baton.function("test/stays")
    def f(x: int = 3) -> int:
        "Doc."
        return x

    assert f() == 3 and f.__doc__ == "Doc." and str(inspect.signature(f)) == "(x: int = 3) -> int"


def test_the_command_line_calls_a_function(name, tmp_path):
    """`baton` is a caller in Go."""

    @baton.function(name)
    def scale(x: np.ndarray, by: float = 2.0, *, deep: dict | None = None) -> dict:
        "Scales."
        if deep == {"fail": True}:
            raise ValueError("bad value 3")
        return {"y": x * by, "deep": deep, "n": 2**70}

    np.save(tmp_path / "x.npy", np.arange(3.0))
    with baton.start_functions(scale):
        out = command("call", name, f"@{tmp_path}/x.npy", "by=3", 'deep={"a": [1, null]}')
        assert json.loads(out) == {"deep": {"a": [1, None]}, "n": 2**70, "y": {"dtype": "float64", "shape": [3]}}
        (row,) = [row for row in listing("functions") if row["name"] == name]
        assert row["providers"][0]["pid"] == os.getpid()
        failed = subprocess.run(
            [BATON, "call", name, f"@{tmp_path}/x.npy", 'deep={"fail": true}'],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert failed.returncode != 0 and "ValueError: bad value 3" in failed.stderr and "in scale" in failed.stderr
