"""Hogwild with torch: a module's parameters are shared in place, four workers train it.

usage: hogwild_torch.py [PICTURE]   saves the curve of the accuracy as a PNG
"""

import multiprocessing
import struct
import sys
import time
import zlib

import baton
import digits
import torch

STEPS = 6000


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def worker(name, seed, steps):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = network()
    baton.torch.load_module(model, name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = map(torch.from_numpy, digits.load()[:2])
    while int(steps.numpy()[0]) < STEPS:
        batch = torch.randint(len(y), (32,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        steps.numpy()[0] += 1


def main():
    name = f"examples/hogwild-{baton.connect().serial}"
    model = network()
    baton.torch.share_module(model, name)
    steps = baton.zeros(1, "int64")
    x, y = map(torch.from_numpy, digits.load()[2:])
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=worker, args=(name, seed, steps)) for seed in range(4)]
    for w in workers:
        w.start()
    curve, training = [], True
    while training:
        time.sleep(0.1)
        training = any(w.is_alive() for w in workers)  # before the look: the last one is at what they leave
        with torch.no_grad():
            curve.append(float((model(x).argmax(1) == y).float().mean()))
        done = min(int(steps.numpy()[0]), STEPS)
        bar = "#" * (40 * done // STEPS)
        print(
            f"\r[{bar:40}] {done} steps, accuracy {curve[-1]:.3f}",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    print(f"accuracy {curve[-1]:.3f}, shared for torch too: {all(p.is_shared() for p in model.parameters())}")
    if len(sys.argv) > 1:
        draw(curve, sys.argv[1])
    baton.delete(name)


def draw(curve, path):
    """The curve, dark on white, as a PNG."""
    w, h = 256, 128
    rows = bytearray()
    for y in range(h):
        level = 1 - y / h
        rows += b"\0" + bytes(96 if curve[x * len(curve) // w] >= level else 255 for x in range(w))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", w, h, 8, 0, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head))
        file.write(chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b""))


if __name__ == "__main__":
    main()
