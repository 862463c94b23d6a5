"""`torch.multiprocessing.spawn`: its processes inherit what `baton.torch.install` has done."""

import sys

_of_torch = sys.modules["torch.multiprocessing.spawn"]  # whose name in the package is its function's

globals().update({name: value for name, value in vars(_of_torch).items() if not name.startswith("__")})
__all__ = list(getattr(_of_torch, "__all__", ["spawn"]))  # an older torch has none
