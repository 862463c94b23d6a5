"""What a person sees of a tensor."""

import base64
import re
import struct
import zlib

import baton
import numpy as np
import pytest
from conftest import eventually


def test_repr_says_who_holds_it(name, child):
    x = baton.zeros((2, 3), "int16")
    assert repr(x) == "baton.Tensor(int16, shape=(2, 3), device=cpu, held by this process)"
    h = x.handle()
    assert "this process" in repr(x) and "the broker" in repr(x)
    c = child("x = baton.open(sys.argv[1]); say('holds'); sys.stdin.readline()", h.to_json())
    assert c.hear() == "holds"
    eventually(lambda: f"(pid {c.pid})" in repr(x), "the other holder to be seen")
    c.end()
    eventually(lambda: f"(pid {c.pid})" not in repr(x), "the other holder to go")
    assert "readonly" in repr(x.as_readonly())


def test_repr_of_a_file_says_so(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert (
        repr(baton.load(tmp_path / "a.npy"))
        == "baton.Tensor(float64, shape=(3,), device=cpu, readonly, in a mapped file)"
    )


def picture(x: baton.Tensor) -> np.ndarray:
    """The pixels of the picture, by a reader of PNG of the test's own."""
    data = base64.b64decode(re.search(r"base64,([^\"]+)", x._repr_html_())[1])
    assert data.startswith(b"\x89PNG")
    w, h, bits, kind = struct.unpack(">IIBB", data[16:26])
    at = data.index(b"IDAT")
    (n,) = struct.unpack(">I", data[at - 4 : at])
    channels = {0: 1, 2: 3}[kind]
    assert bits == 8
    rows = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + n]), "uint8").reshape(h, 1 + w * channels)
    return rows[:, 1:].reshape((h, w, channels) if channels > 1 else (h, w))


def test_pictures_are_those_of_the_values():
    a = np.arange(48, dtype="uint8").reshape(6, 8)
    assert (picture(baton.share(a)) == a).all()
    assert (picture(baton.share(a.astype("float32"))) == (a * (255 / 47)).astype("uint8")).all()
    rgb = np.arange(6 * 8 * 3, dtype="uint8").reshape(6, 8, 3)
    assert (picture(baton.share(rgb)) == rgb).all()
    assert (picture(baton.share(np.ascontiguousarray(rgb.transpose(2, 0, 1)))) == rgb).all()
    assert picture(baton.zeros((1000, 300))).shape == (125, 100)
    assert picture(baton.full((4, 4), float("nan"))).max() == 0


@pytest.mark.parametrize("shape", [(3,), (), (2, 3, 4, 5), (0, 4), (1, 5)], ids=str)
def test_what_is_no_picture_is_told_in_words(shape):
    html = baton.zeros(shape)._repr_html_()
    assert "img" not in html and "float32" in html


def test_a_released_tensor_is_told_in_words():
    x = baton.zeros((4, 4))
    x.release()
    assert x._repr_html_() == "<code>baton.Tensor(released)</code>"


def test_types_that_numpy_has_not_are_told_in_words():
    assert "img" not in baton.zeros((4, 4), "float6_e2m3fn")._repr_html_()


def test_numbers_far_apart_are_a_picture():
    most = np.finfo("float64").max
    assert picture(baton.share(np.array([[most, -most], [0, 0]]))).tolist() == [[255, 0], [127, 127]]


def test_readers_and_watches_say_of_what(name):
    assert repr(baton.topic(name).reader()) == f'baton.Reader("{name}")'
    assert repr(baton.watch(name)) == f'baton.Watch("{name}")'


def test_what_is_closed_says_so(name):
    @baton.function(name + "/f")
    def f(n: int):
        yield from range(n)

    with baton.connect() as s:
        t, q = s.topic(name), s.queue(name + "/q")
        r, w = t.reader(), s.watch(name)
        started = s.start_functions(f)
        other = baton.connect()
        there = other.get_function(name + "/f")
        parts = there.stream(3)
        assert repr(parts) == f"<baton.Parts of {name}/f>" and next(parts) == 0
        parts.close()
        assert repr(parts) == f"<baton.Parts of {name}/f, closed>"
        assert repr(started) == f"<baton.Functions {name}/f>"
        started.close()
        assert repr(started) == "<baton.Functions (none)>"
        r.close(), w.close()
        assert repr(r) == f'baton.Reader("{name}", closed)' and repr(w) == f'baton.Watch("{name}", closed)'
        assert repr(t) == f'baton.Topic("{name}")' and repr(q) == f'baton.Queue("{name}/q")'
        assert repr(baton.topic()) == "baton.Topic(private)"
        t.close(), q.close()
        assert repr(t) == f'baton.Topic("{name}", closed)' and repr(q) == f'baton.Queue("{name}/q", closed)'
        assert repr(s).endswith(")") and "closed" not in repr(s)
        assert repr(there) == f"<baton.Function {name}/f(n: int) -> parts>"
        open_still, its_reader = s.topic(name + "/open"), s.topic(name + "/open").reader()
    assert repr(s) == f"baton.Session(serial={s.serial}, namespace={s.namespace!r}, closed)".replace("'", '"')
    assert repr(open_still) == f'baton.Topic("{name}/open", closed)' and repr(its_reader).endswith(", closed)")
    other.close()
    assert repr(there).startswith(f"<baton.Function {name}/f(") and repr(there).endswith(", closed>")


def test_a_call_says_whose_it_is(name):
    @baton.function(name)
    def shows():
        return repr(baton.current_call())

    @baton.function(name + "/keeps")
    def keeps():
        kept.append(baton.current_call())

    kept = []
    with baton.start_functions(shows, keeps):
        assert baton.call(name).startswith("<baton.Call from ") and baton.call(name).endswith(", attempt 1>")
        baton.call(name + "/keeps")
    assert repr(kept[0]).endswith(", ended>")


def test_dir_lists_what_is_public():
    listed = dir(baton)
    assert set(listed) == {*baton.__all__, "torch"} and all(hasattr(baton, n) for n in listed)
    assert not {"os", "importlib", "Any", "_native"} & set(listed)
