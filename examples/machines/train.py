"""A trainer on machine A sets weights; workers on B and C follow them, and C is cut off for a while.

A, B and C are three brokers on this machine, which reach each other as three machines do.
"""

import json
import os
import sys
import threading
from pathlib import Path

import baton
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import digits
from infer import WEIGHTS, checksum
from place import Link, Place, spans, until

REVISIONS, CUT, JOINED = 30, 10, 20


class Worker:
    """A worker, and what it has reported."""

    def __init__(self, place, address):
        self.looks = []
        at = os.environ | {"BATON_ADDRESS": address}
        self.process = place.program(at, str(Path(__file__).with_name("infer.py")))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.looks.append(json.loads(line))

    def sees(self, so, what):
        """Waits until its last look is so."""
        return until(lambda: self.looks and so(self.looks[-1]) and self.looks[-1], what)

    def reaches(self, revision):
        """Waits until it has a revision."""
        return self.sees(lambda look: look["revision"] >= revision, f"revision {revision} is there")


def main():
    with Place() as place:
        port, key = place.nats()
        link = Link(port)
        spanning = [*key, "--span", "--span-timeout=1s"]
        a, b = (place.broker(name, "--nats", f"nats://127.0.0.1:{port}", *spanning) for name in "ab")
        c = place.broker("c", "--nats", f"nats://127.0.0.1:{link.port}", *spanning)
        for address in (a, b, c):
            until(lambda address=address: spans(address), "the host answers others")
        os.environ["BATON_ADDRESS"] = a  # this program is the trainer
        on_b, on_c = Worker(place, b), Worker(place, c)

        x, y, _, _ = digits.load()
        p, random = digits.parameters(), np.random.default_rng(1)
        for i in range(REVISIONS):
            for _ in range(50):
                batch = random.integers(len(y), size=32)
                digits.train(p, x[batch], y[batch])
            revision = baton.set(WEIGHTS, p | {"checksum": checksum(p), "last": i == REVISIONS - 1})
            on_b.reaches(revision)
            if not CUT < i < JOINED:
                on_c.reaches(revision)
            if i == CUT:
                link.cut()
                old = on_c.sees(lambda look: look["stale"], "C knows that it is cut off")
                print(f"C is cut off: its worker goes on with revision {old['revision']}, which is stale")
                try:
                    baton.connect(c).set(WEIGHTS, p)
                except baton.Unreachable:
                    print("a set on C is refused meanwhile: C does not know what the others agree on")
            if i == JOINED - 1:
                assert on_c.looks[-1]["revision"] == old["revision"]
                link.join()
                on_c.reaches(revision)
                new = on_c.sees(lambda look: not look["stale"], "C knows that this is the newest")
                print(f"C is back, with revision {new['revision']}")
        for worker in (on_b, on_c):
            worker.sees(lambda look: look["last"], "the last revision is there")
            assert worker.process.wait() == 0
            seen = [look["revision"] for look in worker.looks]
            assert seen == sorted(seen), "no reader sees an older revision after a newer one"
        read = [len({look["revision"] for look in worker.looks}) for worker in (on_b, on_c)]
        assert [w.looks[-1]["revision"] for w in (on_b, on_c)] == [revision] * 2
        right = min(w.looks[-1]["accuracy"] for w in (on_b, on_c))
        print(f"{REVISIONS} revisions; B read {read[0]}, C {read[1]}, none torn, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
