"""Weights between modules that differ in more than their values, and senders that are not alone."""

import copy as copying
import pickle
import threading

import baton
import pytest
from conftest import PATIENCE, asleep, eventually, need

torch = need("torch")
mp = need("torch.multiprocessing")


@pytest.fixture
def name(name):
    yield name
    if name in baton.names("*"):
        baton.delete(name)


def filled(value):
    return {"w": torch.full((3,), float(value))}


def into():
    return torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(3))})


def sends(sender, rounds):
    for k in range(rounds):
        sender.send(filled(10 + k))


@pytest.mark.parametrize("how", ["fork", "spawn", "pickle", "deepcopy", "copy"])
def test_a_sender_of_another_process_or_a_copy_is_another_sender(name, how):
    sender = baton.torch.weights.Sender(name, keep=3)
    sender.send(filled(0))
    receiver = baton.torch.weights.Receiver(name, into=into(), copy=True)
    receiver.receive(PATIENCE)
    if how in ("fork", "spawn"):
        p = mp.get_context(how).Process(target=sends, args=(sender, 5))
        p.start()
        p.join(PATIENCE)
        assert p.exitcode == 0
    else:
        ways = {"pickle": lambda s: pickle.loads(pickle.dumps(s)), "deepcopy": copying.deepcopy, "copy": copying.copy}
        other = ways[how](sender)
        assert (other.name, other._kept.maxlen, other.version) == (name, 3, 0)
        sends(other, 5)
    assert receiver.receive(PATIENCE)["w"].tolist() == [14, 14, 14] and receiver.version == 6
    sender.send(filled(99))  # which is the second of its versions, and the other has sent five
    assert receiver.receive(PATIENCE)["w"].tolist() == [99, 99, 99] and receiver.changed == {"w"}


def test_what_is_wrong_with_weights_is_named(name):
    sender = baton.torch.weights.Sender(name)
    square, quantized = torch.eye(2), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    sender.send({"w": square})
    bad = [
        ({1: square}, "the key 1 of type int"),
        ({"w": 1}, "have int at 'w'"),
        ({"w": square.to_sparse()}, "w is a torch.sparse_coo tensor"),
        ({"w": square.to_sparse_csr()}, "w is a torch.sparse_csr tensor"),
        ({"w": quantized}, "w is a quantized tensor"),
        ({"w": torch.empty(2, dtype=torch.bits8)}, "w is torch.bits8, which only torch has"),
    ]
    for weights, what in bad:
        with pytest.raises(baton.InvalidArgument, match=what):
            sender.send(weights)
    assert sender.version == 1


def test_a_receiver_is_not_pickled(name):
    receiver = baton.torch.weights.Receiver(name)
    for way in (pickle.dumps, copying.deepcopy, copying.copy):
        with pytest.raises(TypeError, match="make one of the name there"):
            way(receiver)


@pytest.mark.parametrize("error", [baton.BrokerLost, KeyboardInterrupt])
def test_a_version_that_came_although_its_send_failed_is_known_to_differ(name, error, monkeypatch):
    class Unheard:
        """A session whose answers may be lost."""

        def __init__(self, session):
            self.session, self.loses = session, False

        def set(self, *arguments, **named):
            revision = self.session.set(*arguments, **named)
            if self.loses:
                raise error
            return revision

        def __getattr__(self, attribute):
            return getattr(self.session, attribute)

    session = Unheard(baton._default.session())
    monkeypatch.setattr(baton._default, "session", lambda: session)
    sender = baton.torch.weights.Sender(name)
    plain = {"w": torch.zeros(3), "same": torch.zeros(2)}
    sender.send(plain)
    module = torch.nn.ParameterDict({k: torch.nn.Parameter(torch.ones_like(t)) for k, t in plain.items()})
    receiver = baton.torch.weights.Receiver(name, into=module, copy=True)
    receiver.receive(PATIENCE)

    session.loses = True
    with pytest.raises(error):
        sender.send(plain | filled(7))
    session.loses = False
    assert receiver.receive(PATIENCE)["w"].tolist() == [7, 7, 7]
    sender.send(plain)  # equal to what the sender knows that it sent
    assert receiver.receive(PATIENCE)["w"].tolist() == [0, 0, 0] and receiver.changed == {"w"}
    sender.send(plain)
    receiver.receive(PATIENCE)
    assert receiver.changed == set()


