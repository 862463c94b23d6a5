"""Gymnasium's vector environment over shared memory: `AsyncVectorEnv` in place of Gymnasium's.

    import baton.gymnasium

    envs = baton.gymnasium.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)

It is Gymnasium's class with another transport: observations lie in Baton's memory, and what goes between the process
and its workers goes by Baton's lanes. Numbers and arrays of a step go as they are, all else as a pickle.

Ownership: the vector environment holds the observations' memory; without `copy` an array of them keeps it too.
Concurrency: one thread at a time, as with Gymnasium's. Fork and spawn: as the context says. Death: a worker that ended
is an EOFError of the call that waits for it; workers end when the process that started them has ended.
Needs Gymnasium, and a broker, which is started if none runs.
"""

import functools
import inspect
import io
import multiprocessing
import os
import pickle
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, async_vector_env
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

import baton
from baton import _default, _native, _pickler
from baton._native import Queue, Tensor

__all__ = ["AsyncVectorEnv"]

# Gymnasium's own class, whose generic parameters mean nothing here.
_Stock: Any = async_vector_env.AsyncVectorEnv

# Spaces whose observations are an array each.
_ARRAYS = (Box, Discrete, MultiBinary, MultiDiscrete)

# What an array that goes as it is may consist of.
_NUMBERS = frozenset(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))

# Seconds after which a wait looks whether the other end lives.
_LOOK = 0.25


class AsyncVectorEnv(_Stock):  # type: ignore[misc]
    """Runs environments in processes of their own: `gymnasium.vector.AsyncVectorEnv`, whose arguments it takes.

    Differences: a worker that has ended is an EOFError that names it and how it ended, and `close` is possible
    afterwards. A custom `worker` gets an object with `send`, `recv`, `poll` and `close` in place of a pipe, and in
    place of `multiprocessing.Array` one with `get_obj`. Raises as Gymnasium's, and NoBroker, OutOfMemory.

    >>> envs = baton.gymnasium.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations, rewards, terminations, truncations, infos = envs.step(np.array([0, 1]))
    >>> observations.shape, rewards.tolist(), terminations.tolist()
    ((2, 4), [1.0, 1.0], [False, False])
    >>> envs.close()
    """

    _state: async_vector_env.AsyncState

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: Any = "same",
        autoreset_mode: Any = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
    ) -> None:
        expected = inspect.signature(async_vector_env._async_worker)
        if worker is not None:
            try:
                inspect.signature(worker).bind(*(None,) * len(expected.parameters))
            except TypeError as e:
                raise ValueError(
                    f"a custom worker takes {len(expected.parameters)} arguments, {expected}; "
                    f"this one has {inspect.signature(worker)}"
                ) from e
        _default.session()  # without a broker no worker is started
        self._in_shared_memory = shared_memory
        super().__init__(
            env_fns,
            shared_memory=False,  # Gymnasium's own
            copy=copy,
            context=context,
            daemon=daemon,
            worker=functools.partial(_work, worker),
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            **({} if max_concurrency is None else {"max_concurrency": max_concurrency}),
        )
        self.worker = worker

    def _check_spaces(self) -> None:
        # The constructor's first talk with the workers, which it has started.
        try:
            self._connect()
        except BaseException:
            self.close(terminate=True)
            raise
        super()._check_spaces()

    def _connect(self) -> None:
        """Goes over from pipes to lanes."""
        memory = None
        if self._in_shared_memory:
            try:
                arrays: Any = _Arrays
                memory = create_shared_memory(self.single_observation_space, n=self.num_envs, ctx=arrays)
                self.observations = read_from_shared_memory(self.single_observation_space, memory, n=self.num_envs)
            except CustomSpaceError as e:
                raise ValueError(
                    f"{type(self.single_observation_space).__name__} has no layout in shared memory "
                    "(register one, or leave it out by shared_memory=False)"
                ) from e
            self.shared_memory = True
        for i, (pipe, process) in enumerate(zip(self.parent_pipes, self.processes, strict=True)):
            there, back = _queue(), _queue()
            try:
                pipe.send((there, back, memory))
            except OSError:
                pass  # it has ended, as is found when it is to answer
            self.parent_pipes[i] = _Lane(there, back, functools.partial(_how_it_ended, process))
            pipe.close()

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        for lane in self.parent_pipes:
            if lane is not None and lane.lost is not None:
                raise EOFError(lane.lost)  # the others may have answered, and do not answer twice
        return bool(super()._poll_pipe_envs(timeout))

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ends the workers, also if one of them has ended already: then at once, if a call is pending. See
        Gymnasium's."""
        idle = async_vector_env.AsyncState.DEFAULT
        ended = [lane for lane, p in zip(self.parent_pipes, self.processes, strict=True) if p.exitcode]  # not by itself
        for lane in ended:
            if lane is not None:
                lane.close()
        if ended and self._state != idle:
            self._state, terminate = idle, True  # what is pending is not answered by all
        try:
            super().close_extras(timeout, terminate)
        except EOFError:  # one has ended meanwhile
            self._state = idle
            super().close_extras(timeout, True)


