"""What gets installed: the wheel, in a place without compilers; the checkout, and what it says when tools lack."""

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import baton
import numpy as np
import pytest
from baton import _find_baton
from conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
TOUR = "".join(f"batch {n + 1}: (2, 3), first {10 * n}, last {10 * n + 5}\n" for n in range(3))


def uv(*args: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("uv")
    environment = os.environ | ({"PATH": path} if path else {})
    return subprocess.run([program, "pip", "install", *args], capture_output=True, text=True, env=environment)


def only(folder: Path, *tools: str) -> str:
    """A PATH on which of the build's tools only these are."""
    folder.mkdir()
    for tool in (*tools, "env", "sh"):
        where = shutil.which(tool)
        assert where, f"{tool} is not on PATH"
        (folder / tool).symlink_to(where)
    return str(folder)


def look_into(wheel: Path) -> None:
    """What is in a wheel, and what it says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        info = f"baton_ipc-{VERSION}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "baton-ipc",
        VERSION,
        "Apache-2.0",
    )
    assert "pass the handle" in metadata.get_payload().lower()
    assert "](../" not in metadata.get_payload()  # a page of the package index has no files beside it
    program = entries[f"baton_ipc-{VERSION}.data/scripts/baton"]
    assert program.external_attr >> 16 & 0o777 == 0o755
    assert f"{info}/licenses/LICENSE" in entries
    assert {Path(name).name for name in entries if name.endswith(".pth")} == {"baton-torch.pth"}
    assert [name for name in entries if name.startswith(f"{info}/sboms/")]
    # 30 MiB are promised; the reserve is that of tools/release/check_wheel.py.
    assert sum(entry.file_size for entry in entries.values()) <= (30 << 20) - (1 << 19)


def test_a_wheel_runs_the_tour_where_there_is_no_compiler(tmp_path):
    dist = tmp_path / "dist"
    made = subprocess.run([ROOT / "tools" / "python", "wheel", dist], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = dist.glob("*.whl")
    # The stable ABI from 3.11 on, which interpreters without the GIL do not load.
    assert wheel.name.startswith(f"baton_ipc-{VERSION}-cp311-abi3-manylinux_"), wheel.name
    look_into(wheel)

    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    installed = uv("--python", str(python), str(wheel), f"numpy=={np.__version__}")
    assert installed.returncode == 0, installed.stderr
    tmp_path.chmod(0o700)
    bare = {"PATH": str(python.parent), "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}

    def run(*command: "str | Path") -> str:
        return subprocess.run(command, env=bare, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    assert run(python, ROOT / "examples" / "python" / "tour.py") == TOUR  # by a broker that it started
    for program in ([python.with_name("baton")], [python, "-m", "baton"]):
        assert run(*program, "version").startswith(f"baton {VERSION} ")
    status = json.loads(run(python.with_name("baton"), "status", "--json"))
    assert status["version"] == VERSION
    os.kill(status["pid"], 15)
    eventually(lambda: not (tmp_path / "baton" / "broker.sock").exists(), "the broker to end")


def test_program_crate_and_package_have_one_version():
    from importlib.metadata import version

    assert version("baton-ipc") == baton.__version__ == VERSION
    with baton.connect() as s:
        mine = [row for row in json.loads(subprocess.run(
            [Path(sys.executable).with_name("baton"), "ls", "sessions", "--json"], check=True, capture_output=True
        ).stdout) if row["serial"] == s.serial]  # fmt: skip
    assert [row["version"] for row in mine] == [VERSION]


@pytest.mark.parametrize("under", ["", "lib/python3.11/site-packages"], ids=["target", "prefix"])
def test_the_program_is_found_beside_the_package(under, tmp_path, monkeypatch):
    module = tmp_path / under / "baton" / "_find_baton.py"
    monkeypatch.setattr(_find_baton, "__file__", str(module))
    assert tmp_path / "bin" / "baton" in _find_baton.places()


def test_import_takes_no_framework_along():
    script = "import baton, sys; print({m.partition('.')[0] for m in sys.modules} & {'numpy', 'torch', 'jax'})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("variable", [None, "", "0", "off", "1", "Yes", "maybe"])
def test_what_starts_with_the_interpreter_imports_nothing_unasked(variable):
    files = [f for f in importlib.metadata.files("baton-ipc") or [] if f.name.endswith(".pth")]
    assert [f.name for f in files] == ["baton-torch.pth"] and files[0].locate().is_file()
    env = {k: v for k, v in os.environ.items() if k != "BATON_TORCH_INSTALL"}
    if variable is not None:
        env["BATON_TORCH_INSTALL"] = variable
    script = "import sys; print(sorted({m.partition('.')[0] for m in sys.modules} & {'baton', 'numpy', 'torch'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout == ("['baton']\n" if variable in ("1", "Yes", "maybe") else "[]\n") and not done.stderr, done


@pytest.mark.parametrize("missing", ["go", "cargo"])
def test_a_checkout_says_what_it_lacks(missing, tmp_path):
    present = {"go", "cargo"} - {missing}
    path = only(tmp_path / "bin", *present)
    to = ["--python", sys.executable, "--target", str(tmp_path / "to")]
    done = uv("--no-build-isolation", "--no-deps", *to, str(ROOT / "python"), path=path)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())  # uv breaks lines where the terminal's width says so
    assert f"baton-ipc needs {missing} on PATH to be built" in said, done.stderr
    assert "go.dev/dl, rustup.rs" in said and "install a wheel" in said


def test_a_checkout_says_what_is_too_old(tmp_path):
    path = only(tmp_path / "bin", "cargo")
    old = tmp_path / "bin" / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    to = ["--python", sys.executable, "--target", str(tmp_path / "to")]
    done = uv("--no-build-isolation", "--no-deps", *to, str(ROOT / "python"), path=path)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert re.search(r"baton-ipc needs go 1\.\d+ or newer \(here: 1\.19\) on PATH to be built", said), said


def test_a_source_distribution_has_what_a_build_reads(tmp_path):
    script = "import sys; sys.path.insert(0, sys.argv[1]); import build_backend; build_backend.build_sdist(sys.argv[2])"
    if not (ROOT / ".git").exists():
        pytest.skip("the tree is no git checkout")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # maturin is there
    command = [sys.executable, "-c", script, ROOT / "python", tmp_path]
    made = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"baton_ipc-{VERSION}/") for name in archive.getnames()}
    assert {"PKG-INFO", "pyproject.toml", "go.mod", "VERSION", "cmd/baton/main.go", "rust/src/lib.rs"} <= names
    assert {"python/LICENSE", "python/Cargo.lock", "python/py/baton/__init__.py"} <= names
    # Every file that the compiler reads, embedded ones too.
    form = "{{with .Module}}{{if .Main}}{{$.Dir}}{{range $.GoFiles}} {{.}}{{end}}{{range $.EmbedFiles}} {{.}}{{end}}{{end}}{{end}}"
    listed = subprocess.run(
        ["go", "list", "-deps", "-f", form, "./cmd/baton"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for line in filter(None, listed.stdout.splitlines()):
        folder, *files = line.split()
        assert {str((Path(folder) / file).relative_to(ROOT)) for file in files} <= names
    assert not [name for name in names if name.startswith(("docs/", "python/tests/", "python/data/"))]
    assert sdist.stat().st_size < 4 << 20

    # It is built as a checkout is, and says as plainly what is missing.
    to = ["--python", sys.executable, "--target", str(tmp_path / "to")]
    done = uv("--no-build-isolation", "--no-deps", *to, str(sdist), path=only(tmp_path / "bin", "cargo"))
    assert done.returncode != 0
    assert "baton-ipc needs go on PATH to be built" in done.stderr, done.stderr
