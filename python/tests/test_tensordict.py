"""TensorDicts as values."""

import baton
import pytest
from conftest import need

torch = need("torch")
tensordict = need("tensordict")

from tensordict import NonTensorData, NonTensorStack, TensorDict, tensorclass


@tensorclass
class Step:
    observation: torch.Tensor
    word: str


def rollout(batch=3):
    td = TensorDict(
        {
            "observation": torch.arange(2.0 * batch).reshape(batch, 2),
            "next": TensorDict(
                {"observation": torch.ones(batch, 2, 4, dtype=torch.bfloat16), "deep": {"x/y": torch.zeros(batch, 2)}},
                batch_size=[batch, 2],
                names=["time", "agent"],
            ),
            "empty": {},
            "word": "abc",
            "number": NonTensorData(7, batch_size=[batch]),
            "many": NonTensorData({"a": [1, None]}, batch_size=[batch]),
        },
        batch_size=[batch],
        names=["time"],
    )
    td.set(("next", "inner word"), NonTensorData(b"xyz", batch_size=[batch, 2]))
    return td


def alike(a, b):
    """Whether two TensorDicts are the same in all but memory."""
    if type(a) is not type(b):
        return False
    if not isinstance(a, tensordict.TensorDictBase) or isinstance(a, NonTensorData):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) if torch.is_tensor(a) else a == b
    same = (a.batch_size, a.names, a.device, list(a.keys())) == (b.batch_size, b.names, b.device, list(b.keys()))
    return same and all(alike(a[k], b[k]) and type(a.get(k)) is type(b.get(k)) for k in set(a.keys()))


@pytest.mark.parametrize(
    "td",
    [
        rollout(),
        rollout().to("cpu"),
        TensorDict({}, batch_size=[]),
        TensorDict({"x": torch.tensor(3)}, batch_size=[]),
        TensorDict({"x": torch.zeros(2, 0)}, batch_size=[2]),
        TensorDict({"x": torch.zeros(2), "data": torch.ones(2), "batch_size": torch.ones(2)}, batch_size=[2]),
    ],
    ids=["nested", "on a device", "empty", "no batch", "no elements", "names of its own"],
)
def test_a_tensordict_arrives_as_itself(td):
    q = baton.queue()
    q.put({"of": [td, 1]})
    got = q.get()["of"][0]
    assert alike(got, td) and got is not td


def test_stacked_words_arrive():
    td = TensorDict({"x": torch.zeros(2), "words": NonTensorStack("a", "b")}, batch_size=[2])
    q = baton.queue()
    q.put(td)
    assert q.get()["words"] == ["a", "b"]


def test_a_tensorclass_arrives_as_itself():
    q = baton.queue()
    q.put(Step(torch.arange(3), "up", batch_size=[3]))
    got = q.get()
    assert type(got) is Step and got.batch_size == (3,) and got.word == "up"
    assert got.observation.tolist() == [0, 1, 2]


def test_what_lies_in_batons_memory_is_not_copied():
    x = baton.zeros((3, 2))
    q = baton.queue()
    q.put(TensorDict({"x": x.torch()}, batch_size=[3]))
    got = q.get()
    got["x"][1] = 7
    assert x.tolist() == [[0, 0], [7, 7], [0, 0]]


def test_topics_and_names_have_it(name):
    topic = baton.topic(name)
    reader = topic.reader()
    topic.send(rollout(), meta={"step": 1})
    assert alike(reader.receive().value, rollout())
    baton.set(name, rollout())
    assert baton.get(name).keys() == ["source/observation", "source/next/observation", "source/next/deep/x~1y"]
    baton.delete(name)


@pytest.mark.parametrize("imports", ["import tensordict", ""])
def test_only_a_process_that_has_imported_tensordict_has_one(name, child, imports):
    q = baton.queue(name)
    c = child(
        imports
        + """
v = baton.queue(sys.argv[1]).get()
say(type(v).__name__, *(sorted(v.keys())), "tensordict" in sys.modules)
if isinstance(v, dict):
    say(v["source"]["observation"].tolist(), v["batch_size"], v["names"], v["data"])
""",
        name,
    )
    td = rollout()
    del td["next"], td["empty"], td["many"], td["number"]
    q.put(td)
    if imports:
        assert c.hear() == "TensorDict observation word True"
    else:
        assert c.hear() == "dict batch_size data device names nested source False"
        assert c.hear() == "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] [3] ['time'] {('word',): {'value': 'abc'}}"
    c.end()
    q.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (tensordict.lazy_stack([TensorDict({"a": torch.zeros(n)}, []) for n in (2, 3)]), "the value.*LazyStacked"),
        ({"a": NonTensorData(1)}, '"a" of the value.*NonTensorData'),
        (TensorDict({"s": Step(torch.zeros(2), "x", batch_size=[2])}, [2]), '"s" of the TensorDict is a Step'),
        (TensorDict({"d": NonTensorData({1, 2}, batch_size=[2])}, [2]), "this is a set"),
        (TensorDict({"x": torch.zeros(2, 3).to_sparse()}, [2]), "x"),
    ],
    ids=["lazy stack", "data alone", "tensorclass within", "a set", "sparse"],
)
def test_what_is_not_carried_is_named(value, text):
    with pytest.raises(TypeError, match=text):
        baton.queue().put(value)


def forged(fields, class_="tensordict:TensorDict"):
    """A value of that class with such fields."""
    q = baton.queue()
    bundle = baton.share({"x": torch.zeros(2)})
    names, _, meta = bundle._parts()
    tree = f'{{"$":"dataclass","type":"{class_}","v":{fields}}}'
    q.put(baton._native.bundle_of(bundle.values(), names, tree.encode(), meta))
    return q.get()


ABOUT = '"device":null,"names":null,"nested":{"$":"dict","v":[]},"data":{"$":"dict","v":[]}'
X = '"source":{"x":{"$":"tensor","i":0}}'


def test_forged_fields_make_no_tensordict():
    assert alike(forged(f'{{{X},"batch_size":[2],{ABOUT}}}'), TensorDict({"x": torch.zeros(2)}, [2]))
    here = f"{__name__}:Step"
    for fields in (
        f'{{{X},"batch_size":[5],{ABOUT}}}',
        f'{{{X},"batch_size":"no",{ABOUT}}}',
        f'{{{X},"batch_size":[2]}}',
        f'{{{X},"batch_size":[2],{ABOUT.replace("null", "7", 1)}}}',
        f'{{"source":3,"x":{{"$":"tensor","i":0}},"batch_size":[2],{ABOUT}}}',
    ):
        for class_ in ("tensordict:TensorDict", here):
            assert isinstance(forged(fields, class_), dict)
    assert isinstance(forged('{"observation":{"$":"tensor","i":0},"word":"x"}', here), dict)
