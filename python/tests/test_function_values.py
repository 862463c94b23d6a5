"""What values become on their way into functions: numbers of other libraries, and arrays within lists and dicts."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import baton
import numpy as np
import pytest
from function_kit import nothing_is_defined  # noqa: F401 - a fixture

torch = pytest.importorskip("torch")


def test_numbers_of_half_size_without_dimensions_are_floats(name):
    @baton.function(name)
    def loss(x: float) -> Any:
        assert type(x) is float
        return x

    with baton.start_functions(loss):
        for given, want in [
            (torch.tensor(2.5, dtype=torch.bfloat16), 2.5), (torch.tensor(-2.5, dtype=torch.float16), -2.5),
            (np.array(0.1, "float16"), float(np.float16(0.1))), (np.array(6e-8, "float16"), float(np.float16(6e-8))),
            (torch.tensor(float("-inf"), dtype=torch.bfloat16), float("-inf")),
        ]:  # fmt: skip
            assert baton.call(name, given) == want
        with pytest.raises(baton.InvalidArgument, match="a tensor of complex64 is given"):
            baton.call(name, np.array(1j, "complex64"))
        with pytest.raises(baton.InvalidArgument, match="a tensor with dimensions is given"):
            baton.call(name, np.ones(1, "float16"))


def test_floats_within_other_values_are_exact(name):
    @baton.function(name)
    def same(x: Any) -> Any:
        return x

    bits = np.random.default_rng(7).integers(0, 2**64, 5000, "uint64")
    floats = [5.960464477539063e-08, *(f for f in bits.view("float64").tolist() if not math.isnan(f))]
    with baton.start_functions(same), baton.queue(name + "/queue") as q:
        assert baton.call(name, floats) == floats
        q.put(floats)
        assert q.get() == floats


def test_scalars_of_numpy_are_numbers_wherever_they_stand(name):
    @baton.function(name)
    def same(x: Any) -> Any:
        return x

    all = [
        (np.float16(0.5), 0.5), (np.float32(0.25), 0.25), (np.float64(0.1), 0.1), (np.int8(-3), -3),
        (np.int64(2**62), 2**62), (np.uint64(2**64 - 1), 2**64 - 1), (np.bool_(True), True),
    ]  # fmt: skip
    with baton.start_functions(same), baton.queue(name + "/queue") as q:
        for given, want in all:
            q.put(given)  # a queue has it as a tensor, and what was met there is no array in a call
            q.get()
            for made in (lambda v: v), (lambda v: [v, [v]]), (lambda v: (1, v)), (lambda v: {"a": v, "b": {"c": v}}):
                back = baton.call(name, made(given))
                assert back == made(want) and repr(back) == repr(made(want))
        assert baton.call(name, {np.int64(3): np.float32(1)}) == {3: 1.0}
        array = baton.call(name, [np.array(3), np.ones(2), np.float32(1), np.ones(2)])
        assert [type(v) for v in array] == [baton.Tensor, baton.Tensor, float, baton.Tensor]


def test_items_are_made_what_their_annotations_say(name):
    def kinds(x):
        if isinstance(x, list | tuple):
            return type(x)(kinds(v) for v in x)
        return {k: kinds(v) for k, v in x.items()} if isinstance(x, dict) else type(x).__name__

    x = np.ones(2)
    for annotation, given, want in [
        (list[np.ndarray], [x, x], ["ndarray", "ndarray"]),
        (list[torch.Tensor], [x], ["Tensor"]),
        (tuple[np.ndarray, ...], (x, x), ("ndarray", "ndarray")),
        (tuple[np.ndarray, int], (x, 3), ("ndarray", "int")),
        (dict[str, np.ndarray], {"a": x}, {"a": "ndarray"}),
        (dict[str, list[np.ndarray]], {"a": [x]}, {"a": ["ndarray"]}),
        (list[np.ndarray] | None, [x], ["ndarray"]),
        (list[np.ndarray | None], [x, None], ["ndarray", "NoneType"]),
        (list[np.ndarray] | dict[str, np.ndarray], {"a": x}, {"a": "ndarray"}),
        (np.ndarray | list[np.ndarray], x, "ndarray"),
        (Annotated[Sequence[np.ndarray], "doc"], [x], ["ndarray"]),
        (Mapping[str, np.ndarray], {"a": x, "b": 1}, {"a": "ndarray", "b": "int"}),
    ]:

        def f(a):
            assert not isinstance(a, baton.Tensor)
            assert not any(isinstance(v, baton.Tensor) for v in (a.values() if isinstance(a, dict) else a))
            return kinds(a)

        f.__annotations__["a"] = annotation
        baton.function(name)(f)
        with baton.start_functions(f):
            assert baton.call(name, given) == want, annotation
        baton._functions._defined.clear()

    @baton.function(name)
    def mixed(a: list[baton.Tensor | np.ndarray], b: list[baton.Tensor]) -> Any:
        return [isinstance(v, baton.Tensor) for v in a + b]

    with baton.start_functions(mixed):
        assert baton.call(name, [x], [x]) == [True, True]


def test_parameters_by_position_alone_are_told_as_such(name):
    @baton.function(name)
    def f(a: int, /, b: int = 2) -> int:
        return a + b

    with baton.start_functions(f):
        assert baton.call(name, 1, b=3) == 4
        with pytest.raises(baton.InvalidArgument, match="a is given by position alone") as e:
            baton.call(name, a=1, b=2)
        assert "(a: int, /, b: int = 2)" in str(e.value)


def test_a_function_of_two_names_is_provided_under_both(name):
    @baton.function(name + "/one")
    @baton.function(name + "/two", version="3")
    def f() -> int:
        return 1

    with baton.start_functions(f, name + "/one") as started:
        assert sorted(started.names) == [name + "/one", name + "/two@3"]
        assert baton.call(name + "/one") == baton.call(name + "/two") == 1
    with baton.start_functions(name + "/one") as started:
        assert started.names == [name + "/one"]


def test_dtypes_where_none_can_stand_name_what_to_give(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")

    @baton.function(name)
    def same(x: Any) -> Any:
        return x

    @baton.function(name + "/result")
    def result() -> Any:
        return np.float32

    with baton.start_functions(same, result), baton.queue(name + "/queue") as q:
        for given, told in [
            (np.float32, "the class numpy.float32 (give a dtype as np.dtype(np.float32))"),
            (float, "the class float (give a dtype as np.dtype(float))"),
            (ml_dtypes.bfloat16, "bfloat16 (give a dtype as np.dtype(ml_dtypes.bfloat16))"),
            ([np.float32], '(give a dtype by its name, "float32", of which np.dtype("float32") makes one)'),
            ({"a": np.dtype("int8")}, '(give a dtype by its name, "int8", of which np.dtype("int8") makes one)'),
            ((torch.bfloat16,), 'this is a dtype (give a dtype by its name, "bfloat16")'),
            ([torch.device("cpu")], 'this is a device (give a device by its name, "cpu")'),
            (np.ndarray, "this is the class numpy.ndarray"),
        ]:
            with pytest.raises(TypeError) as e:
                baton.call(name, given)
            assert str(e.value).startswith("the argument x: ") and str(e.value).endswith(told)
        assert baton.call(name, np.dtype(np.float32)) == "float32"
        with pytest.raises(TypeError, match=r"the result: .*give a dtype as np\.dtype\(np\.float32\)"):
            baton.call(name + "/result")
        with pytest.raises(TypeError, match='give a dtype by its name, "float32"'):
            q.put(np.float32)


def test_what_a_function_writes_is_seen_in_memory_of_baton(name):
    @baton.function(name)
    def fill(value: float, out: np.ndarray) -> None:
        out[:] = value

    with baton.start_functions(fill):
        elsewhere, shared = np.zeros(3), baton.zeros(3)
        view = baton.zeros(3).numpy()
        for out in (elsewhere, shared, view):
            baton.call(name, 2, out=out)
        assert (elsewhere.tolist(), shared.tolist(), view.tolist()) == ([0.0] * 3, [2.0] * 3, [2.0] * 3)


def test_devices_keep_their_numbers(name):
    @baton.function(name)
    def same(x: Any) -> Any:
        return x

    @baton.function(name + "/torch")
    def of_torch(x: torch.device) -> str:
        return repr(x)

    with baton.start_functions(same, of_torch):
        for given in ("cpu", "cpu:2", "cuda:0", "cuda:1"):
            assert baton.call(name, torch.device(given)) == given
            assert baton.call(name + "/torch", torch.device(given)) == repr(torch.device(given))
        assert baton.call(name, torch.device("cpu:0")) == "cpu"
        with pytest.raises(TypeError, match='is the current device of this process: give its number, as in "cuda:0"'):
            baton.call(name, torch.device("cuda"))
