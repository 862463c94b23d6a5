"""Two processes that hand values to and fro, by Baton and by what else there is.

This process asks: it hands a value over and waits for a token. Its partner answers: it takes the value, reads
the first and the last element of tensors, and hands the token back by the same means.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from typing import Any

import baton
import numpy as np
import torch
import torch.multiprocessing

TOKEN = 1
ASLEEP = 100_000  # ns after which a process that went to sleep is asleep, as in bench/floor.go
UNDER_WAY = 48  # messages of a stream at most, as in bench/stream.go
ASKS, SEEN, STAMP = 0, 16, 32  # words of the page, each on a line of its own

now = time.monotonic_ns
Ways = dict[str, tuple[Any, Any]]


@contextlib.contextmanager
def both_cpus() -> Iterator[None]:
    """Uses both of the CPUs of the measurement, for the processes started here, too."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [int(cpu) for cpu in sys.argv[1:]])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class Topics:
    """A topic to put into and to get from, for one that joins it before."""

    def __init__(self, topic: baton.Topic | None = None) -> None:
        self.topic = topic or baton.topic()
        self.put = self.topic.send

    def join(self) -> None:
        self.receive = self.topic.reader().receive

    def get(self) -> Any:
        return self.receive().value

    def __reduce__(self) -> Any:
        return Topics, (self.topic,)


class Polled:
    """A SimpleQueue that is asked whether it has something until it has, so that neither side sleeps."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.put = queue, queue.put

    def get(self) -> Any:
        while self.queue.empty():
            pass
        return self.queue.get()

    def __reduce__(self) -> Any:
        return Polled, (self.queue,)


class Named:
    """Blocks of multiprocessing.shared_memory, written in place; their names go through a SimpleQueue."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.put = queue, queue.put
        self.attached: dict[str, Any] = {}

    def get(self) -> Any:
        name = self.queue.get()
        if name == TOKEN:
            return name
        if name not in self.attached:
            self.attached[name] = block = shared_memory.SharedMemory(name)
            block.array = np.frombuffer(block.buf, "float32")
        return self.attached[name].array

    def __reduce__(self) -> Any:
        return Named, (self.queue,)


def ways(context: Any) -> Ways:
    """By name: what goes there, and back."""
    import baton.torch.multiprocessing as drop_in  # here: it installs

    baton.torch.uninstall()

    def both(make: Callable[[], Any]) -> tuple[Any, Any]:
        return make(), make()

    return {
        "queue": both(baton.queue),
        "topic": both(Topics),
        "stream topic": both(lambda: Topics(baton.topic(depth=2 * UNDER_WAY))),
        "stream lossless": both(lambda: Topics(baton.topic(depth=UNDER_WAY, overwrite=False))),
        "stream queue": both(lambda: baton.queue(depth=UNDER_WAY)),
        "bounded": both(lambda: context.Queue(UNDER_WAY)),
        "default": both(context.Queue),
        "fastest": both(context.SimpleQueue),
        "installed": both(context.SimpleQueue),
        "drop-in": both(drop_in.Queue),
        "polled": both(lambda: Polled(context.SimpleQueue())),
        "names": both(lambda: Named(context.SimpleQueue())),
    }


def choose_strategy(way: str) -> None:
    """How torch shares memory: by descriptors, its default, by names, which is faster, or in Baton's."""
    (baton.torch.install if way in ("installed", "drop-in") else baton.torch.uninstall)()
    torch.multiprocessing.set_sharing_strategy("file_descriptor" if way in ("default", "bounded") else "file_system")


class Partner:
    """The other process, on the other CPU. When it ends early this one ends."""

    def __init__(self, cpu: int) -> None:
        context: Any = torch.multiprocessing.get_context("spawn")
        self.ways = ways(context)
        self.page: Any = context.RawArray(ctypes.c_uint64, 64)
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(cpu, self.ways, self.page, other), daemon=True)
        self.process.start()
        other.close()
        self.ended = False
        threading.Thread(target=self.watch, daemon=True).start()
        self.pipe.recv()

    def watch(self) -> None:
        self.process.join()
        if not self.ended:
            os._exit(1)

    def begin(self, task: Callable[..., None], *arguments: Any) -> None:
        """Gives it a task, and waits until it is ready."""
        self.pipe.send((task, arguments))
        self.pipe.recv()

    def finish(self) -> None:
        """Waits until it has done its task."""
        self.pipe.recv()

    def await_word(self, word: int, i: int) -> None:
        """Looks until it has written a number."""
        while self.page[word] < i:
            pass

    def await_asleep(self, i: int) -> None:
        """Waits until it has gone to sleep for the i-th time."""
        self.await_word(ASKS, i)
        until = now() + ASLEEP
        while now() < until:
            pass

    def end(self) -> None:
        self.ended = True
        self.pipe.close()
        self.process.join()


