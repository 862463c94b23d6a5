"""A trainer in Python that calls functions of four other processes: Go, Rust, and twice C++, one of which is killed.

batch/main.go provides batches of digits, prepare.rs prepares their pictures in place, and two processes of kernel.py
serve the C++ kernel in kernel.cc, which writes the gradient into the trainer's memory. No picture is copied between
processes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import baton
import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "python"))

import digits

# As the tests have built it.
CARGO = "--quiet --locked --all-features --manifest-path rust/Cargo.toml --example prepare".split()
STEPS, ROWS, RATE = 300, 64, 0.1
KILLED = 100  # at which step one of the kernels is


def start(*command):
    """Starts a process that provides functions, until its standard input ends."""
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def with_one(pictures):
    """Pictures with a last pixel of 1, which the weights' last row belongs to."""
    return np.hstack([pictures, np.ones((len(pictures), 1), "float32")])


def main():
    missing = [tool for tool in ("go", "cargo", "c++", "ninja") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"{', '.join(missing)}: not on PATH, and needed to build the other programs")
    name = f"examples/functions-{baton.connect().serial}"
    x, y, test_x, test_y = digits.load()
    baton.set(name, {"pictures": x, "labels": y})
    print("building the programs in Go and Rust, which takes minutes at first", file=sys.stderr, flush=True)
    subprocess.run(["cargo", "build", *CARGO], cwd=ROOT, check=True)
    kernels = [start(sys.executable, str(HERE / "kernel.py"), name) for _ in range(2)]
    others = [start("go", "run", "./examples/functions/batch", name), start("cargo", "run", *CARGO, "--", name)]
    for kernel in kernels:
        kernel.stdout.readline()  # it serves

    batch = baton.get_function(f"{name}/batch", wait=300)
    prepare = baton.get_function(f"{name}/prepare", wait=300)
    gradient = baton.get_function(f"{name}/kernel/gradient")
    for f in (batch, prepare, gradient):
        print(f"{f.name.removeprefix(name)}{f.signature}")

    weights = baton.zeros((65, 10))
    parts = [baton.zeros((65, 10)) for _ in kernels]
    for step in range(1, STEPS + 1):
        b = batch(step, rows=ROWS)
        pictures, half = prepare(b["pictures"]), ROWS // 2
        calls = [
            gradient.submit(weights, pictures[i * half : (i + 1) * half], b["labels"][i * half : (i + 1) * half], part)
            for i, part in enumerate(parts)
        ]
        if step == KILLED:
            kernels[0].kill()  # whatever it does: the other one does it
            print(f"step {step}: one of two kernels is killed")
        loss = sum(call.result() for call in calls) / len(calls)
        weights.numpy()[:] -= RATE * sum(part.numpy() for part in parts) / len(parts)

    w = weights.numpy()
    known = (with_one(prepare(test_x).numpy()) @ w).argmax(1) == test_y
    print(f"{STEPS} steps, loss {loss:.3f}, accuracy {known.mean():.3f}")
    for process in [*others, kernels[1]]:
        process.stdin.close()
        assert process.wait() == 0
    baton.delete(name)


if __name__ == "__main__":
    main()
