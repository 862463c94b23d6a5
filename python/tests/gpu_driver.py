"""The driver in Python of the tests of GPUs (integration/cuda): it does what lines of JSON on standard input
ask for with tensors on a GPU, and answers each with a line."""

import json
import sys
from typing import Any

import baton
from foreign_gpu import Foreign, cuda

STREAM = 2  # the default stream of this thread
PATIENCE = 30.0


def seen(t: baton.Tensor) -> Any:
    """The number that all bytes are, as the stream reads them."""
    t.__dlpack__(stream=STREAM, max_version=(1, 3))  # waits as a library would, and is given back at once
    values = set(memoryview(t.cpu(stream=STREAM)))  # NumPy may be missing
    return values.pop() if len(values) == 1 else "a mixture"


class Driver:
    def __init__(self) -> None:
        self.queues: dict[str, baton.Queue] = {}
        self.held: list[baton.Tensor] = []
        self.lent: list[Foreign] = []

    def queue(self, name: str) -> baton.Queue:
        if name not in self.queues:
            self.queues[name] = baton.queue(name, depth=4, linger=0.001)
        return self.queues[name]

    def filled(self, c: dict[str, Any], seed: int) -> baton.Tensor:
        return baton.full(c.get("bytes", 4096), seed, "uint8", device="cuda:0", stream=STREAM)

    def carry_out(self, c: dict[str, Any]) -> dict[str, Any]:
        seeds = range(c.get("seed", 0), c.get("seed", 0) + c.get("count", 1))
        match c["do"]:
            case "put":
                for seed in seeds:
                    self.queue(c["queue"]).put(self.filled(c, seed), PATIENCE, stream=STREAM)
            case "take":
                q, taken = self.queue(c["queue"]), []
                for _ in seeds:
                    lost = q.lost
                    t = q.get(PATIENCE)
                    taken.append(q.lost - lost if c.get("unread") else seen(t))
                    if c.get("hold") or c.get("unread"):
                        self.held.append(t)
                return {"seen": taken}
            case "pass":
                t = self.queue(c["queue"]).get(PATIENCE)
                self.queue(c["queue"]).put(t, 0.1, stream=STREAM)
            case "wait":
                t = self.queue(c["queue"]).get(PATIENCE)
                t.__dlpack__(stream=STREAM, max_version=(1, 3))
                t.written(PATIENCE)
            case "follow":
                m = self.queue(c["queue"]).get(PATIENCE)
                self.held.extend(m.values())
                before = cuda.standin_calls(b"cuStreamWaitValue64_v2")
                for t in 2 * self.held:
                    t.__dlpack__(stream=STREAM, max_version=(1, 3))
                return {"seen": [len(m), cuda.standin_calls(b"cuStreamWaitValue64_v2") - before]}
            case "held":
                return {"seen": [seen(t) for t in self.held]}
            case "release":
                self.held.clear()
            case "set":
                baton.set(c["name"], self.filled(c, seeds[0]))
            case "get":
                return {"seen": [seen(baton.get(c["name"]).value)]}
            case "delete":
                baton.delete(c["name"])
            case "handle":
                return {"handle": self.filled(c, seeds[0]).handle(lease=None).to_json()}
            case "open":
                return {"seen": [seen(baton.open(baton.Handle.from_json(c["handle"])))]}
            case "lend":
                for seed in seeds:
                    self.lent.append(Foreign(c.get("bytes", 4096), seed, before=1000))
                    self.queue(c["queue"]).put(baton.share(self.lent[-1], copy=False), PATIENCE)
            case "free":  # once it has no holder
                while self.lent:
                    f = self.lent.pop()
                    assert f.let_go.wait(PATIENCE)
                    f.free()
            case "alloc":
                baton.empty(c.get("bytes", 4096), "uint8", device=c.get("device") or "cuda:0")
            case "ordered":
                return {"seen": [int("processor waits" not in repr(self.filled(c, 1)))]}
            case "look":
                memoryview(self.filled(c, 1))
            case other:
                return {"broken": f"unknown: {other}"}
        return {}


def main() -> None:
    d = Driver()
    for line in sys.stdin:
        try:
            answer = d.carry_out(json.loads(line))
        except baton.Error as e:
            answer = {"code": e.code, "message": str(e)}
        print(json.dumps(answer), flush=True)
    d.held.clear()
    d.queues.clear()


main()
