"""One process of a pair that calls functions, or does what calls are compared with, wherever it runs.

`baton-bench` starts it with its job in the environment and the page of the pair as descriptor 3, as it starts
the programs in Go and Rust (bench/calls.go).
"""

import ctypes
import json
import mmap
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from typing import Any

import baton
import numpy as np

PAGE, LINE, DEPART, BACK = 4096, 16, 0, 2  # bytes of the head; words of a line; series
DONE, TURN = 7, 8  # lines: left is ready for a slice; the pair may do it
FUTEX, WAIT, WAKE = 202 if os.uname().machine == "x86_64" else 98, 0, 1
now = time.monotonic_ns
Round = Callable[[int], None]


class Seat:
    """A process at work on its job."""

    def __init__(self) -> None:
        job = json.loads(os.environ["BATON_BENCH_JOB"])
        self.n, self.side, self.slice = job["n"], job.get("side", 0), job.get("slice", 0)
        self.bytes, self.every, self.path = job.get("bytes", 0), job.get("every", 0) / 1e9, job["path"]
        self.role, self.directory = job["role"], job["directory"]
        self.session = baton.Session(job["socket"], name="bench-python")
        self.memory = mmap.mmap(3, PAGE + 4 * self.n * 8)
        self.words = np.frombuffer(self.memory, np.uint64)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.system: Any = ctypes.CDLL(None).syscall

    def wake(self, line: int) -> None:
        self.system(FUTEX, ctypes.c_void_p(self.base + line * LINE * 8), WAKE, 1 << 30, None, None, 0)

    def await_asleep(self, line: int, v: int) -> None:
        while (seen := int(self.words[line * LINE])) < v:
            second = (ctypes.c_long * 2)(1, 0)
            self.system(FUTEX, ctypes.c_void_p(self.base + line * LINE * 8), WAIT, seen & 0xFFFFFFFF, second, None, 0)

    def meet(self) -> None:
        """Waits until the other side has come here as often as this one."""
        self.words[self.side * LINE] += 1
        self.wake(self.side)
        self.await_asleep(1 - self.side, int(self.words[self.side * LINE]))

    def turn(self, i: int) -> None:
        """Ends a slice before round i, where one ends, and waits asleep until it is the pair's turn again."""
        if not self.slice or i % self.slice:
            return
        k = i // self.slice + 1
        if self.side == 0:
            self.words[DONE * LINE] = k
            self.wake(DONE)
        self.await_asleep(TURN, k)

    def measure(self, do: Round) -> None:
        """Left measures; right only keeps pace, as what answers there works by itself."""
        depart, back = [0] * self.n, [0] * self.n
        for i in range(self.n):
            self.turn(i)
            if self.side == 0:
                if self.every:
                    time.sleep(self.every)
                depart[i] = now()
                do(i)
                back[i] = now()
        self.turn(self.n)
        if self.side == 0:
            series = self.words[PAGE // 8 :].reshape(4, self.n)
            series[DEPART], series[BACK] = depart, back
        self.meet()

    def answer(self, do: Round) -> None:
        """Right answers each round itself."""
        for i in range(self.n):
            self.turn(i)
            do(i)
        self.turn(self.n)
        self.meet()


def expect(got: Any, want: Any) -> None:
    if got != want:
        raise AssertionError(f"{got} came back, not {want}")


def own_trip(s: Seat) -> None:
    """Puts a number into a queue and waits for it in a topic."""
    there, back = s.session.queue(f"{s.path}/there"), s.session.topic(f"{s.path}/back")
    if s.side:
        s.meet()
        s.answer(lambda i: back.send(there.get()))
        return
    receive = back.reader().receive
    s.meet()

    def do(i: int) -> None:
        there.put(i)
        expect(receive().value, i)

    s.measure(do)


def called(s: Seat, f: Callable[..., Any], do: Callable[[baton.Function], Round]) -> None:
    """Right provides a function, left calls it."""
    if s.side:
        with s.session.start_functions(baton.function(s.path)(f)):
            s.meet()
            s.measure(lambda i: None)
        return
    s.meet()
    s.measure(do(s.session.get_function(s.path)))


def call_int(s: Seat) -> None:
    def same(x: int) -> int:
        return x

    called(s, same, lambda f: lambda i: expect(f(i), i))


def call_six(s: Seat) -> None:
    def total(a: float, b: float, c: float, d: float, e: float, f: float) -> float:
        return a + b + c + d + e + f

    called(s, total, lambda f: lambda i: expect(f(a=i * 1.0, b=1.5, c=2.5, d=3.5, e=4.5, f=5.5), i + 17.5))


def call_tensor(s: Seat) -> None:
    """One tensor that it has, by handle, which comes back."""

    def same(x: baton.Tensor) -> baton.Tensor:
        a = np.asarray(x)
        expect(a[0], a[-1])
        return x

    def rounds(f: baton.Function) -> Round:
        x = s.session.empty((s.bytes // 4,), "float32")
        a = np.asarray(x)

        def do(i: int) -> None:
            a[0] = a[-1] = i
            expect(np.asarray(f(x))[0], i)

        return do

    called(s, same, rounds)


def call_tvm(s: Seat) -> None:
    """What stands in tvm-ffi's global table for a function."""
    import baton.tvm_ffi
    import tvm_ffi

    def same(x: int) -> int:
        return x

    def rounds(f: baton.Function) -> Round:
        baton.tvm_ffi.export(f.name, session=s.session)
        in_table = tvm_ffi.get_global_func(f.name.replace("/", "."))
        return lambda i: expect(in_table(i), i)

    called(s, same, rounds)


def bytes_to_and_fro(s: Seat, send_and_take: Callable[[bytes], Any]) -> None:
    """An array that is sent as bytes, and the array that the bytes which come back are."""
    a = np.zeros(s.bytes // 4, np.float32)

    def do(i: int) -> None:
        a[0] = a[-1] = i
        back = np.frombuffer(send_and_take(a), np.float32)
        expect(back[-1], a[0])

    s.measure(do)


def connection(s: Seat) -> None:
    """multiprocessing.connection, by a Unix socket."""
    address = f"{s.directory}/{s.path.replace('/', '-')}.sock"
    if s.side:
        with Listener(address, "AF_UNIX") as listener:
            s.meet()
            with listener.accept() as peer:
                s.answer(lambda i: peer.send_bytes(peer.recv_bytes()))
        return
    s.meet()
    with Client(address, "AF_UNIX") as peer:

        def send_and_take(a: Any) -> bytes:
            peer.send_bytes(a)
            return peer.recv_bytes()

        bytes_to_and_fro(s, send_and_take)


def zeromq(s: Seat) -> None:
    """pyzmq, REQ and REP by ipc."""
    import zmq

    address = f"ipc://{s.directory}/{s.path.replace('/', '-')}.zmq"
    with zmq.Context() as context:
        if s.side:
            with context.socket(zmq.REP) as peer:
                peer.bind(address)
                s.meet()
                s.answer(lambda i: peer.send(peer.recv(copy=False), copy=False))
            return
        s.meet()
        with context.socket(zmq.REQ) as peer:
            peer.connect(address)

            def send_and_take(a: Any) -> Any:
                peer.send(a, copy=False)
                return peer.recv(copy=False).buffer

            bytes_to_and_fro(s, send_and_take)


def grpc(s: Seat) -> None:
    """gRPC by a Unix socket, with messages that are bytes."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    address = f"unix:{s.directory}/{s.path.replace('/', '-')}.grpc"
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if s.side:
        server = grpc.server(ThreadPoolExecutor(1), options=unlimited)
        same = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", {"same": same})])
        server.add_insecure_port(address)
        server.start()
        s.meet()
        s.measure(lambda i: None)
        server.stop(None)
        return
    s.meet()
    with grpc.insecure_channel(address, options=unlimited) as channel:
        same = channel.unary_unary("/bench/same")
        bytes_to_and_fro(s, lambda a: same(a.tobytes()))


def same(x: Any) -> Any:
    return x


def on_all_cpus() -> None:
    """Lets what has threads and processes of its own run where it would; what is started inherits it."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def torch_rpc(s: Seat) -> None:
    """torch.distributed.rpc by TensorPipe, with a tensor."""
    on_all_cpus()
    import torch
    from torch.distributed import rpc

    names = ("left", "right")
    meeting = f"file://{s.directory}/{s.path.replace('/', '-')}.rpc"
    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting, num_worker_threads=1)
    rpc.init_rpc(names[s.side], rank=s.side, world_size=2, rpc_backend_options=options)
    s.meet()
    if s.side:
        s.measure(lambda i: None)
    else:
        bytes_to_and_fro(s, lambda a: rpc.rpc_sync("right", same, (torch.from_numpy(a),)).numpy())
    rpc.shutdown()


def with_ray(s: Seat) -> None:
    """An actor of Ray's, which Ray starts: right only keeps pace."""
    if s.side:
        s.meet()
        s.measure(lambda i: None)
        return
    on_all_cpus()
    import tempfile

    import ray

    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)

        class Same:
            def same(self, a: Any) -> Any:
                return a

        actor = ray.remote(num_cpus=0)(Same).remote()
        s.meet()
        bytes_to_and_fro(s, lambda a: ray.get(actor.same.remote(a)))
        ray.shutdown()


ROLES: dict[str, Callable[[Seat], None]] = {
    "own-trip": own_trip,
    "call-int": call_int,
    "call-six": call_six,
    "call-tensor": call_tensor,
    "call-tvm": call_tvm,
    "connection": connection,
    "zeromq": zeromq,
    "grpc": grpc,
    "torch-rpc": torch_rpc,
    "ray": with_ray,
}

seat = Seat()
ROLES[seat.role](seat)
print(json.dumps({}))
