"""The interpreter's end where functions run and calls are under way."""

import subprocess
import sys

import baton
import pytest
from conftest import PATIENCE
from function_kit import nothing_is_defined, provider  # noqa: F401

UNTIL_CANCELLED = {
    "def": """
@baton.function({name!r})
def runs():
    begun.set()
    while not baton.current_call().cancelled:
        time.sleep(0.001)
    print("cancelled", flush=True)
""",
    "async def": """
@baton.function({name!r})
async def runs():
    begun.set()
    while not baton.current_call().cancelled:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            pass
    print("cancelled", flush=True)
""",
    "parts": """
@baton.function({name!r})
def runs():
    try:
        while True:
            yield 1
            begun.set()
    finally:
        print("cancelled", flush=True)
""",
}

# What makes a call and leaves it under way: f.
UNDER_WAY = {
    "submit": "future = f.submit()",
    "thread": """
def in_thread():
    try:
        f()
    except baton.Cancelled:
        pass
threading.Thread(target=in_thread, daemon=True).start()
""",
    "task": """
loop = asyncio.new_event_loop()
task = loop.create_task(f.acall())
while not begun.is_set():
    loop.run_until_complete(asyncio.sleep(0.001))
""",
    "loop in a thread": """
async def awaits():
    with contextlib.suppress(baton.Cancelled):
        await f.acall()
threading.Thread(target=lambda: asyncio.run(awaits()), daemon=True).start()
""",
    "stream": "parts = f.stream()",
    "astream": """
async def begins():
    parts = f.astream()
    await anext(parts)
    return parts
loop = asyncio.new_event_loop()
parts = loop.run_until_complete(begins())
""",
    "stream in a thread": """
def in_thread():
    for _ in f.stream():
        never.wait()
threading.Thread(target=in_thread, daemon=True).start()
""",
}


def ended(script):
    """What a program has written that ends by itself."""
    head = "import asyncio, contextlib, threading, time\nimport baton\nbegun, never = threading.Event(), threading.Event()\n"
    done = subprocess.run([sys.executable, "-c", head + script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in UNTIL_CANCELLED for how in UNDER_WAY if ("stream" in how) == (kind == "parts")],
)
def test_a_program_ends_that_calls_what_it_provides(name, kind, how):
    said = ended(f"""
{UNTIL_CANCELLED[kind].format(name=name)}
started = baton.start_functions()
f = baton.get_function({name!r})
{UNDER_WAY[how]}
begun.wait()
print("ends", flush=True)
""")
    assert said == ["ends", "cancelled"]


@pytest.mark.parametrize("how", ["submit", "thread", "task", "loop in a thread"])
def test_a_program_ends_whose_function_runs_for_what_it_calls(child, name, how):
    calls_back = f"""
@baton.function({name + "/back"!r})
def back():
    return baton.call({name!r})
"""
    provider(child, calls_back)
    said = ended(f"""
{UNTIL_CANCELLED["def"].format(name=name)}
started = baton.start_functions()
f = baton.get_function({name + "/back"!r})
{UNDER_WAY[how]}
begun.wait()
print("ends", flush=True)
""")
    assert said == ["ends", "cancelled"]


# Calls of a function, made within another one.
WITHIN = {
    "call": ("def", "return baton.call({inner!r})"),
    "submit": ("def", "return baton.get_function({inner!r}).submit().result()"),
    "stream": ("def", "return sum(baton.get_function({parts!r}).stream())"),
    "acall": ("async def", "return await baton.get_function({inner!r}).acall()"),
    "task's submit": ("async def", "return await asyncio.wrap_future(baton.get_function({inner!r}).submit())"),
    "astream": ("async def", "return sum([p async for p in baton.get_function({parts!r}).astream()])"),
}


@pytest.mark.parametrize("how", WITHIN)
def test_calls_within_a_function_that_runs_go_on_at_the_end(child, name, how):
    kind, body = WITHIN[how]
    inner, parts = name + "/inner", name + "/parts"
    other = provider(
        child,
        f"""
go = threading.Event()
@baton.function({inner!r})
def inner():
    say("inner")
    go.wait()
    return 5
@baton.function({parts!r})
def parts():
    yield 2
    say("inner")
    go.wait()
    yield 3
""",
    )
    c = child(f"""
import asyncio, atexit
@baton.function({name!r})
{kind} outer():
    {body.format(inner=inner, parts=parts)}
started = baton.start_functions()
say("ready")
sys.stdin.readline()
look = baton._provided._wait
def told(which):
    say("waits")
    look(which)
baton._provided._wait = told
""")
    assert c.hear() == "ready"
    future = baton.get_function(name).submit()
    assert other.hear() == "inner"
    c.tell()
    assert c.hear() == "waits"
    other.tell("go.set()")
    assert future.result(PATIENCE) == 5
    c.end()
