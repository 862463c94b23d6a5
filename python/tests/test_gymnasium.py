"""Vector environments: Gymnasium's class and Baton's, side by side."""

import multiprocessing
import os
import signal

import baton
import numpy as np
import pytest
from conftest import PATIENCE, eventually, lives, need

gymnasium = need("gymnasium")

from baton.gymnasium import AsyncVectorEnv
from gymnasium import spaces

PICTURE = spaces.Box(0, 255, (4, 6, 6), np.uint8)
NESTED = spaces.Dict(
    {
        "picture": PICTURE,
        "parts": spaces.Tuple([spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float16)]),
        "bits": spaces.MultiBinary(3),
        "many": spaces.MultiDiscrete([3, 4]),
        "text": spaces.Text(7),
        "one": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,), np.float32)]),
    }
)
ACTIONS = [
    spaces.Discrete(6),
    spaces.Discrete(3, start=-1),
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(-1, 1, (), np.float64),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(4),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (600,), np.float64)}),
    spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]),
]


CLOSED = multiprocessing.get_context("fork").Value("i", 0)  # environments


class Word(gymnasium.Space):
    """A space that no layout in shared memory is known of."""

    def __init__(self):
        super().__init__(shape=(), dtype=np.dtype("U"))

    def sample(self, mask=None, probability=None):
        return "word"

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, Word)


class Env(gymnasium.Env):
    """Says what it was given; its episodes have three steps."""

    def __init__(self, index=0, space=PICTURE, action_space=ACTIONS[0], step=None):
        self.observation_space, self.action_space = space, action_space
        self.index, self.made, self.does = index, os.getpid(), step
        self.render_mode = "ansi"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {"options": str(options), "seed": seed}

    def step(self, action):
        self.steps += 1
        if self.does:
            self.does(self, action)
        assert not isinstance(action, np.ndarray) or action.flags.writeable
        info = {} if self.steps == 1 else {"got": repr(action), "array": np.full(300, self.steps), "index": self.index}
        reward = [1.5, np.float32(2.5), np.float64(7), float("inf")][self.steps - 1]
        return self.observation_space.sample(), reward, self.steps == 3, False, info

    def render(self):
        return f"{self.index} after {self.steps}"

    def close(self):
        with CLOSED.get_lock():
            CLOSED.value += 1

    def pid(self):
        return os.getpid()

    def looks_like_a_step(self):
        return None, 2.5, None, 0, []

    def scale(self, action):
        self.given = action
        action *= 3

    def last(self):
        return self.given.tolist()


def makers(n=3, **kwargs):
    return [lambda i=i: Env(i, **kwargs) for i in range(n)]


