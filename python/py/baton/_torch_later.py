"""What BATON_TORCH_INSTALL=1 does, by a .pth of the installed package: `baton.torch.install()` after `import torch`.

Without a broker torch shares as ever, and it is said once. So it is of a value that says neither yes nor no.
"""

import os
import sys
import warnings
from types import ModuleType

from baton import _default, _later
from baton._errors import Error

# How many seconds a program's start may wait for a broker.
SOON = 2.0
# The values that install. Those that do not are in the .pth.
ON = ("1", "true", "yes", "on")


_done = False


def _install(_torch: ModuleType) -> None:
    package = sys.modules.get("baton.torch")
    if package is None or hasattr(package, "install"):
        install()
    # else the package is what imports torch, and calls it when it is whole


def install() -> None:
    """Installs once, or says why not."""
    global _done
    if _done:
        return
    _done = True
    value = os.environ.get("BATON_TORCH_INSTALL", "")
    if value.strip().lower() not in ON:
        what = "torch shares as ever, not in Baton's memory (1, true, yes and on install; 0, false, no and off do not)"
        warnings.warn(f"BATON_TORCH_INSTALL={value}: {what}", stacklevel=2)
        return
    import baton.torch

    try:
        _default.session(SOON)
        baton.torch.install()
    except Error as e:
        warnings.warn(f"BATON_TORCH_INSTALL: torch shares as ever, not in Baton's memory: {e}", stacklevel=2)


_later.when_imported(["torch"], _install)
