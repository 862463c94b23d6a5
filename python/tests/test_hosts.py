"""Handles of tensors on other hosts."""

import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import baton
import numpy as np
import pytest
from conftest import BATON, PATIENCE, eventually


def status(address: str) -> dict:
    out = subprocess.run([BATON, "status", "--json", "--address", address], check=True, capture_output=True).stdout
    return json.loads(out)["extra"]


@pytest.fixture
def hosts(tmp_path):
    """The addresses of two brokers that are hosts to each other."""
    processes = []

    def serve(place: str, *args: str) -> str:
        folder = tmp_path / place
        folder.mkdir(mode=0o700)
        address = f"{folder}/b.sock"
        processes.append(subprocess.Popen([BATON, "serve", "--address", address, "--log-level", "error", *args]))
        ready = [BATON, "ping", "--address", address, "--timeout", f"{PATIENCE}s"]
        subprocess.run(ready, check=True, stdout=subprocess.DEVNULL)
        return address

    serve("n")
    eventually(lambda: os.path.exists(tmp_path / "n" / "nats.json"), "NATS is there")
    info = json.loads((tmp_path / "n" / "nats.json").read_text())
    both = [serve(place, "--nats", info["url"], "--nats-nkey", info["seed"], "--span") for place in "ab"]
    for address in both:
        eventually(lambda address=address: status(address)["hosts"]["state"] == "spanning", "the host answers others")
    yield both
    for process in reversed(processes):
        process.terminate()
        process.wait(PATIENCE)


def test_a_handle_of_another_host_opens_with_its_bytes(hosts):
    a, b = (baton.connect(address) for address in hosts)
    want = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
    text = a.share(want).handle().to_json()
    x = b.open(text)
    assert x.readonly
    assert np.array_equal(x.numpy(), want)
    again = b.open(text, timeout=None)
    assert np.array_equal(again.numpy(), want)
    assert status(hosts[1])["hosts"]["fetched"] == 1


def test_a_tensor_that_a_program_in_go_made_is_opened_on_another_host(hosts, tmp_path):
    want = np.arange(1000, dtype=np.int64)
    np.save(tmp_path / "x.npy", want)
    subprocess.run([BATON, "set", "--address", hosts[0], "x", str(tmp_path / "x.npy")], check=True)
    a, b = (baton.connect(address) for address in hosts)
    with a.get("x") as bundle:
        (name,) = bundle
        assert np.array_equal(b.open(bundle[name].handle()).numpy(), want)


def test_why_a_handle_of_another_host_does_not_open(hosts):
    a, b = (baton.connect(address) for address in hosts)
    h = json.loads(a.share(np.arange(10)).handle().to_json())
    with pytest.raises(baton.HostLost, match="0123456789abcdef"):
        b.open(json.dumps(h | {"host": "0123456789abcdef0123456789abcdef"}))
    with pytest.raises(baton.Unsupported, match="cuda:0"):
        b.open(json.dumps(h | {"device": "cuda:0"}))
    with pytest.raises(baton.Expired):
        b.open(json.dumps(h | {"generation": h["generation"] + 1}))
    assert issubclass(baton.HostLost, ConnectionError)
    assert issubclass(baton.Unreachable, ConnectionError)


def test_a_broker_without_span_knows_no_other_hosts(hosts, own):
    h = baton.connect(hosts[0]).share(np.arange(10)).handle()
    with pytest.raises(baton.InvalidHandle, match="--span"):
        baton.connect(own.socket).open(h)


def test_a_name_is_set_and_read_on_each_host(hosts):
    a, b = (baton.connect(address) for address in hosts)
    w = np.arange(1 << 16, dtype=np.float32)
    first = a.set("weights/actor", {"w": w, "step": 3}, meta={"epoch": 1})
    got = b.get("weights/actor")
    assert (got.revision, got.stale, got.value["step"], got.meta) == (first, False, 3, {"epoch": 1})
    assert 0 <= got.age < PATIENCE
    assert np.array_equal(got.numpy()["w"], w)
    assert got["w"].readonly
    assert b.names("weights/*") == ["weights/actor"]

    second = b.set("weights/actor", {"w": w + 1})
    assert second > first
    assert np.array_equal(got.numpy()["w"], w), "what was got stays"
    new = eventually(lambda: (x := a.get("weights/actor")).revision == second and x, "the first host has it")
    assert np.array_equal(new.numpy()["w"], w + 1)
    a.delete("weights/actor")
    eventually(lambda: b.names("weights/*") == [], "it is deleted there")
    with pytest.raises(baton.NotFound):
        b.get("weights/actor")


def test_a_watch_follows_a_name_of_another_host(hosts):
    a, b = (baton.connect(address) for address in hosts)
    watch = b.watch("weights")
    for step in range(20):
        revision = a.set("weights", {"w": np.full(1000, step)})
        while (got := watch.receive(timeout=PATIENCE)).revision < revision:
            pass
        assert got.revision == revision
        assert (got.numpy()["w"] == step).all()


def attempt(session: baton.Session, begin: threading.Barrier, value: int) -> int | baton.Conflict:
    begin.wait(PATIENCE)
    try:
        return session.set("x", np.array([value]))
    except baton.Conflict as e:
        return e


def test_of_two_sets_at_a_time_on_two_hosts_one_wins(hosts):
    sessions = [baton.connect(address) for address in hosts]
    conflicts = 0
    for n in range(40):
        begin = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(attempt, s, begin, 2 * n + i) for i, s in enumerate(sessions)]
            results = [d.result(PATIENCE) for d in done]
        lost = [r for r in results if isinstance(r, baton.Conflict)]
        assert len(lost) < 2
        assert all("host" in e.detail for e in lost)
        conflicts += len(lost)
    assert conflicts > 0
