"""Ray's actors hand tensors over by Baton. Ray is real; without it these tests are skipped."""

import os
import tempfile
from pathlib import Path

import baton
import pytest
from conftest import eventually, listing, need

torch = need("torch")
ray = need("ray")

import baton.ray

baton.ray.register()  # before a class names it


@pytest.fixture(scope="module", autouse=True)
def cluster(broker):
    """Ray on this machine, and the transport."""
    variables = {k: os.environ[k] for k in ("PYTHONPATH", "BATON_ADDRESS") if k in os.environ}
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(
            num_cpus=4,
            object_store_memory=80 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": variables},
            _temp_dir=folder,
        )
        yield
        ray.shutdown()


def lies_in_batons_memory(t):
    """Whether a tensor's first byte is in a mapping of Baton's memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= t.data_ptr() < high:
            return "memfd:baton" in line
    return False


class Actor:
    """Gives tensors, and takes them."""

    def __init__(self):
        self.own = baton.zeros(1 << 16, "uint8")

    @ray.method(tensor_transport="BATON")
    def give(self, what):
        made = {
            "one": lambda: torch.arange(5),
            "dict": lambda: {
                "a": torch.ones(2, 3, dtype=torch.bfloat16),
                "b": [torch.tensor(7), torch.zeros(0)],
                "c": 1,
            },
            "own": lambda: self.own.torch(),
            "graph": lambda: torch.ones(3, requires_grad=True),
            "lazy": lambda: torch.tensor([1 + 2j]).conj(),
            "meta": lambda: torch.empty(3, device="meta"),
            "none": lambda: {"nothing": 1},
        }
        return made[what]()

    @ray.method(tensor_transport="BATON")
    def many(self, n):
        return torch.full((n,), 3.0)

    @ray.method(tensor_transport="BATON")
    def onward(self, t):
        return t

    def take(self, value):
        return repr(value)

    def keep(self, t):
        self.kept = t
        return lies_in_batons_memory(t)

    def write(self, value):
        self.kept[0] = value
        return self.kept[:2].tolist()

    def look(self):
        return self.own[:2].tolist(), self.kept[:2].tolist() if hasattr(self, "kept") else None

    def write_own(self, value):
        self.own.numpy()[:] = value

    def live(self):
        session = baton._default.session()
        session.collect()
        return session.stats()["live"]


@pytest.fixture
def actor():
    """Makes actors, which end with the test."""
    made = []

    def make(**variables):
        kind = ray.remote(num_cpus=0.1, enable_tensor_transport=True)(Actor)
        made.append(kind.options(runtime_env={"env_vars": variables}).remote() if variables else kind.remote())
        return made[-1]

    yield make
    for a in made:
        ray.kill(a)


def test_tensors_arrive_as_they_are(actor):
    a, b = actor(), actor()
    for what, expected in (
        ("one", torch.arange(5)),
        ("dict", {"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": [torch.tensor(7), torch.zeros(0)], "c": 1}),
        ("graph", torch.ones(3)),
        ("lazy", torch.tensor([1 - 2j])),
        ("none", {"nothing": 1}),
    ):
        assert ray.get(b.take.remote(a.give.remote(what))) == repr(expected), what
    assert ray.get(b.take.remote(b.onward.remote(a.give.remote("one")))) == repr(torch.arange(5))
    assert ray.get(a.give.remote("one")).tolist() == [0, 1, 2, 3, 4]  # in this process
    ref = ray.put(torch.arange(2), _tensor_transport="BATON")
    assert ray.get(b.take.remote(ref)) == repr(torch.arange(2))


def test_who_takes_has_the_same_memory_and_writes_its_own(actor):
    a, b, c = actor(), actor(), actor()
    ref = a.give.remote("own")
    assert ray.get([x.keep.remote(ref) for x in (b, c)]) == [True, True]
    ray.get(a.write_own.remote(5))
    assert ray.get(b.look.remote())[1] == [5, 5]
    assert ray.get(b.write.remote(9)) == [9, 5]
    assert ray.get(a.look.remote())[0] == [5, 5] and ray.get(c.look.remote())[1] == [5, 5]


def test_buffers_are_filled(actor):
    ref, buffer = actor().give.remote("one"), torch.full((5,), -1)
    ray.experimental.set_target_for_ref(ref, [buffer])
    assert ray.get(ref).data_ptr() == buffer.data_ptr() and buffer.tolist() == [0, 1, 2, 3, 4]


def test_a_thousand_objects_leave_nothing(actor):
    a, b = actor(), actor()

    def hand_over(n):
        for _ in range(n):
            ray.get(b.take.remote(a.many.remote(1000)))

    hand_over(20)
    eventually(lambda: ray.get(a.live.remote()) <= 2, "the memory of the first ones")
    before = len(listing("storages")), len(listing("segments"))
    hand_over(1000)
    eventually(lambda: ray.get(a.live.remote()) <= 2, "the memory of all of them")
    assert not listing("leases")
    assert len(listing("storages")) <= before[0] and len(listing("segments")) <= before[1]


def test_an_object_is_kept_as_long_as_it_is_referred_to(actor):
    a, b = actor(), actor()
    ref = a.many.remote(1000)
    assert ray.get(b.keep.remote(ref))
    assert len(listing("leases")) == 1
    ray.get(b.keep.remote(ref))  # not once alone
    del ref
    eventually(lambda: not listing("leases"), "the lease's end")
    assert ray.get(b.look.remote())[1] == [3.0, 3.0]  # it has it


def test_a_killed_source_leaves_nothing(actor):
    a, b = actor(), actor()
    before = len(listing("storages"))
    ref = a.many.remote(1000)
    assert ray.get(b.keep.remote(ref))
    ray.kill(a)
    eventually(lambda: not listing("leases"), "the lease's end")
    assert ray.get(b.look.remote())[1] == [3.0, 3.0]
    ray.kill(b)
    eventually(lambda: len(listing("storages")) <= before, "the memory's end")
    with pytest.raises((baton.Expired, ray.exceptions.RayError)):
        ray.get(actor().keep.remote(ref))


def test_an_actor_with_another_broker_gets_an_error(actor, own, monkeypatch, broker):
    monkeypatch.setenv("BATON_ADDRESS", broker)
    a, far = actor(), actor(BATON_ADDRESS=own.socket)
    with pytest.raises(baton.InvalidHandle, match=r"(?s)the tensors lie on .*one machine.*NIXL"):
        ray.get(far.keep.remote(a.give.remote("one")))
    assert ray.get(far.live.remote()) >= 0  # it goes on


def test_other_memory_is_refused_by_its_name(actor):
    with pytest.raises(Exception, match="device meta"):
        ray.get(actor().take.remote(actor().give.remote("meta")))


def test_it_is_registered_once():
    baton.ray.register()
    baton.ray.register("baton")
    with pytest.raises(ValueError, match="already registered"):
        baton.ray.register("nixl")


@pytest.mark.parametrize("variable", ["1", "0"])
def test_workers_inherit_the_variable_that_installs(variable):
    """Which comes by the environment, here that of a task: no line of the task names Baton."""

    @ray.remote(num_cpus=0.1, runtime_env={"env_vars": {"BATON_TORCH_INSTALL": variable}})
    def work():
        import sys

        import torch

        x = torch.zeros(3).share_memory_()
        for line in open("/proc/self/maps"):
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            if low <= x.data_ptr() < high:
                return x.is_shared(), "memfd:baton" in line, "baton.torch" in sys.modules

    assert ray.get(work.remote()) == (True, variable == "1", variable == "1")
