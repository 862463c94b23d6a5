"""`torch.multiprocessing.reductions`, in which storages of the CPU go by Baton's road."""

from multiprocessing.reduction import ForkingPickler

from torch.multiprocessing import reductions as _of_torch

globals().update({name: value for name, value in vars(_of_torch).items() if not name.startswith("__")})

__all__ = ["ForkingPickler"]
