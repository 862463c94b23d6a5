"""Where the program `baton` is: what came with the package, before what happens to be on PATH."""

import os
import sys
import sysconfig
from pathlib import Path

# Of the installers' schemes. It is looked up by the import, which one thread does: two that ask sysconfig
# for the first time at once break it.
_SCRIPTS = [
    sysconfig.get_path("scripts"),
    sysconfig.get_path("scripts", vars={"base": sys.base_prefix}),
    sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user")),
]


def places() -> list[Path]:
    """Every place where an installer may have put the program, the likeliest first."""
    above = Path(__file__).resolve().parents
    found = [
        *_SCRIPTS,
        # Beside the package: of pip install --target, and of folders that build isolation lays over the path; of
        # pip install --prefix, which puts packages three folders further down.
        *(str(folder / "bin") for folder in (above[1], *above[4:5])),
        *(os.path.join(os.path.dirname(p), "bin") for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p),
    ]
    return [Path(d) / "baton" for d in dict.fromkeys(found) if d]


def find_baton() -> str | None:
    """$BATON_BINARY, else the program that came with the package; None where there is none."""
    named = os.environ.get("BATON_BINARY")
    if named:
        return named
    return next((str(p) for p in places() if p.is_file()), None)
