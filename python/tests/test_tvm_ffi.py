"""Functions of tvm-ffi's table served to other processes, and those of others in it. The C++ side is tvm_kit.cc."""

import concurrent.futures
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import baton
import numpy as np
import pytest
from conftest import PATIENCE, need

tvm_ffi = need("tvm_ffi")

import baton.tvm_ffi

KIT = Path(__file__).with_name("tvm_kit.cc")
CALLS = ["Call", "CallLent", "CallLentDeep", "CallPointer", "CallTypes", "CallStack", "Caught"]

LIGHT = "sys.modules['torch'] = None  # which tvm-ffi imports where it is there, and takes seconds\n"

PROVIDES = """
import os
{}
say("ready", os.getpid())
for line in sys.stdin:
    exec(line)
"""


@pytest.fixture(autouse=True)
def nothing_is_defined():
    yield
    baton._functions._defined.clear()


@pytest.fixture(scope="session")
def kit(tmp_path_factory):
    """The library of tvm_kit.cc, whose functions stand in the global table of processes that load it."""
    for tool in ("c++", "ninja"):
        if not shutil.which(tool):
            if tool in os.environ.get("BATON_REQUIRE", "").split(","):
                pytest.fail(f"{tool} is required by BATON_REQUIRE and is not installed")
            pytest.skip(f"{tool} is not installed (Debian: apt-get install g++ ninja-build)")
    from tvm_ffi import cpp

    folder = str(tmp_path_factory.mktemp("kit"))
    return cpp.build_inline("tvm_kit", cpp_sources=KIT.read_text(), functions=CALLS, build_directory=folder)


@pytest.fixture
def cxx(kit):
    """Functions in C++ that call those of the global table."""
    return tvm_ffi.load_module(kit)


@pytest.fixture
def provider(child):
    """Starts a process that runs a script."""

    def start(script, *args):
        c = child(PROVIDES.format(script), *args)
        assert c.hear().startswith("ready")
        return c

    return start


@pytest.fixture
def table():
    """Registers functions in the global table, for the test."""
    names = []

    def put(name, f):
        tvm_ffi.register_global_func(name, f)
        names.append(name)

    yield put
    for name in names:
        tvm_ffi.remove_global_func(name)


def address(a):
    return np.from_dlpack(a).__array_interface__["data"][0]


def dotted(name):
    return name.replace("/", ".")


# Served functions.

SERVES = (
    LIGHT
    + "import tvm_ffi, baton.tvm_ffi\ntvm_ffi.load_module(sys.argv[1])\n"
    + "served = baton.tvm_ffi.serve('kit.*', prefix=sys.argv[2])"
)


@pytest.fixture
def served(provider, kit, name):
    """A process that serves the kit, and its functions here."""
    return provider(SERVES, kit, name), baton.bind(name + "/kit")


def test_functions_of_cxx_say_what_they_take(served, name):
    signatures = {f.name.removeprefix(name + "/kit/"): f.signature for f in baton.functions(name + "/*")}
    assert signatures == {
        "add_one": "(arg0: tensor, /) -> none",
        "address": "()",
        "doubled": "(arg0: tensor, /) -> tensor",
        "echo": "(*args: any)",
        "fail": "(arg0: str, /)",
        "given": "(arg0: any, /)",
        "many": "(arg0: list|tuple|none, arg1: dtype|str, arg2: device|str, arg3: bool, arg4: bytes, /) -> dict",
        "next": "(arg0: int64, /) -> int64",
        "nothing": "()",
        "same": "(arg0: tensor, /) -> tensor",
        "sum": "(arg0: tensor, /) -> float",
    }
    f = served[1]
    assert f.next(2**63 - 2) == 2**63 - 1 and f.next(True) == 2 and f.next(np.array(4)) == 5
    for wrong in (
        lambda: f.add_one(3),
        lambda: f.sum(),
        lambda: f.sum(1, 2),
        lambda: f.next(2**63),
        lambda: f.next(1.0),
    ):
        with pytest.raises(baton.InvalidArgument):
            wrong()


