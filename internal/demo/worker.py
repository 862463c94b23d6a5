"""A worker of `baton demo` in Python: what worker.go does, with the package baton and NumPy.

Argument: its plan as JSON. Standard output: its figures at the end, as JSON.
"""

import json
import os
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the other processes are the other threads

import baton
import numpy as np

PATIENCE = 30.0
mapped = []  # of this process's shared mappings: first address, end, offset in the file, device:inode


def look():
    """Reads the kernel's list of mappings."""
    mapped.clear()
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, mode, offset, device, inode = line.split(None, 5)[:5]
            if mode[3] == "s":
                low, high = (int(address, 16) for address in span.split("-"))
                mapped.append((low, high, int(offset, 16), f"{device}:{inode}"))


def place(array):
    """Which byte of which memory file an array begins with, as of the last look."""
    at = array.ctypes.data
    return next((f"{file}+{offset + at - low}" for low, high, offset, file in mapped if low <= at < high), None)


def placed(tensors):
    """What is handed over: tensors by name, and where their bytes lie."""
    look()
    return {**tensors, "places": {name: place(t.numpy()) for name, t in tensors.items()}}


class Worker:
    def __init__(self, plan):
        self.plan = plan
        self.session = baton.Session(name=f"demo worker {plan['number']} in Python")
        self.batches = self.bytes = self.copied = 0
        self.losses = []
        self.queue = self.session.queue("digits/batches", create=False)
        self.progress = self.session.topic("digits/progress", create=False)
        self.weights = self.received(self.session.get("weights/digits", PATIENCE).value)

    def received(self, value):
        """The arrays of a value, in place; what was copied on the way is counted."""
        places = value.pop("places")
        arrays = {name: t.numpy() for name, t in value.items()}
        for name, a in arrays.items():
            if place(a) != places[name]:
                look()
                self.copied += 0 if place(a) == places[name] else a.nbytes
        return arrays

    def work(self):
        """Trains the shared network until the queue is closed and empty."""
        every = self.plan["snapshot_every"]
        turn = every * self.plan["number"] // self.plan["workers"]  # each begins at another point of the interval
        while True:
            try:
                batch = self.received(self.queue.get(PATIENCE))
            except baton.Closed:
                break
            self.losses.append(self.step(batch["images"], batch["labels"]))
            self.batches += 1
            if len(self.losses) >= self.plan["progress_every"]:
                self.tell()
            if (self.batches + turn) % every == 0:
                self.publish()
            del batch  # of a worker that dies before, another gets it
        self.publish()
        print(json.dumps({"figures": self.figures()}))

    def step(self, x, y):
        """One step of gradient descent on the shared weights, in place; the loss before it."""
        p, rows = self.weights, np.arange(len(y))
        h = np.maximum(x @ p["w1"] + p["b1"], 0)
        s = h @ p["w2"] + p["b2"]
        s -= s.max(1, keepdims=True)
        e = np.exp(s)
        total = e.sum(1, keepdims=True)
        loss = float((np.log(total[:, 0]) - s[rows, y]).mean())
        d = e / total
        d[rows, y] -= 1
        d *= np.float32(self.plan["rate"] / len(y))
        back = (d @ p["w2"].T) * (h > 0)
        p["w2"] -= h.T @ d
        p["b2"] -= d.sum(0)
        p["w1"] -= x.T @ back
        p["b1"] -= back.sum(0)
        return loss

    def tell(self):
        """Sends the losses since the last time, and what this worker did so far."""
        losses = self.session.share(np.array(self.losses, "float32"))
        self.losses.clear()
        meta = {"worker": self.plan["number"], "figures": self.figures()}
        self.progress.send(placed({"losses": losses}), meta)
        self.bytes += losses.nbytes

    def publish(self):
        """Publishes a copy of the weights as they are now."""
        copy = self.session.share(self.weights, copy=True)
        self.session.set("weights/digits-eval", placed(dict(copy.items())))
        self.bytes += sum(t.nbytes for t in copy.values())

    def figures(self):
        handovers = self.session.stats()["handovers"]
        return {"batches": self.batches, "handovers": handovers, "bytes": self.bytes, "copied": self.copied}


Worker(json.loads(sys.argv[1])).work()
