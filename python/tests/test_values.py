"""Values keep their structure."""

import asyncio
import dataclasses
import json
import math
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import baton
import numpy as np
import pytest
from baton._native import open_bundle


@dataclasses.dataclass
class Sample:
    image: object
    label: int


@dataclasses.dataclass
class Made:
    """What its __init__ takes and does is not what its fields hold."""

    image: object
    scale: dataclasses.InitVar[int]
    times: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, scale):
        self.times = self.times + scale


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: object
    label: int = 1


def share(v):
    """The value with tensors in the place of arrays."""
    return {k: share(x) for k, x in v.items()} if isinstance(v, dict) else baton.share(v)


def plain(v):
    """The value with tensors as lists."""
    if isinstance(v, baton.Tensor):
        return ("tensor", v.dtype, np.asarray(v).tolist())
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return type(v)(plain(x) for x in v)
    return v


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -7, 2**53 - 1, 2**53, -(2**70), 1.0, -0.0, 1e300, 1e-7, 0.1, math.inf, -math.inf, "", "é\n\"\\", b"", b"\0x",
        [], (), {}, [1, [2, (3,)]], {"a": {"b": (1, 2.0)}}, {1: "a", None: "b", (1, "x"): [2], b"k": 3, 2.5: 4}, {"$": 1}, {"$": "tensor", "i": 0},
        {"": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_scalars_and_containers_come_out_as_they_went_in(name, value):
    q = baton.queue(name)
    q.put(value)
    got = q.get(10)
    assert got == value and type(got) is type(value)
    if isinstance(value, dict):
        assert list(got) == list(value)


def test_nan_comes_out(name):
    q = baton.queue(name)
    q.put([math.nan])
    assert math.isnan(q.get(10)[0])


def test_tensors_and_arrays_stand_where_they_stood(name):
    q = baton.queue(name)
    x = baton.full((2,), 5)
    value = {"x": x, "l": [np.arange(3), (x[1:], np.float32(2.5))], 7: {"a/b~c": np.zeros((0, 2))}, "n": 1}
    q.put(value)
    got = q.get(10)
    five, seven = ("tensor", "int64", [5, 5]), {"a/b~c": ("tensor", "float64", [])}
    assert plain(got) == {
        "x": five, "l": [("tensor", "int64", [0, 1, 2]), (("tensor", "int64", [5]), ("tensor", "float32", 2.5))], 7: seven, "n": 1,
    }  # fmt: skip
    assert not got["x"].readonly


def test_a_flat_dict_and_one_tensor_need_no_tree(name):
    q = baton.queue(name)
    for value in ({"a/b": np.ones(2), "~": np.zeros(1), "$": np.ones(1)}, np.arange(3)):
        q.put(value)
        got = q.get(10)
        assert plain(got) == plain(share(value))


def test_arrays_of_one_value_share_a_storage(name):
    s = baton.connect()
    q = s.queue(name, depth=4, description=61440)
    before = s.stats()["live"]
    q.put({str(i): np.full(100, i % 256, "uint8") for i in range(300)})
    assert s.stats()["live"] - before == 1
    got = q.get(10)
    assert all((np.asarray(got[str(i)]) == i % 256).all() for i in range(300))
    del got
    s.close()


def test_dataclasses_of_imported_modules_come_out(name):
    q = baton.queue(name)
    q.put([Sample(np.arange(2), 3)])
    got = q.get(10)[0]
    assert isinstance(got, Sample) and got.label == 3 and np.asarray(got.image).tolist() == [0, 1]


def test_dataclasses_come_out_with_the_fields_that_they_had(name):
    q = baton.queue(name)
    q.put([Made(np.arange(2), 5), Frozen(np.arange(3), 2)])
    made, frozen = q.get(10)
    assert isinstance(made, Made) and made.times == 5 and made.image.tolist() == [0, 1]
    assert isinstance(frozen, Frozen) and frozen.label == 2 and frozen.image.tolist() == [0, 1, 2]


class Pair(NamedTuple):
    image: Any
    label: int


def test_named_tuples_come_out(name):
    q = baton.queue(name)
    q.put([Pair(np.arange(2), 3), (1, 2)])
    got, plain = q.get(10)
    assert isinstance(got, Pair) and got.label == 3 and got.image.tolist() == [0, 1]
    assert type(plain) is tuple


def lazy(name):
    raise AssertionError(f"{name} was looked up: that may import")


@pytest.mark.parametrize(
    "type_name, fields",
    [
        (f"{__name__}:Pair", ["image", "label", "more"]),
        (f"{__name__}:Pair", ["label", "image"]),
        (f"{__name__}:Sample", ["image", "label"]),
        (f"{__name__}:lazy.Pair", ["image", "label"]),
        ("antigravity:x", ["a"]),
        ("lazy:Pair", ["image", "label"]),
    ],
)
def test_a_named_tuple_that_is_another_one_here_comes_as_a_tuple(type_name, fields, monkeypatch):
    module = types.ModuleType("lazy")
    module.__getattr__ = lazy
    monkeypatch.setitem(sys.modules, "lazy", module)
    tree = {"$": "tuple", "type": type_name, "fields": fields, "v": [0] * len(fields)}
    with baton.connect() as s:
        value = open_bundle(s, [], [], json.dumps(tree).encode(), b"", 1, False).value
        data = {"$": "dataclass", "type": type_name, "v": dict.fromkeys(["x", *fields], 1)}
        assert type(open_bundle(s, [], [], json.dumps(data).encode(), b"", 1, False).value) is dict
    assert type(value) is tuple and value == (0,) * len(fields)
    assert "antigravity" not in sys.modules


class Careful(Pair):
    """Whose own way to be made refuses."""

    def __new__(cls, image, label):
        raise AssertionError("it was made once")


def test_a_named_tuple_is_not_made_again(name):
    q = baton.queue(name)
    q.put(tuple.__new__(Careful, (np.arange(2), 3)))
    got = q.get(10)
    assert type(got) is Careful and got.label == 3


def test_arrays_that_share_memory_do_so_on_arrival(name):
    q = baton.queue(name)
    a = np.arange(12.0).reshape(3, 4)
    q.put([a, a[2], a[:, 1], a, a + 1])
    whole, row, column, same, other = (x.numpy() for x in q.get(10))
    assert [x.tolist() for x in (whole, row, column, same)] == [x.tolist() for x in (a, a[2], a[:, 1], a)]
    whole[2, 1] = 99
    assert row[1] == column[2] == same[2, 1] == 99 and other[2, 1] == 10
    assert a[2, 1] == 9, "the sender's own are as they were"
    # Where nothing covers what lies between the elements of columns, that is not sent for them.
    big = np.arange(40.0).reshape(10, 4)
    for columns in ([big[:, 0], big[:, 1]], [big[:, :2], big[:, 1:2]], [big[:, 0], big[:, 0]]):
        q.put(columns)
        for x, own in zip(q.get(10), columns, strict=True):
            assert np.array_equal(np.asarray(x), own) and np.asarray(x).flags.c_contiguous
    q.put([a, a, big[:, 0]])
    one, two, _ = (x.numpy() for x in q.get(10))
    one[0, 0] = 7
    assert two[0, 0] == 7


def test_views_that_are_not_aligned_go_alone(name):
    q = baton.queue(name)
    u = np.frombuffer(bytearray(81), "u1")[1:].view("f8")
    q.put([u, u[1:], u[::-1]])
    assert [x.tolist() for x in q.get(10)] == [u.tolist(), u[1:].tolist(), u.tolist()]


def test_parts_that_overlap_are_aligned_as_they_were(name):
    q = baton.queue(name)
    raw = bytearray(range(64))
    parts = [np.frombuffer(raw, "f4", 4, 4), np.frombuffer(raw, "f8", 2, 8), np.frombuffer(raw, "u1", 64)]
    q.put(parts)
    for x, y in zip(q.get(10), parts, strict=True):
        assert np.asarray(x).tobytes() == y.tobytes()
        assert np.asarray(x).ctypes.data % y.itemsize == 0


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_an_array_without_gaps_keeps_the_order_of_its_dimensions(name, order):
    q = baton.queue(name)
    a = np.arange(24, dtype="int16").reshape(2, 3, 4).transpose(order)
    for value in (a, [a, np.ones(3)], a[::-1], a[:, :1]):
        q.put(value)
        got = q.get(10)
        first, own = (got[0], value[0]) if isinstance(value, list) else (got, value)
        assert np.array_equal(np.asarray(first), own)
        if own is a:
            assert np.asarray(first).strides == a.strides


@pytest.mark.parametrize("fields", [{"image": 1}, {"image": 1, "label": 2, "more": 3}, {"image": 1, "other": 2}])
def test_a_dataclass_that_has_other_fields_here_comes_as_a_dict(fields):
    tree = {"$": "dataclass", "type": f"{Sample.__module__}:Sample", "v": fields}
    with baton.connect() as s:
        assert open_bundle(s, [], [], json.dumps(tree).encode(), b"", 1, False).value == fields


def test_scalars_of_time_are_no_bytes(name):
    q = baton.queue(name)
    for time in (np.datetime64("2026-01-01"), np.timedelta64(3, "s"), np.array(["2026-01-01"], "M8[D]")):
        with pytest.raises(TypeError, match="int64"):
            q.put({"at": time})
    q.put({"at": np.datetime64("2026-01-01").view("int64"), "eight": np.arange(8, dtype="uint8")})
    got = q.get(10)
    assert got["at"].item() == 20454 and got["eight"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_message_tells_what_is_in_it(name):
    t = baton.topic(name)
    r = t.reader()
    t.send({"image": np.zeros(2)})
    m = r.receive(10)
    assert "image" in m and "label" not in m


def test_other_types_are_refused_and_named(name):
    t = baton.topic(name)
    deep = []
    for _ in range(200):
        deep = [deep]
    for bad in (object(), {"a": [1, {2}]}, {(1, object()): 1}, 1j, print):
        with pytest.raises(TypeError):
            t.send(bad)
    with pytest.raises(TypeError, match="a/1"):
        t.send({"a": [1, object()]})
    with pytest.raises(ValueError, match="nested"):
        t.send(deep)
    for bad in ({"a": np.zeros(1)}, {"a": baton.zeros(1)}, {1: 2}, b"x", {1, 2}):
        with pytest.raises(TypeError):
            t.send(None, meta=bad)


def test_what_json_cannot_hold_is_refused_and_named(name):
    t, q, deep = baton.topic(name), baton.queue(), []
    for _ in range(200):
        deep = [deep]
    for meta, place in (
        (math.nan, "meta is NaN"),
        ({"loss": [1.0, -math.inf]}, '"loss/1" of meta is -inf'),
        ({"n": 2**64}, f'"n" of meta is {2**64}, which has more than 64 bits'),
        ({"k": "\ud800"}, '"k" of meta has half a surrogate pair'),
        (deep, '"0/.*" of meta is nested deeper'),
    ):
        for call in (
            lambda meta=meta: t.send(None, meta=meta),
            lambda meta=meta: asyncio.run(t.send_async(None, meta=meta)),
            lambda meta=meta: baton.set(name, {"x": np.ones(1)}, meta=meta),
        ):
            with pytest.raises(baton.InvalidArgument, match=f"^{place}") as e:
                call()
            assert e.value.remedy and isinstance(e.value, ValueError)
    for value in (deep, "\ud800", {"a": 10**4200}, {"a": 10**100_000}):
        for call in (
            lambda value=value: t.send(value),
            lambda value=value: q.put(value),
            lambda value=value: asyncio.run(q.put_async(value)),
            lambda value=value: baton.set(name, value),
        ):
            with pytest.raises(baton.InvalidArgument, match="of the value|^the value"):
                call()
    assert baton.names(name) == [] and q.qsize() == 0


def test_a_tag_is_a_level(name):
    t = baton.topic(name)
    r = t.reader()
    x = baton.zeros(1)
    for inner in (math.inf, 2**60, b"x", x):
        fits = inner
        for _ in range(99):
            fits = [fits]
        t.send(fits)
        got = r.receive(10).value
        for _ in range(99):
            (got,) = got
        assert type(got) is type(inner)
        with pytest.raises(ValueError, match="nested"):
            t.send([fits])
    deep = 7
    for _ in range(100):
        deep = [deep]
    t.send(deep)
    with pytest.raises(ValueError, match="nested"):
        t.send([deep])


def test_meta_goes_along(name):
    t = baton.topic(name)
    r = t.reader()
    t.send(1, meta={"epoch": 3, "big": 2**60, "l": [None, 1.5, "x"]})
    t.send(2)
    assert r.receive(10).meta == {"epoch": 3, "big": 2**60, "l": [None, 1.5, "x"]}
    assert r.receive(10).meta is None


def vectors(kind):
    path = Path(__file__).parents[2] / "protocol" / "testdata" / "v1" / kind / "tree.json"
    return [pytest.param(case, id=case["name"]) for case in json.loads(path.read_text())["cases"]]


def bundle_of(s, case):
    """The bundle of a case, with tensors that are its numbers."""
    tree = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode()
    names = case.get("names") or []
    return open_bundle(s, [s.full(1, i).handle().to_json() for i in range(len(names))], names, tree, b"", 1, False)


@pytest.mark.parametrize("case", [c for c in vectors("messages") if c.id != "dataclass"])  # of no module here
def test_trees_are_those_of_the_vectors(case):
    with baton.connect() as s:
        again = s.bundle(bundle_of(s, case).value)
        names, tree, _ = again._parts()
        assert ("" if tree == b"{}" else tree.decode()) == case["text"]
        assert not case["text"] or names == (case.get("names") or [])
        assert [t.item() for t in again.values()] == list(range(len(names)))


@pytest.mark.parametrize("case", [c for c in vectors("reject") if not c.id.startswith("no tree, ")])  # paths
def test_what_no_sender_writes_is_refused(case):
    with baton.connect() as s, pytest.raises(baton.ProtocolError, match="malformed"):
        bundle_of(s, case).value


@pytest.mark.parametrize("keys", [1, 7, 8, 9, 30])
def test_a_key_twice_is_refused_among_any_number(keys):
    tree = {f"k{i}": i for i in range(keys)}
    text = json.dumps(tree).replace("}", ', "k0": 1}')
    with baton.connect() as s:
        assert open_bundle(s, [], [], json.dumps(tree).encode(), b"", 1, False).value == tree
        with pytest.raises(baton.ProtocolError, match="twice"):
            open_bundle(s, [], [], text.encode(), b"", 1, False).value


def test_meta_that_is_no_json_is_refused():
    with baton.connect() as s:
        b = open_bundle(s, [], [], b"{}", b'{"step":', 1, False)
        with pytest.raises(baton.ProtocolError, match="the meta of a bundle"):
            b.meta
        assert b.value == {}


def test_the_word_of_another_process_imports_nothing():
    with baton.connect() as s:
        b = open_bundle(s, [], [], b'{"$":"dataclass","type":"antigravity:x","v":{"a":1}}', b"", 1, False)
        assert b.value == {"a": 1}
        b = open_bundle(s, [], [], b'{"$":"dataclass","type":"os:system","v":{"a":1}}', b"", 1, False)
        assert b.value == {"a": 1}
