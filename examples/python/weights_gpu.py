"""A trainer publishes its weights on a GPU; two inference processes switch to them without a copy.

With a torch that has CUDA, readers compute on the GPU, in the memory itself. Without one, as on the stand-in
for the driver, nothing can be computed there, and each reader copies the weights to the CPU first. The trainer
works on the CPU and copies each revision to the GPU. What is handed over is the same in both.
"""

import multiprocessing

import baton
import digits
import numpy as np

REVISIONS = 20
DEVICE = "cuda:0"

try:
    import torch

    COMPUTES = torch.cuda.is_available()
except ImportError:
    COMPUTES = False


def accuracy(bundle, x, y):
    """What the network of a revision knows."""
    if not COMPUTES:
        return digits.accuracy({k: bundle[k].cpu().numpy() for k in ("w1", "b1", "w2", "b2")}, x, y)
    p = bundle.torch()  # the memory itself
    pictures, labels = torch.from_numpy(x).to(DEVICE), torch.from_numpy(y).to(DEVICE)
    hidden = torch.relu(pictures @ p["w1"] + p["b1"])
    return float(((hidden @ p["w2"] + p["b2"]).argmax(1) == labels).float().mean())


def publish(name, p):
    """Publishes a revision: weights on the GPU, which are never written again."""
    baton.set(name, {k: baton.share(v, device=DEVICE) for k, v in p.items()})


def infer(name, results):
    _, _, x, y = digits.load()
    watch, seen, known, revision = baton.watch(name), 0, 0.0, 0
    while revision < REVISIONS:
        bundle = watch.receive(timeout=60)
        assert bundle["w1"].device == DEVICE and bundle["w1"].readonly
        seen, known, revision = seen + 1, accuracy(bundle, x, y), bundle.revision
    results.put((seen, known))


def main():
    name = f"examples/weights-gpu-{baton.connect().serial}"
    results = baton.queue()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    readers = [context.Process(target=infer, args=(name, results), daemon=True) for _ in range(2)]
    for r in readers:
        r.start()
    x, y, _, _ = digits.load()
    p, random = digits.parameters(), np.random.default_rng(1)
    for _ in range(REVISIONS):
        for _ in range(75):
            batch = random.integers(len(y), size=32)
            digits.train(p, x[batch], y[batch])
        publish(name, p)
    got = [results.get(timeout=60) for _ in readers]
    for r in readers:
        r.join()
    where = "on the GPU" if COMPUTES else "copied to the CPU to compute"
    print(f"{REVISIONS} revisions on {DEVICE}, {len(got)} readers, {where}, accuracy {min(k for _, k in got):.3f}")
    baton.delete(name)


if __name__ == "__main__":
    main()
