"""Functions that requests over NATS call."""

import asyncio
import json
import os
import subprocess

import baton
import numpy as np
import pytest
from conftest import BATON, PATIENCE, eventually, need
from function_kit import nothing_is_defined  # noqa: F401


@pytest.fixture
def nats_broker(tmp_path, monkeypatch):
    """A broker with the NATS server that it brings along; BATON_ADDRESS leads there."""
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    address = f"{folder}/b.sock"
    broker = subprocess.Popen([BATON, "serve", "--address", address, "--nats-functions", "--log-level", "error"])
    monkeypatch.setenv("BATON_ADDRESS", address)
    ready = [BATON, "ping", "--timeout", f"{PATIENCE}s"]
    subprocess.run(ready, check=True, stdout=subprocess.DEVNULL)
    yield folder
    broker.terminate()
    broker.wait(PATIENCE)


def test_a_function_is_called_over_nats(nats_broker):
    nats = need("nats")

    @baton.function("maths/scale", nats=True)
    def scale(x: baton.Tensor, *, by: float = 2.0) -> float:
        x.numpy()[:] *= by
        return float(x.numpy().sum())

    @baton.function("maths/here")
    def here() -> int:
        return os.getpid()

    eventually(lambda: os.path.exists(f"{nats_broker}/nats.json"), "NATS is there")
    info = json.loads((nats_broker / "nats.json").read_text())
    session = baton.connect()
    x = session.share(np.array([1.0, 2.0]))

    async def ask():
        nc = await nats.connect(info["url"], nkeys_seed=info["seed"])

        async def call(name, value):
            deadline = asyncio.get_running_loop().time() + PATIENCE
            while True:  # it is listed a moment after it was registered
                try:
                    return await nc.request(f"baton.default.call.{name}", json.dumps(value).encode(), timeout=PATIENCE)
                except nats.errors.NoRespondersError:
                    assert asyncio.get_running_loop().time() < deadline
                    await asyncio.sleep(0.01)

        answer = await call("maths.scale", {"x": {"$handle": json.loads(x.handle().to_json())}, "by": 3})
        assert json.loads(answer.data) == 9.0, answer.data
        refused = await call("maths.scale", ["text"])
        assert refused.headers["Nats-Service-Error-Code"] == "400"
        assert json.loads(refused.data)["code"] == "InvalidArgument"
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("baton.default.call.maths.here", b"", timeout=PATIENCE)
        await nc.close()

    with session.start_functions(scale, here):
        asyncio.run(ask())
    assert x.tolist() == [3.0, 6.0]
    session.close()
