"""A hand-over in one screen: this process fills tensors and sends them; a second one receives them."""

import subprocess
import sys

import baton
import numpy as np


def produce():
    # region produce
    queue = baton.queue("tour/batches")  # starts the user's broker if none runs
    for i in range(3):
        batch = baton.empty((2, 3))  # shared memory, which NumPy fills in place
        batch.numpy()[:] = 10 * i + np.arange(6).reshape(2, 3)
        queue.put(batch)  # a reference goes over, the bytes stay
    queue.close()  # closes it for all processes
    # endregion
    subprocess.run([sys.executable, __file__, "consume"], check=True)


def consume():
    # region consume
    for number, batch in enumerate(baton.queue("tour/batches"), 1):
        x = batch.numpy()  # no copy: the producer's bytes
        print(f"batch {number}: {x.shape}, first {x[0, 0]:.0f}, last {x[-1, -1]:.0f}")
    # endregion


if __name__ == "__main__":
    consume() if sys.argv[1:] == ["consume"] else produce()
