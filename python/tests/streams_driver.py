"""Streams and functions as arguments of the tests across languages (`integration/langs`).

With BATON_FUNCTIONS=serve it provides those that streams_role_test.go lists, until its standard input ends; else it
calls them, whichever language provides them.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import baton
import numpy as np

sent = 0
kept: baton.Function | None = None


def floats(n: int, value: float) -> baton.Tensor:
    return baton.share(np.full(n, value, "float32"))


@baton.function("st/count")
def count(n: int) -> Iterator[list[Any]]:
    for i in range(n):
        yield [i, floats(3, i)]
    return n


@baton.function("st/forever")
def forever(hold: bool = False) -> Iterator[int]:
    global sent
    sent = 0
    call = baton.current_call()
    assert call is not None
    if hold:
        baton.set("st/begun", {})
    try:
        while hold and not call.cancelled:
            time.sleep(0.001)
        i = 0
        while True:
            yield i
            i += 1
            sent += 1
    finally:
        baton.set("st/left", {})


@baton.function("st/sent")
def given() -> int:
    return sent


@baton.function("st/fail")
def fail() -> Iterator[int]:
    yield 0
    yield 1
    raise ValueError("enough")


@baton.function("st/die")
def die(n: int) -> Iterator[int]:
    yield from range(n)
    os.kill(os.getpid(), signal.SIGKILL)


@baton.function("st/step")
def step(i: int, x: baton.Tensor) -> int:
    x.numpy()[0] += 1
    return i


def apply_to(f: Any, i: int) -> int:
    x = floats(1, i)
    n = f(i, x)
    assert x.tolist() == [i + 1], (i, x)
    return int(n)


@baton.function("st/apply")
def apply(f: Callable[..., int], n: int) -> int:
    return sum(apply_to(f, i) for i in range(n))


@baton.function("st/keep")
def keep(f: Callable[..., int]) -> None:
    global kept
    assert isinstance(f, baton.Function)
    kept = f


@baton.function("st/late")
def late() -> str:
    try:
        return f"it gave {apply_to(kept, 0)}"
    except baton.Error as e:
        return type(e).__name__


@baton.function("st/same")
def same(f: Callable[..., int]) -> Any:
    return f


def serve() -> None:
    provided = baton.start_functions()
    print('"ready"', flush=True)
    sys.stdin.read()
    provided.close()


def taken(name: str) -> None:
    baton.get(name, timeout=60)
    baton.delete(name)


def raised(kind: type[BaseException], f: Callable[[], Any]) -> BaseException:
    try:
        back = f()
    except kind as e:
        return e
    raise AssertionError(f"it gave {back}")


def ahead(want: int) -> None:
    """Waits until st/forever has given so many parts, and no more."""
    looks = 0
    while looks < 5:
        n = baton.call("st/sent")
        assert n <= want, (n, want)
        looks += n == want


def streams() -> None:
    counts = baton.get_function("st/count")
    for n in (0, 3, 150):
        parts = counts.options(ahead=1 + n // 3).stream(n)
        assert [(i, x.tolist()) for i, x in parts] == [(i, [i] * 3) for i in range(n)]
        assert parts.result() in (n, None)

    forever = baton.get_function("st/forever")
    with forever.options(ahead=2).stream() as first:
        assert next(first) == 0
        ahead(3)
        assert [next(first), next(first)] == [1, 2]
        ahead(5)
        with forever.stream() as second:  # in the place of the first
            assert [next(second) for _ in range(4)] == [0, 1, 2, 3]
        taken("st/left")
        assert next(first) == 3
    taken("st/left")
    held = forever.stream(True)
    taken("st/begun")
    held.close()
    taken("st/left")

    failing = baton.get_function("st/fail").stream()
    assert [next(failing), next(failing)] == [0, 1]
    assert str(raised(ValueError, lambda: next(failing))) == "enough"


def lent() -> None:
    opened = baton.get_function("st/step")
    here = []

    def own(i: int, x: baton.Tensor) -> int:
        here.append(threading.get_ident())
        return step(i, x)

    for f in (own, lambda i, x: opened(i, x), opened):
        assert baton.call("st/apply", f, 10) == 45
    assert here == [threading.get_ident()] * 10

    def refuses(*_: Any) -> int:
        raise ValueError("no step")

    assert str(raised(ValueError, lambda: baton.call("st/apply", refuses, 10))) == "no step"
    baton.call("st/keep", own)
    assert baton.call("st/late") == "Closed"
    assert apply_to(baton.call("st/same", opened), 7) == 7


def call() -> None:
    streams()
    lent()
    dying = baton.get_function("st/die").stream(3)
    assert [next(dying) for _ in range(3)] == [0, 1, 2]
    raised(baton.ProviderDied, lambda: next(dying))
    raised(baton.NoProvider, lambda: baton.call("st/sent"))
    print('"done"', flush=True)


if __name__ == "__main__":
    serves = os.environ.get("BATON_FUNCTIONS") == "serve"
    os.environ["BATON_NAME"] = "provider" if serves else "caller"
    serve() if serves else call()