def alike(a, b):
    """Whether two results are of the same types and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, np.ndarray) and a.dtype != object:
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    return alike(list(a), list(b)) if isinstance(a, np.ndarray) else a == b


def story(make, steps=5, **kwargs):
    """All that a vector environment gives."""
    envs = make(**kwargs)
    try:
        envs.action_space.seed(3)
        told = [envs.reset(seed=[1, 2, 3], options={"easy": True})]
        for _ in range(steps):
            told.append(envs.step(envs.action_space.sample()))
            if kwargs.get("autoreset_mode") == "Disabled" and told[-1][2].any():
                told.append(envs.reset(options={"reset_mask": np.array([True, False, True])}))
                told.append(envs.reset(options={"reset_mask": np.array([False, True, False])}))
        told += [envs.call("render"), envs.render(), envs.get_attr("index")]
        envs.set_attr("index", [7, 8, 9])
        return [*told, envs.get_attr("index"), envs.metadata, envs.observation_space, repr(envs)]
    finally:
        envs.close()


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("autoreset", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("space", [PICTURE, NESTED, spaces.Discrete(9)], ids=["box", "nested", "discrete"])
def test_it_gives_what_gymnasiums_gives(space, autoreset, shared_memory):
    kwargs = {"env_fns": makers(space=space), "autoreset_mode": autoreset, "shared_memory": shared_memory}
    stock = story(gymnasium.vector.AsyncVectorEnv, **kwargs)
    assert alike(story(AsyncVectorEnv, **kwargs), stock)


def test_an_action_is_the_workers_own():
    box = spaces.Box(-9, 9, (600,), np.float32)
    envs = AsyncVectorEnv(makers(action_space=box, step=Env.scale))
    try:
        envs.reset()
        actions = baton.zeros((3, 600), "float32").numpy()
        actions[:] = 1
        envs.step(actions)
        assert (actions == 1).all()
        actions[:] = 5
        assert [a[0] for a in envs.call("last")] == [3, 3, 3]
        assert envs.call("looks_like_a_step") == ((None, 2.5, None, 0, []),) * 3
    finally:
        envs.close()


@pytest.mark.parametrize("dtype", [">f4", "longdouble"])
def test_an_array_that_is_no_value_of_batons_is_pickled(dtype):
    action = np.ones(2, dtype)
    envs = AsyncVectorEnv(makers(action_space=spaces.Box(0, 2, (2,), action.dtype), step=Env.scale))
    try:
        envs.reset()
        envs.step(np.stack([action] * 3))
        assert envs.call("last") == ([3, 3],) * 3
    finally:
        envs.close()


@pytest.mark.parametrize("action_space", ACTIONS, ids=str)
def test_actions_arrive_as_they_are(action_space):
    kwargs = {"env_fns": makers(action_space=action_space)}
    assert alike(story(AsyncVectorEnv, **kwargs), story(gymnasium.vector.AsyncVectorEnv, **kwargs))


@pytest.mark.parametrize("space", [Word(), spaces.Sequence(spaces.Discrete(3))], ids=["word", "sequence"])
def test_spaces_without_a_layout_go_without_shared_memory(space):
    kwargs = {"env_fns": makers(space=space), "shared_memory": False}
    assert alike(story(AsyncVectorEnv, **kwargs), story(gymnasium.vector.AsyncVectorEnv, **kwargs))
    with pytest.raises((ValueError, TypeError), match="shared_memory"):
        AsyncVectorEnv(makers(space=space))
    eventually(lambda: not multiprocessing.active_children(), "the workers' end")


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_observations_lie_in_batons_memory(context):
    envs = AsyncVectorEnv(makers(2), context=context, copy=False)
    seen, _ = envs.reset(seed=[5, 6])
    assert baton.share(seen, copy=False).shape == (2, 4, 6, 6)
    before = seen.copy()
    again, *_ = envs.step(np.array([1, 2]))
    assert again is seen and not np.array_equal(seen, before)
    assert len({os.getpid(), *envs.call("pid")}) == 3
    envs.close()
    assert seen.sum() > 0  # the array keeps its memory
    copied = AsyncVectorEnv(makers(2), context=context)
    first, _ = copied.reset()
    assert not np.shares_memory(first, copied.step(np.array([1, 2]))[0])
    copied.close()


def test_an_error_of_a_worker_is_raised_here():
    def fail(env, action):
        if env.index == 1:
            raise KeyError(f"in {env.index}")

    envs = AsyncVectorEnv(makers(3, step=fail), context="fork")
    envs.reset()
    CLOSED.value = 0
    with pytest.raises(KeyError, match="in 1"):
        envs.step(np.zeros(3, int))
    envs.close()
    assert CLOSED.value == 3  # the others too were asked to
    assert not any(p.is_alive() for p in envs.processes)


def test_an_error_that_nobody_waited_for_is_raised_by_close():
    def fail(env, action):
        raise KeyError(f"in {env.index}")

    envs = AsyncVectorEnv(makers(2, step=fail), context="fork")
    envs.reset()
    envs.step_async(np.zeros(2, int))
    for p in envs.processes:
        p.join()
    with pytest.warns(UserWarning), pytest.raises(KeyError, match="in [01]"):
        envs.close()
    envs.close()


def test_what_waits_has_a_limit_and_an_order():
    gate = multiprocessing.get_context("fork").Event()
    envs = AsyncVectorEnv(makers(2, step=lambda env, action: gate.wait()), context="fork")
    envs.reset()
    with pytest.raises(gymnasium.error.NoAsyncCallError):
        envs.step_wait()
    envs.step_async(np.zeros(2, int))
    with pytest.raises(gymnasium.error.AlreadyPendingCallError):
        envs.reset_async()
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    gate.set()
    envs.step_async(np.zeros(2, int))
    assert envs.step_wait(timeout=PATIENCE)[1].tolist() == [1.5, 1.5]  # what came late, first, as from a pipe
    envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize("when", ["idle", "step", "start"])
def test_a_killed_worker_is_an_error(when):
    def die(env, action):
        if env.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    first = multiprocessing.get_context("fork").Value("i", os.getpid())

    def make():
        if when == "start" and os.getpid() != first.value:
            os._exit(3)
        return Env(1, step=die if when == "step" else None)

    how = "ended with exit code 3" if when == "start" else "was ended by signal 9"
    with pytest.raises(EOFError, match=f"Worker<AsyncVectorEnv>-1 {how}"):
        envs = AsyncVectorEnv([Env, make, Env], context="fork")
        envs.reset()
        if when == "idle":
            os.kill(envs.processes[1].pid, signal.SIGKILL)
        for _ in range(2):
            envs.step(np.zeros(3, int))
    if when == "start":
        eventually(lambda: not multiprocessing.active_children(), "the workers' end")
        return
    with pytest.raises(EOFError):
        envs.step_wait()
    envs.close()
    assert not any(p.is_alive() for p in envs.processes)


def test_a_worker_that_ended_unseen_leaves_the_others_to_be_closed():
    envs = AsyncVectorEnv(makers(3), context="fork")
    envs.reset()
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    envs.processes[1].join()
    CLOSED.value = 0
    envs.close()
    assert CLOSED.value == 2 and not any(p.is_alive() for p in envs.processes)


def test_workers_end_with_their_parent(child):
    c = child(
        """
