"""Python and the Go program on one broker."""

import json
import os
import signal
import subprocess

import baton
import numpy as np
from conftest import BATON, PATIENCE, command, eventually, listing


def test_go_sets_and_python_gets(name, tmp_path):
    a = np.arange(24, dtype="float32").reshape(4, 6)
    np.save(tmp_path / "a.npy", a)
    command("set", name, str(tmp_path / "a.npy"))
    b = baton.get(name)
    assert b.revision == 1 and b.value.readonly and (np.asarray(b.value) == a).all()
    baton.delete(name)


def test_python_sets_and_go_gets(name, tmp_path):
    a = np.arange(24, dtype="int16").reshape(4, 6)
    baton.set(name, a)
    command("get", name, "-o", str(tmp_path / "a.npy"))
    b = np.load(tmp_path / "a.npy")
    assert b.dtype == a.dtype and (b == a).all()
    baton.delete(name)


def test_go_reads_what_python_sends(name):
    t = baton.topic(name)
    p = subprocess.Popen([BATON, "tail", name, "--json", "-n", "2"], stdout=subprocess.PIPE, text=True)
    eventually(lambda: any(r["name"] == name and r["readers"] for r in listing("topics")), "tail to read")
    t.send({"image": np.zeros((2, 3), "uint8"), "label": [1, (2.5, None)], 3: b"x"}, meta={"epoch": 3})
    t.send(np.ones(4))
    out, _ = p.communicate(timeout=PATIENCE)
    one, two = map(json.loads, out.splitlines())
    assert one["meta"] == {"epoch": 3} and one["sequence"] == 1
    assert [(r["name"], r["dtype"], r["shape"]) for r in one["tensors"]] == [("image", "uint8", [2, 3])]
    assert [(r["dtype"], r["shape"]) for r in two["tensors"]] == [("float64", [4])]


def test_first_use_starts_a_broker(child, tmp_path, monkeypatch):
    monkeypatch.delenv("BATON_ADDRESS")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("BATON_BINARY", BATON)
    tmp_path.chmod(0o700)
    c = child("baton.set('a', np.arange(3)); say(baton.names()); sys.stdin.readline()")
    assert c.hear() == "['a']"
    d = child("say(baton.get('a').value.numpy().sum())")
    assert d.hear() == "3"
    status = json.loads(command("status", "--json"))
    c.end()
    os.kill(status["pid"], signal.SIGINT)
    eventually(lambda: not os.path.exists(f"/proc/{status['pid']}"), "the broker to end")
