"""The Python driver of the tests across languages (`integration/langs`).

It does what lines of JSON on its standard input ask for, one after the other, and answers each with a line; see
order in integration/langs/godriver_test.go.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import baton
import numpy as np

REPLACED = "BATON_DRIVER_REPLACED"
Command = dict[str, Any]


def words(seed: int, n: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """The words that a tensor of a seed has, in every language."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.arange(n, dtype=np.uint64) * np.uint64(
            0xBF58476D1CE4E5B9
        )
        z ^= z >> np.uint64(29)
        return z * np.uint64(0x94D049BB133111EB)


def seed_of(first: int) -> int:
    """The seed of a tensor by its first word: `words` undone."""
    z = first * pow(0x94D049BB133111EB, -1, 1 << 64) % (1 << 64)
    z ^= z >> 29 ^ z >> 58
    return z * pow(0x9E3779B97F4A7C15, -1, 1 << 64) % (1 << 64)


def seed_in(t: baton.Tensor) -> int:
    return seed_of(int(t.as_readonly().numpy().reshape(-1)[0]))


class Broken(Exception):
    """Bytes are not what they were."""


def verify(t: baton.Tensor, seed: int) -> None:
    a = t.as_readonly().numpy()
    wrong = np.flatnonzero(a.reshape(-1) != words(seed, a.size))
    if wrong.size:
        raise Broken(f"word {wrong[0]} of seed {seed}")


def look(b: Any, seed: int, write: bool = False) -> dict[str, Any]:
    """Checks the value of a seed."""
    if isinstance(b, baton.Tensor):
        verify(b, seed)
        if write:
            b.numpy()[:] = seed
        return {"readonly": b.readonly}
    whole, half, other = b["whole"], b["half"], b["a/b"]
    verify(whole, seed)
    verify(other, seed + 1)
    if not np.array_equal(half.as_readonly().numpy(), whole.as_readonly().numpy()[whole.shape[0] // 2 :]):
        raise Broken(f"half of seed {seed}")
    if write:
        whole.numpy()[:] = seed
    return {"readonly": whole.readonly}


class Driver:
    def __init__(self) -> None:
        self.session = baton.connect()
        self.topics: dict[str, Any] = {}
        self.queues: dict[str, Any] = {}
        self.readers: dict[str, Any] = {}
        self.held: list[Callable[[], object]] = []

    def filled(self, seed: int, n: int) -> baton.Tensor:
        t = self.session.empty((n,), "uint64")
        t.numpy()[:] = words(seed, n)
        return t

    def value(self, seed: int, c: Command) -> Any:
        n = c.get("words", 1000)
        if c.get("lone"):
            t = self.session.empty((n, 2), "uint64")
            t.numpy().reshape(-1)[:] = words(seed, 2 * n)
            return t
        whole = self.filled(seed, n)
        value = {"whole": whole, "half": whole[n // 2 :], "a/b": self.filled(seed + 1, 3)}
        for i in range(c.get("wide", 0)):
            value[f"x{i:03}"] = self.filled(seed + i, 1)
        return value

    def topic(self, c: Command) -> Any:
        options = {"overwrite": False} if c.get("lossless") else {}
        return self.opened(self.topics, self.session.topic, c["topic"], c, options)

    def queue(self, c: Command) -> Any:
        options = {"redeliver": True} if c.get("redeliver") else {}
        return self.opened(self.queues, self.session.queue, c["queue"], c, options)

    def opened(
        self, known: dict[str, Any], new: Callable[..., Any], name: str, c: Command, options: dict[str, Any]
    ) -> Any:
        if name not in known:
            if "depth" in c:
                options["depth"] = c["depth"]
            known[name] = new(name, linger=0, **options)
        return known[name]

    def message(self, m: Any, c: Command) -> dict[str, Any]:
        value = m.value
        seed = seed_in(value) if isinstance(value, baton.Tensor) else (m.meta or {}).get("seed", 0)
        if c.get("hold"):
            self.held.append(lambda: look(value, seed))
        out = look(value, seed, c.get("write", False))
        return out | {"seed": seed, "sequence": m.sequence, "lost": m.lost}

    def item(self, value: Any, c: Command) -> dict[str, Any]:
        """What a queue gives has no meta here: the seed is read from the bytes."""
        seed = seed_in(value if isinstance(value, baton.Tensor) else value["whole"])
        if c.get("hold"):
            self.held.append(lambda: look(value, seed))
        return look(value, seed, c.get("write", False)) | {"seed": seed}

    def check(self) -> None:
        """Looks at every word of what is held once more."""
        for again in self.held:
            try:
                again()
            except Broken as e:
                raise Broken(f"held: {e}") from e

    def carry_out(self, c: Command) -> dict[str, Any] | None:
        seed, timeout = c.get("seed", 0), c.get("timeout_ms", 90000) / 1000
        match c["do"]:
            case "read":
                group = {"group": c["group"]} if c.get("group") else {"start": c.get("start", "new")}
                self.readers[c["topic"]] = self.topic(c).reader(**group)
            case "send":
                for s in range(seed, seed + c.get("count", 1)):
                    meta = None if c.get("lone") else {"seed": s}
                    self.topic(c).send(self.value(s, c), meta=meta, timeout=timeout)
            case "receive":
                return self.message(self.readers[c["topic"]].receive(timeout=timeout), c)
            case "take":
                return self.item(self.queue(c).get(timeout=timeout), c)
            case "set":
                return {"revision": self.session.set(c["name"], self.value(seed, c), meta={"seed": seed})}
            case "get":
                b = self.session.get(c["name"], timeout=timeout)
                if c.get("hold"):
                    self.held.append(lambda: look(b, seed))
                return look(b, seed) | {"revision": b.revision, "seed": (b.meta or {}).get("seed")}
            case "delete":
                self.session.delete(c["name"])
            case "handle":
                return {"handle": json.loads(self.filled(seed, c.get("words", 1000)).handle().to_json())}
            case "open":
                t = self.session.open(baton.Handle.from_json(json.dumps(c["handle"])))
                if c.get("hold"):
                    self.held.append(lambda: verify(t, seed))
                verify(t, seed)
                return {"readonly": t.readonly}
            case "hoard":
                for s in range(seed, seed + c.get("count", 1)):
                    t = self.filled(s, c.get("words", 1000))
                    self.held.append(lambda t=t, s=s: verify(t, s))
            case "check":
                self.check()
            case "release":
                try:
                    self.check()
                finally:
                    self.held.clear()
            case "close":
                self.forget()
                self.session.close()
                self.session = baton.connect()
            case "exec":
                os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {REPLACED: "1"})
            case "forget":
                self.forget()
            case "collect":
                return {"bytes": self.session.collect()}
            case other:
                raise Broken(f"unknown: {other}")
        return None

    def forget(self) -> None:
        self.readers.clear()
        self.topics.clear()
        self.queues.clear()


def say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def main() -> None:
    d = Driver()
    if REPLACED in os.environ:
        say({})
    while line := sys.stdin.readline():
        c = json.loads(line)
        if c["do"] == "quit":
            break
        try:
            say(d.carry_out(c) or {})
        except Broken as e:
            say({"broken": str(e)})
        except baton.Error as e:
            say({"code": type(e).__name__, "message": str(e)})
    d.held.clear()
    d.forget()
    d.session.close()


if __name__ == "__main__":
    main()
