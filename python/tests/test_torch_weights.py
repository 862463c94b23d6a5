"""Weights from a trainer to those that infer."""

import json
import signal
import subprocess

import baton
import numpy as np
import pytest
from conftest import BATON, PATIENCE, eventually, need

torch = need("torch")


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


@pytest.fixture
def pair(name):
    sender, receiver = baton.torch.weights.Sender(name), baton.torch.weights.Receiver(name)
    yield sender, receiver
    receiver.close()
    baton.delete(name)


@pytest.mark.parametrize("copy", [False, True])
def test_a_module_follows_in_another_process(name, child, copy):
    m = model()
    sender = baton.torch.weights.Sender(name)
    c = child(
        """
import torch
m = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
r = baton.torch.weights.Receiver(sys.argv[1], into=m, copy=sys.argv[2] == "True")
say("ready")
for _ in range(3):
    assert r.receive(timeout=60) is m
    say(r.version, r.meta, sorted(r.changed), float(m[0].weight.sum()), m[1].num_batches_tracked.item())
    sys.stdin.readline()
""",
        name,
        str(copy),
    )
    assert c.hear() == "ready"
    paths = sorted(m.state_dict())
    for step, changed in ((1, paths), (2, ["0.weight"]), (3, ["0.weight", "1.num_batches_tracked"])):
        if step > 1:
            m[0].weight.data.add_(1)  # which `_version` does not show
        if step == 3:
            m[1].num_batches_tracked.add_(1)
        assert sender.send(m, meta={"step": step}) == step
        expected = f"{step} {{'step': {step}}} {changed} {m[0].weight.sum().item()} {step // 3}"
        assert c.hear() == expected
        c.tell()
    c.end()
    baton.delete(name)


def test_what_has_not_changed_is_not_copied(pair):
    sender, receiver = pair
    w = {"a": torch.zeros(1 << 20), "b": torch.zeros(4)}
    sender.send(w)
    first, held = receiver.receive(PATIENCE), receiver._held
    w["b"].numpy()[1] = 5
    sender.send(w)
    second = receiver.receive(PATIENCE)
    assert receiver.changed == {"b"} and second["b"].tolist() == [0, 5, 0, 0]
    lies = [b["a"]._torch_to_read().data_ptr() for b in (held, receiver._held)]
    assert lies[0] == lies[1] and first["b"].sum() == 0
    w["a"][0] = 1
    sender.send(w, changed=["b"])  # the caller's word
    assert receiver.receive(PATIENCE)["a"][0] == 0 and receiver.changed == {"b"}
    sender.send({"a": w["a"], "c": torch.ones((), dtype=torch.int64)})
    assert receiver.receive(PATIENCE)["c"].item() == 1 and receiver.changed == {"a", "c"}
    with pytest.raises(baton.InvalidArgument, match="changed names"):
        sender.send(w, changed=["x"])


def test_the_slow_and_the_late_have_the_newest(pair):
    sender, receiver = pair
    for k in range(5):
        sender.send({"x": torch.full((3,), float(k)), "y": torch.zeros(2)}, meta=k)
    assert receiver.receive(PATIENCE)["x"].tolist() == [4, 4, 4] and receiver.meta == 4
    with pytest.raises(baton.Timeout):
        receiver.receive(0)
    late = baton.torch.weights.Receiver(sender.name, copy=True)
    got = late.receive(PATIENCE)
    got["x"].fill_(7)
    assert late.version == receiver.version == 5 and baton.get(sender.name)["x"].tolist() == [4, 4, 4]
    for k in (5, 6):
        sender.send({"x": torch.full((3,), float(k)), "y": torch.zeros(2)})
    receiver.receive(PATIENCE)
    assert receiver.changed == {"x"} and receiver.version == 7  # over what was skipped


def test_another_sender_and_plain_names_are_received_whole(pair):
    sender, receiver = pair
    sender.send({"x": torch.zeros(2)})
    receiver.receive(PATIENCE)
    baton.torch.weights.Sender(sender.name).send({"x": torch.zeros(2)})
    receiver.receive(PATIENCE)
    assert receiver.changed == {"x"}
    baton.set(sender.name, {"x": np.ones(2)}, meta={"by": "hand"})
    assert receiver.receive(PATIENCE)["x"].tolist() == [1, 1] and receiver.meta == {"by": "hand"}


