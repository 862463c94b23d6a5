"""One failure, one name: the classes are those of the table that all languages share."""

import builtins
import ctypes
import json
import os
import pickle
import queue
from pathlib import Path

import baton
import ml_dtypes
import numpy as np
import pytest
from baton import _errors
from conftest import PATIENCE, eventually

TABLE = json.loads((Path(__file__).parents[2] / "protocol" / "testdata" / "errors.json").read_text())["errors"]


def find(name: str) -> type:
    if name == "queue.Empty":
        return queue.Empty
    if name == "queue.Full":
        return queue.Full
    return getattr(baton, name, None) or getattr(builtins, name)


@pytest.mark.parametrize("row", TABLE, ids=[r["code"] for r in TABLE])
def test_every_code_has_its_class(row):
    c = _errors.BY_CODE[row["code"]]
    assert c is getattr(baton, row["python"]) and c.code == row["code"]
    assert list(c.__bases__) == [find(b) for b in row["python_bases"]]
    assert issubclass(c, baton.Error) and c.__doc__


def test_there_is_no_other_code():
    assert len(TABLE) > 0 and set(_errors.BY_CODE) == {r["code"] for r in TABLE}


def test_errors_say_what_and_what_to_do(name):
    with pytest.raises(baton.NotFound) as e:
        baton.get(name)
    assert str(e.value) == f"name {name} is not set (set it first, or wait longer)"
    assert e.value.code == "NotFound" and e.value.remedy and isinstance(e.value, KeyError)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_no_broker_is_a_connection_error(tmp_path):
    with pytest.raises(baton.NoBroker) as e:
        baton.connect(address=str(tmp_path / "no.sock"), timeout=0.05)
    assert isinstance(e.value, ConnectionError)


def test_timeouts_tell_who_is_there(name):
    def told(what):
        """Waits for a timeout for which the broker told that in time."""
        with pytest.raises(baton.Timeout) as e:
            r.receive(0)
        assert isinstance(e.value, TimeoutError)
        return e.value if e.value.detail.get(what) else None

    r = baton.topic(name).reader()
    e = eventually(lambda: told("readers"), "the broker to tell the readers")
    assert e.detail["readers"] == 1 and "0 writing and 1 reading" in str(e)
    with baton.connect() as other:
        other.topic(name).send(1)
        assert r.receive(PATIENCE).value == 1
    e = eventually(lambda: told("last_left"), "the broker to tell the last that left")
    assert f"{e.detail['last_left']} left last" in str(e)
    with pytest.raises(baton.Empty) as e:
        baton.queue(name + "q").get(timeout=0.01)
    assert isinstance(e.value, queue.Empty) and isinstance(e.value, baton.Timeout)
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError):
            r.receive(bad)


def test_options_that_differ_conflict(name):
    baton.topic(name, depth=4)
    t = baton.topic(name)
    with pytest.raises(baton.Conflict, match=rf"depth 4, made by .*\(pid {os.getpid()}\); 5 was asked for"):
        baton.topic(name, depth=5)
    with pytest.raises(baton.NotFound):
        baton.topic(name + "x", create=False)
    del t


def test_numbers_out_of_range_are_told_by_their_name():
    x = baton.zeros(1)
    for call, text in (
        (lambda: baton.topic(depth=-1), "depth -1"),
        (lambda: baton.queue(depth=1 << 40), "depth 1099511627776"),
        (lambda: baton.topic(description=-1), "description -1"),
        (lambda: baton.topic(linger=-1), "linger of -1"),
        (lambda: x.handle(lease=-1), "lease of -1"),
        (lambda: x.handle(lease=float("nan")), "lease of NaN"),
    ):
        with pytest.raises(baton.InvalidArgument, match=text):
            call()


@pytest.mark.parametrize("make", [baton.topic, baton.queue, lambda name: baton.set(name, 1)])
def test_an_empty_name_is_none(make):
    with pytest.raises(baton.InvalidArgument):
        make("")


def test_handles_of_nothing_are_invalid():
    for bad in ("", "{}", "null", '{"v":1}'):
        with pytest.raises(baton.InvalidHandle):
            baton.open(bad)
    with pytest.raises(TypeError):
        baton.open(3)


