"""A broker of this run's own, and helpers to start other processes.

Nothing here sleeps to wait: `eventually` looks until what is awaited is there, and fails late.
"""

import importlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BATON = os.environ.get("BATON_BINARY") or str(Path(__file__).resolve().parents[2] / "bin" / "baton")
PATIENCE = float(os.environ.get("BATON_TEST_PATIENCE", "120"))
STANDIN = Path(__file__).resolve().parents[2] / "integration" / "cuda" / "standin" / "src"
STANDIN_FLAGS = "-std=c11 -D_GNU_SOURCE -O1 -fvisibility=hidden -shared -fPIC -pthread -Wl,-soname,libcuda.so.1"

# The fork server's children find torch imported, which takes longer than what most of them do.
multiprocessing.set_forkserver_preload(["__main__", *(["torch"] if importlib.util.find_spec("torch") else [])])

# Folders of tests hold sockets, whose paths have room for 107 bytes, which a long TMPDIR would use up.
tempfile.tempdir = "/tmp"

# A run in the background of a shell ignores SIGINT, and so would the children, which are to be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


def need(name: str) -> Any:
    """The module of a framework; without it the test is skipped, or fails where BATON_REQUIRE names it."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        if name in os.environ.get("BATON_REQUIRE", "").split(","):
            pytest.fail(f"{name} is required by BATON_REQUIRE and cannot be imported: {e}")
        pytest.skip(f"{name} is not installed", allow_module_level=True)


def eventually(look: Callable[[], Any], what: str) -> Any:
    """What `look` gives once that is true."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.01)
    pytest.fail(f"waited {PATIENCE} s for {what}")


def lives(pid: int) -> bool:
    """Whether a process runs. One that was killed may have no parent that asks for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def asleep(thread: threading.Thread) -> bool:
    """Whether a thread of this process sleeps in a wait of a session, and not for the interpreter's lock."""
    words = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()
    # Only Baton waits by FUTEX_WAIT without FUTEX_PRIVATE_FLAG: on the session's bell, or, as the third that waits in
    # the session, on a word of the thread's own.
    return len(words) > 2 and words[0] in ("202", "98") and int(words[2], 16) == 0


def handed_over(value: Any) -> bytes:
    """The pickle of a value with handles of its tensors."""
    baton = importlib.import_module("baton")
    with baton.pickle_handles():
        return pickle.dumps(value)


def command(*args: str) -> str:
    """Runs the command line and gives its output."""
    done = subprocess.run([BATON, *args], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"baton {' '.join(args)}: {done.stderr}"
    return done.stdout


def listing(what: str) -> list[dict[str, Any]]:
    """All rows of `baton ls`."""
    rows: list[dict[str, Any]] = json.loads(command("ls", what, "--all", "--json"))
    return rows


class Child:
    """A Python process that runs a script and talks by lines."""

    def __init__(self, script: str, *args: str) -> None:
        # In one write, whichever threads speak.
        head = (
            "import os, sys, baton, numpy as np\ndef say(*a): os.write(1, (' '.join(map(str, a)) + '\\n').encode())\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", head + script, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def hear(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended: {self.process.wait(PATIENCE)}"
        return line.rstrip("\n")

    def tell(self, line: str = "") -> None:
        """Gives it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Waits until it has ended well."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0

    def kill(self) -> None:
        """Kills it with SIGKILL, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)


def suspend(process: "subprocess.Popen[Any]") -> None:
    """Suspends a child; when this returns none of its threads runs, as some may for a while after the signal."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # its end is not waited for


class Broker:
    """A broker of its own, that is ended and started again."""

    def __init__(self, folder: str, *more: str) -> None:
        self.socket = f"{folder}/b.sock"
        self.more = more
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        args = [
            BATON,
            "serve",
            "--address",
            self.socket,
            "--no-nats",
            "--log-level",
            "error",
            "--memory",
            "1G",
            *self.more,
        ]
        self.process = subprocess.Popen(args)
        eventually(lambda: os.path.exists(self.socket), "the broker's socket")

    def suspend(self) -> None:
        """Suspends it: when this returns it answers nothing."""
        suspend(self.process)

    def resume(self) -> None:
        """Has it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, how: int) -> None:
        """Ends it by a signal."""
        self.process.send_signal(how)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="session", autouse=True)
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker of the run; BATON_ADDRESS leads all of its processes there."""
    assert Path(BATON).is_file(), f"{BATON} is not there: run `make build`, or set BATON_BINARY"
    socket = tmp_path_factory.mktemp("b") / "broker.sock"
    socket.parent.chmod(0o700)
    process = subprocess.Popen([BATON, "serve", "--address", str(socket), "--no-nats", "--log-level", "error"])
    os.environ["BATON_ADDRESS"] = str(socket)
    eventually(socket.exists, "the broker's socket")
    yield str(socket)
    process.send_signal(signal.SIGINT)  # for good
    assert process.wait(PATIENCE) == 0


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker of the test's own; BATON_ADDRESS leads there."""
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    broker = Broker(str(folder))
    monkeypatch.setenv("BATON_ADDRESS", broker.socket)
    yield broker
    broker.process.kill()
    broker.process.wait(PATIENCE)


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"test/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts children, which are killed at the test's end."""
    all: list[Child] = []

    def start(script: str, *args: str) -> Child:
        all.append(Child(script, *args))
        return all[-1]

    yield start
    for c in all:
        c.kill()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in for the driver of GPUs."""
    if not shutil.which("cc"):
        if "cc" in os.environ.get("BATON_REQUIRE", "").split(","):
            pytest.fail("cc is required by BATON_REQUIRE and is not installed")
        pytest.skip("cc is not installed (Debian: apt-get install gcc libc6-dev)")
    folder = tmp_path_factory.mktemp("driver")
    sources = [str(f) for f in STANDIN.glob("*.c")]
    subprocess.run(["cc", *STANDIN_FLAGS.split(), "-o", str(folder / "libcuda.so.1"), *sources], check=True)
    return folder


@pytest.fixture
def gpu(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of the stand-in's for the test's children; integration/cuda/standin says what it cannot show."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("BATON_STANDIN_DIR", str(tmp_path))
    monkeypatch.setenv("BATON_STANDIN_GPUS", "2")


def run(child: Callable[..., Child], script: str, *args: str) -> None:
    """Runs a script in a child to its end."""
    c = child(script + "\nsay('done')", *args)
    assert c.hear() == "done"
    c.end()
