"""A trainer publishes revisions of its weights; two inference processes switch between batches.

A revision is complete and never written again: each carries a checksum, and none is ever torn.
"""

import multiprocessing
import zlib

import baton
import digits
import numpy as np

REVISIONS = 30


def checksum(p):
    return zlib.crc32(b"".join(np.ascontiguousarray(p[k]).tobytes() for k in ("w1", "b1", "w2", "b2")))


def infer(name, results):
    _, _, x, y = digits.load()
    watch = baton.watch(name)
    b = watch.receive(timeout=60)
    seen = 0
    while True:
        p = b.numpy()
        right = digits.accuracy(p, x, y)
        assert checksum(p) == int(b.value["checksum"]), f"revision {b.revision} is torn"
        seen += 1
        if b.value["last"]:
            break
        try:
            b = watch.receive(timeout=0)  # a newer one, if there is one
        except baton.Timeout:
            b = watch.receive(timeout=60)
    results.put((seen, right))


def main():
    name = f"examples/weights-{baton.connect().serial}"
    results = baton.queue()
    context = multiprocessing.get_context("spawn")
    readers = [context.Process(target=infer, args=(name, results), daemon=True) for _ in range(2)]
    for r in readers:
        r.start()
    x, y, _, _ = digits.load()
    p, random = digits.parameters(), np.random.default_rng(1)
    for i in range(REVISIONS):
        for _ in range(50):
            batch = random.integers(len(y), size=32)
            digits.train(p, x[batch], y[batch])
        baton.set(name, p | {"checksum": checksum(p), "last": i == REVISIONS - 1})
    got = [results.get(timeout=60) for _ in readers]
    for r in readers:
        r.join()
    print(f"{REVISIONS} revisions, {len(got)} readers, none torn, accuracy {min(right for _, right in got):.3f}")
    baton.delete(name)


if __name__ == "__main__":
    main()