def test_cxx_in_another_process_writes_the_callers_memory(served):
    _, f = served
    x = baton.full((2, 3), 1.0, "float32")
    assert f.add_one(x) is None and x.tolist() == [[2.0] * 3] * 2
    assert f.sum(x) == 12.0
    y = f.same(x)
    assert isinstance(y, baton.Tensor) and address(y) == address(x)
    y = f.doubled(x)  # made by the kernel, in Baton's memory
    assert isinstance(y, baton.Tensor) and y.tolist() == [[4.0] * 3] * 2
    theirs = np.ones(3, "float32")
    assert f.add_one(theirs) is None and theirs.tolist() == [1.0] * 3  # a copy, as of every call
    assert f.add_one(x.as_readonly()) is None and x.tolist() == [[2.0] * 3] * 2


def test_values_go_to_cxx_and_back(served):
    _, f = served
    x = baton.full(2, 1.0, "float32")
    for v in (None, True, False, 0, -(2**63), 2**200, 0.5, "", "ä" * 300, b"", b"\0" * 300, [], {}, [1, [2.5, None]]):
        got = f.echo(v)
        assert got == v and type(got) is type(v), v
    assert f.echo({"a": {1: "b"}, 2: [b"c"]}) == {"a": {1: "b"}, 2: [b"c"]}
    assert f.echo((1, (2,))) == [1, [2]]  # an array of tvm-ffi's is a list
    assert f.echo(x).tolist() == [1.0, 1.0] and f.nothing() is None
    got = f.echo([x, {"deep": (x,)}])
    assert address(got[0]) == address(x) and address(got[1]["deep"][0]) == address(x)
    many = f.many([1, x], "float16", "cpu", True, b"y")
    assert many.pop("all")[1].tolist() == [1.0, 1.0]
    assert many == {"type": "float16", "device": "cpu", "b": True, "y": b"y"}
    many = f.many(None, np.dtype("int8"), "cuda:1", False, b"")
    assert many == {"all": None, "type": "int8", "device": "cuda:1", "b": False, "y": b""}


def test_what_is_opaque_is_a_type_error(served, cxx, name):
    with pytest.raises(TypeError, match="c_void_p is opaque"):
        served[1].address()
    with pytest.raises(TypeError):
        served[1].echo(ctypes.c_void_p(1))
    with pytest.raises(TypeError):
        served[1].echo(object())
    with baton.tvm_ffi.export(name + "/kit/echo") as exported:
        with pytest.raises(TypeError, match="c_void_p is opaque"):
            cxx.CallPointer(*exported.names)
        with pytest.raises(TypeError):
            cxx.Call(*exported.names, object())


def test_errors_of_cxx_have_kind_message_and_trace(served):
    c, f = served
    with pytest.raises(ValueError, match="^bad value") as e:
        f.fail("ValueError")
    assert e.value.__cause__.type == "ValueError" and "main.cpp" in e.value.__cause__.trace
    with pytest.raises(baton.RemoteError) as e:
        f.fail("pens")
    assert (e.value.type, e.value.message) == ("OutOfStock", "no more pens") and "main.cpp" in e.value.trace
    assert c.process.poll() is None and f.sum(baton.zeros(1)) == 0


def test_functions_of_python_are_served_by_name(provider, name):
    c = provider(
        f"""
{LIGHT}
import tvm_ffi, baton.tvm_ffi
tvm_ffi.register_global_func("one.two.add", lambda x, y: x + y)
tvm_ffi.register_global_func("one.two.look", lambda x: type(x).__qualname__)
served = baton.tvm_ffi.serve("one.two.add", "one.*.look", prefix={name!r}, concurrency=2)
"""
    )
    assert [f.name for f in baton.functions(name + "/*")] == [name + "/one/two/add", name + "/one/two/look"]
    assert baton.functions(name + "/*")[0].providers[0].concurrency == 2
    assert baton.call(name + "/one/two/add", 1, 2) == 3
    assert baton.call(name + "/one/two/look", np.ones(1)) == "Tensor"
    c.tell("served.close(); say(served.names)")
    assert c.hear() == "[]"
    with pytest.raises(baton.NoProvider):
        baton.call(name + "/one/two/add", 1, 2)


# Exported functions.

FAR = """
@baton.function(sys.argv[1] + "/sum")
def sum(x: baton.Tensor) -> float:
    s = float(x.numpy().sum())
    x.numpy()[:] += 100
    return s
@baton.function(sys.argv[1] + "/same")
def same(x): return x
@baton.function(sys.argv[1] + "/first")
def first(x): return x[0]
@baton.function(sys.argv[1] + "/look")
def look(*args, **named): return repr((args, named))
@baton.function(sys.argv[1] + "/fail")
def fail(how): raise eval(how)
@baton.function(sys.argv[1] + "/slow")
def slow(_):
    say("runs")
    sys.stdin.readline()
started = baton.start_functions()
"""


