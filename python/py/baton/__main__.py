"""`python -m baton` is the program `baton`."""

import os
import shutil
import sys

from baton._find_baton import find_baton, places


def main() -> None:
    """Runs the program in the place of this process."""
    program = find_baton() or shutil.which("baton")
    if program is None:
        sys.exit(
            "the program baton was not found: install the package again, or set BATON_BINARY; looked at "
            + ", ".join(map(str, places()))
            + " and on PATH"
        )
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