import gymnasium, baton.gymnasium
envs = baton.gymnasium.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, context="fork", daemon=False)
envs.reset()
say(*(p.pid for p in envs.processes))
sys.stdin.readline()
"""
    )
    pids = [int(pid) for pid in c.hear().split()]
    c.kill()
    eventually(lambda: not any(lives(pid) for pid in pids), "their end")


def test_nothing_is_left_of_it():
    """Of many, some of which were left with a killed worker: no descriptor, no memory, no process."""

    def live(i):
        envs = AsyncVectorEnv(makers(2), context="fork")
        envs.reset()
        for _ in range(20):
            envs.step(np.zeros(2, int))
        if i % 2:
            os.kill(envs.processes[0].pid, signal.SIGKILL)
            with pytest.raises(EOFError):
                envs.step(np.zeros(2, int))
        envs.close()

    def held():
        baton.connect().collect()
        default = baton._default.session()
        default.collect()
        return default.stats()["live"], len(os.listdir("/proc/self/fd")), len(multiprocessing.active_children())

    for i in range(4):
        live(i)
    before = held()
    for i in range(10):
        live(i)
    eventually(lambda: all(map(int.__le__, held(), before)), f"what was held before: {before}, {held()}")


def worker_of_the_callers(index, env_fn, pipe, parent_pipe, shared_memory, error_queue, autoreset_mode, semaphore):
    """Doubles rewards."""
    from gymnasium.vector.utils import write_to_shared_memory

    parent_pipe.close()
    env = env_fn()
    while True:
        command, data = pipe.recv()
        if command == "reset":
            observation, info = env.reset(**data)
            write_to_shared_memory(env.observation_space, index, observation, shared_memory)
            pipe.send(((None, info), True))
        elif command == "step":
            observation, reward, terminated, truncated, info = env.step(data)
            write_to_shared_memory(env.observation_space, index, observation, shared_memory)
            pipe.send(((None, 2 * reward, terminated, truncated, info), True))
        elif command == "_check_spaces":
            pipe.send(((True, True), True))
        else:
            pipe.send((None, True))
            if command == "close":
                return


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_of_the_callers(context):
    envs = AsyncVectorEnv(makers(2), worker=worker_of_the_callers, context=context)
    envs.reset()
    observations, rewards, *_ = envs.step(np.array([1, 2]))
    assert rewards.tolist() == [3.0, 3.0] and observations.sum() > 0 and envs.worker is worker_of_the_callers
    envs.close()
    with pytest.raises(ValueError, match="takes 8 arguments"):
        AsyncVectorEnv(makers(2), worker=lambda index: None)


def test_few_run_at_a_time():
    ctx = multiprocessing.get_context("fork")
    running, most = ctx.Value("i", 0), ctx.Value("i", 0)

    def step(env, action):
        with running.get_lock():
            running.value += 1
            most.value = max(most.value, running.value)
        np.linalg.inv(np.eye(60))
        with running.get_lock():
            running.value -= 1

    envs = AsyncVectorEnv(makers(4, step=step), context="fork", max_concurrency=1)
    envs.reset()
    for _ in range(10):
        envs.step(np.zeros(4, int))
    envs.close()
    assert most.value == 1
