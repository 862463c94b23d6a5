"""One process of a pair that hands tensors to and fro as programs do, by `receive`, wherever it runs.

`baton-bench` starts it with its job in the environment and the page of the pair as descriptor 3, as it starts
the programs in Go and Rust (bench/page.go). No torch: a pair has to start in a moment.
"""

import json
import mmap
import os
import time

import baton
import numpy as np

PAGE, LINE, BACK = 4096, 16, 2  # bytes of the head; words of a line; the series of answers
now = time.monotonic_ns


def meet(words: np.ndarray, side: int) -> None:
    """Waits until the other side has come here as often as this one."""
    words[side * LINE] += 1
    while words[(1 - side) * LINE] < words[side * LINE]:
        time.sleep(0.001)


def last_cpu() -> int:
    """The CPU on which this thread runs."""
    with open("/proc/thread-self/stat") as f:
        return int(f.read().rpartition(")")[2].split()[36])


def main() -> None:
    job = json.loads(os.environ["BATON_BENCH_JOB"])
    n, side = job["n"], job.get("side", 0)
    memory = mmap.mmap(3, PAGE + 4 * n * 8)
    words = np.frombuffer(memory, np.uint64)
    series = words[PAGE // 8 :].reshape(4, n)
    depart, back = [0] * n, [0] * n
    session = baton.Session(job["socket"], name="bench-python")
    there, answers = (session.topic(f"{job['path']}/{way}") for way in ("there", "back"))
    send, receive = (there, answers) if side == 0 else (answers, there)
    receive = receive.reader().receive
    meet(words, side)
    shape, answer, cpu = job["bytes"] // 4, np.zeros(2, np.float32), -1
    for i in range(n):
        if i == 1:
            cpu = last_cpu()
        if side == 0:
            depart[i] = now()
            x = session.empty((shape,), "float32")
            a = np.asarray(x)
            a[0] = a[-1] = i
            send.send(x)
        a = np.asarray(receive().value)
        if a[0] != a[-1]:
            raise AssertionError(f"{a[0]} and {a[-1]} are of different rounds")
        if side == 0:
            back[i] = now()
        else:
            send.send(session.share(answer))
    if side == 0:
        series[0], series[BACK] = depart, back
    meet(words, side)
    print(json.dumps({"cpu": [cpu]}))


main()
