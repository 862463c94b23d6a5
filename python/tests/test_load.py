"""Files: mapped where they can be, copied where they must be, refused when they are none."""

import importlib
import io
import json
import struct
import zipfile

import baton
import numpy as np
import pytest
from conftest import PATIENCE, need


def inode_is_mapped(path) -> bool:
    return any(str(path) in line for line in open("/proc/self/maps"))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", "bool int8 uint16 int32 uint64 float16 float32 float64 complex64 complex128".split())
def test_npy_is_mapped(tmp_path, dtype, order):
    a = np.asarray(np.arange(24).reshape(2, 3, 4).astype(dtype), order=order)
    np.save(tmp_path / "a.npy", a)
    x = baton.load(tmp_path / "a.npy")
    assert isinstance(x, baton.Tensor) and x.readonly and x.dtype == dtype and x.shape == (2, 3, 4)
    assert (np.asarray(x) == a).all() and inode_is_mapped(tmp_path / "a.npy")
    y = np.asarray(x)
    del x
    assert (y == a).all()  # the array keeps the mapping
    del y
    assert not inode_is_mapped(tmp_path / "a.npy")


def test_scalars_and_empty_arrays_are_loaded(tmp_path):
    for a in (np.float32(3), np.zeros((0, 3))):
        np.save(tmp_path / "a.npy", a)
        x = baton.load(str(tmp_path / "a.npy"))
        assert x.shape == a.shape and np.asarray(x).tolist() == a.tolist()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_a_bundle(tmp_path, save):
    arrays = {"w": np.arange(1000.0), "b": np.arange(6, dtype="int8").reshape(2, 3), "s": np.float64(2)}
    save(tmp_path / "a.npz", **arrays)
    b = baton.load(tmp_path / "a.npz")
    assert isinstance(b, baton.Bundle) and list(b) == ["w", "b", "s"]
    for name, a in arrays.items():
        assert (np.asarray(b[name]) == a).all() and b[name].readonly


def safetensors(path, tensors, **change):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]} | change
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_safetensors_is_a_bundle(tmp_path):
    a = np.arange(6, dtype="float32")
    safetensors(
        tmp_path / "a.safetensors",
        {
            "x": ("F32", [2, 3], a.tobytes()),
            "odd": ("U8", [3], b"abc"),
            "y/z": ("F32", [6], a.tobytes()),
            "h": ("BF16", [2], b"\0\x3f\0\x40"),
        },
    )
    b = baton.load(tmp_path / "a.safetensors")
    assert list(b) == ["x", "odd", "y/z", "h"] and b["h"].dtype == "bfloat16" and b["h"][1].item() == 2
    assert (np.asarray(b["x"]) == a.reshape(2, 3)).all() and (np.asarray(b["y/z"]) == a).all()
    assert bytes(memoryview(b["odd"])) == b"abc"


def test_sending_copies_once_and_the_file_is_left(name, tmp_path):
    np.save(tmp_path / "a.npy", a := np.arange(1000, dtype="int32"))
    x = baton.load(tmp_path / "a.npy")
    s = baton.connect()
    y = s.load(tmp_path / "a.npy")
    before = s.stats()["live"]
    s.set(name, {"a": y, "b": y[10:]})
    assert s.stats()["live"] == before + 1
    got = baton.get(name)
    assert (np.asarray(got["a"]) == a).all() and (np.asarray(got["b"]) == a[10:]).all()
    baton.delete(name)
    assert (np.asarray(baton.open(x.handle())) == a).all()
    assert baton.share(x, copy=True).readonly is False
    with pytest.raises(baton.InvalidArgument):
        baton.share(x, copy=False)
    with pytest.raises(baton.ReadOnly):
        x.copy_from(a)
    with pytest.raises(ValueError):
        np.asarray(x)[0] = 1
    s.close()


def test_views_of_a_file_written_by_dlpack_stay_private(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(5000, "int32"))
    x = baton.load(tmp_path / "a.npy")
    import ctypes

    from test_dlpack import fields

    capsule = x[10:].__dlpack__(max_version=(1, 0))
    (ctypes.c_int32 * 4990).from_address(fields(capsule).data)[5] = 7
    assert (np.load(tmp_path / "a.npy") == 0).all() and (np.asarray(x) == 0).all()


