"""The function of the tests of deaths across languages (`integration/langs`).

With BATON_FUNCTIONS=serve it provides de/work, as deaths_role_test.go says, else it calls it as it is told.
"""

import json
import os
import sys
import time
from typing import Any

import baton
import numpy as np

told = 0


def say(word: object) -> None:
    print(json.dumps(str(word)), flush=True)


def hold() -> None:
    """Says that it runs, and waits until it is told to go on, or wanted no more."""
    call = baton.current_call()
    assert call is not None
    before = told
    say("begun")
    while told == before:
        if call.cancelled:
            say("cancelled")
            return
        time.sleep(0.001)


def fork() -> None:
    """Has a child end at once, and waits for it."""
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


class Raised(Exception):
    """What the kind test.Raised is in Python."""


baton.register_error("test.Raised", Raised)


@baton.function("de/work")
def work(how: str) -> Any:
    match how:
        case "hold":
            hold()
        case "raise":
            raise Raised("as asked")
        case "panic":
            raise RuntimeError("as asked")
        case "exit":
            os._exit(3)
        case "fork":
            fork()
        case "exec":
            os.execv("/bin/true", ["true"])
        case "tensor":
            return np.zeros(256, "float32")
        case "unsendable":
            return object()
        case "closed":
            x = baton.share(np.ones(1))
            x.release()
            return x
    return os.getpid()


def serve() -> None:
    global told
    provided = baton.start_functions()
    say("ready")
    for _ in sys.stdin:
        told += 1
    provided.close()


def parts(how: str) -> str:
    n = 0
    try:
        for _ in baton.get_function("de/parts").stream(how):
            n += 1
    except baton.Error as e:
        return f"{n} {e.code}"
    return str(n)


def answer(line: str) -> object:
    if line.startswith("parts:"):
        return parts(line.removeprefix("parts:"))
    how, _, limit = line.partition(" ")
    f = baton.get_function("de/work") if limit else None
    try:
        back = baton.call("de/work", how) if f is None else f.options(timeout=int(limit) / 1000)(how)
        return f"{back.nbytes} bytes" if isinstance(back, baton.Tensor) else back
    except Raised:
        return "test.Raised"
    except baton.RemoteError as e:
        return e.type
    except baton.Error as e:
        return e.code
    except (RuntimeError, TypeError) as e:
        return type(e).__name__


def ask() -> None:
    baton.functions()  # it has a session from here on
    say("ready")
    for line in sys.stdin:
        say(answer(json.loads(line)))


if __name__ == "__main__":
    serves = os.environ.get("BATON_FUNCTIONS") == "serve"
    os.environ["BATON_NAME"] = "provider" if serves else "caller"
    serve() if serves else ask()
