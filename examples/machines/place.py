"""Three machines on one: a broker each, a NATS server that all of them reach, and a link that can be cut."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BATON = [sys.executable, "-m", "baton"]
PATIENCE = 60


def until(so, what):
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE
    while not (is_so := so()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE} s until {what}")
        time.sleep(0.02)
    return is_so


class Link:
    """Carries connections to a port, until it is cut."""

    def __init__(self, port):
        self.to, self.whole, self.ends, self.lock = port, True, set(), threading.Lock()
        self.listens = socket.create_server(("127.0.0.1", 0))
        self.port = self.listens.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listens.accept()
            with self.lock:
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.to))
                self.ends |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        try:
            while data := one.recv(1 << 16):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            self.whole = False
            for end in self.ends:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.ends.clear()

    def join(self):
        with self.lock:
            self.whole = True


class Place:
    """What runs, and ends with it."""

    def __init__(self):
        self.folder, self.running = Path(tempfile.mkdtemp(prefix="machines-", dir="/tmp")), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            process.terminate()
            process.wait()
        shutil.rmtree(self.folder)

    def broker(self, name, *args):
        """The address of a broker."""
        (self.folder / name).mkdir(mode=0o700)
        address = f"{self.folder / name}/b.sock"
        self.running.append(subprocess.Popen([*BATON, "serve", "--address", address, "--log-level", "error", *args]))
        subprocess.run(
            [*BATON, "ping", "--address", address, "--timeout", f"{PATIENCE}s"], check=True, stdout=subprocess.DEVNULL
        )
        return address

    def nats(self):
        """The port of a NATS server, and what a broker joins it by: that of a broker, which is no host. Use nats-server."""
        self.broker("nats")
        told = self.folder / "nats" / "nats.json"
        until(told.exists, "NATS is there")
        told = json.loads(told.read_text())
        return int(told["url"].rsplit(":", 1)[1]), ["--nats-nkey", told["seed"]]

    def program(self, machine, *args):
        """A program on a machine. Its lines are JSON."""
        process = subprocess.Popen([sys.executable, *args], env=machine, stdout=subprocess.PIPE, text=True)
        self.running.append(process)
        return process


def spans(address):
    """Whether other hosts reach a broker."""
    told = subprocess.run([*BATON, "status", "--json", "--address", address], check=True, capture_output=True)
    return json.loads(told.stdout)["extra"]["hosts"]["state"] == "spanning"
