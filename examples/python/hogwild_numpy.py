"""Hogwild: four processes train one network in place, without locks.

The parameters are a live name: every process that gets it writes the same memory.
"""

import multiprocessing
import sys

import baton
import digits
import numpy as np

STEPS = 1500


def worker(name, seed):
    p = baton.get(name).numpy()
    x, y, _, _ = digits.load()
    random = np.random.default_rng(seed)
    while p["step"][0] < STEPS:
        batch = random.integers(len(y), size=32)
        digits.train(p, x[batch], y[batch])


def main():
    name = f"examples/hogwild-{baton.connect().serial}"
    baton.set(name, digits.parameters(), live=True)
    p = baton.get(name).numpy()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=worker, args=(name, seed)) for seed in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        while w.is_alive():
            w.join(0.2)
            done = min(int(p["step"][0]), STEPS)
            bar = "#" * (40 * done // STEPS)
            print(f"\r[{bar:40}] {done} steps", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    _, _, x, y = digits.load()
    print(f"accuracy {digits.accuracy(p, x, y):.3f}")
    baton.delete(name)


if __name__ == "__main__":
    main()