def test_a_receiver_is_closed_while_a_thread_waits_in_it(name):
    receiver, raised = baton.torch.weights.Receiver(name), []

    def waits():
        with pytest.raises(baton.Closed) as e:
            receiver.receive()
        raised.append(e.value)

    t = threading.Thread(target=waits, daemon=True)
    t.start()
    eventually(lambda: asleep(t), "the thread to wait")
    receiver.close()
    t.join(PATIENCE)
    assert len(raised) == 1


class Net(torch.nn.Module):
    """Of parameters and buffers of several kinds; tied or not."""

    def __init__(self, tie=True):
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 2)
        self.out = torch.nn.Linear(2, 3, bias=False)
        self.norm = torch.nn.BatchNorm1d(3)
        self.lstm = torch.nn.LSTM(2, 2)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        if tie:
            self.out.weight = self.embedding.weight

    def forward(self, rows):
        x, _ = self.lstm(self.embedding(rows) * self.frozen)
        return self.norm(self.out(x))


ROWS = torch.tensor([0, 1, 2])


def same(a, b):
    return all(torch.equal(t, b.state_dict()[k]) for k, t in a.state_dict().items())


@pytest.mark.parametrize("road", ["receiver", "copy", "load_module", "live"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_module_that_was_made_in_inference_mode_takes_weights(name, road, inside):
    trained = Net().eval()
    with torch.inference_mode():
        actor = Net().eval()
    actor.embedding.weight.noted = "kept"

    def step():
        if road == "live":
            baton.torch.load_module(actor, baton.torch.share_module(trained))
        elif road == "load_module":
            baton.torch.publish_module(trained, name)
            baton.torch.load_module(actor, name)
        else:
            baton.torch.weights.Sender(name).send(trained)
            receiver.receive(PATIENCE)

    receiver = baton.torch.weights.Receiver(name, into=actor, copy=road == "copy")
    for _ in range(2):
        with torch.no_grad():
            trained.embedding.weight.add_(1)
            trained.lstm.weight_ih_l0.add_(1)
        with torch.inference_mode(inside):
            step()
        assert same(trained, actor)
        with torch.inference_mode():
            assert torch.equal(actor(ROWS), trained(ROWS))
    assert actor.out.weight is actor.embedding.weight and actor.embedding.weight.noted == "kept"
    assert type(actor.frozen) is torch.nn.Parameter and not actor.frozen.requires_grad
    assert actor.embedding.weight.requires_grad and "scratch" in actor.norm._buffers or "scratch" in actor._buffers
    if road != "copy":  # what is bound is no tensor of inference mode any more
        actor(ROWS).sum().backward()
        assert actor.embedding.weight.grad is not None


@pytest.mark.parametrize("inside", [True, False])
def test_a_module_that_was_made_in_inference_mode_is_shared(inside):
    with torch.inference_mode():
        module = Net().eval()
        module.register_buffer("put_off", torch.full((2,), 1 + 2j).conj())
        before = {k: t.clone() for k, t in module.state_dict().items()}
    with torch.inference_mode(inside):
        bundle = baton.torch.share_module(module)
    assert all(torch.equal(t, before[k]) for k, t in module.state_dict().items())
    assert module.out.weight is module.embedding.weight and module.out.weight.is_shared()
    with torch.no_grad():
        module.out.weight.fill_(5)
    assert (bundle.numpy()["embedding.weight"] == 5).all() and (module(ROWS).sum() * 0).backward() is None


def test_a_sender_sends_what_was_made_in_inference_mode(name):
    with torch.inference_mode():
        made = Net()
    actor, sender = Net(), baton.torch.weights.Sender(name)
    receiver = baton.torch.weights.Receiver(name, into=actor)
    for value in range(2):
        with torch.inference_mode():
            made.out.weight.fill_(value)
        sender.send(made)
        receiver.receive(PATIENCE)
        assert same(made, actor)
    assert receiver.changed == {"embedding.weight", "out.weight"}


@pytest.mark.parametrize("road", ["bound", "copy", "load_module"])
def test_weights_that_are_tied_in_the_sender_alone_stay_apart(name, road):
    trained, actor = Net(tie=True), Net(tie=False)
    sender = baton.torch.weights.Sender(name)
    receiver = baton.torch.weights.Receiver(name, into=actor, copy=road == "copy")
    for value in range(2):
        with torch.no_grad():
            trained.out.weight.fill_(value)
        sender.send(trained)
        if road == "load_module":
            baton.torch.load_module(actor, name)
        else:
            receiver.receive(PATIENCE)
        assert same(trained, actor)
        with torch.no_grad():
            actor.embedding.weight.fill_(9)
        assert (actor.out.weight == value).all()
        assert actor.embedding.weight.data_ptr() != actor.out.weight.data_ptr()


def test_weights_that_share_memory_in_the_receiver_share_it_afterwards(name):
    """Of three that are tied in the sender, two are in the receiver, though they are not one object."""
    value = torch.arange(4.0)
    baton.torch.weights.Sender(name).send({"a": value, "b": value, "c": value, "d": value[2:]})
    for apart in "abc":
        m = torch.nn.ParameterDict()
        for k in "abc":
            m[k] = torch.nn.Parameter(torch.zeros(4))
        m["d"] = torch.nn.Parameter(torch.zeros(2))
        one, two = (k for k in "abc" if k != apart)
        m[two].data = m[one].data
        baton.torch.weights.Receiver(name, into=m).receive(PATIENCE)
        with torch.no_grad():
            m[one].fill_(5)
        assert m[two].tolist() == [5] * 4 and m[apart].tolist() == [0, 1, 2, 3] and m["d"].tolist() == [2, 3]


class Scaled(torch.nn.Linear):
    """It has a state that is neither parameter nor buffer."""

    scale: object = None

    def get_extra_state(self):
        return self.scale

    def set_extra_state(self, state):
        self.scale = state


def deep(scale):
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), Scaled(2, 2))
    m[1].scale = scale
    return m


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_extra_state_arrives(name, copy, whole):
    trained, actor = deep(torch.tensor(3)), deep(None)
    sender = baton.torch.weights.Sender(name)
    receiver = baton.torch.weights.Receiver(name, into=actor, copy=copy)
    for value in (3, 4):
        trained[1].scale = torch.tensor(value)
        sender.send(trained if whole else trained.state_dict())
        receiver.receive(PATIENCE)
        assert actor[1].scale.item() == value and same(trained, actor)
    assert receiver.changed == {"1._extra_state"}
    sender.send(trained, changed=())
    actor[1].scale = None
    receiver.receive(PATIENCE)
    assert (actor[1].scale is None) == copy  # what has not changed is not written again
    trained[1].scale = None  # it has none at present
    sender.send(trained)
    receiver.receive(PATIENCE)


