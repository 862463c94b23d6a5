"""Sixteen processes search one large published array; its memory is there once.

Which digit is it? The label of the most similar of 200,000 known pictures, which are the training
pictures with noise. The kernel's books (/proc/PID/smaps) tell what the table costs the machine.
"""

import contextlib
import multiprocessing
import os
from pathlib import Path

import baton
import digits
import numpy as np

ROWS, SEARCHERS = 200_000, 16


def search(name, number, answers, end):
    b = baton.get(name).numpy()  # nothing is copied, however many do this
    _, _, pictures, labels = digits.load()
    right = 0
    for picture, label in zip(pictures[number::SEARCHERS], labels[number::SEARCHERS], strict=True):
        nearest = (b["squares"] - 2 * (b["table"] @ picture)).argmin()
        right += int(b["labels"][nearest] == label)
    answers.put(right)
    with contextlib.suppress(baton.Closed):
        end.get(timeout=60)  # stay until all have been looked at


def file_of(array):
    """The inode of the file that an array's memory is."""
    at = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode = line.split(None, 5)[:5]
        low, high = (int(a, 16) for a in span.split("-"))
        if low <= at < high:
            return inode


def memory(pid, file):
    """Bytes of a file that a process sees (Rss), and its share of what they cost the machine (Pss)."""
    seen, share, there = 0, 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word, *rest = line.split()
        if not word.endswith(":"):
            there = rest[3] == file
        elif there and word in ("Rss:", "Pss:"):
            kib = int(rest[0])
            seen, share = (seen + kib, share) if word == "Rss:" else (seen, share + kib)
    return seen / 1024, share / 1024


def main():
    name = f"examples/embeddings-{baton.connect().serial}"
    x, y, _, test = digits.load()
    known = np.resize(np.arange(len(y)), ROWS)
    random = np.random.default_rng(0)
    table = baton.empty((ROWS, 64))  # born in shared memory: publishing copies nothing
    np.add(x[known], random.normal(0, 0.02, (ROWS, 64)), out=table.numpy(), casting="same_kind")
    baton.set(name, {"table": table, "squares": (table.numpy() ** 2).sum(1), "labels": y[known]})

    answers, end = baton.queue(), baton.queue()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["baton", "digits"])
    searchers = [context.Process(target=search, args=(name, i, answers, end), daemon=True) for i in range(SEARCHERS)]
    for s in searchers:
        s.start()
    right = sum(answers.get(timeout=60) for _ in searchers)
    print(f"{SEARCHERS} searchers, accuracy {right / len(test):.3f}")

    file = file_of(table.numpy())
    seen, shares = zip(*(memory(pid, file) for pid in [os.getpid(), *(s.pid for s in searchers)]), strict=True)
    print(f"a table of {table.nbytes / 2**20:.0f} MiB, seen by all together: {sum(seen):.0f} MiB")
    print(f"memory that this costs the machine: {sum(shares):.0f} MiB")
    end.close()
    for s in searchers:
        s.join()
    baton.delete(name)


if __name__ == "__main__":
    main()
