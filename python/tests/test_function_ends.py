"""Functions whose provider, caller or session ends while they have calls."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import baton
import pytest
from conftest import PATIENCE, command, eventually, suspend
from function_kit import ECHO, SERVES, SLOW, nothing_is_defined, provider  # noqa: F401


def test_a_provider_that_is_killed_while_it_runs(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    f = baton.get_function(name)
    running, waiting = f.submit(1), f.submit(2)
    assert c.hear() == "runs 1"
    c.process.kill()  # it is waited for later: until then the kernel tells
    with pytest.raises(baton.ProviderDied) as e:
        running.result(PATIENCE)
    assert e.value.pid == c.pid and e.value.reason and str(c.pid) in str(e.value)
    assert (e.value.signal, e.value.status) == (signal.SIGKILL, None)
    assert e.value.seconds is not None and e.value.seconds >= 0
    with pytest.raises(baton.NoProvider):
        waiting.result(PATIENCE)
    with pytest.raises((baton.NoProvider, baton.NotFound)):
        f(3)


COUNTED = """
@baton.function({name!r})
def counted(fails):
    if fails == "exit":
        os._exit(3)
    if fails:
        raise ValueError("as asked")
    time.sleep(0.02)
"""


def test_calls_errors_and_their_times_are_listed(child, name):
    c = provider(child, COUNTED.format(name=name))
    for _ in range(3):
        baton.call(name, "")
    with pytest.raises(ValueError):
        baton.call(name, "fails")
    (info,) = baton.functions(name)
    (p,) = info.providers
    assert (info.calls, info.errors, p.calls, p.errors) == (4, 1, 4, 1)
    assert 0.02 <= p.p50 <= p.p99 and info.p50 == p.p50
    assert p.uid == os.getuid() and not p.stopped
    os.kill(c.pid, signal.SIGSTOP)
    eventually(lambda: baton.functions(name)[0].providers[0].stopped, "the provider to be listed as stopped")
    os.kill(c.pid, signal.SIGCONT)
    with pytest.raises(baton.ProviderDied) as e:
        baton.call(name, "exit")
    assert (e.value.signal, e.value.status) == (None, 3) and "exited with status 3" in str(e.value)
    assert e.value.provider == p.name


def test_traces_stay_where_the_environment_says_so(child, name, monkeypatch):
    for stay in ("", "1"):
        monkeypatch.setenv("BATON_NO_REMOTE_TRACES", stay)
        c = provider(child, COUNTED.format(name=name))
        with pytest.raises(ValueError, match="as asked") as e:
            baton.call(name, "fails")
        cause = e.value.__cause__
        assert isinstance(cause, baton.RemoteError) and ("in counted" in cause.trace) == (not stay)
        assert stay == "" or not any("in counted" in note for note in getattr(e.value, "__notes__", []))
        c.end()


def test_what_was_not_begun_goes_to_another_provider(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    f = baton.get_function(name)
    running, waiting = f.submit(1), f.submit(2)
    assert c.hear() == "runs 1"
    other = child(SERVES.format(SLOW.format(name=name, n=1)))
    assert sorted(other.hear().split()[0] for _ in range(2)) == ["ready", "runs"]
    third = f.submit(3)
    c.kill()
    with pytest.raises(baton.ProviderDied):
        running.result(PATIENCE)
    waiting.cancel()
    assert other.hear() == "cancelled 2"
    assert other.hear() == "runs 3"
    third.cancel()
    assert other.hear() == "cancelled 3"


def test_a_call_that_is_begun_again_tells_so(child, name):
    script = f"""
@baton.function({name!r}, idempotent=True)
def again():
    say("runs", baton.current_call().attempt)
    if baton.current_call().attempt == 1: time.sleep(1000)
    return baton.current_call().attempt
