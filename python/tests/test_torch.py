"""Modules over shared memory."""

import copy
import dataclasses
import gc
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import baton
import numpy as np
import pytest
from conftest import PATIENCE, eventually, need

torch = need("torch")


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 10, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("empty", torch.zeros(0, 3))
        base = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("left", base[:, :2])
        self.register_buffer("right", base.T[2:])

    def forward(self, x):
        return self.out(self.norm(self.embed(x)))


def test_parameters_move_and_stay_themselves(name):
    m = Tied()
    before = {k: v.clone() for k, v in m.state_dict().items()}
    parameters, optimizer = list(m.parameters()), torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
    b = baton.torch.share_module(m, name)
    assert b.keys() and baton.get(name).live
    assert all(p is q for p, q in zip(parameters, m.parameters(), strict=True)) and m.out.weight is m.embed.weight
    assert all(t.is_shared() for t in (*m.parameters(), *m.buffers()))
    assert all(torch.equal(v, before[k]) for k, v in m.state_dict().items())
    m(torch.arange(10)).sum().backward()
    optimizer.step()
    assert np.allclose(baton.get(name)["embed.weight"].numpy(), m.embed.weight.detach().numpy())
    m.left[0, 0] = 99
    assert b["left"].numpy()[0, 0] == 99 and m.left.untyped_storage().data_ptr() == m.right.untyped_storage().data_ptr()
    baton.delete(name)


def test_another_process_binds_and_writes(name, child):
    m = torch.nn.Linear(3, 2)
    baton.torch.share_module(m, name)
    c = child(
        """
import torch
m = torch.nn.Linear(3, 2)
baton.torch.load_module(m, sys.argv[1])
assert m.weight.is_shared()
with torch.no_grad():
    m.weight.fill_(7)
say("written"); sys.stdin.readline()
say(float(m.bias[0]))
""",
        name,
    )
    assert c.hear() == "written"
    assert (m.weight == 7).all()
    with torch.no_grad():
        m.bias.fill_(3)
    c.tell()
    assert c.hear() == "3.0"
    c.end()
    copied = torch.nn.Linear(3, 2)
    baton.torch.load_module(copied, name, copy=True)
    with torch.no_grad():
        copied.weight.fill_(1)
    assert (m.weight == 7).all()
    baton.delete(name)


def test_an_ephemeral_module_goes_with_its_session(name, child):
    c = child(
        """
import torch
m = torch.nn.Linear(3, 2)
baton.torch.share_module(m, sys.argv[1], ephemeral=True)
say("shared"); sys.stdin.readline()
baton._default.session().close()
say(m.weight.detach().fill_(3).sum().item()); sys.stdin.readline()
""",
        name,
    )
    assert c.hear() == "shared"
    follower = torch.nn.Linear(3, 2)
    assert baton.torch.load_module(follower, name).live
    c.tell()
    assert c.hear() == "18.0"  # its memory stays where it is in use
    eventually(lambda: baton.names(name) == [], "the name to be deleted")
    assert (follower.weight == 3).all()
    c.end()


def test_stock_torch_sends_shared_parameters_on_without_a_copy(name):
    m = torch.nn.Linear(3, 2)
    baton.torch.share_module(m, name)
    context = torch.multiprocessing.get_context("fork")
    q = context.SimpleQueue()
    p = context.Process(target=lambda: q.get().fill_(5))
    p.start()
    q.put(m.weight.detach())
    p.join(PATIENCE)
    assert p.exitcode == 0 and (m.weight == 5).all()
    baton.delete(name)


def test_revisions_are_published_and_bound_privately(name):
    m = torch.nn.Linear(3, 2)
    assert baton.torch.publish_module(m, name) == 1
    other = torch.nn.Linear(3, 2)
    b = baton.torch.load_module(other, name)
    assert b.revision == 1 and torch.equal(other.weight, m.weight)
    with torch.no_grad():
        other.weight.fill_(0)
    assert (baton.get(name)["weight"].numpy() != 0).any()
    assert baton.torch.publish_module(m, name) == 2
    baton.delete(name)


