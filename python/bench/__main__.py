"""The process that measures in Python for `baton-bench`, which starts it and gives it its jobs.

A job is a line of JSON on standard input, its figures (lists of numbers by name) a line on standard output;
the first line says what is measured. BATON_ADDRESS leads to the broker. The arguments are the two CPUs, for
this process and its partner.
"""

import gc
import json
import os
import platform
import sys

import loaders
import local
import numpy as np
import pair
import torch

import models

try:
    import environments
    import gymnasium
except ImportError:
    environments, gymnasium = None, None
try:
    import actors
    import ray
except ImportError:
    actors, ray = None, None


def main() -> None:
    cpus = [int(cpu) for cpu in sys.argv[1:]]
    torch.set_num_threads(1)
    os.sched_setaffinity(0, cpus[:1])
    about = f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    if gymnasium:
        about += f", Gymnasium {gymnasium.__version__}"
    if ray:
        about += f", Ray {ray.__version__}"
    print(json.dumps(about), flush=True)
    alone = local.ROLES | loaders.ROLES
    for optional in (environments, actors):
        alone |= optional.ROLES if optional else {}
    with_partner = pair.ROLES | models.ROLES
    partner = None
    gc.freeze()  # what was imported is no garbage
    for line in sys.stdin:
        job = json.loads(line)
        role, n, size, count = (job.get(k, 0) for k in ("role", "n", "bytes", "count"))
        if role in alone:
            figures = alone[role](n, size)
        else:
            partner = partner or pair.Partner(cpus[1])
            figures = with_partner[role](partner, n, size, count)
        print(json.dumps(figures), flush=True)
    if partner:
        partner.end()


if __name__ == "__main__":
    main()
