"""Checks that what a wheel's name promises is true, and prints its sizes: check_wheel.py WHEEL.

For glibc auditwheel says which tag the versions of symbols allow. Of musl it knows libc by the name that Alpine's
linker writes; zig's writes "libc.so", which musl's loader takes for itself. There are no versions of symbols there,
so nothing but that library may be needed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

MIB = 1 << 20
MOST = 30 * MIB  # of what is installed: the README says so
# Less than this below it is refused of each wheel: what grows is seen long before a release is. What `make release` alone
# puts in, notices and SBOMs, takes less than a fifth of it.
RESERVE = MIB // 2


def needed(library: Path) -> set[str]:
    with library.open("rb") as f:
        dynamic = ELFFile(f).get_section_by_name(".dynamic")
        return {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}


def machine(file: Path) -> str:
    with file.open("rb") as f:
        return {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}[ELFFile(f)["e_machine"]]


def static(program: Path) -> bool:
    with program.open("rb") as f:
        return all(s["p_type"] not in ("PT_INTERP", "PT_DYNAMIC") for s in ELFFile(f).iter_segments())


def check(wheel: Path) -> None:
    tag = wheel.stem.split("-")[-1].split(".")[-1]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        size = sum(entry.file_size for entry in archive.infolist())
        library = Path(folder) / "baton" / "_native.abi3.so"
        (program,) = Path(folder).glob("*.data/scripts/baton")
        for file in (library, program):
            if not tag.endswith(machine(file)):
                sys.exit(f"{wheel.name}: {file.name} in it is for {machine(file)}")
        if not static(program):
            sys.exit(f"{wheel.name}: the program in it is not static")
        if tag.startswith("musllinux"):
            if beside := needed(library) - {"libc.so"}:
                sys.exit(f"{wheel.name}: needs {', '.join(sorted(beside))}, which no musl system promises")
        else:
            shown = subprocess.run(
                [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True
            )
            if f'"{tag}"' not in shown.stdout.replace("\n", " "):
                sys.exit(f"{wheel.name}: the name says {tag}, and auditwheel: {shown.stdout}{shown.stderr}")
    if size > MOST - RESERVE:
        sys.exit(
            f"{wheel.name}: {size / MIB:.1f} MiB installed, more than {(MOST - RESERVE) / MIB:.1f}: "
            f"{MOST // MIB} are promised, and {RESERVE / MIB:.1f} are kept in reserve"
        )
    print(f"{wheel.name}: {wheel.stat().st_size / MIB:.1f} MiB, {size / MIB:.1f} MiB installed")


check(Path(sys.argv[1]))