def test_a_module_that_follows_a_name_holds_one_revision(name):
    m, follower = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    live = []
    for step in range(20):
        with torch.no_grad():
            m.weight.fill_(step)
        baton.torch.publish_module(m, name)
        baton.torch.load_module(follower, name)
        assert (follower.weight == step).all()
        live.append(baton.stats()["live"])
    assert max(live[3:]) == live[3]
    baton.delete(name)


def test_a_module_that_is_bound_anew_lets_go_of_shared_memory(name):
    follower, live = torch.nn.Linear(3, 2), []
    for i in range(20):
        shared = torch.nn.Linear(3, 2)
        baton.torch.share_module(shared, f"{name}/{i}")
        baton.torch.load_module(follower, f"{name}/{i}")
        assert torch.equal(follower.weight, shared.weight)
        baton.delete(f"{name}/{i}")
        del shared
        gc.collect()
        live.append(baton.stats()["live"])
    assert max(live[5:]) == live[5]


def test_a_part_of_a_shared_module_is_saved_alone(name, tmp_path):
    plain, shared = (torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]) for _ in range(2))
    baton.torch.share_module(shared, name)
    follower = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
    baton.torch.load_module(follower, name)
    for module in (shared, follower):
        assert len(pickle.dumps(module)) == len(pickle.dumps(plain))
        assert len(pickle.dumps(module.state_dict())) == len(pickle.dumps(plain.state_dict()))
        assert len(pickle.dumps(module[1])) == len(pickle.dumps(plain[1]))
        torch.save(module[1].state_dict(), tmp_path / "shared.pt")
        torch.save(plain[1].state_dict(), tmp_path / "plain.pt")
        assert (tmp_path / "shared.pt").stat().st_size <= (tmp_path / "plain.pt").stat().st_size + 64
        for t in (*copy.deepcopy(module[1]).parameters(), *copy.deepcopy(module[1].state_dict()).values()):
            assert t.untyped_storage().nbytes() == t.nbytes
    baton.delete(name)


def test_views_of_before_follow_a_module_that_is_shared(name):
    if not baton.torch._storages.moves():
        pytest.skip("this torch does not move storages")
    m = Tied()
    m(torch.arange(10)).sum().backward()
    gradient = m.norm.weight.grad
    flat, grid, seen = m.norm.weight.data[1:], m.left.T, gradient[:2]
    b = baton.torch.share_module(m, name)
    with torch.no_grad():
        m.norm.weight.fill_(5), m.left.fill_(6), gradient.fill_(7)
    assert (flat == 5).all() and (grid == 6).all() and (b["norm.weight"].numpy() == 5).all()
    assert m.norm.weight.grad is gradient and gradient.is_shared() and (seen == 7).all()
    assert all(t.is_shared() for t in (*m.parameters(), *m.buffers())) and not m.empty.numel()
    before = m.embed.weight.data_ptr()
    baton.torch.share_module(m)  # it lies there: what others have of it stays the same memory
    assert m.embed.weight.data_ptr() == before
    m.embed.weight.grad = torch.zeros(10, 4).to_sparse()  # stays as it is
    baton.torch.share_module(m)
    baton.delete(name)


def test_a_torch_that_moves_no_storages_shares_modules(name, monkeypatch):
    def refuse(*_):
        raise RuntimeError("this torch moves nothing")

    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", refuse, raising=False)
    m, worker = Tied(), Tied()
    m(torch.arange(10)).sum().backward()
    baton.torch.share_module(m, name)
    baton.torch.load_module(worker, name)
    with torch.no_grad():
        m.embed.weight.fill_(4), m.right.fill_(5)
    assert (worker.out.weight == 4).all() and (worker.right == 5).all() and worker.left[0, 0] == 0
    assert storage_of(m.left) == storage_of(m.right) and m.out.weight is m.embed.weight
    assert all(t.is_shared() for t in (*m.parameters(), *m.buffers())) and m.norm.weight.grad.is_shared()
    baton.delete(name)