def test_versions_do_not_pile_up(pair):
    sender, receiver = pair
    m = torch.nn.Linear(512, 512)
    follows = baton.torch.weights.Receiver(sender.name, into=torch.nn.Linear(512, 512))

    def live():
        baton._default.session().collect()
        return baton.stats()["live"]

    for _ in range(30):
        with torch.no_grad():
            m.weight.add_(1)
        sender.send(m)
        follows.receive(PATIENCE)
    del receiver
    eventually(lambda: live() <= 12, "old versions to be free")


def test_a_wrong_architecture_is_refused(pair):
    sender, _ = pair
    sender.send(torch.nn.Linear(2, 2))
    other = torch.nn.Linear(3, 2)
    with pytest.raises(baton.InvalidArgument, match="load a module of the same architecture"):
        baton.torch.weights.Receiver(sender.name, into=other).receive(PATIENCE)
    with pytest.raises(baton.InvalidArgument, match="keep one version"):
        baton.torch.weights.Sender(sender.name, keep=0)


def test_what_stays_keeps_no_more_than_itself(pair):
    sender, receiver = pair
    w = {f"layer{k}": torch.full((1 << 18,), float(k)) for k in range(8)}
    sender.send(w)
    receiver.receive(PATIENCE)
    for frozen in range(1, 8):  # one more at each version stays as it is
        for k in range(frozen, 8):
            w[f"layer{k}"].add_(1)
        sender.send(w)
        receiver.receive(PATIENCE)
    assert receiver.changed == {"layer7"}
    assert all(torch.equal(t, w[k]) for k, t in receiver._held.torch().items())
    handles = [json.loads(t.handle(1).to_json()) for t in receiver._held.values()]
    held = {(h["index"], h["generation"]): h["bytes"] for h in handles}  # storages, of which each has all its tensors
    assert sum(held.values()) <= 2 * sum(t.numel() * 4 for t in w.values())


def test_a_send_that_failed_changes_nothing(pair):
    sender, receiver = pair
    w = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2, dtype=torch.complex64).conj()}
    sender.send(w)
    receiver.receive(PATIENCE)
    w["a"] += 1
    with pytest.raises(TypeError, match="meta"):
        sender.send({"a": w["a"]}, meta={1, 2})
    with pytest.raises(baton.InvalidArgument, match="loss.* of meta is NaN"):
        sender.send({"a": w["a"]}, meta={"loss": float("nan")})
    for changed in ([["a"]], [7], [None], [b"a"], [{}]):
        with pytest.raises(baton.InvalidArgument, match="changed has "):
            sender.send(w, changed=changed)
    sender.send(w)
    got = receiver.receive(PATIENCE)
    assert receiver.changed == {"a"} and all(torch.equal(got[k], t) for k, t in w.items())


def test_changed_may_be_any_iterable(pair):
    sender, receiver = pair
    model = torch.nn.Linear(2, 2)
    sender.send(model)
    with torch.no_grad():
        model.weight.fill_(7)
    sender.send(model, changed=(n for n, _ in model.named_parameters()))
    assert torch.equal(receiver.receive(PATIENCE)["weight"], model.weight)