@pytest.fixture
def far(provider, name):
    """A process with functions, which stand in the global table here."""
    c = provider(FAR, name)
    with baton.tvm_ffi.export(name + "/*") as exported:
        assert exported.names == [f"{dotted(name)}.{f}" for f in ("fail", "first", "look", "same", "slow", "sum")]
        yield c, lambda f: f"{dotted(name)}.{f}"


def test_cxx_calls_another_process_by_name(far, cxx):
    _, there = far
    x = baton.full((2, 3), 1.0, "float32")
    assert cxx.Call(there("sum"), x) == 6.0 and x.tolist() == [[101.0] * 3] * 2
    y = cxx.Call(there("same"), x)
    assert isinstance(y, baton.Tensor) and address(y) == address(x)
    assert cxx.Call(there("same"), [1, {"a": "b"}, None])[1]["a"] == "b"
    assert tvm_ffi.get_global_func(there("same"))(2**80) == 2**80


def test_what_is_lent_for_a_call_is_taken_in_place_or_copied(far, cxx):
    _, there = far
    x = baton.full((2, 3), 1.0, "float32")
    assert cxx.CallLent(there("sum"), x) == 6.0 and x.tolist() == [[101.0] * 3] * 2
    y = cxx.CallLent(there("same"), x)
    assert isinstance(y, baton.Tensor) and address(y) == address(x)
    assert cxx.CallLent(there("same"), x.T).tolist() == x.T.tolist()
    y = cxx.CallLentDeep(there("first"), x)
    assert address(y) == address(x)
    theirs = np.ones(3, "float32")
    assert cxx.CallLent(there("sum"), theirs) == 3.0 and theirs.tolist() == [1.0] * 3
    assert cxx.Call(there("sum"), theirs) == 3.0 and theirs.tolist() == [1.0] * 3
    assert cxx.CallStack(there("sum"), False) == 15.0 and cxx.CallStack(there("sum"), True) == 15.0


def test_types_devices_and_names_of_arguments_arrive(far, cxx):
    _, there = far
    assert cxx.CallTypes(there("look")) == "(('float16', 'cpu'), {})"
    look = tvm_ffi.get_global_func(there("look"))
    assert look(1, tvm_ffi.core.KWARGS, "a", 2, "b", [tvm_ffi.device("cuda:1")]) == "((1,), {'a': 2, 'b': ['cuda:1']})"
    with pytest.raises(TypeError, match="pairs"):
        look(1, tvm_ffi.core.KWARGS, "a")
    assert look(tvm_ffi.Shape((2, 3)), tvm_ffi.dtype("bfloat16")) == "(((2, 3), 'bfloat16'), {})"


def test_types_and_devices_are_values_of_every_call(child, name):
    @baton.function(name)
    def typed(t: np.dtype, d: tvm_ffi.Device) -> str:
        return f"{t} {d}"

    with baton.start_functions(typed):
        assert baton.get_function(name).signature == "(t: dtype, d: device) -> str"
        assert baton.call(name, tvm_ffi.dtype("float8_e5m2"), tvm_ffi.device("cuda:2")) == "float8_e5m2 cuda:2"
        with pytest.raises(baton.InvalidArgument):
            baton.call(name, "float32", tvm_ffi.device("cpu"))


class Registered(Exception):
    pass


def test_errors_reach_cxx_with_kind_message_and_trace(far, cxx):
    _, there = far
    for how, kind, message in [
        ("ValueError('bad')", "ValueError", "bad"),
        ("KeyError('k')", "KeyError", "k"),
        ("FileNotFoundError('f')", "FileNotFoundError", "f"),
        ("StopAsyncIteration('s')", "StopAsyncIteration", "s"),
        ("baton.Timeout('slow')", "baton.Remote", None),
    ]:
        got, said, trace = cxx.Caught(there("fail"), how).split("\n", 2)
        assert got == kind and (message is None or said == message)
        frames = trace.splitlines()
        assert ", in fail" in frames[0], trace  # the innermost first
    assert "Caught" in trace
    with pytest.raises(FileNotFoundError, match="^f$"):
        cxx.Call(there("fail"), "FileNotFoundError('f')")
    with pytest.raises(baton.RemoteError, match=r"baton\.Timeout: slow"):
        cxx.Call(there("fail"), "baton.Timeout('slow')")
    assert cxx.Caught(there("sum"), 3).startswith("baton.InvalidArgument\n")
    with pytest.raises(baton.InvalidArgument, match="the parameter x is tensor"):
        cxx.Call(there("sum"), 3)