def test_a_module_in_a_file_of_torchs_moves(name):
    m, worker = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    m.weight.data = torch.zeros(2, 3)
    torch.UntypedStorage._share_fd_cpu_(m.weight.untyped_storage())
    baton.torch.share_module(m, name)
    baton.torch.load_module(worker, name)
    with torch.no_grad():
        m.weight.fill_(4)
    assert (worker.weight == 4).all()
    baton.delete(name)


def test_what_overlaps_is_one_storage_where_it_is_bound(name):
    m, worker = Tied(), Tied()
    baton.torch.share_module(m, name)
    baton.torch.load_module(worker, name)
    for module in (m, worker):
        assert storage_of(module.left) == storage_of(module.right) != storage_of(module.norm.weight)
        assert storage_of(module.embed.weight) == storage_of(module.out.weight)
    baton.delete(name)


def test_views_of_one_storage_stay_so_when_a_revision_is_seen_as_torch(name):
    x = baton.share(np.arange(4.0))
    baton.set(name, {"all": x, "rest": x[1:]})
    seen = baton.get(name).torch()
    seen["all"][1] = 99
    assert seen["rest"][0] == 99 and baton.get(name)["all"].tolist() == [0, 1, 2, 3]
    baton.delete(name)


def test_a_published_module_carries_meta(name):
    baton.torch.publish_module(torch.nn.Linear(3, 2), name, meta={"step": 7})
    assert baton.torch.load_module(torch.nn.Linear(3, 2), name).meta == {"step": 7}
    assert baton.torch.publish_module(torch.nn.Linear(3, 2), name) == 2 and baton.get(name).meta is None
    baton.delete(name)


def storage_of(t):
    return t.untyped_storage()._cdata


