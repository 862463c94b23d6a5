"""Functions as arguments of calls: where they run, how long they live, and processes that end meanwhile."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import baton
import numpy as np
import pytest
from conftest import PATIENCE, listing
from function_kit import nothing_is_defined, provider  # noqa: F401 - a fixture

APPLY = """
@baton.function({name!r}, concurrency={n})
def apply(f, *args, **named):
    return f(*args, **named)
"""


def test_a_function_runs_in_the_thread_that_waits(child, name):
    provider(child, APPLY.format(name=name, n=2))
    threads = []

    def add(x, y=1):
        threads.append(threading.get_ident())
        assert baton.current_call() is not None
        return x + y

    for i in range(20):
        assert baton.call(name, add, i) == i + 1 and baton.call(name, add, i, y=5) == i + 5
    assert threads == [threading.get_ident()] * 40 and baton.current_call() is None

    def work():
        mine = []

        def here(x):
            mine.append(threading.get_ident())
            return x

        assert [baton.call(name, here, i) for i in range(20)] == list(range(20))
        assert mine == [threading.get_ident()] * 20

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()


TRAIN = """
from collections.abc import Callable
@baton.function({name!r})
def train(x: np.ndarray, *, on_step: Callable[[float], bool], more: dict = {{}}) -> int:
    steps = 0
    while on_step(float(x.sum()) + steps):
        steps += 1
    return steps + sum(f(1) for f in more.get("all", []))
"""


def test_functions_are_what_a_parameter_says(child, name):
    provider(child, TRAIN.format(name=name))
    f = baton.get_function(name)
    assert "on_step: function" in f.signature
    losses = []
    n = f(np.ones(3), on_step=lambda loss: losses.append(loss) or len(losses) < 4)
    assert n == 3 and losses == [3.0, 4.0, 5.0, 6.0]
    more = {"all": [lambda x: 10 * x, (lambda x: 100 * x), max]}
    assert f(np.ones(1), on_step=lambda _: False, more=more | {"all": more["all"][:2]}) == 110
    with pytest.raises(baton.InvalidArgument, match="on_step is function"):
        f(np.ones(1), on_step=3)
    with pytest.raises(baton.InvalidArgument, match="x is tensor"):
        f(print, on_step=print)
    for nothing in int, object():
        with pytest.raises((TypeError, baton.InvalidArgument)):
            f(np.ones(1), on_step=nothing)


def test_a_function_takes_and_gives_what_calls_do(child, name):
    provider(child, APPLY.format(name=name, n=1))
    x = baton.share(np.ones(3))

    def fill(y):
        y.numpy()[:] = 7
        return {"y": y, "n": [1, None]}

    got = baton.call(name, fill, x)
    assert x.tolist() == [7.0] * 3 and got["y"].tolist() == [7.0] * 3 and got["n"] == [1, None]

    def fails():
        raise ValueError("bad value 3")

    with pytest.raises(ValueError, match="bad value 3"):
        baton.call(name, fails)
    with pytest.raises(TypeError, match="result"):
        baton.call(name, lambda: object())
    with pytest.raises(TypeError):
        baton.call(name, lambda x: x)  # an argument is missing


def test_functions_of_calls_that_are_waited_for_later(child, name):
    provider(child, APPLY.format(name=name, n=3))
    f = baton.get_function(name)
    threads = set()

    def add(x):
        threads.add(threading.get_ident())
        return x + 1

    assert [t.result(PATIENCE) for t in [f.submit(add, i) for i in range(20)]] == list(range(1, 21))

    async def all_of_them():
        return await asyncio.gather(*[f.acall(add, i) for i in range(20)])

    assert len(threads) == 1 and threading.get_ident() not in threads
    assert asyncio.run(all_of_them()) == list(range(1, 21))
    assert len(threads) == 2 and threading.get_ident() in threads


def test_a_stream_calls_its_functions(child, name):
    provider(
        child,
        f"""
@baton.function({name!r})
def each(f, n):
    for i in range(n):
        yield f(i)
""",
    )
    assert list(baton.get_function(name).options(ahead=1).stream(lambda i: i * i, 5)) == [0, 1, 4, 9, 16]


def test_a_function_may_call_within_its_call(child, name):
    provider(child, APPLY.format(name=name, n=70))
    f = baton.get_function(name)

    def down(n):
        return 0 if n == 0 else 1 + f(down, n - 1)

    assert f(down, 20) == 20
    with pytest.raises(baton.RemoteError, match="64 deep.* > a function argument > "):
        f(down, 40)


def test_a_call_that_would_wait_for_itself(child, name):
    provider(child, APPLY.format(name=name, n=1))
    with pytest.raises(baton.RemoteError, match=f"would wait for itself: {name} > a function argument > {name}"):
        baton.call(name, lambda: baton.call(name, lambda: 1))


KEEP = """
kept = None
@baton.function({name!r}, concurrency=2)
def keep(f):
    global kept
    kept = f
    return f.name
def late():
    try: say(kept())
    except baton.Closed: say("closed")
