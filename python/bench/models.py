"""Models in two processes: trained by both at once, and handed to one that runs."""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import baton
import baton.torch.weights
import numpy as np
import torch
from pair import ASKS, SEEN, STAMP, Partner, Ways, choose_strategy, now

DATA = Path(__file__).resolve().parents[2] / "internal" / "digits" / "data"
BATCH = 32
# Of a training: a phase in which the machine does less falls on both ways alike.
SLICES = 20
# Queues of torch.multiprocessing that carry a model: its fastest way.
TORCH = "fastest"


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and labels."""
    images = np.load(DATA / "digits-images.npy").reshape(-1, 64) / np.float32(16)
    return torch.from_numpy(images), torch.from_numpy(np.load(DATA / "digits-labels.npy").astype("int64"))


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    """Steps of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        batch = torch.randint(len(labels), (BATCH,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def prepared() -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and labels, when torch has loaded what it loads at the first step."""
    data = digits()
    train(network(), *data, 20)
    return data


def train_too(ways: Ways, page: Any, ready: Callable[[], None], by_torch: torch.nn.Module, name: str, n: int) -> None:
    """The partner's share of the training, of a module that came by torch and of a live name."""
    by_baton = network()
    baton.torch.load_module(by_baton, name)
    data = prepared()
    ready()
    for turn, model in turns(by_torch, by_baton):
        while page[ASKS] < turn:
            pass
        train(model, *data, n)
        page[SEEN] = turn


def turns(by_torch: torch.nn.Module, by_baton: torch.nn.Module) -> Iterator[tuple[int, torch.nn.Module]]:
    """Which module is trained in each slice, from 1; the one that is first in a pair of slices changes."""
    both = by_torch, by_baton
    return enumerate(itertools.islice(itertools.cycle((*both, *reversed(both))), 2 * SLICES), 1)


def hogwild(partner: Partner, n: int, size: int, count: int) -> Any:
    """Both processes train one model in place, in slices by turns one that torch shares and one that Baton
    does; samples a second of each slice."""
    choose_strategy(TORCH)
    torch.manual_seed(0)
    by_torch, by_baton, data, name = network(), network(), prepared(), f"bench/{uuid.uuid4().hex}"
    by_torch.share_memory()
    baton.torch.share_module(by_baton, name)
    steps = max(n // SLICES, 1)
    partner.begin(train_too, by_torch, name, steps)
    rates: dict[str, list[float]] = {"torch": [], "baton": []}
    for turn, model in turns(by_torch, by_baton):
        partner.page[ASKS] = turn
        start = now()
        train(model, *data, steps)
        partner.await_word(SEEN, turn)
        rates["torch" if model is by_torch else "baton"].append(2 * steps * BATCH / (now() - start) * 1e9)
    partner.finish()
    baton.delete(name)
    return rates


def follow(ways: Ways, page: Any, ready: Callable[[], None], name: str, n: int) -> None:
    """A worker that waits for models and loads them: revisions of a name, or what a queue of torch brings."""
    choose_strategy(TORCH)
    model, watch = network(), baton.watch(name) if name else None
    ready()
    for i in range(n):
        page[ASKS] = i + 1
        if watch:
            baton.torch.load_module(model, watch.receive(), copy=True)
        else:
            model.load_state_dict(ways[TORCH][0].get())
        page[STAMP] = now()
        page[SEEN] = i + 1


def handed(by_baton: bool) -> Callable[..., Any]:
    """A role: a model is handed to a worker that sleeps; ns until it is loaded there."""

    def role(partner: Partner, n: int, size: int, count: int) -> Any:
        choose_strategy(TORCH)
        model, name = network(), f"bench/{uuid.uuid4().hex}" if by_baton else ""
        partner.begin(follow, name, n)
        times = []
        for i in range(n):
            partner.await_asleep(i + 1)
            start = now()
            if by_baton:
                baton.torch.publish_module(model, name)
            else:
                partner.ways[TORCH][0].put({k: v.clone() for k, v in model.state_dict().items()})
            partner.await_word(SEEN, i + 1)
            times.append(partner.page[STAMP] - start)
        partner.finish()
        if by_baton:
            baton.delete(name)
        return {"ns": times[n // 10 :]}

    return role


def look(ways: Ways, page: Any, ready: Callable[[], None], name: str, n: int) -> None:
    """A worker that runs on a live module and looks at a parameter of it until that has changed."""
    model = network()
    baton.torch.load_module(model, name)
    weight = model[0].weight.detach().numpy()
    ready()
    for i in range(1, n + 1):
        while weight[0, 0] != i:
            pass
        page[STAMP] = now()
        page[SEEN] = i


def live(partner: Partner, n: int, size: int, count: int) -> Any:
    """A parameter of a shared module is written; ns until a worker has read it."""
    model, name = network(), f"bench/{uuid.uuid4().hex}"
    baton.torch.share_module(model, name)
    partner.begin(look, name, n)
    times = []
    with torch.no_grad():
        for i in range(1, n + 1):
            start = now()
            model[0].weight[0, 0] = i
            partner.await_word(SEEN, i)
            times.append(partner.page[STAMP] - start)
    partner.finish()
    baton.delete(name)
    return {"ns": times[n // 10 :]}


LAYERS, LAYER = 300, 86_667  # parameters, and numbers in each: 104 MB
INTERVAL = 200_000_000  # ns from one version to the next


def large() -> torch.nn.Module:
    return torch.nn.ParameterList([torch.rand(LAYER) for _ in range(LAYERS)])


def act(ways: Ways, page: Any, ready: Callable[[], None], name: str, n: int, waits: bool) -> None:
    """Binds a module to each version: as soon as it comes, or once it is there."""
    receiver = baton.torch.weights.Receiver(name, into=large())
    ready()
    seen = 0
    while seen < n:
        while not waits and page[ASKS] == seen:
            pass
        start = now()
        receiver.receive()
        page[STAMP] = now() if waits else now() - start
        page[SEEN] = seen = receiver.meta


def sent(waits: bool) -> Callable[..., Any]:
    """A role: a module of 104 MB is sent five times a second, or as soon as an actor has it where that takes longer.
    The ns until the actor has bound each version but the first, or what that costs the actor."""

    def role(partner: Partner, n: int, size: int, count: int) -> Any:
        model, name = large(), f"bench/{uuid.uuid4().hex}"
        sender = baton.torch.weights.Sender(name)
        partner.begin(act, name, n, waits)
        page, times = partner.page, []
        for i in range(1, n + 1):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1)
            start = now()
            sender.send(model, meta=i)
            page[ASKS] = i
            partner.await_word(SEEN, i)
            times.append(page[STAMP] - start if waits else page[STAMP])
            time.sleep(max(start + INTERVAL - now(), 0) / 1e9)
        partner.finish()
        baton.delete(name)
        return {"ns": times[1:] or times}

    return role


ROLES = {
    "weights sent": sent(waits=True),
    "weights bound": sent(waits=False),
    "hogwild": hogwild,
    "model published": handed(True),
    "model by torch": handed(False),
    "model live": live,
}
