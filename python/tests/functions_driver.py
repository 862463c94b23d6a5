"""Functions of the tests across languages (`integration/langs`).

With BATON_FUNCTIONS=serve it provides those that functions_role_test.go lists, until its standard input ends; else it
calls them, whichever language provides them.
"""

import os
import signal
import sys
import time
from typing import Any

import baton
import numpy as np

added = 0


@baton.function("fn/same")
def same(x: Any) -> Any:
    return x


@baton.function("fn/given")
def given(*args: Any, **named: Any) -> list[Any]:
    return [len(args), named]


@baton.function("fn/scale")
def scale(x: baton.Tensor, *, by: float = 2.0) -> baton.Tensor:
    x.numpy()[:] *= by
    return x


@baton.function("fn/add")
def add(a: int, b: int) -> int:
    global added
    added += 1
    return a + b


@baton.function("fn/added")
def count() -> int:
    return added


@baton.function("fn/fail")
def fail(message: str) -> None:
    raise ValueError(message) from KeyError("k")


class Own(Exception):
    """What the kind test.Own is in Python."""


baton.register_error("test.Own", Own)


@baton.function("fn/own")
def own() -> None:
    raise Own("an own error")


@baton.function("fn/hold", concurrency=2)
def hold() -> None:
    call = baton.current_call()
    assert call is not None
    baton.set("fn/begun", {})
    while not call.cancelled:
        time.sleep(0.001)
    baton.set("fn/cancelled", {})


waiting: set[int] = set()


@baton.function("fn/wait", concurrency=2)
def wait() -> None:
    call = baton.current_call()
    assert call is not None and call.deadline is not None
    waiting.add(id(call))
    while not call.cancelled:
        time.sleep(0.001)
    waiting.remove(id(call))


@baton.function("fn/waits")
def waits() -> int:
    return len(waiting)


@baton.function("fn/die")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def serve() -> None:
    provided = baton.start_functions()
    print('"ready"', flush=True)
    sys.stdin.read()
    provided.close()


def raised(kind: type[BaseException], name: str, *args: Any, **named: Any) -> BaseException:
    try:
        back = baton.call(name, *args, **named)
    except kind as e:
        return e
    raise AssertionError(f"{name} gave {back}")


def taken(name: str) -> None:
    baton.get(name, timeout=60)
    baton.delete(name)


def call() -> None:
    x = baton.share(np.array([1, 2, 3], "float32"))
    values = [None, True, -3, -(2**70), 0.5, "a\0bü", b"\0\xff", [1, (2.5, None)], {"k": [x], 3: "x"}]
    for v in values:
        back = baton.call("fn/same", v)
        assert type(back) is type(v) and repr(back) == repr(v), (v, back)
    n, named = baton.call("fn/given", 1, 2, k=3)
    assert (n, named) == (2, {"k": 3})
    baton.call("fn/scale", x, by=3)
    baton.call("fn/scale", x)
    assert x.tolist() == [6, 12, 18]

    assert baton.call("fn/add", 2, b=True) == 3 and baton.call("fn/add", np.array(2), 1) == 3
    for args, more in [
        (("2", 1), {}),
        ((0.5, 1), {}),
        ((x, 1), {}),
        ((1,), {}),
        ((1, 2, 3), {}),
        ((1,), {"c": 2}),
        ((1,), {"a": 2}),
    ]:
        raised(baton.InvalidArgument, "fn/add", *args, **more)
    assert baton.call("fn/added") == 2
    e = raised(ValueError, "fn/fail", "no such thing")
    remote = e.__cause__
    assert str(e) == "no such thing" and isinstance(remote, baton.RemoteError) and remote.provider == "provider"
    assert isinstance(remote.cause, baton.RemoteError) and remote.cause.type == "KeyError", remote.cause

    e = raised(Own, "fn/own")
    assert "own error" in str(e) and type(e) is Own

    holds = baton.get_function("fn/hold")
    future = holds.submit()
    taken("fn/begun")
    assert future.cancel()
    taken("fn/cancelled")
    try:
        baton.get_function("fn/wait").options(timeout=0.02)()
        raise AssertionError("it was not late")
    except baton.Timeout:
        pass
    while baton.call("fn/waits"):  # until one that has begun has ended
        pass
    raised(baton.ProviderDied, "fn/die")
    raised(baton.NoProvider, "fn/added")
    print('"done"', flush=True)


if __name__ == "__main__":
    serves = os.environ.get("BATON_FUNCTIONS") == "serve"
    os.environ["BATON_NAME"] = "provider" if serves else "caller"
    serve() if serves else call()