def test_registered_errors_keep_their_class(far, cxx, name):
    c, there = far
    c.tell("class Registered(Exception): pass")
    c.tell("baton.register_error('test.tvm.Registered', Registered); say('registered')")
    assert c.hear() == "registered"
    try:
        baton.register_error("test.tvm.Registered", Registered)
        with pytest.raises(Registered, match="known"):
            cxx.Call(there("fail"), "Registered('known')")
        assert cxx.Caught(there("fail"), "Registered('known')").splitlines()[:2] == ["test.tvm.Registered", "known"]
    finally:
        baton._errors._registered.clear()


def test_errors_of_other_languages_keep_their_frames():
    go = "goroutine 7 [running]:\nmain.scale(0x1)\n\t/src/main.go:12 +0x1f\nmain.main()\n\t/src/main.go:30 +0x2\n"
    rust = (
        "   0: scale::run\n             at ./src/scale.rs:12:9\n   1: scale::main\n             at ./src/main.rs:3:5\n"
    )
    assert baton.tvm_ffi._backtrace(go).splitlines() == [
        '  File "/src/main.go", line 12, in main.scale(0x1)',
        '  File "/src/main.go", line 30, in main.main()',
    ]
    assert baton.tvm_ffi._backtrace(rust).splitlines() == [
        '  File "./src/scale.rs", line 12, in scale::run',
        '  File "./src/main.rs", line 3, in scale::main',
    ]
    assert baton.tvm_ffi._backtrace("nothing of that kind") == ""


