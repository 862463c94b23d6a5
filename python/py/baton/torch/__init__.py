"""PyTorch over shared memory: modules, storages, and a torch.multiprocessing whose queues are Baton's.

    import baton.torch.multiprocessing as mp      # in place of torch.multiprocessing

    baton.torch.install()                         # or: what stock torch shares lies in Baton

    baton.torch.share_module(model)               # or: parameters in place, for Hogwild
    baton.torch.weights.Sender("actor")           # or: versions of weights, for those that infer

`docs/torch.md` says which road is for which program, and what each means.
"""

import importlib
import sys
from typing import Any

from baton.torch._install import install, uninstall
from baton.torch._modules import cuda_pool, load_module, publish_module, share_module

__all__ = ["cuda_pool", "install", "load_module", "publish_module", "share_module", "uninstall"]


def __getattr__(name: str) -> Any:
    if name in ("multiprocessing", "weights"):  # the import of the first installs
        return importlib.import_module(f"baton.torch.{name}")
    raise AttributeError(f"module 'baton.torch' has no attribute {name!r}")


if "baton._torch_later" in sys.modules:  # by BATON_TORCH_INSTALL
    sys.modules["baton._torch_later"].install()
