"""Calls that run, or are made, while the broker is killed and none comes."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import baton
import numpy as np
import pytest
from conftest import PATIENCE, eventually
from function_kit import nothing_is_defined, provider  # noqa: F401

GATE = """
go = threading.Event()
@baton.function({name!r})
def gate():
    say("runs")
    go.wait()
    return 7
"""


@pytest.mark.parametrize("how", ["call", "submit", "acall"])
def test_the_first_call_has_its_result_where_the_broker_dies_while_it_runs(own, child, name, how):
    c = provider(child, GATE.format(name=name))
    with baton.connect() as s, ThreadPoolExecutor(1) as pool:
        f = s.get_function(name).options(timeout=20)
        calls = {
            "call": lambda: pool.submit(f),
            "submit": f.submit,
            "acall": lambda: pool.submit(lambda: asyncio.run(f.acall())),
        }
        result = calls[how]()
        assert c.hear() == "runs"
        own.end(signal.SIGKILL)
        c.tell("go.set()")
        assert result.result(PATIENCE) == 7


TAKES = """
@baton.function({name!r})
def takes(x): return None
@baton.function({name!r} + "/parts")
def parts(x): yield None
@baton.function({name!r} + "/gives")
def gives(n): return np.zeros(n, "uint8")
"""


# More than a session has at hand.
BYTES = 64 << 20


@pytest.mark.parametrize("how", ["call", "nested", "submit", "stream", "acall", "astream"])
def test_the_deadline_of_a_call_holds_while_its_arrays_are_copied_without_a_broker(own, child, name, how):
    provider(child, TAKES.format(name=name))
    with baton.connect() as s:
        takes, parts = (s.get_function(n).options(timeout=0.5) for n in (name, name + "/parts"))
        large = np.zeros(BYTES, "uint8")
        own.end(signal.SIGKILL)

        async def read():
            return [part async for part in parts.astream(large)]

        call = {
            "call": lambda: takes(large),
            "nested": lambda: takes([{"x": large}]),
            "submit": lambda: takes.submit(large).result(PATIENCE),
            "stream": lambda: list(parts.stream(large)),
            "acall": lambda: asyncio.run(takes.acall(large)),
            "astream": lambda: asyncio.run(read()),
        }
        with pytest.raises(baton.Timeout, match="has not ended in time"):
            call[how]()


def test_a_result_that_cannot_be_copied_until_the_deadline_holds_up_no_other_call(own, child, name):
    provider(child, TAKES.format(name=name))
    with baton.connect() as s:
        gives = s.get_function(name + "/gives")
        gives(1)
        own.end(signal.SIGKILL)
        with pytest.raises(baton.Timeout):
            gives.options(timeout=0.5)(BYTES)
        assert gives.options(timeout=20)(1).shape == (1,)
        own.start()
        assert gives(BYTES).shape == (BYTES,)


INTERRUPTED = """
s = baton.connect()
s.set("here", 1)
say("ready")
input()
try:
    say("waits")
    {wait}
except KeyboardInterrupt:
    say("interrupted")
"""


@pytest.mark.parametrize(
    "wait", ["s.get_function('f')", "s.call('f')", "s.set('there', 1)", "s.empty(1 << 28, 'uint8')"]
)
def test_ctrl_c_ends_a_wait_for_a_broker_that_is_gone(own, child, wait):
    c = child(INTERRUPTED.format(wait=wait))
    assert c.hear() == "ready"
    own.end(signal.SIGKILL)
    c.tell()
    assert c.hear() == "waits"
    eventually(lambda: "S" in open(f"/proc/{c.pid}/stat").read().rsplit(")", 1)[1].split()[0], "it to sleep")
    os.kill(c.pid, signal.SIGINT)
    assert c.hear() == "interrupted"
