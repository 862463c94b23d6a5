"""What pickles hold: bytes in files, handles on the way to a process of this machine."""

import copy
import io
import pickle
import subprocess
import sys

import baton
import numpy as np
import pytest
from conftest import PATIENCE, eventually, handed_over, need


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_has_the_bytes(protocol):
    x = baton.share(np.arange(12.0).reshape(3, 4))
    data = pickle.dumps(x, protocol)
    x.numpy()[:] = 0
    y = pickle.loads(data)
    assert y.tolist() == np.arange(12.0).reshape(3, 4).tolist() == pickle.loads(data).tolist()
    y.numpy()[:] = 5  # memory of its own
    assert (x.numpy() == 0).all()


KINDS = {
    "transposed": lambda x: x.T,
    "with gaps": lambda x: x[:, ::2, 1:3],
    "slice": lambda x: x[1:],
    "permuted": lambda x: x.as_strided((3, 4, 2), (4, 1, 12)),
    "repeated": lambda x: x.as_strided((5, 4), (0, 1)),
    "no dimension": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:, 3:],
    "complex with gaps": lambda _: baton.share(np.arange(6).reshape(2, 3) * 1j)[:, ::2],
    "four bits": lambda x: x.reshape(-1).view("int4"),
    "bfloat16 with gaps": lambda x: x.view("bfloat16")[:, ::2],
    "read-only": lambda x: x.as_readonly(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_shape_type_and_order_are_kept(kind):
    x = KINDS[kind](baton.share(np.arange(24, dtype="int16").reshape(2, 3, 4)))
    y = pickle.loads(pickle.dumps(x))
    assert (y.shape, y.dtype, y.readonly) == (x.shape, x.dtype, False)
    if kind == "four bits" or x.dtype == "bfloat16":
        x, y = x.view("int16"), y.view("int16")
    assert y.tolist() == x.tolist()
    if kind in ("transposed", "permuted"):
        assert y.strides == x.strides


def test_buffers_may_travel_beside_the_pickle():
    x, beside = baton.share(np.arange(1000)), []
    data = pickle.dumps([x, x[10:]], 5, buffer_callback=beside.append)
    assert len(data) < 300 and [b.raw().nbytes for b in beside] == [8000, 7920]
    y, part = pickle.loads(data, buffers=beside)
    assert y.tolist() == list(range(1000)) and part.tolist() == list(range(10, 1000))
    y.numpy()[0] = 7
    assert x[0].item() == 0


def test_a_bundle_keeps_structure_and_meta(name):
    baton.set(name, {"w": np.ones((2, 3)), "l": [np.zeros(3), 7, "s"]}, meta={"step": 3})
    b = baton.get(name)
    again = pickle.loads(pickle.dumps(b))
    baton.delete(name)
    assert again.keys() == b.keys() == ["w", "l/0"] and again.meta == {"step": 3}
    assert again.value["l"][1:] == [7, "s"] and again["w"].tolist() == b["w"].tolist()
    assert (again.revision, again.live, again["w"].readonly) == (0, False, False)


def test_a_file_outlives_the_process_that_wrote_it_and_its_broker(name, child, tmp_path):
    joblib = need("joblib")
    c = child(
        """
import joblib, pickle
value = {"x": baton.share(np.arange(5)), "b": baton.share({"w": np.ones(2)})}
q = baton.queue()
q.put(value)
joblib.dump(q.get(), sys.argv[1])
with open(sys.argv[2], "wb") as file:
    pickle.dump(value, file)
""",
        str(tmp_path / "joblib"),
        str(tmp_path / "pickle"),
    )
    c.end()
    again = pickle.loads((tmp_path / "pickle").read_bytes()), joblib.load(tmp_path / "joblib")
    assert all(v["x"].tolist() == [0, 1, 2, 3, 4] and v["b"]["w"].tolist() == [1, 1] for v in again)


def test_torch_loads_what_it_saved_without_baton(tmp_path):
    torch = need("torch")
    x = baton.share(np.arange(12.0).reshape(3, 4))
    value = {
        "x": x,
        "rows": [x[1:], x.T],
        "half": baton.share(np.arange(3, dtype="uint16")).view("bfloat16"),
        "readonly": x.as_readonly(),
        "bundle": baton.share({"w": np.ones((2, 3)), "l": [np.zeros(3)]}),
    }
    torch.save(value, tmp_path / "c.pt")
    script = """
import sys, torch
v = torch.load(sys.argv[1])
assert "baton" not in sys.modules
print(v["x"].tolist() == torch.arange(12.0).reshape(3, 4).tolist(), [t.tolist() == e.tolist() for t, e in
      zip(v["rows"], (v["x"][1:], v["x"].T))], v["half"].dtype, v["readonly"].sum().item(),
      {k: t.shape for k, t in v["bundle"].items()})
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "c.pt"],
        capture_output=True, text=True, timeout=PATIENCE, env={"PATH": "/usr/bin", "BATON_ADDRESS": "/nonexistent"},
    )  # fmt: skip
    said = "True [True, True] torch.bfloat16 66.0 {'w': torch.Size([2, 3]), 'l/0': torch.Size([3])}\n"
    assert (ran.stdout, ran.returncode) == (said, 0), ran.stderr
    net = torch.nn.Linear(3, 2)
    baton.torch.share_module(net, "doc/saved")
    torch.save(baton.get("doc/saved"), tmp_path / "net.pt")
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(torch.load(tmp_path / "net.pt"))
    assert torch.equal(net.weight, other.weight)
    baton.delete("doc/saved")


HANDING = ["multiprocessing.reduction", "loky.backend.reduction", "joblib.externals.loky.backend.reduction"]


@pytest.mark.parametrize("module", HANDING)
@pytest.mark.parametrize("first", ["baton", "the other"])
def test_picklers_of_processes_hand_over_whatever_was_imported_first(child, module, first):
    need(module.split(".")[0])
    c = child(
        """
import importlib, pickle, subprocess
imports = ["import baton", f"import {sys.argv[1]} as other"]
script = "; ".join(imports if sys.argv[2] == "baton" else imports[::-1]) + '''
import io, pickle
import numpy as np
dumps = other.ForkingPickler.dumps if hasattr(other, "ForkingPickler") else other.dumps
x, b = baton.zeros(3), baton.share({"w": np.zeros(2)})
for thing, first in ((x, lambda: x[0].item()), (b, lambda: b["w"][0].item())):
    y = pickle.loads(dumps(thing))
    (y if thing is x else y["w"]).numpy()[0] = 7
    assert first() == 7
    y = pickle.loads(pickle.dumps(thing))
    (y if thing is x else y["w"]).numpy()[0] = 8
    assert first() == 7
print("both")
'''
say(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True))
""",
        module,
        first,
    )
    assert "returncode=0, stdout='both" in c.hear()
    c.end()


def test_workers_of_joblib_see_the_callers_memory():
    joblib = need("joblib")
    xs = [baton.zeros(1000) for _ in range(4)]
    ys = joblib.Parallel(n_jobs=2)(joblib.delayed(fill)(x, i) for i, x in enumerate(xs, 1))
    assert [x[0].item() for x in xs] == [1, 2, 3, 4]
    ys[0].numpy()[0] = 9
    assert xs[0][0].item() == 9


def fill(x, value):
    x.numpy()[:] = value
    return x


def test_cloudpickle_has_the_bytes():
    cloudpickle = need("cloudpickle")
    x = baton.zeros(3)
    y = pickle.loads(cloudpickle.dumps(lambda: x))()
    y.numpy()[0] = 7
    assert x[0].item() == 0
    with baton.pickle_handles():
        data = cloudpickle.dumps([x])
    pickle.loads(data)[0].numpy()[0] = 7
    assert x[0].item() == 7


def test_a_handle_is_unpickled_once_and_keeps_its_tensor_until_then():
    session = baton.connect()
    x = session.zeros(1000)
    data = handed_over(x)
    x.release()
    session.collect()
    assert session.stats()["live"] == 1
    pickle.loads(data).release()
    eventually(lambda: session.collect() >= 0 and session.stats()["live"] == 0, "the lease to be claimed")
    with pytest.raises(baton.Expired):
        pickle.loads(data)


def test_copies_of_python_share_and_deep_ones_do_not():
    x = baton.zeros(3)
    b = baton.share({"w": x})
    for same in (copy.copy(x), copy.copy(b)["w"]):
        same.numpy()[0] += 1
    copy.deepcopy(x).numpy()[0] = copy.deepcopy(b)["w"].numpy()[0] = 9
    assert x[0].item() == 2


def test_a_released_tensor_is_not_pickled():
    x = baton.zeros(3)
    x.release()
    with pytest.raises(baton.Closed):
        pickle.dumps(x)


def test_what_was_received_is_pickled_after_its_session_was_closed():
    s = baton.connect()
    x = s.share(np.arange(6).reshape(2, 3))
    views = [x, x.T, x[:, ::2]]
    s.close()
    file = io.BytesIO()
    pickle.dump(views, file)
    assert [v.tolist() for v in pickle.loads(file.getvalue())] == [v.tolist() for v in views]


def test_a_handle_waits_for_no_broker_and_outlives_its_maker(own, child):
    """The broker is told, and holds the memory before it ends the session that has told it."""
    maker = child(
        """