def test_a_provider_that_is_killed_is_an_error_of_that_kind(far, cxx):
    c, there = far
    slow = tvm_ffi.get_global_func(there("slow"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        caught = pool.submit(cxx.Caught, there("slow"), 1)
        assert c.hear() == "runs"
        c.kill()
        kind, message, _ = caught.result(PATIENCE).split("\n", 2)
    assert kind == "baton.ProviderDied" and str(c.pid) in message
    with pytest.raises(baton.NoProvider):
        slow(1)
    assert cxx.Caught(there("slow"), 1).startswith("baton.NoProvider\n")


def test_cxx_calls_cxx_in_another_process(served, cxx, name):
    x = baton.full(4, 1.0, "float32")
    with baton.tvm_ffi.export(name + "/kit/*", prefix="far") as exported:
        there = f"far.{dotted(name)}.kit."
        assert there + "sum" in exported.names
        assert cxx.Call(there + "sum", x) == 4.0
        assert cxx.CallLent(there + "add_one", x) is None and x.tolist() == [2.0] * 4
        kind, message, trace = cxx.Caught(there + "fail", "pens").split("\n", 2)
        assert (kind, message) == ("OutOfStock", "no more pens") and "main.cpp" in trace.splitlines()[0]


# The table.


def test_names_that_cannot_be_mapped_back_are_refused(table, name):
    for bad, why in [("a/b", "slash"), ("a..b", "has the token"), ("a b", "has the token"), ("a.ü", "has the token")]:
        table(f"odd.{bad}", lambda: 1)
        with pytest.raises(baton.InvalidArgument, match=why):
            baton.tvm_ffi.serve(f"odd.{bad}", prefix=name)
    with pytest.raises(baton.InvalidArgument, match="odd"):
        baton.tvm_ffi.serve("odd.*", prefix=name)
    assert baton.functions(name + "/*") == []
    table("versioned.f@1.2", lambda: "old")
    table("versioned.f@1.10", lambda: "new")
    with baton.tvm_ffi.serve("versioned.*", prefix=name) as served:
        assert sorted(served.names) == [f"{name}/versioned/f@1.10", f"{name}/versioned/f@1.2"]
        with baton.tvm_ffi.export(f"{name}/versioned/*", f"{name}/versioned/f") as exported:
            there = f"{dotted(name)}.versioned.f"
            assert exported.names == [there + "@1.10", there + "@1.2", there]
            assert [tvm_ffi.get_global_func(n)() for n in exported.names] == ["new", "old", "new"]


def test_functions_of_tvm_ffi_itself_are_served_only_by_name(table, name):
    table("ff.mine", lambda: 1)
    with baton.tvm_ffi.serve("ff*", prefix=name) as served:
        assert served.names == [name + "/ff/mine"]
    with baton.tvm_ffi.serve("ffi.Array*", prefix=name) as served:
        assert name + "/ffi/ArraySize" in served.names
    for nothing in ("no.such.*", "no.such.function"):
        with pytest.raises(baton.NotFound, match="no.such"):
            baton.tvm_ffi.serve(nothing)
        with pytest.raises(baton.NotFound):
            baton.tvm_ffi.export(nothing.replace(".", "/"))
    for nothing in (baton.tvm_ffi.serve, baton.tvm_ffi.export):
        with pytest.raises(baton.InvalidArgument):
            nothing()
    with pytest.raises(baton.InvalidArgument, match="concurrency"):
        baton.tvm_ffi.serve("ff.mine", concurrency=0)


def test_what_the_table_has_is_replaced_only_when_that_is_asked_for(far, table, name):
    there = f"{dotted(name)}.mine"
    c, _ = far
    c.tell(
        f"baton.function({name + '/mine'!r})(lambda: 'far'); more = baton.start_functions({name + '/mine'!r}); say('on')"
    )
    assert c.hear() == "on"
    table(there, lambda: "here")
    with pytest.raises(baton.Conflict, match="override=True"):
        baton.tvm_ffi.export(name + "/mine")
    assert tvm_ffi.get_global_func(there)() == "here"
    exported = baton.tvm_ffi.export(name + "/mine", override=True)
    taken = tvm_ffi.get_global_func(there)
    assert taken() == "far" and exported.names == [there]
    tvm_ffi.register_global_func(there, lambda: "again", override=True)
    assert exported.names == []
    exported.close()  # what another has put there stays
    assert tvm_ffi.get_global_func(there)() == "again" and taken() == "far"


def test_a_call_has_its_limits(far, name):
    with baton.tvm_ffi.export(name + "/slow", prefix="limited", timeout=0.05, wait=PATIENCE):
        f = tvm_ffi.get_global_func(f"limited.{dotted(name)}.slow")
        with pytest.raises(baton.Timeout):
            f(1)


def test_a_deadline_goes_on_through_the_table(name):
    @baton.function(name + "/outer")
    def outer():
        return tvm_ffi.get_global_func(dotted(name) + ".inner")()

    @baton.function(name + "/inner")
    def inner():
        return baton.current_call().deadline is not None

    with baton.start_functions(), baton.tvm_ffi.export(name + "/*"):
        f = baton.get_function(name + "/outer")
        assert f() is False and f.options(timeout=PATIENCE)() is True


def test_a_tensor_that_cannot_be_taken_stays_its_owners(own, child):
    """tvm-ffi deletes what the exchange table has not taken: a second deleter would end the process."""
    c = child(
        LIGHT
        + """
import tvm_ffi, baton.tvm_ffi
@baton.function("take")
def take(x): return 1
with baton.start_functions(take), baton.tvm_ffi.export("take"):
    f = tvm_ffi.get_global_func("take")
    big = np.zeros(2 << 30, "uint8")
    for _ in range(20):
        try: f(big)
        except (baton.OutOfMemory, baton.QuotaExceeded): pass
        else: say("taken")
    say(f(np.ones(3)), int(big[0]))
"""
    )
    assert c.hear() == "1 0"
    c.end()


def test_a_process_ends_with_functions_in_the_table(kit, far, name):
    script = f"""
import sys
{LIGHT}
import baton, baton.tvm_ffi, tvm_ffi
tvm_ffi.load_module(sys.argv[1])
served = baton.tvm_ffi.serve("kit.*", prefix={name!r})
exported = baton.tvm_ffi.export({name + "/*"!r})
print(baton.call({name + "/kit/nothing"!r}), len(exported.names))
"""
    done = subprocess.run([sys.executable, "-c", script, kit], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None 17\n", "")