def test_extra_state_is_published_and_loaded(name):
    trained, actor = deep(torch.ones(2)), deep(None)
    baton.torch.publish_module(trained, name)
    baton.torch.load_module(actor, name, copy=True)
    assert actor[1].scale.tolist() == [1, 1]
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with pytest.raises(baton.InvalidArgument, match="1._extra_state.*same architecture"):
        baton.torch.load_module(plain, name)


def test_extra_state_that_is_no_tensor_is_refused_where_it_is_sent(name):
    trained, sender = deep({"scale": 3}), baton.torch.weights.Sender(name)
    for way in (
        lambda: sender.send(trained),
        lambda: sender.send(trained.state_dict()),
        lambda: baton.torch.publish_module(trained, name),
    ):
        with pytest.raises(baton.InvalidArgument, match=r"1\._extra_state, an extra state, is of type dict"):
            way()
    sender.send({k: t for k, t in trained.state_dict().items() if isinstance(t, torch.Tensor)})
    baton.torch.weights.Receiver(name, into=deep(None)).receive(PATIENCE)


@pytest.mark.parametrize("wrong", [5, {"w": torch.zeros(1)}, torch.zeros(1), torch.nn.Linear])
def test_what_is_no_module_is_refused_at_once(name, wrong):
    calls = [
        lambda: baton.torch.weights.Receiver(name, into=wrong),
        lambda: baton.torch.load_module(wrong, name),
        lambda: baton.torch.share_module(wrong),
        lambda: baton.torch.publish_module(wrong, name),
    ]
    for call in calls:
        with pytest.raises(baton.InvalidArgument, match=r"is of type \w+ \(give a torch.nn.Module"):
            call()
    with pytest.raises(baton.InvalidArgument, match="neither a name nor a bundle"):
        baton.torch.load_module(torch.nn.Linear(1, 1), wrong)