"""


def test_a_function_lives_as_long_as_its_call(child, name):
    c = provider(child, KEEP.format(name=name))
    assert baton.call(name, lambda: 1) == "a function argument"
    c.tell("late()")
    assert c.hear() == "closed"
    freed = threading.Event()

    class Holds:
        def __call__(self):
            return 1

        def __del__(self):
            freed.set()

    baton.call(name, Holds())
    assert freed.wait(PATIENCE)


def test_registered_functions_go_by_their_name(child, name):
    provider(
        child,
        f"""
@baton.function("{name}/double")
def double(x): return 2 * x
@baton.function("{name}/gives", concurrency=2)
def gives(what):
    return baton.get_function("{name}/double") if what == "name" else what if callable(what) else len
@baton.function("{name}/apply")
def apply(f, x): return f(x), f.name
@baton.function("{name}/passes", concurrency=2)
def passes(f): return baton.call("{name}/apply", f, 4)
""",
    )
    double = baton.get_function(f"{name}/double")
    assert baton.call(f"{name}/apply", double, 4) == (8, f"{name}/double")
    assert baton.call(f"{name}/passes", double) == (8, f"{name}/double")
    for f in baton.call(f"{name}/gives", "name"), baton.call(f"{name}/gives", double):
        assert isinstance(f, baton.Function) and f.name == f"{name}/double" and f.submit(4).result(PATIENCE) == 8
    with pytest.raises(TypeError, match="registered"):
        baton.call(f"{name}/gives", "another")
    with pytest.raises(baton.RemoteError, match="not registered"):
        baton.call(f"{name}/gives", lambda: 1)
    with pytest.raises(baton.RemoteError, match="receiver's alone"):
        baton.call(f"{name}/passes", lambda x: x)
    with pytest.raises((TypeError, baton.InvalidArgument)):
        baton.topic(f"{name}/t").send([len])


def test_a_provider_that_is_killed_while_it_has_a_function(child, name):
    c = provider(child, APPLY.format(name=name, n=1))

    def kill():
        c.kill()
        return 1

    with pytest.raises(baton.ProviderDied):
        baton.call(name, kill)
    provider(child, APPLY.format(name=name, n=1))
    assert baton.get_function(name, wait=PATIENCE)(lambda: 5) == 5


def test_a_caller_that_is_killed_in_its_function(child, name):
    c = provider(
        child,
        f"""
@baton.function({name!r})
def apply(f):
    try: return f()
    except baton.Error as e: say(type(e).__name__)
""",
    )
    caller = child(f"import os\nbaton.call({name!r}, lambda: os.kill(os.getpid(), 9))")
    assert c.hear() in ("ProviderDied", "Cancelled")
    assert caller.process.wait(PATIENCE) == -signal.SIGKILL
    assert baton.call(name, lambda: 3) == 3


def test_ctrl_c_in_a_function_ends_its_call(child, name):
    provider(child, APPLY.format(name=name, n=1))
    caller = child(
        f"""
import time
def waits():
    say("waits")
    time.sleep(1000)
try:
    baton.call({name!r}, waits)
except KeyboardInterrupt:
    say("interrupted", baton.call({name!r}, lambda: 1))
"""
    )
    assert caller.hear() == "waits"
    caller.process.send_signal(signal.SIGINT)
    assert caller.hear() == "interrupted 1"


def test_functions_of_coroutines_inherit_their_call(name):
    chains = []

    @baton.function(f"{name}/inner")
    def inner():
        call = baton.current_call()
        chains.append(call.deadline is not None)
        return 1

    @baton.function(f"{name}/outer", concurrency=2)
    async def outer(n: int):
        f = baton.get_function(f"{name}/outer")
        return await baton.get_function(f"{name}/inner").acall() if n == 0 else 1 + await f.acall(n - 1)

    with baton.start_functions(inner, outer):
        f = baton.get_function(f"{name}/outer")
        assert f.options(timeout=PATIENCE)(0) == 1 and chains == [True]
        assert f(1) == 2
        with pytest.raises(baton.RemoteError, match=f"would wait for itself: {name}/outer > {name}/outer"):
            f(2)


def test_the_child_of_a_fork_has_no_functions_of_its_parents(child, name):
    provider(child, APPLY.format(name=name, n=2))
    me = os.getpid()

    def forks():
        pid = os.fork()
        if pid == 0:
            try:
                got = baton.call(name, lambda: os.getpid())
                os._exit(0 if got == os.getpid() != me else 1)
            except BaseException:  # noqa: BLE001 - the child goes nowhere else
                os._exit(2)
        return os.waitpid(pid, 0)[1]

    assert baton.call(name, forks) == 0
    assert baton.call(name, lambda: 4) == 4


def test_a_child_of_a_fork_cannot_call_what_came_to_its_parent(child, name):
    provider(
        child,
        f"""
@baton.function({name!r})
def apply(f):
    pid = os.fork()
    if pid == 0:
        try: f()
        except baton.Closed: os._exit(0)
        finally: os._exit(1)
    return os.waitpid(pid, 0)[1], f()