"""
    c = provider(child, script)
    future = baton.get_function(name).submit()
    assert c.hear() == "runs 1"
    other = provider(child, script)
    c.kill()
    assert other.hear() == "runs 2"
    assert future.result(PATIENCE) == 2
    # Where there is no other provider, the error names the last one that has begun it.
    future = baton.get_function(name).submit()
    assert other.hear() == "runs 1"
    other.kill()
    with pytest.raises(baton.ProviderDied) as e:
        future.result(PATIENCE)
    assert (e.value.pid, e.value.signal) == (other.process.pid, 9)


def test_no_provider_and_no_function(child, name):
    with pytest.raises(baton.NotFound):
        baton.call(name)
    with pytest.raises(baton.NotFound):
        baton.get_function(name, wait=0.01)
    c = provider(child, ECHO.format(name=name))
    f = baton.get_function(name)
    with pytest.raises(baton.NotFound, match=name):  # names similar ones
        baton.get_function(name + "x")
    c.tell("started.close(); say('closed')")
    assert c.hear() == "closed"
    with pytest.raises(baton.NoProvider):
        f(1)
    with pytest.raises(baton.NoProvider):
        f.options(wait=0.01)(1)
    with pytest.raises(baton.Timeout):
        f.options(wait=PATIENCE, timeout=0.01)(1)
    with pytest.raises(baton.Timeout):
        f.options(wait=PATIENCE, timeout=0.01).submit(1).result(PATIENCE)
    waits = threading.Thread(target=lambda: results.append(f.options(wait=PATIENCE)(5)))
    results = []
    waits.start()
    provider(child, ECHO.format(name=name))
    waits.join(PATIENCE)
    assert results == [5]
    late = []
    waits = threading.Thread(target=lambda: late.append(baton.get_function(name + "/later", wait=PATIENCE)(6)))
    waits.start()
    provider(child, ECHO.format(name=name + "/later"))
    waits.join(PATIENCE)
    assert late == [6]


def test_ctrl_c_in_a_caller_cancels_the_call(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    caller = child(
        f"""
try:
    baton.call({name!r}, "here")
except KeyboardInterrupt:
    say("interrupted")
"""
    )
    assert c.hear() == "runs here"
    caller.process.send_signal(signal.SIGINT)
    assert caller.hear() == "interrupted" and c.hear() == "cancelled here"
    caller.end()


def test_a_caller_that_is_killed_cancels_its_calls(child, name):
    c = provider(child, SLOW.format(name=name, n=1))
    caller = child(f"baton.call({name!r}, 'here')")
    assert c.hear() == "runs here"
    caller.kill()
    assert c.hear() == "cancelled here"


def test_the_end_of_a_function_waits_for_what_runs(child, name):
    c = child(
        f"""
import threading
go = threading.Event()
@baton.function({name!r})
def waits():
    say("runs")
    go.wait()
    return 5
started = baton.start_functions()
say("ready")
sys.stdin.readline()
threading.Timer(0.05, go.set).start()
started.close()
say("closed", started.names)
"""
    )
    assert c.hear() == "ready"
    future = baton.get_function(name).submit()
    assert c.hear() == "runs"
    c.tell()
    assert future.result(PATIENCE) == 5
    assert c.hear() == "closed []"
    c.end()


def test_serving_ends_by_ctrl_c_without_an_error(child, name):
    c = child(
        f"""
@baton.function({name!r})
def f(): return 1
say("serves")
baton.serve_functions()
say("ended")
"""
    )
    assert c.hear() == "serves"
    f = baton.get_function(name, wait=PATIENCE)
    assert f() == 1
    c.process.send_signal(signal.SIGINT)
    assert c.hear() == "ended"
    c.end()
    assert eventually(lambda: f.providers == 0, "the function to have no provider")


ENDS = {
    "serve": "baton.serve_functions()",
    "close": """
started = baton.start_functions()
try:
    started.join()
except KeyboardInterrupt:
    started.close()
""",
    "exit": """
try:
    baton.start_functions().join()
except KeyboardInterrupt:
    pass
""",
}


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("ends", ENDS)
def test_functions_that_run_are_waited_for_after_ctrl_c(child, name, ends, kind):
    """A function runs on for a while after none is to be called any more."""
    c = child(
        f"""
