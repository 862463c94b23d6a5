"""Builds the package: maturin, with the Go program `baton` inside it.

maturin puts what lies in data/scripts on PATH, and what lies in data/platlib beside the package. The Go tree lies beside this folder, so wheels are built
from a checkout; there are no source distributions. Metadata is asked for first, and maturin refuses to
give it while data/ is missing: so every hook builds.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
hooks: Any = maturin
BINARY = HERE / "data" / "scripts" / "baton"
STARTED = "baton-torch.pth"  # beside the package, where the interpreter runs it when it starts


def build_binary() -> None:
    """Builds the static program, for the version of the project."""
    missing = [tool for tool in ("go", "cargo") if shutil.which(tool) is None]
    if not (ROOT / "go.mod").is_file():
        raise SystemExit("baton-ipc is built from a checkout of the whole project: pip install ./python in its root")
    if missing:
        raise SystemExit(
            f"baton-ipc needs {' and '.join(missing)} on PATH to be built: install them (go.dev/dl, rustup.rs), "
            "or install a wheel, which needs neither"
        )
    version = (ROOT / "VERSION").read_text().strip()
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    (HERE / "data" / "platlib").mkdir(exist_ok=True)
    shutil.copy(HERE / STARTED, HERE / "data" / "platlib")
    BINARY.unlink(missing_ok=True)
    subprocess.run(
        ["go", "build", "-trimpath", "-ldflags", f"-X main.version={version}", "-o", str(BINARY), "./cmd/baton"],
        cwd=ROOT,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
    )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return []


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    build_binary()
    built: str = hooks.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    return built


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    build_binary()
    built: str = hooks.prepare_metadata_for_build_editable(metadata_directory, config_settings)
    return built


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_binary()
    built: str = hooks.build_wheel(wheel_directory, config_settings, metadata_directory)
    return built


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    build_binary()
    built: str = hooks.build_editable(wheel_directory, config_settings, metadata_directory)
    return built


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    raise SystemExit("baton-ipc has no source distribution: the Go program lies outside this folder")


if __name__ == "__main__":
    build_binary()