def test_a_version_of_another_publisher_is_received(pair):
    sender, receiver = pair
    sender.send(torch.nn.Linear(2, 2))
    receiver.receive(PATIENCE)
    baton.set(sender.name, {"weight": torch.ones(2)}, meta={"sender": "me"})
    assert list(receiver.receive(PATIENCE)) == ["weight"] and receiver.meta == {"sender": "me"}
    assert receiver.changed == {"weight"}


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 2)
        self.out = torch.nn.Linear(2, 3, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("frequencies", torch.ones(2), persistent=False)


@pytest.mark.parametrize("copy", [False, True])
def test_tied_weights_change_together(name, copy):
    trained, actor = Tied(), Tied()
    sender, receiver = baton.torch.weights.Sender(name), baton.torch.weights.Receiver(name, into=actor, copy=copy)
    for value in range(2):
        with torch.no_grad():
            trained.embedding.weight.fill_(value)
        sender.send(trained, changed=[k for k, _ in trained.named_parameters()] if value else None)
        receiver.receive(PATIENCE)
        assert (actor.embedding.weight == value).all() and actor.out.weight is actor.embedding.weight
    assert receiver.changed == {"embedding.weight", "out.weight"}
    baton.delete(name)


def test_a_state_dict_has_no_buffers_that_are_not_persistent(name):
    trained, actor = Tied(), Tied()
    with torch.no_grad():
        actor.frequencies.fill_(3)
    baton.torch.weights.Sender(name).send(trained.state_dict())
    baton.torch.weights.Receiver(name, into=actor).receive(PATIENCE)
    assert torch.equal(actor.out.weight, trained.out.weight) and actor.frequencies.tolist() == [3, 3]
    baton.torch.weights.Receiver(name, into=actor, copy=True).receive(PATIENCE)
    baton.delete(name)


def test_a_module_that_is_bound_in_inference_mode_is_trained_afterwards(name):
    trained, actor = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    baton.torch.weights.Sender(name).send(trained)
    receiver = baton.torch.weights.Receiver(name, into=actor)
    with torch.inference_mode():
        receiver.receive(PATIENCE)
    baton.torch.share_module(trained)
    for module in (actor, trained):
        module(torch.ones(1, 2)).sum().backward()
        assert module.weight.grad.tolist() == [[1, 1], [1, 1]]
    baton.delete(name)


@pytest.mark.parametrize(
    "wrong", [3, [torch.ones(1)], torch.ones(1), {"a": 3}, {"a": {"b": torch.ones(1)}}, {1: torch.ones(1)}]
)
def test_what_is_no_weights_is_told(name, wrong):
    sender = baton.torch.weights.Sender(name)
    with pytest.raises(baton.InvalidArgument, match="weights"):
        sender.send(wrong)
    with pytest.raises(baton.InvalidArgument, match="meta"):
        sender.send({"a": torch.empty(1, device="meta")})
    with pytest.raises(baton.InvalidArgument, match="list of paths"):
        sender.send({"a": torch.ones(1)}, changed="a")


LOST = """
import torch
from baton.torch import weights
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
sender, receiver = weights.Sender("lost"), weights.Receiver("lost", into=other)

def step(n):
    with torch.no_grad():
        model[1].weight.fill_(n)  # all else stays as it was
    sender.send(model, meta=n)
    receiver.receive(timeout=60)
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    return same, receiver.meta, sorted(receiver.changed)

step(0)
say("sent", step(1))
input()
lost = 0
for call in (lambda: sender.send(model), lambda: receiver.receive(timeout=60)):
    try:
        call()
    except baton.SessionLost:
        lost += 1
say("lost", lost)
input()
say("went on", step(2), step(3))
receiver._lost = True  # as after a loss
receiver.close()
try:
    receiver.receive(timeout=0)
except baton.Closed:
    say("closed")
"""


@pytest.mark.parametrize("how", ["stopped", "evicted"])
def test_a_sender_and_a_receiver_go_on_after_their_session_is_lost(own, child, how):
    need("torch")
    c = child(LOST)
    assert c.hear() == "sent (True, 1, ['1.weight'])"
    if how == "stopped":
        own.end(signal.SIGINT)
        own.start()
    else:
        sessions = json.loads(subprocess.check_output([BATON, "ls", "sessions", "--json"]))
        for serial in [str(row["serial"]) for row in sessions if row["pid"] == c.pid]:
            subprocess.run([BATON, "evict", "--yes", serial], check=True, stdout=subprocess.DEVNULL)
    c.tell()
    assert c.hear() == "lost 2"
    c.tell()
    everything = ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert c.hear() == f"went on (True, 2, {everything}) (True, 3, ['1.weight'])"
    assert c.hear() == "closed"
    c.end()