@pytest.mark.parametrize(
    ("array", "remedy"),
    [
        (np.zeros(2, "longdouble"), 'astype("float64")'),
        (np.array([None]), "list"),
        (np.array(["a"]), "a.tolist()"),
        (np.array(["2020-01-01"], "datetime64[D]"), 'a.view("int64")'),
        (np.zeros(2, [("x", "i4")]), "a[name]"),
        (np.zeros(2, ">f4"), "newbyteorder"),
        (np.zeros(2, "V3"), 'a.view("uint8")'),
        (np.zeros(2, ml_dtypes.bcomplex32), 'astype("complex64")'),
    ],
    ids=lambda a: str(a.dtype) if isinstance(a, np.ndarray) else a,
)
def test_elements_that_others_do_not_know_are_a_type_error_with_a_way_out(array, remedy):
    for take in (baton.share, baton.queue().put):
        with pytest.raises(TypeError, match="dtype") as e:
            take(array)
        assert remedy in str(e.value)


def test_a_masked_array_keeps_its_mask_or_is_refused():
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    q = baton.queue()
    for take in (baton.share, baton.zeros(3, "float64").copy_from, lambda a: q.put([a]), lambda a: q.put({"a": a})):
        with pytest.raises(TypeError, match="filled"):
            take(masked)
    q.put({"data": masked.data, "mask": masked.mask})
    v = q.get()
    assert np.ma.masked_array(v["data"].numpy(), v["mask"].numpy()).sum() == 4
    assert baton.share(np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2]


def test_what_a_value_cannot_hold_is_named_by_its_place():
    q = baton.queue()
    for value in ({"x": np.array([None])}, {"x": np.array([None]), "y": 1}):
        with pytest.raises(TypeError, match='^"x" of the value: an array of dtype object'):
            q.put(value)


def test_a_bool_is_no_timeout_of_a_queue():
    q = baton.queue()
    for call in (lambda: q.get(True), lambda: q.put(1, False), lambda: q.get_async(True)):
        with pytest.raises(TypeError, match="0 to poll or None"):
            call()
    assert q.qsize() == 0


@pytest.mark.parametrize(
    "call",
    [
        baton.queue, baton.topic, lambda n: baton.set(n, 1), baton.get, baton.watch, baton.delete, baton.names,
        lambda n: baton.connect(address=n), lambda n: baton.connect(namespace=n), baton.Handle.from_json, baton.open,
        lambda n: baton.empty(1, n), lambda n: baton.empty(1, device=n), lambda n: baton.empty(1, pages=n),
        lambda n: baton.topic().reader(start=n), lambda n: baton.topic().reader(group=n),
        lambda n: baton.zeros(1).to(n), lambda n: baton.zeros(1).view(n),
    ],
)  # fmt: skip
def test_a_name_with_half_a_surrogate_pair_is_refused_and_named(call):
    """As `os.fsdecode` gives for a file's name that is no UTF-8."""
    with pytest.raises((baton.InvalidArgument, baton.InvalidHandle)) as e:
        call("a\udcff")
    assert str(e.value).isprintable() and ("a\\udcff" in str(e.value) or e.type is baton.InvalidHandle)


def test_no_path_of_a_bundle_has_half_a_surrogate_pair():
    b = baton.share({"a": np.zeros(1)})
    assert "\udcff" not in b and b.get("\udcff") is None and b.get("\udcff", 3) == 3
    with pytest.raises(KeyError):
        b["\udcff"]


def test_half_a_surrogate_pair_is_refused_and_named():
    bad, t = "a\ud800b", baton.topic()
    for value, place in (
        (bad, "the value"),
        ({"k": ["v", bad]}, '"k/1"'),
        ({"m": {bad: 1}}, '"m"'),
        ({bad: np.ones(1)}, "the value"),
        ({"m": {1: 1, bad: 2}}, '"m"'),
        ({(1, bad): 2}, "the value"),
    ):
        with pytest.raises(ValueError, match=rf"^{place}.*ud800b.*surrogatepass"):
            t.send(value)
    with pytest.raises(ValueError, match=r'^"k" of meta.*ud800b'):
        t.send(None, meta={"k": bad})


@pytest.mark.parametrize("device", ["tpu", "tpu:0", "mps", "cuda:x", ""])
def test_what_names_no_device_is_refused_without_a_driver(device):
    for call in (lambda: baton.empty(3, device=device), lambda: baton.zeros(3).to(device)):
        with pytest.raises(baton.InvalidArgument, match="use cpu, cuda"):
            call()


def test_a_dtype_of_the_other_byte_order_is_refused():
    with pytest.raises(baton.InvalidArgument, match="newbyteorder"):
        baton.empty(3, np.dtype(">f4"))


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        ((ctypes.c_int.__ctype_be__ * 3)(1, 2, 3), "format >i"),
        (np.zeros(3, [("a", "u1"), ("b", "f4")])["b"], "ascontiguousarray"),
    ],
)
def test_buffers_that_cannot_be_copied_say_why(buffer, text):
    with pytest.raises((TypeError, baton.InvalidArgument), match=text):
        baton.share(buffer)