def serve(cpu: int, ways: Ways, page: Any, pipe: Any) -> None:
    """The partner: does its tasks until the pipe is closed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without the other
    os.sched_setaffinity(0, [cpu])
    torch.set_num_threads(1)
    gc.freeze()
    pipe.send("here")
    while True:
        try:
            task, arguments = pipe.recv()
        except EOFError:
            return
        page[ASKS] = page[SEEN] = 0
        task(ways, page, lambda: pipe.send("ready"), *arguments)
        pipe.send("done")


def answer(ways: Ways, page: Any, ready: Callable[[], None], way: str, reads: str, n: int, asleep: bool) -> None:
    """Takes n values, reads each and hands the token back."""
    choose_strategy(way)
    there, back = ways[way]
    if hasattr(there, "join"):
        there.join()
    look, get, put = LOOKS[reads], there.get, back.put
    ready()
    for i in range(n):
        if asleep:
            page[ASKS] = i + 1
        look(get())
        put(TOKEN)


def ends(a: Any) -> None:
    """Reads the first and the last element."""
    if a[0] != a[-1]:
        raise AssertionError(f"{a[0]} and {a[-1]} are of different rounds")


def torch_ends(t: torch.Tensor) -> None:
    ends(t.numpy())


def baton_ends(x: baton.Tensor) -> None:
    ends(np.asarray(x))


def baton_as_torch(x: baton.Tensor) -> None:
    ends(x.torch().numpy())


def each(look: Callable[[Any], None]) -> Callable[[Any], None]:
    """Looks at every tensor of a dict or list."""

    def of_each(value: Any) -> None:
        for x in value.values() if isinstance(value, dict) else value:
            look(x)

    return of_each


def outer(look: Callable[[Any], None]) -> Callable[[Any], None]:
    """Looks at the first and the last tensor of a dict or list."""

    def of_outer(value: Any) -> None:
        all = list(value.values()) if isinstance(value, dict) else value
        look(all[0])
        look(all[-1])

    return of_outer


LOOKS = {
    "array": ends,
    "torch": torch_ends,
    "torch-each": each(torch_ends),
    "torch-outer": outer(torch_ends),
    "baton": baton_ends,
    "baton-torch": baton_as_torch,
    "baton-each": each(baton_ends),
    "baton-outer": outer(baton_ends),
}

Make = Callable[[int], Any]


def ask(partner: Partner, way: str, reads: str, n: int, make: Make, put: Make, asleep: bool = False) -> Any:
    """ns of each round: what `make` made, which is not timed, is put, and the token comes back."""
    choose_strategy(way)
    n += n // 10
    back = partner.ways[way][1]
    if hasattr(back, "join"):
        back.join()
    partner.begin(answer, way, reads, n, asleep)
    get, times = back.get, []
    for i in range(n):
        value = make(i)
        if asleep:
            partner.await_asleep(i + 1)
        start = now()
        put(value)
        get()
        times.append(now() - start)
    partner.finish()
    return {"ns": times[n // 11 :]}


def receive_all(ways: Ways, page: Any, ready: Callable[[], None], way: str, reads: str, n: int) -> None:
    """Takes n values, reads each, and says how far it is."""
    choose_strategy(way)
    there = ways[way][0]
    if hasattr(there, "join"):
        there.join()
    look, get = LOOKS[reads], there.get
    ready()
    for i in range(n):
        look(get())
        page[SEEN] = i + 1


def stream(way: str, reads: str) -> Callable[..., Any]:
    """A role: puts one value after the other while no more than so many are under way. Values a second."""

    def role(partner: Partner, n: int, size: int, count: int) -> Any:
        choose_strategy(way)
        warm = n // 10
        put = born(partner, way, size) if reads == "baton" else partner.ways[way][0].put
        make = nothing if reads == "baton" else tensor(size)
        partner.begin(receive_all, way, reads, warm + n)
        start = now()
        for i in range(warm + n):
            if way == "stream topic" and i >= count:  # what the other ways mind themselves
                partner.await_word(SEEN, i + 1 - count)
            if i == warm:
                partner.await_word(SEEN, i)
                start = now()
            put(make(i))
        partner.await_word(SEEN, warm + n)
        took = now() - start
        partner.finish()
        return {"rate": [n / took * 1e9]}

    return role


def nothing(i: int) -> int:
    return i


def born(partner: Partner, way: str, size: int) -> Make:
    """Allocates in Baton, writes both ends, and puts."""
    put, empty, shape = partner.ways[way][0].put, baton.empty, (size // 4,)

    def allocate_and_put(i: int) -> None:
        x = empty(shape)
        a = np.asarray(x)
        a[0] = a[-1] = i
        put(x)

    return allocate_and_put


def born_state(partner: Partner, way: str, size: int, count: int) -> Make:
    """As `born`, for a state of many tensors, of which the first and the last are written."""
    put, spec = partner.ways[way][0].put, state(size, count)(0)
    ends = [name for k, name in enumerate(spec) if k in (0, count - 1)]

    def allocate_and_put(i: int) -> None:
        x = baton.empty_like(spec)
        for name in ends:
            a = np.asarray(x[name])
            a[0] = a[-1] = i
        put(x)

    return allocate_and_put


def tensor(size: int) -> Make:
    """A tensor of torch's own memory, filled."""
    return lambda i: torch.full((size // 4,), float(i))


def shared(size: int) -> Make:
    """As `tensor`, in Baton's memory."""
    return lambda i: baton.empty((size // 4,)).torch().fill_(float(i))


def state(size: int, count: int) -> Make:
    return lambda i: {f"layers.{k}.weight": torch.full((size // 4,), float(i)) for k in range(count)}


def samples(size: int, count: int) -> Make:
    return lambda i: [torch.full((size // 4,), float(i)) for _ in range(count)]


def round_trip(way: str, reads: str, asleep: bool = False, make: str = "tensor") -> Callable[..., Any]:
    """A role: hands over what is made before, or allocated in Baton."""

    def role(partner: Partner, n: int, size: int, count: int) -> Any:
        if make == "born":
            return ask(partner, way, reads, n, nothing, born(partner, way, size), asleep)
        if make == "born dict":
            return ask(partner, way, reads, n, nothing, born_state(partner, way, size, count))
        makes = {
            "tensor": lambda: tensor(size),
            "shared": lambda: shared(size),
            "dict": lambda: state(size, count),
            "list": lambda: samples(size, count),
        }
        return ask(partner, way, reads, n, makes[make](), partner.ways[way][0].put, asleep)

    return role


def named(asleep: bool) -> Callable[..., Any]:
    """A role: writes both ends of a block in place and puts its name."""

    def role(partner: Partner, n: int, size: int, count: int) -> Any:
        put = partner.ways["names"][0].put
        blocks = [shared_memory.SharedMemory(create=True, size=size) for _ in range(4)]
        arrays = [np.frombuffer(b.buf, "float32") for b in blocks]

        def write_and_put(i: int) -> None:
            a = arrays[i % 4]
            a[0] = a[-1] = i
            put(blocks[i % 4].name)

        figures = ask(partner, "names", "array", n, nothing, write_and_put, asleep)
        for b in blocks:
            b.unlink()
        return figures

    return role


def roles() -> Iterator[tuple[str, Callable[..., Any]]]:
    for asleep in (False, True):
        at = "asleep " if asleep else ""
        yield at + "queue born", round_trip("queue", "baton", asleep, "born")
        yield at + "queue copied", round_trip("queue", "baton", asleep)
        yield at + "topic born", round_trip("topic", "baton", asleep, "born")
        yield at + "queue torch", round_trip("queue", "baton-torch", asleep, "born")
        for torchs in ("default", "fastest", "polled", "installed", "drop-in"):
            yield at + torchs, round_trip(torchs, "torch", asleep)
        yield at + "names", named(asleep)
    for kind in ("topic", "lossless", "queue"):
        yield f"stream {kind}", stream(f"stream {kind}", "baton")
    yield "stream fastest", stream("fastest", "torch")
    yield "stream default", stream("bounded", "torch")
    yield "drop-in born", round_trip("drop-in", "torch", make="shared")
    yield "queue dict born", round_trip("queue", "baton-outer", make="born dict")
    for kind in ("dict", "list"):
        for reads in ("outer", "each"):
            yield f"queue {kind} {reads}", round_trip("queue", f"baton-{reads}", make=kind)
            for torchs in ("fastest", "installed", "drop-in"):
                yield f"{torchs} {kind} {reads}", round_trip(torchs, f"torch-{reads}", make=kind)


ROLES = dict(roles())
