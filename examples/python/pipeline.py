"""Loader → augment → train → evaluate: four processes, queues between them, no copies on the way."""

import multiprocessing

import baton
import digits
import numpy as np

BATCHES = 1500


def loader(out):
    x, y, _, _ = digits.load()
    random = np.random.default_rng(0)
    for _ in range(BATCHES):
        batch = random.integers(len(y), size=32)
        out.put({"x": x[batch], "y": y[batch]})
    out.close()


def augment(source, out):
    random = np.random.default_rng(1)
    for item in source:  # ends when the loader closes the queue
        x = item["x"].numpy()
        x += random.normal(0, 0.05, x.shape).astype("float32")  # in place: the taker may write
        out.put(item)
    out.close()


def trainer(source, name):
    p = digits.parameters()
    for i, item in enumerate(source):
        digits.train(p, item["x"].numpy(), item["y"].numpy())
        if i % 300 == 299:
            baton.set(name, p)


def evaluate(name, results):
    _, _, x, y = digits.load()
    for b in baton.watch(name):
        step = int(b["step"].numpy()[0])
        results.put((step, digits.accuracy(b.numpy(), x, y)))
        if step == BATCHES:
            return


def main():
    name = f"examples/pipeline-{baton.connect().serial}"
    raw, ready, results = baton.queue(depth=16), baton.queue(depth=16), baton.queue()
    context = multiprocessing.get_context("spawn")
    stages = [
        (loader, (raw,)),
        (augment, (raw, ready)),
        (trainer, (ready, name)),
        (evaluate, (name, results)),
    ]
    processes = [context.Process(target=run, args=args, daemon=True) for run, args in stages]
    for p in processes:
        p.start()
    step = 0
    while step < BATCHES:
        step, right = results.get(timeout=60)
        print(f"step {step}: accuracy {right:.3f}")
    for p in processes:
        p.join()
    baton.delete(name)


if __name__ == "__main__":
    main()
