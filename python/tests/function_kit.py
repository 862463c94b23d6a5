"""What the tests of functions share: a process that provides, and scripts of what it provides."""

import baton
import baton._functions
import pytest
from conftest import eventually

SERVES = """
import dataclasses, threading
import os, time
{}
started = baton.start_functions()
say("ready", os.getpid())
for line in sys.stdin:
    exec(line)
started.close()
"""


def counted(*names):
    """How many calls of each function have ended, once none waits or runs."""
    all = [baton.functions(n)[0] for n in names]
    return None if any(f.waiting or f.running for f in all) else [f.calls for f in all]


def late(call, *names):
    """Has a call end at its deadline, with more time until it and the functions within it have begun by then. How many
    calls of each function have ended with it, each time."""
    timeout = 0.05
    while True:
        before = eventually(lambda: counted(*names), "nothing runs")
        with pytest.raises(baton.Timeout) as e:
            call(timeout)
        assert isinstance(e.value, TimeoutError)
        ended = [n - b for n, b in zip(eventually(lambda: counted(*names), "nothing runs"), before, strict=True)]
        yield timeout, ended
        if all(ended):
            return
        timeout *= 2


@pytest.fixture(autouse=True)
def nothing_is_defined():
    """What a test defines ends with it; so does what examples of docstrings have defined before it."""
    baton._functions._defined.clear()
    yield
    baton._functions._defined.clear()


def provider(child, script):
    """A process that provides what the script defines, and then does what it is told."""
    c = child(SERVES.format(script))
    assert c.hear().startswith("ready")
    return c


ECHO = """
@baton.function({name!r})
def echo(*args, **named):
    if len(args) == 1 and not named:
        return args[0]
    return args, named
"""


SIGNED = """
from typing import Optional
@baton.function({name!r}, concurrency=3, idempotent=True)
def scale(image: np.ndarray, by: int | float = 2, /, *, mode: str = "fast", pad: Optional[int] = None) -> baton.Tensor:
    "Scales an image."
@baton.function({name!r} + "/wide")
def wide(a, *rest: int, flag: bool, **more: list[int]): pass
@baton.function({name!r} + "/num")
def num(b: bool, i: int, f: float): return b, i, f
"""


FAILS = """
class Odd(Exception): pass
class Registered(Exception): pass
baton.register_error("test.Registered", Registered)
@baton.function({name!r})
def fail(how):
    def inner(): raise KeyError("inner")
    if how == "cause":
        try: inner()
        except KeyError as e: raise ValueError("outer") from e
    if how == "exit": sys.exit(3)
    if how == "interrupt": raise KeyboardInterrupt
    if how == "odd": raise Odd("it is odd")
    if how == "registered": raise Registered("it is known")
    if how == "baton": raise baton.Timeout("slow")
    if how == "nested": baton.call({name!r} + "/none")
    if how == "remote": raise baton.RemoteError("x")
    if how == "mute":
        class Mute(ValueError):
            def __str__(self): raise RuntimeError
        raise Mute()
    raise eval(how)
"""


SLOW = """
@baton.function({name!r}, concurrency={n})
def slow(what=None):
    say("runs", what)
    while not baton.current_call().cancelled:
        time.sleep(0.005)
    say("cancelled", what)
"""