import pickle
import signal
x = baton.share(np.arange(1000))
say("ready")
sys.stdin.readline()
with baton.pickle_handles():
    say(pickle.dumps(x).hex())
sys.stdin.readline()
"""
    )
    taker = child(
        """
import pickle
import signal
baton.connect()
say("ready")
x = pickle.loads(bytes.fromhex(sys.stdin.readline()))
say(int(x.numpy().sum()))
"""
    )
    assert (maker.hear(), taker.hear()) == ("ready", "ready")
    own.suspend()
    maker.tell("go")
    data = maker.hear()
    maker.kill()
    own.resume()
    taker.tell(data)
    assert taker.hear() == "499500"


def test_what_belongs_to_a_process_says_what_to_pickle(name):
    calls = []

    @baton.function(name + "/one")
    def one():
        calls.append(baton.current_call())

    @baton.function(name + "/count")
    def count():
        yield from range(3)

    with baton.start_functions(one, count):
        f = baton.get_function(name + "/one")
        f()
        with baton.get_function(name + "/count").stream() as parts:
            for what, remedy in (f, "pickle its name"), (parts, "take them there"), (calls[0], "what is needed of it"):
                with pytest.raises(TypeError, match=remedy):
                    pickle.dumps(what)
        namespace = baton.bind(name)
        namespace.one()  # which it knows from here on
        assert pickle.loads(pickle.dumps(namespace)).one() is None
