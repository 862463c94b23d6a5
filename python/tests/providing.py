"""Processes that provide functions for a test."""

from collections.abc import Callable, Iterator

import baton
import pytest
from conftest import Child

SERVES = """
import os, threading, time
def say(*a): os.write(1, (" ".join(map(str, a)) + "\\n").encode())  # at once, whichever threads speak
{}
started = baton.start_functions()
say("ready", os.getpid())
for line in sys.stdin:
    exec(line)
started.close()
"""


@pytest.fixture(autouse=True)
def nothing_is_defined() -> Iterator[None]:
    """What a test has defined goes with it."""
    yield
    baton._functions._defined.clear()


def provider(child: Callable[..., Child], script: str) -> Child:
    """A process that provides what a script defines, and runs the lines that it is told."""
    c = child(SERVES.format(script))
    assert c.hear().startswith("ready")
    return c