import asyncio, os, time
@baton.function({name!r})
{kind} waits():
    say("runs")
    while any(started.names for started in baton._provided._started):
        {"time.sleep(0.001)" if kind == "def" else "await asyncio.sleep(0.001)"}
    {"time.sleep(0.5)" if kind == "def" else "await asyncio.sleep(0.5)"}
    say("ran")
    return 5
say("serves")
{ENDS[ends]}
say("ended")
"""
    )
    assert c.hear() == "serves"
    future = baton.get_function(name, wait=PATIENCE).submit()
    assert c.hear() == "runs"
    c.process.send_signal(signal.SIGINT)
    said = [c.hear(), c.hear()]
    assert said == (["ended", "ran"] if ends == "exit" else ["ran", "ended"])
    assert future.result(PATIENCE) == 5
    c.end()


def test_an_interrupted_close_can_be_called_again(child, name):
    c = child(
        f"""
import os, time
@baton.function({name!r})
def waits():
    say("runs")
    while started.names:
        time.sleep(0.001)
    say("closing")
    sys.stdin.readline()
    say("ran")
    return 5
started = baton.start_functions()
say("serves")
try:
    started.join()
except KeyboardInterrupt:
    say("interrupted")
try:
    started.close()
except KeyboardInterrupt:
    say("interrupted again", started.names)
started.close()
say("closed")
"""
    )
    assert c.hear() == "serves"
    future = baton.get_function(name, wait=PATIENCE).submit()
    assert c.hear() == "runs"
    c.process.send_signal(signal.SIGINT)
    assert (c.hear(), c.hear()) == ("interrupted", "closing")
    c.process.send_signal(signal.SIGINT)
    assert c.hear() == "interrupted again []"
    c.tell()
    assert future.result(PATIENCE) == 5
    assert (c.hear(), c.hear()) == ("ran", "closed")
    c.end()


def test_serving_ends_when_the_function_is_removed(child, name):
    c = child(
        f"""
@baton.function({name!r})
def f(): return 1
baton.serve_functions()
say("ended")
"""
    )
    assert baton.get_function(name, wait=PATIENCE)() == 1
    assert baton.remove_function(name, everywhere=True) == 1
    assert c.hear() == "ended"
    c.end()


def test_a_program_ends_cleanly_whatever_it_has_under_way(child, name):
    slow = provider(child, SLOW.format(name=name, n=2))
    script = f"""
import baton, asyncio
@baton.function({name + "/mine"!r}, concurrency=3)
def mine(x): return x
@baton.function({name + "/async"!r}, concurrency=3)
async def wait(): await asyncio.sleep(1000)
started = baton.start_functions()
f = baton.get_function({name!r})
futures = [f.submit(i) for i in range(2)]
assert baton.call({name + "/mine"!r}, 3) == 3
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    heard = sorted(slow.hear() for _ in range(4))
    assert heard == ["cancelled 0", "cancelled 1", "runs 0", "runs 1"]


@pytest.mark.parametrize("stands_still", [False, True])
def test_serving_ends_with_an_error_where_the_session_is_lost(own, child, name, stands_still):
    c = child(
        f"""
@baton.function({name!r})
def f(): return 1
try: baton.serve_functions()
except baton.SessionLost as e: say(e)
else: say("ended")
"""
    )
    with baton.connect() as s:
        f = s.get_function(name, wait=PATIENCE)
        assert f() == 1
        (p,) = s.functions(name)[0].providers
        if stands_still:  # then it finds its registration ended before it has read why
            suspend(c.process)
        command("evict", str(p.session), "--yes")
        os.kill(c.pid, signal.SIGCONT)
        assert re.search("an operator (has )?evicted it", c.hear())
        c.end()
        with pytest.raises((baton.NoProvider, baton.NotFound)):
            s.get_function(name)()


