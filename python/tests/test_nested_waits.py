"""What a function waits for ends with its call, whatever that is and whichever session waits."""

import time
from pathlib import Path

import baton
import pytest
from conftest import PATIENCE, eventually
from function_kit import nothing_is_defined  # noqa: F401

OTHERS = """
import threading
over = threading.Event()
@baton.function({name!r} + "/waits", concurrency=200)
def waits():
    while not baton.current_call().cancelled:
        over.wait(0.01)
@baton.function({name!r} + "/parts", concurrency=20)
def parts():
    yield 1
    waits()
@baton.function({name!r} + "/calls", concurrency=20)
def calls(f):
    return f()
@baton.function({name!r} + "/gone")
def gone(): pass
started = baton.start_functions()
say("ready")
sys.stdin.readline()
started.remove({name!r} + "/gone")
say("gone")
sys.stdin.readline()
"""

PROVIDES = """
import asyncio, threading, time
inner, third, crowded = baton.Session(), baton.Session(), baton.Session()
name = {name!r}
waits, parts, calls, gone = (inner.get_function(f"{{name}}/{{f}}") for f in ("waits", "parts", "calls", "gone"))
gone, elsewhere = gone.options(wait=600), third.get_function(name + "/waits")
full = crowded.get_function(name + "/waits")
say("ready")
sys.stdin.readline()
crowd = [full.submit() for _ in range(64)]

def told():
    say("waits", threading.get_native_id())

def ends(wait):
    # What waits ends by an error, which is told with the time.
    try:
        told()
        wait()
    except BaseException as e:
        say("ended", type(e).__name__, time.monotonic())
        raise
    say("ended", "well", time.monotonic())

KINDS = {{
    "call": lambda: ends(waits),
    "name": lambda: ends(lambda: inner.call(name + "/waits")),
    "room": lambda: ends(full),
    "submit": lambda: ends(lambda: full.submit().result()),
    "provider": lambda: ends(gone),
    "absent": lambda: ends(lambda: inner.get_function(name + "/none", wait=600)),
    "future": lambda: ends(lambda: waits.submit().result()),
    "own future": lambda: ends(lambda: baton.get_function(name + "/waits").submit().result()),
    "stream": lambda: ends(lambda: list(parts.stream())),
    "lent": lambda: calls(lambda: ends(elsewhere)),
}}

async def all_of(stream):
    return [part async for part in stream]

TASKS = {{
    "call": lambda: waits.acall(),
    "room": lambda: full.acall(),
    "provider": lambda: gone.acall(),
    "future": lambda: asyncio.wrap_future(waits.submit()),
    "stream": lambda: all_of(parts.astream()),
    "lent": lambda: calls.acall(elsewhere.acall),
}}

async def in_task(wait):
    try:
        told()
        await wait()
    except BaseException as e:
        say("ended", type(e).__name__, time.monotonic())
        raise
    say("ended", "well", time.monotonic())

@baton.function(name + "/outer", concurrency=4)
def outer(kind: str):
    KINDS[kind]()

@baton.function(name + "/task", concurrency=4)
async def task(kind: str):
    await in_task(TASKS[kind])

@baton.function(name + "/thread", concurrency=4)
async def thread(kind: str):
    await asyncio.to_thread(KINDS[kind])

@baton.function(name + "/echo")
async def echo(x):
    return x

started = baton.start_functions()
say("started")
sys.stdin.readline()
"""

CALLS = """
baton.call(*sys.argv[1:])
"""

THREADS = ["call", "name", "room", "submit", "provider", "absent", "future", "own future", "stream", "lent"]
KINDS = [
    *(("outer", kind) for kind in THREADS),
    *(("thread", kind) for kind in THREADS),
    *(("task", kind) for kind in ["call", "room", "provider", "future", "stream", "lent"]),
]


def sleeps(pid, thread):
    """Whether a thread of a process sleeps."""
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


def heard(c, what):
    """What a process says of something."""
    line = c.hear().split()
    assert line[0] == what, line
    return line[1:]


def started(child, name):
    """A process whose functions wait, and one that provides what they wait for."""
    others = child(OTHERS.format(name=name))
    heard(others, "ready")
    c = child(PROVIDES.format(name=name))
    heard(c, "ready")
    others.tell()
    heard(others, "gone")
    c.tell()
    heard(c, "started")
    return c