def saved(state):
    """What torch.save writes of it."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_module_in_shared_memory_is_saved_and_copied_as_any_other(name):
    m = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))  # of two types: it counts in int64
    before = len(saved(m.state_dict()))
    baton.torch.share_module(m, name)
    other = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    baton.torch.load_module(other, name)
    for shared in (m, other):
        bytes = saved(shared.state_dict())
        assert len(bytes) < 2 * before  # not the whole of the segment
        again = torch.load(io.BytesIO(bytes))
        assert all(torch.equal(v, again[k]) for k, v in m.state_dict().items())
        own = copy.deepcopy(shared)
        assert all(torch.equal(v, own.state_dict()[k]) for k, v in m.state_dict().items())
    with torch.no_grad():
        m[0].weight.fill_(3)
        m[1].num_batches_tracked.fill_(7)
    assert (other[0].weight == 3).all() and other[1].num_batches_tracked == 7 and (own[0].weight != 3).all()
    baton.delete(name)


def test_a_module_without_memory_names_the_way_out(name):
    m = torch.nn.Linear(3, 2, device="meta")
    with pytest.raises(baton.InvalidArgument, match=r"weight lies on meta .*to_empty"):
        baton.torch.share_module(m, name)
    baton.torch.share_module(m.to_empty(device="cpu"), name)
    baton.delete(name)


def test_a_sparse_buffer_is_refused_by_its_path(name):
    m = torch.nn.Linear(3, 2)
    m.register_buffer("mask", torch.eye(3).to_sparse())
    with pytest.raises(baton.InvalidArgument, match="mask is a torch.sparse_coo tensor"):
        baton.torch.share_module(m, name)


@pytest.mark.parametrize("dtype", ["uint4", "bits8"])
def test_a_buffer_of_a_type_that_only_torch_has_is_refused_by_its_path(name, dtype):
    m = torch.nn.Linear(2, 2)
    m.register_buffer("packed", torch.zeros(4, dtype=torch.uint8).view(getattr(torch, dtype)))
    with pytest.raises(baton.InvalidArgument, match=f"packed is torch.{dtype}.*uint8"):
        baton.torch.share_module(m, name)


def test_a_conjugate_buffer_keeps_its_numbers(name):
    m = torch.nn.Module()
    m.register_buffer("c", torch.tensor([1 + 2j, 3 - 4j]).conj())
    baton.torch.share_module(m, name)
    assert m.c.tolist() == baton.get(name)["c"].tolist() == [1 - 2j, 3 + 4j]
    baton.delete(name)


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    mask: "torch.Tensor | None"
    raw: object


class Step(NamedTuple):
    image: torch.Tensor
    n: int


def test_fields_that_are_said_to_be_torchs_are(name):
    q = baton.queue(name)
    q.put([Batch(torch.ones(2), torch.zeros(1), np.ones(3)), Step(torch.ones(2), 4), Batch(torch.ones(2), None, 1)])
    batch, step, empty = q.get(PATIENCE)
    assert isinstance(batch.image, torch.Tensor) and isinstance(batch.mask, torch.Tensor)
    assert isinstance(batch.raw, baton.Tensor) and empty.mask is None
    assert isinstance(step, Step) and isinstance(step.image, torch.Tensor) and step.n == 4


def test_tied_weights_and_channels_last_are_kept(name):
    a, b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    b.weight = a.weight
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    baton.torch.publish_module(torch.nn.Sequential(a, b, conv), name)
    seen = baton.get(name).torch()
    assert seen["0.weight"].data_ptr() == seen["1.weight"].data_ptr() != seen["0.bias"].data_ptr()
    assert seen["2.weight"].is_contiguous(memory_format=torch.channels_last)
    worker = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Conv2d(3, 4, 3))
    baton.torch.load_module(worker, name)
    assert worker[0].weight.data_ptr() != worker[1].weight.data_ptr()  # as the worker has them
    worker[1].weight = worker[0].weight
    baton.torch.load_module(worker, name)
    assert worker[0].weight.data_ptr() == worker[1].weight.data_ptr()
    assert worker[2].weight.stride() == conv.weight.stride() and torch.equal(worker[2].weight, conv.weight)
    baton.delete(name)


def test_other_architectures_are_refused(name):
    baton.torch.publish_module(torch.nn.Linear(3, 2), name)
    for other in (torch.nn.Linear(3, 3), torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(3, 2).double()):
        with pytest.raises(baton.InvalidArgument, match="architecture"):
            baton.torch.load_module(other, name)
    baton.delete(name)


def test_memory_stays_as_long_as_a_parameter(name):
    m = torch.nn.Linear(3, 2)
    weight = m.weight
    baton.torch.share_module(m, name)
    value = weight.detach().clone()
    baton.delete(name)
    del m
    for _ in range(50):
        baton.full(64, 9.0, "float32")
    assert torch.equal(weight, value)


def test_load_module_waits_for_the_name(name):
    shared, worker = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with pytest.raises(baton.NotFound):
        baton.torch.load_module(worker, name, timeout=0.01)
    with ThreadPoolExecutor() as pool:
        loading = pool.submit(baton.torch.load_module, worker, name, timeout=PATIENCE)
        baton.torch.share_module(shared, name)
        assert loading.result().live
    assert torch.equal(shared.weight, worker.weight)
    baton.delete(name)


def test_a_torch_that_moves_no_storages_shares_as_ever(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch, torch.multiprocessing as stock, baton.torch
from torch.utils.data import DataLoader

def refuse(*_):
    raise RuntimeError("this torch moves nothing")

torch.UntypedStorage._swap_data_ptr_ = refuse
import baton.torch.multiprocessing as mp

def fill(inbox, out, done):
    x = inbox.get()
    x.fill_(7)
    out.put(x * 2)
    done.wait()  # torch's sender must live until it is taken

if __name__ == "__main__":
    print(baton.torch.install())
    for m in (mp, stock):
        for make in (m.Queue, m.SimpleQueue):
            x, inbox, out, done = torch.zeros(3), make(), make(), m.Event()
            p = m.Process(target=fill, args=(inbox, out, done))
            p.start()
            inbox.put(x[1:])
            y = out.get()
            done.set()
            p.join()
            print(x.tolist(), y.tolist(), x.is_shared())
    print([batch.sum().item() for batch in DataLoader([torch.ones(3)] * 8, batch_size=4, num_workers=2)])
    with mp.Pool(1) as pool:
        print(pool.map(torch.neg, [torch.ones(2)]))
"""
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    first, *shared, batches, pooled = done.stdout.splitlines()
    assert first == "Installed(storages=False, collate=False)"
    assert shared == ["[0.0, 7.0, 7.0] [14.0, 14.0] True"] * 4
    assert batches == "[12.0, 12.0]" and pooled == "[tensor([-1., -1.])]"