def _how_it_ended(process: Any) -> str | None:
    code = process.exitcode
    if code is None:
        return None
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{process.name} {how} (close the vector environment and make it anew)"


def _parent() -> Callable[[], str | None]:
    """How the process that started this one ended, for its worker."""
    pid, process = os.getppid(), multiprocessing.parent_process()

    def how_it_ended() -> str | None:
        if os.getppid() == pid and (process is None or process.is_alive()):
            return None
        return "the process of the vector environment ended"

    return how_it_ended


def _work(
    worker: Callable[..., None] | None, index: int, env_fn: Any, pipe: Any, parent_pipe: Any, *others: Any
) -> None:
    """Runs Gymnasium's worker, or the caller's, over lanes."""
    parent = _parent()
    parent_pipe.close()
    there, back, memory = pipe.recv()
    pipe.close()
    lane, none = _Lane(back, there, parent), _Lane(back, there, parent)
    none._out = none._into = None  # what stands for the parent's end is closed by the worker
    _none, *rest = others
    (worker or _stock_worker())(index, env_fn, lane, none, memory, *rest)


def _stock_worker() -> Callable[..., None]:
    """Gymnasium's worker, which writes observations by `_write`."""
    stock = async_vector_env._async_worker
    names = {**stock.__globals__, "write_to_shared_memory": _write}
    return types.FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)


def _write(space: Any, index: int, value: Any, memory: Any) -> None:
    """As Gymnasium's `write_to_shared_memory`, which copies an array twice."""
    kind = type(space)
    if kind is Dict:
        for key, part in space.spaces.items():
            _write(part, index, value[key], memory[key])
    elif kind is Tuple:
        for part, of_value, of_memory in zip(space.spaces, value, memory, strict=True):
            _write(part, index, of_value, of_memory)
    elif kind in _ARRAYS and type(value) is np.ndarray and value.dtype == space.dtype and value.shape == space.shape:
        memory.row(index, value)[...] = value
    else:
        write_to_shared_memory(space, index, value, memory)


class _Array:
    """Memory of observations: what Gymnasium asks of `multiprocessing.Array`."""

    def __init__(self, bytes_: Tensor) -> None:
        self._bytes = bytes_
        self._view = bytes_.numpy()
        self._row: Any = None

    def row(self, index: int, like: Any) -> Any:
        """The place of an environment's observation, always the same one's."""
        if self._row is None:
            at = index * like.nbytes
            self._row = self._view[at : at + like.nbytes].view(like.dtype).reshape(like.shape)
        return self._row

    def get_obj(self) -> Any:
        """The memory, as a buffer of bytes."""
        return self._view

    def __reduce__(self) -> Any:
        return _Array, (self._bytes,)


class _Arrays:
    """Stands for a context of multiprocessing's where Gymnasium makes arrays."""

    @staticmethod
    def Array(kind: Any, size: int) -> _Array:
        return _Array(baton.zeros(size * np.dtype(kind).itemsize, "uint8"))


