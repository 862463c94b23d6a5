"""Python, Go and Rust on one topic: each sends pictures of digits, and each receives all of them.

This program publishes the pictures and takes part; main.go and main.rs in examples/mixed are the same
program in the other languages. All come to the same sum, and no picture was copied on the way.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import baton
import digits

ROOT = Path(__file__).resolve().parents[2]
# As the tests have built it.
CARGO = "--quiet --locked --all-features --manifest-path rust/Cargo.toml --example mixed".split()
OTHERS = {  # how they are built and run
    "go": (["go", "build", "-o", os.devnull, "./examples/mixed"], ["go", "run", "./examples/mixed"]),
    "cargo": (["cargo", "build", *CARGO], ["cargo", "run", *CARGO, "--"]),
}
MESSAGES, ROWS = 10, 32
DEPTH = 64  # of senders that have ended, so many messages are kept of all together


def take_part(name, number, parties):
    pictures = baton.get(name)["pictures"].numpy()
    topic = baton.topic(name, depth=DEPTH)
    reader = topic.reader(start="all")  # also what was sent before: the topic keeps it
    for i in range(number * MESSAGES, (number + 1) * MESSAGES):
        batch = baton.empty((ROWS, 64))
        batch.numpy()[:] = pictures[i * ROWS : (i + 1) * ROWS]
        topic.send({"pictures": batch}, meta={"from": "Python"})
    received = [reader.receive(timeout=60) for _ in range(parties * MESSAGES)]
    total = sum(float(m["pictures"].numpy().sum(dtype="float64")) for m in received)
    # The end of the line in the same write: two other programs print beside this one.
    print(f"Python: {len(received)} messages, sum {total:.4f}\n", end="", flush=True)


def main():
    name = f"examples/mixed-{baton.connect().serial}"
    baton.set(name, {"pictures": digits.load()[0]})
    topic = baton.topic(name, depth=DEPTH)  # stays while this process has it open
    missing = [tool for tool in OTHERS if shutil.which(tool) is None]
    for tool in missing:
        print(f"{tool} is not on PATH: its program stays out")
    present = [commands for tool, commands in OTHERS.items() if tool not in missing]
    parties = 1 + len(present)
    print("building the programs in Go and Rust, which takes minutes at first", file=sys.stderr, flush=True)
    for build, _ in present:
        subprocess.run(build, cwd=ROOT, check=True)
    started = [
        subprocess.Popen([*command, name, str(number), str(parties)], cwd=ROOT)
        for number, (_, command) in enumerate(present, 1)
    ]
    take_part(name, 0, parties)
    for process in started:
        assert process.wait() == 0
    baton.delete(name)
    topic.close()


if __name__ == "__main__":
    main()
