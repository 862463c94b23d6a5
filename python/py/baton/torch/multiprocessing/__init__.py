"""torch.multiprocessing on Baton: a program that imports this in its place runs unchanged.

    import baton.torch.multiprocessing as mp

Queues and pools hand tensors over by handle, without a file or a copy for each, and what was put outlives its
sender. All else is torch's and the standard library's; the import has `baton.torch.install` done, so that pipes,
arguments of processes, `share_memory_()` and DataLoader use Baton's memory too.
"""

import torch.multiprocessing as _of_torch

from baton.torch import _install
from baton.torch.multiprocessing import _contexts, pool, queue, reductions
from baton.torch.multiprocessing import spawn as _  # noqa: F401

__all__ = list(_of_torch.__all__)

# Everything of torch's, and what is Baton's in its place.
_own = {"pool": pool, "queue": queue, "reductions": reductions}
_own |= {name: getattr(_contexts, name) for name in _contexts.__all__}
globals().update({k: v for k, v in vars(_of_torch).items() if not k.startswith("__")})
globals().update(_own)

_install.install()