def npy(header: str, data: bytes = b"\0" * 64) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


BAD = {
    "empty": b"",
    "text": b"hello world, this is no array",
    "npy cut short": b"\x93NUMPY\x01\x00",
    "npy longer than its file": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (9,)}"),
    "npy of objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
    "npy of text": npy("{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}"),
    "npy of another byte order": npy("{'descr': '>f8', 'fortran_order': False, 'shape': (1,)}"),
    "npy with a negative extent": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}"),
    "npy with an overflow": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296, 8)}"),
    "npy that is code": npy("__import__('os').abort()"),
    "npy of records": npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}"),
    "zip": b"PK\x03\x04" + b"\0" * 60,
    "safetensors with a long header": struct.pack("<Q", 1 << 62) + b"{}",
    "safetensors without JSON": struct.pack("<Q", 2) + b"{]",
    "safetensors of a list": struct.pack("<Q", 2) + b"[]",
}


@pytest.mark.parametrize("what", BAD)
def test_other_files_are_refused(tmp_path, what):
    (tmp_path / "bad").write_bytes(BAD[what])
    with pytest.raises(baton.InvalidArgument):
        baton.load(tmp_path / "bad")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [7]},
        {"dtype": "F99"},
        {"data_offsets": [-4, 20]},
        {"data_offsets": [0, 1 << 60]},
        {"shape": [1 << 62, 1 << 62]},
    ],
    ids=str,
)
def test_safetensors_that_lie_are_refused(tmp_path, change):
    safetensors(tmp_path / "a", {"x": ("F32", [6], b"\0" * 24)}, **change)
    with pytest.raises(baton.InvalidArgument):
        baton.load(tmp_path / "a")


def test_npz_that_lies_is_refused(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.writestr("a.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99,)}"))
    (tmp_path / "a").write_bytes(file.getvalue())
    with pytest.raises(baton.InvalidArgument):
        baton.load(tmp_path / "a")


def test_missing_files_are_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        baton.load(tmp_path / "none.npy")


# Publishes a file while private memory may grow by a quarter of it, and says by how much it grew.
PUBLISHES = """
import resource
def private(what):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(what))
if sys.argv[3] == "weights":
    import torch, baton.torch.weights
b = baton.load(sys.argv[1])
baton.set(sys.argv[2], {"warm": np.zeros(1)})
sender = views = None
if sys.argv[3] == "weights":
    sender, views = baton.torch.weights.Sender(sys.argv[2]), b.torch()  # whose mapping counts as private memory
before = private("RssAnon")
limit = private("VmData") + (int(sys.argv[4]) >> 2)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
if sender is None:
    baton.set(sys.argv[2], b)
else:
    sender.send(views)
say(private("RssAnon") - before < int(sys.argv[4]) >> 4)
try:
    np.ones(int(sys.argv[4]) >> 1, "uint8")
except MemoryError:
    say("a copy of half of it is refused")
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["set", "weights"])
def test_a_file_is_published_by_one_copy_from_its_pages(name, child, tmp_path, how):
    if how == "weights":
        need("torch")
    n = 1 << 24  # elements, in 64 MiB
    a = np.arange(n, dtype="int32")
    safetensors(
        tmp_path / "a",
        {"head": ("U8", [4], b"abcd"), "x": ("I32", [n], a.tobytes()), "y": ("I32", [2], a[:2].tobytes())},
    )
    c = child(PUBLISHES, str(tmp_path / "a"), name, how, str(a.nbytes))
    assert (c.hear(), c.hear()) == ("True", "a copy of half of it is refused")
    if how == "weights":
        weights = importlib.import_module("baton.torch.weights")
        got = weights.Receiver(name).receive(timeout=PATIENCE)
    else:
        got = baton.get(name)
    assert (np.asarray(got["x"]) == a).all() and np.asarray(got["y"]).tolist() == [0, 1]
    del got
    c.tell()
    c.end()
    baton.delete(name)
