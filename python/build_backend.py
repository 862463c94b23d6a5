"""Builds the package: maturin, with the Go program `baton` inside it.

maturin puts what lies in data/scripts on PATH, and what lies in data/platlib beside the package. Metadata is asked
for first, and maturin refuses to give it while data/ is missing: so every hook of a wheel builds.

The Go tree lies beside this folder, in a checkout and in a source distribution, which is the part of a checkout that
is needed to build. GOARCH in the environment builds the program for another machine, as tools/wheel does.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import maturin  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
hooks: Any = maturin
BINARY = HERE / "data" / "scripts" / "baton"
NOT_INLINED = ROOT / "cmd" / "baton" / "not-inlined"
STARTED = "baton-torch.pth"  # beside the package, where the interpreter runs it when it starts
# What a source distribution leaves out: no build reads it.
LEFT_OUT = (
    ".",
    "docs/",
    "integration/",
    "models/",
    "packaging/",
    "tools/",
    "python/bench/",
    "python/tests/",
    "rust/bench/",
    "rust/user/",
)


def version() -> str:
    return (ROOT / "VERSION").read_text().strip()


def check_compilers() -> None:
    """Ends with what is missing or too old. An old Go says no more of it than "invalid go version"."""
    missing = [tool for tool in ("go", "cargo") if shutil.which(tool) is None]
    if not missing:
        # In the root: a Go that fetches the one that go.mod asks for tells that one's version.
        wanted = {
            "go": (["go", "version"], r"go(\d+)\.(\d+)", ROOT / "go.mod", r"^go (\d+)\.(\d+)"),
            "cargo": (
                ["cargo", "--version"],
                r"cargo (\d+)\.(\d+)",
                HERE / "Cargo.toml",
                r'^rust-version = "(\d+)\.(\d+)',
            ),
        }
        for tool, (command, pattern, file, line) in wanted.items():
            need = numbers(line, file.read_text())
            have = numbers(pattern, subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout)
            if have < need:
                missing.append(
                    f"{tool} {need[0]}.{need[1]} or newer (here: {'.'.join(map(str, have)) or 'none that runs'})"
                )
    if missing:
        raise SystemExit(
            f"baton-ipc needs {' and '.join(missing)} on PATH to be built: install them (go.dev/dl, rustup.rs), "
            "or install a wheel, which needs neither"
        )


def numbers(pattern: str, text: str) -> tuple[int, ...]:
    found = re.search(pattern, text, re.MULTILINE)
    return tuple(int(n) for n in found.groups()) if found else ()


def build_binary() -> None:
    """Builds the static program, for the version of the project."""
    if not (ROOT / "go.mod").is_file():
        raise SystemExit("baton-ipc is built from a checkout of the whole project: pip install ./python in its root")
    check_compilers()
    make_data()
    BINARY.unlink(missing_ok=True)
    # -s -w: without symbols and debug information, a third of the size. Functions at multiples of 16 bytes, not 32.
    subprocess.run(
        [
            "go",
            "build",
            "-trimpath",
            *(f"-gcflags={pattern}=-l" for pattern in not_inlined()),
            "-ldflags",
            f"-s -w -funcalign=16 -X main.version={version()}",
            "-o",
            str(BINARY),
            "./cmd/baton",
        ],
        cwd=ROOT,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
    )


def not_inlined() -> list[str]:
    return [line for line in NOT_INLINED.read_text().splitlines() if line and not line.startswith("#")]


def make_data() -> None:
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    (HERE / "data" / "platlib").mkdir(exist_ok=True)
    shutil.copy(HERE / STARTED, HERE / "data" / "platlib")


def call(hook: str, *args: Any) -> str:
    """Calls a hook of maturin here: of a source distribution the frontend's folder is the one above."""
    os.chdir(HERE)
    built: str = getattr(hooks, hook)(*args)
    return built


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return []


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return []


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    build_binary()
    return call("prepare_metadata_for_build_wheel", os.path.abspath(metadata_directory), config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    build_binary()
    return call("prepare_metadata_for_build_editable", os.path.abspath(metadata_directory), config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_binary()
    return call("build_wheel", os.path.abspath(wheel_directory), config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_binary()
    return call("build_editable", os.path.abspath(wheel_directory), config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Packs what a build reads: the files that git tracks here, and the metadata that package indexes want."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        raise SystemExit(
            f"a source distribution of baton-ipc is made from a git checkout: git ls-files failed: {e}"
        ) from e
    base = f"baton_ipc-{version()}"
    out = Path(sdist_directory).resolve() / f"{base}.tar.gz"
    make_data()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(out, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = Path(folder) / call("prepare_metadata_for_build_wheel", folder, config_settings) / "METADATA"
        add(tar, f"{base}/PKG-INFO", info.read_bytes())
        # The one of python/, but for where the backend is.
        project = (HERE / "pyproject.toml").read_text().replace('backend-path = ["."]', 'backend-path = ["python"]')
        add(tar, f"{base}/pyproject.toml", project.encode())
        for name in sorted(listed.split("\0")):
            if name and not name.startswith(LEFT_OUT) and not name.endswith("_test.go"):
                path = (ROOT / name).resolve()  # a link as what it leads to
                tar.add(path, f"{base}/{name}", recursive=False, filter=anonymous)
    return out.name


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the time and the user of the checkout, so that two of one commit are equal."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
    return entry


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    build_binary()