@pytest.mark.parametrize("how", ["cancelled", "deadline", "killed"])
def test_what_a_function_waits_for_ends_with_its_call(child, name, how):
    c = started(child, name)
    for runs, kind in KINDS:
        f, call, caller = baton.get_function(f"{name}/{runs}"), None, None
        until = time.monotonic() + 0.3
        if how == "killed":
            caller = child(CALLS, f"{name}/{runs}", kind)
        else:
            call = (f.options(timeout=0.3) if how == "deadline" else f).submit(kind)
        (tid,) = heard(c, "waits")
        eventually(lambda tid=tid: sleeps(c.pid, tid), "it waits")
        if how == "cancelled":
            until = time.monotonic()
            call.cancel()
        elif how == "killed":
            until = time.monotonic()
            caller.kill()
        error, at = heard(c, "ended")
        print(f"{runs} {kind}, {how}: {1000 * (float(at) - until):.2f} ms")
        late = ["Timeout", "Full"] if how == "deadline" else []
        assert error in ("Cancelled", "CancelledError", *late), (runs, kind)
        if how == "deadline":
            with pytest.raises(baton.Timeout):
                call.result(PATIENCE)
        assert baton.call(f"{name}/echo", 1) == 1, "its loop goes on"
    c.tell()
    c.end()


LATE = """
import asyncio, threading, time
name, others, go = sys.argv[1], baton.Session(), threading.Semaphore(0)
ran = []

@baton.function(name + "/echo")
def echo(x):
    ran.append(x)
    return x

@baton.function(name + "/parts", concurrency=4)
def parts(n):
    ran.append(n)
    yield from range(n)

started = baton.start_functions()
echoes, tiles = others.get_function(name + "/echo"), others.get_function(name + "/parts")

KINDS = {
    "call": lambda: echoes(1),
    "name": lambda: others.call(name + "/echo", 1),
    "submit": lambda: echoes.submit(1).result(),
    "stream": lambda: list(tiles.stream(1)),
}

def makes(kind, over):
    # Makes a call once that is over which it is within, all that it needs being there, and tells whether it ran.
    if kind == "parts":
        stream = tiles.stream(10)
        make = lambda: next(stream)
    else:
        make = KINDS[kind]
    make()
    ran.clear()
    say("begun")
    over()
    try:
        make()
        say("well")
    except BaseException as e:
        say(type(e).__name__, len(ran))

def cancelled():
    while not baton.current_call().cancelled:
        time.sleep(0.001)

@baton.function(name + "/outer")
def outer(kind):
    makes(kind, cancelled)

@baton.function(name + "/thread")
async def thread(kind):
    try:
        await asyncio.to_thread(makes, kind, go.acquire)
    finally:
        say("over")

@baton.function(name + "/task")
async def task():
    await echoes.acall(0)
    say("begun")
    try:
        await asyncio.sleep(600)
    finally:
        say("made", await echoes.acall(1))

with baton.start_functions():
    say("ready")
    for _ in sys.stdin:
        go.release()
started.close()
"""


def test_what_is_made_within_a_call_that_is_over_is_refused_before_it_is_sent(child, name):
    c = child(LATE, name)
    heard(c, "ready")
    for runs in ("outer", "thread"):
        for kind in ("call", "name", "submit", "stream", "parts"):
            call = baton.get_function(f"{name}/{runs}").submit(kind)
            heard(c, "begun")
            call.cancel()
            if runs == "thread":  # it goes on after the coroutine
                heard(c, "over")
                c.tell()
            assert c.hear() == "Cancelled 0", (runs, kind)
    call = baton.get_function(name + "/task").submit()
    heard(c, "begun")
    call.cancel()
    assert c.hear() == "made 1", "a cancelled task awaits what it has to do at its end"
    c.end()


ENDED = """
import contextvars, threading
name, go = sys.argv[1], threading.Semaphore(0)

def goes_on():
    go.acquire()
    try:
        say("well", baton.call(name + "/echo", 1))
    except BaseException as e:
        say(type(e).__name__)

@baton.function(name + "/begins")
async def begins():
    threading.Thread(target=contextvars.copy_context().run, args=[goes_on]).start()

@baton.function(name + "/echo")
def echo(x):
    return x

with baton.start_functions():
    say("ready")
    for _ in sys.stdin:
        go.release()
"""