def _queue() -> Queue:
    return baton.queue(linger=0)


class _Lane:
    """One end of two queues, in place of a pipe.

    A message is what a step takes or gives where that is a number or an array: an action of Discrete, of Box,
    MultiDiscrete or MultiBinary; the reward, where the rest says nothing, in a tuple where it is NumPy's. Else it is a
    pickle, and the buffers beside it.
    """

    def __init__(self, out: Queue, into: Queue, ended: Callable[[], str | None]) -> None:
        self._out: Queue | None = out
        self._into: Queue | None = into
        self._ended = ended
        self._next: Any = None  # what `poll` has found
        self.lost: str | None = None  # how the other end ended, when `recv` has found that

    @property
    def closed(self) -> bool:
        """Whether this end was closed."""
        return self._out is None

    def close(self) -> None:
        """Closes both queues: what is in them is dropped."""
        for queue in (self._out, self._into):
            if queue is not None:
                queue.close()
        self._out = self._into = self._next = None

    def send(self, obj: Any) -> None:
        """Sends an object, which never waits for the other end to take it."""
        if self._out is None:
            raise OSError("handle is closed")
        message = _plain(obj)
        try:
            self._out.put(_pickled(obj) if message is None else message)
        except baton.Closed as e:
            raise BrokenPipeError("the other end was closed") from e

    def recv(self) -> Any:
        """Takes an object, waiting for one. Raises EOFError when the other end has ended."""
        if self._into is None:
            raise OSError("handle is closed")
        message = self._next
        if message is None:
            try:
                message = self._take(None)
            except EOFError as e:
                self.lost = str(e)
                raise
        self._next = None
        kind = type(message)
        if kind is float:
            return (None, message, False, False, {}), True
        if kind is int:
            return "step", np.int64(message)
        if kind is Tensor:
            return "step", message.numpy()
        if kind is bytes:
            return pickle.loads(message)
        if len(message) == 1:
            return (None, np.float64(message[0]), False, False, {}), True
        data, buffers = message
        return pickle.loads(data, buffers=buffers)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether `recv` would give or raise at once, after some seconds at most; None: without an end."""
        if self._into is None:
            raise OSError("handle is closed")
        if self._next is None:
            try:
                self._next = self._take(timeout)
            except EOFError:
                return True
            except baton.Empty:
                return False
        return True

    def _take(self, timeout: float | None) -> Any:
        assert self._into is not None
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK if until is None else min(max(until - time.monotonic(), 0), _LOOK)
            why = self._ended() if left < _LOOK else None
            try:
                return self._into.get(left)
            except baton.Closed as e:
                raise EOFError("the other end was closed") from e
            except baton.Empty:
                why = why or self._ended()
                if why is None:
                    if left < _LOOK:
                        raise
                    continue
            try:
                return self._into.get(0)  # what it sent before it ended
            except baton.Empty:
                raise EOFError(why) from None


def _plain(obj: Any) -> Any:
    """The number or array that stands for a step's message; None of another one."""
    if type(obj) is not tuple or len(obj) != 2:
        return None
    first, second = obj
    if second is True:
        if type(first) is tuple and len(first) == 5 and first[0] is None:
            _, reward, terminated, truncated, info = first
            if terminated is False and truncated is False and type(info) is dict and not info:
                if type(reward) is float:
                    return reward
                if type(reward) is np.float64:
                    return (float(reward),)
    elif first == "step":
        if type(second) is np.int64:
            return int(second)
        if type(second) is np.ndarray and second.dtype in _NUMBERS and second.size and second.flags.carray:
            return _native.own_buffers([second])[0]  # what it is now, and the worker's own
    return None


def _pickled(obj: Any) -> Any:
    file = io.BytesIO()
    p = _pickler.Pickler(file)
    p.dump(obj)
    data, beside = _pickler.apart(file.getvalue()), p.beside()
    return data if not beside and type(data) is bytes else (data, beside)