""",
    )
    assert baton.call(name, lambda: 5) == (0, 5)


def test_private_functions_are_not_listed(child, name):
    provider(child, APPLY.format(name=name, n=1))
    rows = baton.call(name, lambda: [f["name"] for f in listing("functions")])
    assert name in rows and "" not in rows


class Counter:
    """Has methods."""

    limit = 100
    Kind: type = int

    def __init__(self):
        self.n = 0

    def add(self, n: int = 1) -> int:
        """Adds."""
        self.n += n
        return self.n

    def count(self):
        yield from range(self.n)

    @property
    def now(self):
        raise AssertionError("it is asked for")

    @staticmethod
    def double(x):
        return 2 * x

    @classmethod
    def name(cls):
        return cls.__name__

    def each(self, f: Callable[[int], int]) -> list:
        return [f(i) for i in range(self.n)]

    def _hidden(self):
        raise AssertionError("it is called")


def test_the_methods_of_an_object_are_a_group(name):
    methods = baton.functions_of(Counter(), name, concurrency=2)
    with baton.start_functions(*methods) as provided:
        assert sorted(n.removeprefix(f"{name}/") for n in provided.names) == ["add", "count", "double", "each", "name"]
        counter = baton.bind(name)
        assert counter.add() == 1 and counter.add(n=2) == 3 and counter.add.doc == "Adds."
        assert counter.double(4) == 8 and counter.name() == "Counter" and list(counter.count.stream()) == [0, 1, 2]
        assert counter.each(lambda i: i * i) == [0, 1, 4]
        with pytest.raises(AttributeError):
            counter._hidden
    with pytest.raises(baton.InvalidArgument, match="no public methods"):
        baton.functions_of(object(), name)


class Scaled:
    def __init__(self, by):
        self.by = by

    def times(self, x: int) -> int:
        return self.by * x

    @staticmethod
    def doc(x: int) -> int:
        """What all have."""
        return x

    @classmethod
    def kind(cls) -> str:
        return cls.__name__


def test_objects_of_one_class_are_provided_beside_each_other(name):
    with (
        baton.start_functions(*baton.functions_of(Scaled(2), f"{name}/two")),
        baton.start_functions(*baton.functions_of(Scaled(3), f"{name}/three")),
    ):
        assert [baton.call(f"{name}/{n}/times", 5) for n in ("two", "three")] == [10, 15]
        assert [baton.call(f"{name}/{n}/doc", 5) for n in ("two", "three")] == [5, 5]
        assert baton.call(f"{name}/three/kind") == "Scaled"
        f = baton.get_function(f"{name}/three/doc")
        assert (f.doc, f.signature) == ("What all have.", "(x: int) -> int")


def test_functions_run_where_their_call_is_awaited(child, name):
    """Those of a call in the thread that waits, of acall in its loop, of submit and stream in one thread kept for them."""
    provider(
        child,
        f"""
@baton.function({name!r}, concurrency=4)
def apply(f): return f()
@baton.function("{name}/parts", concurrency=4)
def parts(f):
    yield f()
    yield f()
""",
    )
    f, me = baton.get_function(name), threading.get_ident()
    where = threading.get_ident
    assert f(where) == me
    kept = f.submit(where).result(PATIENCE)
    assert kept != me and f.submit(where).result(PATIENCE) == kept
    assert set(baton.get_function(f"{name}/parts").stream(where)) == {kept}

    async def in_loop():
        loop, seen = asyncio.get_running_loop(), []

        def looks():
            seen.append((where(), asyncio.get_running_loop() is loop, baton.current_call() is not None))
            return len(seen)

        async def awaits():
            await asyncio.sleep(0)
            return looks()

        assert await f.acall(looks) == 1 and await f.acall(awaits) == 2
        assert await asyncio.gather(*[f.acall(looks) for _ in range(8)]) and len(seen) == 10
        assert set(seen) == {(me, True, True)}
        with pytest.raises(ZeroDivisionError):
            await f.acall(lambda: 1 // 0)
        # One that waits still is cancelled with the call.
        begun, ended = asyncio.Event(), asyncio.Event()

        async def waits():
            begun.set()
            try:
                await asyncio.sleep(1000)
            finally:
                ended.set()

        task = asyncio.create_task(f.acall(waits))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ended.wait()

    asyncio.run(in_loop())


def test_a_session_is_dropped_while_its_thread_for_functions_ends(child, name):
    apply = baton.function(name, concurrency=2)(lambda f, x: f(x))
    with baton.start_functions(apply):
        c = child(
            """
import faulthandler, threading
faulthandler.dump_traceback_later(100, exit=True)
def busy():
    while True:
        sum(range(2000))
for _ in range(2):
    threading.Thread(target=busy, daemon=True).start()
def once():
    session = baton.connect()
    assert session.get_function(sys.argv[1], wait=60).submit(lambda i: i + 1, 1).result() == 2
for _ in range(60):
    once()
say('done')
import os
os._exit(0)
""",
            name,
        )
        assert c.hear() == "done"