@pytest.mark.parametrize("how", ["share_module", "load_module", "share_memory"])
def test_a_revision_of_a_shared_module_stays_as_it_was(name, how):
    m = torch.nn.Linear(3, 2)
    with torch.no_grad():
        m.weight.fill_(1)
    if how == "share_memory":
        baton.torch.install()
        m.share_memory()
        baton.torch.uninstall()
    else:
        bundle = baton.torch.share_module(m)
        if how == "load_module":
            m = torch.nn.Linear(3, 2)
            baton.torch.load_module(m, bundle)
    baton.torch.publish_module(m, name)
    with torch.no_grad():
        m.weight.fill_(7)
    other = torch.nn.Linear(3, 2)
    baton.torch.load_module(other, name)
    assert (baton.get(name)["weight"].numpy() == 1).all() and (other.weight == 1).all() and (m.weight == 7).all()
    baton.delete(name)


def test_a_state_dict_keeps_its_class_and_what_it_says_of_versions(name, child):
    from collections import OrderedDict

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    state = model.state_dict()
    q, t = baton.queue(), baton.topic()
    reader = t.reader()
    q.put({"state": state, "step": 3})
    t.send(state)
    baton.set(name, state)
    plain = OrderedDict({"b": 1, "a": OrderedDict({"x": torch.ones(2)})})
    q.put(plain)
    for got in (q.get()["state"], reader.receive(PATIENCE).value, baton.get(name).value, baton.share(state).value):
        assert type(got) is OrderedDict and [*got] == [*state]
        assert got._metadata == state._metadata and type(got._metadata) is OrderedDict
        assert got._metadata["1"] == {"version": 2}
        assert all(torch.equal(got[k].torch(), state[k]) for k in state)
    assert baton.get(name).keys() == [*state]  # the paths are those of a dict
    got = q.get()
    assert type(got) is OrderedDict and [*got] == ["b", "a"] and type(got["a"]) is OrderedDict
    assert not hasattr(got, "_metadata") and got["a"]["x"].torch().tolist() == [1, 1]
    # What the tree has no place for stays a dict.
    for other in (OrderedDict({1: 2}), OrderedDict({"_metadata": 1, "x": 2}), OrderedDict({"$": 1})):
        q.put(other)
        assert type(back := q.get()) is dict and back == dict(other)
    c = child("say(type(baton.get(sys.argv[1]).value).__name__, 'torch' in sys.modules)", name)
    assert c.hear() == "OrderedDict False"
    c.end()
    # A model loads it with the checks that the versions are for.
    other = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    value = baton.get(name).value
    views = OrderedDict((k, v.torch()) for k, v in value.items())
    views._metadata = value._metadata
    other.load_state_dict(views)
    assert torch.equal(other[0].weight, model[0].weight)
    baton.delete(name)