# No reply can be sent: a function that goes on would work for no caller.
def test_functions_learn_that_their_session_is_over(own, child, name):
    c = child(
        f"""
import asyncio, time
@baton.function({name!r})
def plain():
    say("begun")
    call = baton.current_call()
    while not call.cancelled: time.sleep(0.01)
    say("plain: cancelled")
@baton.function({name!r} + "/task")
async def task():
    say("begun")
    try: await asyncio.Event().wait()
    except asyncio.CancelledError:
        say("task: cancelled")
        raise
try: baton.serve_functions()
except baton.SessionLost: pass
"""
    )
    with baton.connect() as s:
        calls = [s.get_function(name + which, wait=PATIENCE).submit() for which in ("", "/task")]
        assert [c.hear(), c.hear()] == ["begun", "begun"]
        (p,) = s.functions(name)[0].providers
        command("evict", str(p.session), "--yes")
        assert sorted([c.hear(), c.hear()]) == ["plain: cancelled", "task: cancelled"]
        c.end()
        for call in calls:
            with pytest.raises(baton.ProviderDied):
                call.result(timeout=PATIENCE)


STANDS = """
import time
@baton.function({name!r}, concurrency=4)
def stands(): time.sleep(3600)
@baton.function({name!r} + "/parts", concurrency=4)
def parts():
    yield 1
    time.sleep(3600)
"""


# The killed provider is a child of this process, which has not waited for it: the usual shape of a program that starts
# its workers.
@pytest.mark.parametrize("how", ["call", "submit", "acall", "astream"])
def test_calls_end_where_provider_and_broker_have_ended(own, child, name, how):
    c = provider(child, STANDS.format(name=name))
    with baton.connect() as s:
        f = s.get_function(name + "/parts" * (how == "astream"))

        async def read():
            return [part async for part in f.astream()]

        wait = {
            "call": f,
            "submit": lambda: f.submit().result(),
            "acall": lambda: asyncio.run(f.acall()),
            "astream": lambda: asyncio.run(read()),
        }
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(wait[how])
            eventually(lambda: s.functions(f.name)[0].running == 1, "the function to run")
            os.kill(c.pid, signal.SIGKILL)
            own.end(signal.SIGKILL)
            with pytest.raises(baton.BrokerLost):
                waits.result(PATIENCE)


@pytest.mark.parametrize("how", ["call", "submit", "acall", "lent"])
def test_a_deadline_that_passes_without_a_broker_is_a_timeout(own, child, name, how):
    provider(child, f"@baton.function({name!r})\ndef same(x): return x")
    with baton.connect() as s:
        f = s.get_function(name).options(timeout=0.5)
        own.end(signal.SIGKILL)
        wait = {
            "call": lambda: f(1),
            "submit": lambda: f.submit(1).result(PATIENCE),
            "acall": lambda: asyncio.run(f.acall(1)),
            "lent": lambda: f(lambda: 1),
        }
        with pytest.raises(baton.Timeout):
            wait[how]()


def test_an_interrupt_at_any_line_of_a_start_leaves_nothing_provided(child, name):
    """An interrupt comes before each line of Python that the main thread runs in a start: one more line each time."""
    c = child(
        f"""
import signal, time
@baton.function({name!r})
def one(): return 1
@baton.function({name!r} + "/two")
def two(): return 2
session, beside = baton.connect(), baton.connect()
session.start_functions().close()  # what it imports is there

def interrupts(line):
    left = [line]
    def trace(frame, event, arg):
        if frame.f_globals.get("__name__", "").split(".")[0] not in ("baton", "threading"):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
        return trace
    return trace

def provided():
    return [f.name for f in beside.functions({name!r} + "*") if f.providers]

line, started = 0, None
while started is None:
    line += 1
    sys.settrace(interrupts(line))
    try:
        started = session.start_functions()
    except KeyboardInterrupt:
        sys.settrace(None)
        until = time.monotonic() + {PATIENCE}
        while provided() and time.monotonic() < until:
            time.sleep(0.001)
        if provided():
            say("line", line, "left", *provided())
            sys.exit(1)
sys.settrace(None)
say("lines", line > 5, *sorted(started.names), baton.call({name!r}))
started.close()
"""
    )
    assert c.hear() == f"lines True {name} {name}/two 1"
    c.end()