@pytest.mark.parametrize("wrong", ["a b", "", None, 5, b"x", "x" * 201])
def test_what_is_no_name_is_refused_at_once(wrong):
    for kind in (baton.torch.weights.Sender, baton.torch.weights.Receiver):
        with pytest.raises(baton.InvalidArgument, match="name"):
            kind(wrong)


@pytest.mark.parametrize("wrong", [0, -1, "2", None, 1.5, 1 << 80])
def test_what_is_no_number_of_versions_is_refused_at_once(name, wrong):
    with pytest.raises(baton.InvalidArgument, match="keep="):
        baton.torch.weights.Sender(name, keep=wrong)


def test_what_has_no_memory_yet_is_refused_at_once(name):
    lazy, meta = torch.nn.LazyLinear(2), torch.nn.Linear(2, 2, device="meta")
    baton.torch.publish_module(torch.nn.Linear(2, 2), name)
    for module, why in ((lazy, "weight is not initialized yet"), (meta, "weight lies on meta")):
        calls = [
            lambda m: baton.torch.weights.Receiver(name, into=m),
            lambda m: baton.torch.weights.Sender(name).send(m),
            lambda m: baton.torch.load_module(m, name),
            lambda m: baton.torch.load_module(m, name, copy=True),
            lambda m: baton.torch.publish_module(m, name),
            lambda m: baton.torch.share_module(m),
        ]
        for call in calls:
            with pytest.raises(baton.InvalidArgument, match=why):
                call(module)


def test_a_weight_of_one_column_is_compared_whatever_its_strides(name):
    column = torch.nn.Parameter(torch.arange(3.0).reshape(1, 3).t())  # contiguous, of strides 1 and 3
    sender = baton.torch.weights.Sender(name)
    receiver = baton.torch.weights.Receiver(name)
    for value in (1.0, 1.0, 2.0):
        with torch.no_grad():
            column[1] = value
        sender.send({"w": column, "one": torch.full((1,), value).as_strided((1,), (7,))})
        got = receiver.receive(PATIENCE)
        assert got["w"].flatten().tolist() == [0.0, value, 2.0] and got["one"].item() == value
    assert receiver.changed == {"w", "one"}
    sender.send({"w": column, "one": torch.full((1,), 2.0)})
    receiver.receive(PATIENCE)
    assert receiver.changed == set()


def test_of_weights_that_are_tied_in_the_receiver_alone_the_last_one_stays(name):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    sender = baton.torch.weights.Sender(name, keep=3)
    value = {"0.weight": torch.ones(2, 2), "1.weight": torch.full((2, 2), 2.0)}
    sender.send(value)
    receiver = baton.torch.weights.Receiver(name, into=module, copy=True)
    receiver.receive(PATIENCE)
    assert (module[0].weight == 2).all()
    sender.send(value | {"0.weight": torch.full((2, 2), 5.0)})
    receiver.receive(PATIENCE)
    assert (module[0].weight == 2).all()  # as load_state_dict leaves it


def test_weights_of_two_elements_in_a_byte_are_loaded_and_not_copied_again(name):
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4")
    w = torch.arange(6, dtype=torch.uint8).reshape(3, 2).view(torch.float4_e2m1fn_x2)
    module = torch.nn.Module()
    module.register_buffer("w", torch.zeros(3, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    sender = baton.torch.weights.Sender(name)
    receiver = baton.torch.weights.Receiver(name, into=module)
    sender.send({"w": w})
    receiver.receive(PATIENCE)
    assert (module.w.view(torch.uint8) == w.view(torch.uint8)).all()
    sender.send({"w": w})
    receiver.receive(PATIENCE)
    assert receiver.changed == set()