CALLER = """
baton.call(sys.argv[1])
os._exit(0)
"""


def test_what_goes_on_after_a_call_that_has_ended_in_order_is_within_none(child, name):
    c = child(ENDED, name)
    heard(c, "ready")
    for _ in range(20):
        baton.get_function(name + "/begins").options(timeout=PATIENCE)()
        c.tell()
        assert c.hear() == "well 1"
    child(CALLER, name + "/begins").process.wait(PATIENCE)  # the caller has gone
    c.tell()
    assert c.hear() == "well 1"
    c.end()


SILENT = """
import asyncio, threading, time
name, inner = sys.argv[1], baton.Session()
over = threading.Event()

@baton.function(name + "/waits", concurrency=20)
def waits(begins=True):
    while begins and not baton.current_call().cancelled:
        over.wait(0.01)

@baton.function(name + "/parts", concurrency=20)
def parts(begins=True):
    yield 1
    waits(begins)

@baton.function(name + "/calls", concurrency=20)
def calls(f):
    return f()

@baton.function(name + "/other")
def other(): pass

started = baton.start_functions()
f, tiles, lends, others = (inner.get_function(f"{name}/{n}") for n in ("waits", "parts", "calls", "other"))

# What is there when the broker is suspended, and what is asked of it then.
READY = {
    "place": others,
    "all": lambda: f(False),
}
KINDS = {
    "name": lambda: inner.call(name + "/waits"),
    "get": lambda: inner.get_function(name + "/none", wait=600),
    "call": f,
    "place": f,
    "all": f,
    "submit": lambda: f.submit().result(),
    "stream": lambda: list(tiles.stream()),
    "lent": lambda: lends(f),
}
TASKS = {
    "call": lambda: f.acall(),
    "submit": lambda: asyncio.wrap_future(f.submit()),
    "stream": lambda: all_of(tiles.astream()),
}

async def all_of(stream):
    return [part async for part in stream]

def begin(kind):
    READY.get(kind, lambda: None)()
    say("begun")
    sys.stdin.readline()
    say("waits", threading.get_native_id())

def told(e):
    say("ended", type(e).__name__ if e else "well")

def ends(kind):
    begin(kind)
    try:
        KINDS[kind]()
    except BaseException as e:
        told(e)
        raise
    told(None)

@baton.function(name + "/outer", concurrency=4)
def outer(kind: str):
    ends(kind)

@baton.function(name + "/thread", concurrency=4)
async def thread(kind: str):
    await asyncio.to_thread(ends, kind)

@baton.function(name + "/task", concurrency=4)
async def task(kind: str):
    begin(kind)
    try:
        await TASKS[kind]()
    except BaseException as e:
        told(e)
        raise
    told(None)

with baton.start_functions():
    say("ready")
    time.sleep(600)
"""

ASKED = ["name", "get", "call", "place", "all", "submit", "stream", "lent"]


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        *(("outer", k) for k in ASKED),
        *(("thread", k) for k in ("name", "call", "submit", "stream", "lent")),
        *(("task", k) for k in ("call", "submit", "stream")),
    ],
)
def test_a_request_to_a_silent_broker_ends_with_the_call(child, own, name, runs, kind, how):
    c = child(SILENT, name)
    heard(c, "ready")
    with baton.Session(own.socket) as s:
        f = s.get_function(f"{name}/{runs}")
        call = (f.options(timeout=3) if how == "deadline" else f).submit(kind)
        heard(c, "begun")
        own.suspend()
        try:
            c.tell()
            (tid,) = heard(c, "waits")
            eventually(lambda: sleeps(c.pid, tid), "it waits")
            if how == "cancelled":
                call.cancel()
            (error,) = heard(c, "ended")
            late = ["Timeout"] if how == "deadline" else []
            assert error in ("Cancelled", "CancelledError", *late)
        finally:
            own.resume()
        if how == "deadline":
            with pytest.raises(baton.Timeout):
                call.result(PATIENCE)
    c.kill()
