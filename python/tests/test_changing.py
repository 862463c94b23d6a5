"""Values that change while they are sent: an object of theirs runs Python, which changes what it stands in."""

import asyncio
import collections
import threading

import baton
import numpy as np
import pytest
from conftest import PATIENCE
from function_kit import nothing_is_defined  # noqa: F401 - a fixture


class Changing:
    """An array that does something when it is asked for its memory."""

    def __init__(self, change):
        self.array, self.change = np.arange(3.0), change

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **named):
        self.change()
        return self.array.__dlpack__(**named)


def grows(make=dict):
    """A dict that has one key more once its first entry was looked at."""
    d = make()
    d["a"], d["b"] = Changing(lambda: d.update(c=1)), np.zeros(2)
    return d


def swaps():
    """A dict whose keys change while their number stays."""
    d = {}

    def swap():
        for k in [k for k in d if k != "a"]:
            del d[k]
        d.update({f"new{i}": np.zeros(2) for i in range(3)})

    d["a"] = Changing(swap)
    d.update({f"old{i}": np.zeros(2) for i in range(3)})
    return d


def pairs():
    d = {}
    d[1], d[2] = Changing(lambda: d.update({3: 1})), np.zeros(2)
    return d


KINDS = {
    "flat": grows, "nested": lambda: [grows()], "ordered": lambda: grows(collections.OrderedDict), "pairs": pairs,
    "in a tree": lambda: {"a": {"b": grows()}, "c": 1},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_dict_that_changes_while_it_is_sent_is_an_error(name, kind):
    @baton.function(name)
    def same(x):
        return x

    made = KINDS[kind]
    with baton.queue(name) as q, baton.topic(name + "/topic") as t, baton.start_functions(same):
        for send in q.put, t.send, lambda v: baton.set(name, v), baton.share, lambda v: baton.call(name, v):
            with pytest.raises(RuntimeError, match="changed size during iteration"):
                send(made())
        q.put({"a": np.ones(1)})  # all goes on
        assert q.get(timeout=PATIENCE)["a"].tolist() == [1]


def test_a_dict_whose_keys_change_while_it_is_sent_is_an_error_or_sent_in_part(name):
    with baton.queue(name) as q:
        try:
            q.put(swaps())
        except RuntimeError as e:
            assert "changed" in str(e)
        else:
            assert "a" in q.get(timeout=PATIENCE)


def moves():
    """A dict whose first key stands behind another one once it was looked at."""
    d = {}

    def move():
        first = d["a"]
        d.clear()
        d.update(z=np.zeros(2), a=first)

    d["a"], d["b"] = Changing(move), np.ones(2)
    return d


def test_a_dict_whose_keys_move_while_it_is_sent_is_sent_as_it_was(name):
    @baton.function(name)
    def same(x):
        return x

    with baton.queue(name) as q, baton.start_functions(same):
        for wrap, unwrap in (lambda d: d, lambda d: d), (lambda d: [1, d], lambda got: got[1]):
            q.put(wrap(moves()))
            for got in unwrap(q.get(timeout=PATIENCE)), unwrap(baton.call(name, wrap(moves()))):
                assert {k: x.tolist() for k, x in got.items()} == {"a": [0, 1, 2], "b": [1, 1]}


def test_a_list_that_changes_while_it_is_sent_is_sent_as_far_as_it_goes(name):
    shorter = []
    shorter += [Changing(lambda: shorter.__delitem__(slice(1, None))), 2, 3]
    longer = []
    longer += [Changing(lambda: longer.append(4)), 2]
    with baton.queue(name) as q:
        q.put(shorter)
        assert len(q.get(timeout=PATIENCE)) == 1
        q.put(longer)
        assert len(q.get(timeout=PATIENCE)) == 2


def test_a_result_that_changes_while_it_is_sent_is_an_error_of_its_call(name):
    first = threading.Event()

    @baton.function(name)
    def looks():
        if first.is_set():
            return {"a": np.ones(2)}
        first.set()
        return grows()

    with baton.start_functions(looks) as started:
        f = baton.get_function(name).options(timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="changed size during iteration"):
            f()
        assert f()["a"].tolist() == [1, 1]  # the thread goes on
        assert started.names == [name]


def test_a_part_that_changes_while_it_is_sent_is_an_error_of_its_call(name):
    @baton.function(name)
    def gives():
        yield 1
        yield grows()

    with baton.start_functions(gives):
        f = baton.get_function(name).options(timeout=PATIENCE)
        for _ in range(2):
            parts = f.stream()
            assert next(parts) == 1
            with pytest.raises(RuntimeError, match="changed size during iteration"):
                next(parts)


def test_a_result_of_a_coroutine_that_changes_while_it_is_sent_is_an_error_of_its_call(name):
    first = threading.Event()

    @baton.function(name)
    async def looks():
        await asyncio.sleep(0)
        if first.is_set():
            return 7
        first.set()
        return grows()

    with baton.start_functions(looks):
        f = baton.get_function(name).options(timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="changed size during iteration"):
            f()
        assert f() == 7


def panic():
    """The exception that stands for a panic of the extension, which is no `Exception`."""
    (found,) = [c for c in BaseException.__subclasses__() if c.__name__ == "PanicException"]
    return found("as by a mistake of the extension")


def fails_once(name, wrap):
    """A function whose first call ends by what stands for a panic, and whose further ones do not."""
    with pytest.raises(TypeError):
        baton.share(object())  # the class is made with the first exception
    first = threading.Event()

    def body():
        if first.is_set():
            return 7
        first.set()
        raise panic()

    return baton.function(name)(wrap(body))


def as_it_is(body):
    def run():
        return body()

    return run


def as_coroutine(body):
    async def run():
        await asyncio.sleep(0)
        return body()

    return run


def as_generator(body):
    def run():
        yield body()

    return run


@pytest.mark.parametrize("wrap", [as_it_is, as_coroutine, as_generator])
def test_a_panic_ends_a_call_with_an_error_and_not_the_thread(name, wrap):
    f = fails_once(name, wrap)

    def call(f):
        return f() if wrap is not as_generator else next(f.stream())

    with baton.start_functions(f):
        got = baton.get_function(name).options(timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="as by a mistake of the extension"):
            call(got)
        assert call(got) == 7


def test_a_panic_in_a_function_that_was_given_is_an_error_of_its_call(name):
    with pytest.raises(TypeError):
        baton.share(object())

    def given():
        raise panic()

    @baton.function(name)
    def asks(f):
        try:
            return f()
        except RuntimeError as e:
            return str(e)

    with baton.start_functions(asks):
        assert "as by a mistake" in baton.get_function(name).options(timeout=PATIENCE)(given)
