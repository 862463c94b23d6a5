"""Nested structures in one storage, and the ways out of a bundle."""

import collections.abc
import dataclasses
import pickle

import baton
import numpy as np
import pytest
from conftest import eventually, handed_over


@dataclasses.dataclass
class Layer:
    w: object
    b: object


NESTED = {"l": [np.arange(6.0).reshape(2, 3), (np.int8(3), np.zeros((0, 2)))], "n": 7, "d": Layer(np.ones(3), None)}


@pytest.fixture
def session():
    with baton.connect() as s:
        yield s


def test_share_of_a_nested_structure_is_one_storage(session):
    before = session.stats()["live"]
    b = session.share(NESTED)
    assert session.stats()["live"] == before + 1
    assert isinstance(b, baton.Bundle) and list(b) == ["l/0", "l/1/0", "l/1/1", "d/w"]
    assert b["l/0"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and b["l/1/0"].item() == 3
    v = b.value
    assert v["n"] == 7 and isinstance(v["l"][1], tuple) and isinstance(v["d"], Layer) and v["d"].b is None
    assert (b.revision, b.live) == (0, False) and not b["l/0"].readonly


def test_what_is_shared_is_referenced_unless_a_copy_is_wanted(session):
    x = session.zeros(4)
    for a, same in ((session.share({"x": x}), True), (session.share({"x": x}, copy=True), False)):
        a["x"].numpy()[0] += 1
        assert bool(x.numpy()[0] == 1) is same
        x.numpy()[0] = 0
    session.share({"x": x}, copy=False)
    for bad in ({"x": x, "y": np.zeros(2)}, np.zeros(2)):
        with pytest.raises(baton.InvalidArgument):
            session.share(bad, copy=False)
    for bad in ({"a": 1}, [], 5, None, "text"):
        with pytest.raises(TypeError):
            session.share(bad)


def test_empty_like_has_the_same_shapes_and_its_own_memory(session):
    before = session.stats()["live"]
    b = session.empty_like(NESTED)
    assert session.stats()["live"] == before + 1
    assert {p: (t.shape, t.dtype) for p, t in b.items()} == {
        p: (t.shape, t.dtype) for p, t in session.share(NESTED).items()
    }
    x = session.zeros((2, 3), "int16")
    y = session.empty_like(x)
    y.numpy()[:] = 5
    assert (y.shape, y.dtype, x.numpy().sum()) == ((2, 3), "int16", 0)
    assert session.empty_like(b["l/0"].T).strides == (2, 1)


def test_empty_like_waits_for_memory_and_takes_huge_pages_as_empty_does(session):
    for a in (np.zeros(3), NESTED):
        assert len(session.empty_like(a, timeout=1.0)) > 0
        with pytest.raises(baton.InvalidArgument, match="timeout -1"):
            session.empty_like(a, timeout=-1)
        with pytest.raises(baton.InvalidArgument, match="4K"):
            baton.empty_like(a, pages="4K")
        try:
            baton.empty(1, pages="2M")
        except (baton.OutOfMemory, baton.Unsupported) as e:
            with pytest.raises(type(e), match="huge pages"):
                session.empty_like(a, pages="2M")
        else:
            assert len(session.empty_like(a, pages="2M")) > 0
    vast = np.broadcast_to(np.int8(0), (1 << 40,))
    for a in (vast, {"a": vast, "b": np.zeros(2)}):
        with pytest.raises((baton.QuotaExceeded, baton.OutOfMemory)):
            session.empty_like(a, timeout=0.01)


def test_a_bundle_is_sent_and_set_whole(name):
    b = baton.share(NESTED)
    q = baton.queue(name)
    q.put(b)
    got = q.get(10)
    assert isinstance(got["d"], Layer) and got["l"][0].shape == (2, 3)
    q.put({"inside": b})
    assert q.get(10)["inside"]["n"] == 7
    baton.set(name, b, live=True)
    baton.get(name)["l/0"].numpy()[0, 0] = 9
    assert b["l/0"].numpy()[0, 0] == 9
    baton.delete(name)


def test_repr_shows_paths_shapes_and_bytes(name):
    b = baton.share({"a": np.zeros(2), "b": [np.ones((3, 1), "int16")]})
    assert repr(b) == "baton.Bundle({'a': float64 (2,), 'b/0': int16 (3, 1)}, 22 bytes)"
    baton.set(name, {"it's": np.zeros(1, "int8")}, live=True)
    assert repr(baton.get(name)) == """baton.Bundle({"it's": int8 (1,)}, 1 bytes, revision=1, live)"""
    baton.delete(name)
    many = repr(baton.share([np.zeros((), "uint8")] * 300))
    assert many.startswith("baton.Bundle({'0': uint8 (), ") and many.endswith(
        "'7': uint8 (), and 292 more}, 300 bytes)"
    )
    b.release()
    assert repr(b) == "baton.Bundle(released)"


def test_a_bundle_is_a_mapping():
    b = baton.share({"a": np.zeros(2), "b": np.ones(3)})
    assert (b.keys(), len(b), "a" in b, 3 in b, b.get("z", 1)) == (["a", "b"], 2, True, False, 1)
    assert [t.shape for t in b.values()] == [(2,), (3,)] and dict(b.items())["b"].shape == (3,)
    assert b.numpy()["b"].tolist() == [1, 1, 1] and b.numpy()["a"].tolist() == [0, 0]
    with pytest.raises(KeyError):
        b["z"]
    assert isinstance(b, collections.abc.Mapping)
    a = b.numpy()["b"]
    with b:
        pass
    with pytest.raises(baton.Closed):
        b["a"]
    assert a.tolist() == [1, 1, 1] and repr(b) == "baton.Bundle(released)"


def test_bundles_are_handed_over_by_one_lease(name, child, tmp_path):
    baton.set(name, {"w": np.arange(4.0), "l": [np.ones(2), 5]})
    np.save(tmp_path / "a.npy", np.arange(3))
    whole, mapped = baton.get(name), baton.connect().bundle({"f": baton.load(tmp_path / "a.npy")})
    c = child(
        "import pickle\nfor h in sys.argv[1:]:\n    b = pickle.loads(bytes.fromhex(h)); say(b.revision, b.value, *(t.numpy().tolist() for t in b.values()))",
        handed_over(whole).hex(),
        handed_over(mapped).hex(),
    )
    baton.delete(name)
    first = c.hear()
    assert first.startswith("1 ") and first.endswith("[0.0, 1.0, 2.0, 3.0] [1.0, 1.0]") and "5]" in first
    assert c.hear().endswith("[0, 1, 2]")
    c.end()


META = {"step": 3, "rate": 0.5, "big": 2**60, "tags": ["a", None, True], "from": {"ä": ""}}


def test_a_revision_carries_meta(name):
    w = None
    for i, meta in enumerate([META, None, [], 0, "text"]):
        assert baton.set(name, {"w": np.zeros(2)}, meta=meta) == i + 1
        w = w or baton.watch(name)
        got, seen = baton.get(name), w.receive(10)
        assert (got.revision, got.meta) == (seen.revision, seen.meta) == (i + 1, meta)
        assert 0 < got.age < 60 and not got.stale
    baton.set(name, {"w": np.ones(2)})
    assert baton.get(name).meta is None
    with baton.get(name) as b:
        pass
    with pytest.raises(baton.Closed):
        b.meta
    baton.delete(name)
    assert baton.share({"w": np.zeros(2)}).meta is None


def test_live_and_ephemeral_names_carry_meta(name):
    baton.set(name, {"w": np.zeros(2)}, live=True, meta=META)
    b = baton.get(name)
    assert b.live and b.meta == META
    baton.set(name + "/other", b, ephemeral=True, meta="mine")
    assert baton.get(name + "/other").meta == "mine"
    baton.set(name + "/other", b, ephemeral=True)
    assert baton.get(name + "/other").meta is None, "a bundle that is set again does not repeat it"
    baton.delete(name)
    baton.delete(name + "/other")


@pytest.mark.parametrize("meta", [{1: 2}, b"bytes", {"x": np.zeros(1)}, float("nan"), {"x": object()}, [1 << 64]])
def test_what_json_cannot_hold_is_no_meta_of_a_name(name, meta):
    with pytest.raises((TypeError, ValueError)):
        baton.set(name, {"w": np.zeros(2)}, meta=meta)
    with pytest.raises(baton.NotFound):
        baton.get(name)


def test_a_bundle_that_is_handed_over_keeps_its_meta(name, child):
    baton.set(name, {"w": np.arange(3.0)}, meta=META)
    baton.set(name + "/bare", {"w": np.ones(1)})
    c = child(
        "import pickle\nfor h in sys.argv[1:]:\n    b = pickle.loads(bytes.fromhex(h)); say(b.revision, b.meta, b['w'].tolist())",
        handed_over(baton.get(name)).hex(),
        handed_over(baton.get(name + "/bare")).hex(),
    )
    assert c.hear() == f"1 {META} [0.0, 1.0, 2.0]"
    assert c.hear() == "1 None [1.0]"
    c.end()
    baton.delete(name)
    baton.delete(name + "/bare")


def test_memory_of_a_bundle_is_free_after_its_pickle_was_read(session):
    b = session.share({"w": np.zeros(1000), "b": np.zeros(10)})
    data = handed_over(b)
    b.release()
    session.collect()
    assert session.stats()["live"] == 1
    again = pickle.loads(data)
    assert again["w"].shape == (1000,)
    again.release()
    eventually(lambda: session.collect() >= 0 and session.stats()["live"] == 0, "the lease to be claimed")
    with pytest.raises(baton.Expired):
        pickle.loads(data)


def test_messages_let_go_when_released(name, session):
    t = session.topic(name)
    r = t.reader()
    t.send(np.zeros(10))
    with r.receive(10) as m:
        assert m.value.shape == (10,)
    with pytest.raises(baton.Closed):
        m.value
    assert m.sequence == 1
