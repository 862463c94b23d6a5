"""Environments in processes of their own, by Gymnasium's vector environment and by Baton's.

They cost nothing themselves: what is measured is how observations, actions and rewards travel.
"""

from typing import Any

import baton.gymnasium
import gymnasium
import numpy as np
from pair import both_cpus, now

ENVIRONMENTS = 8
# A phase in which the machine does less falls on both classes alike.
SLICES = 10


class Frames(gymnasium.Env[Any, Any]):
    """Four pictures as of Atari's games, always the same ones."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self) -> None:
        self.frames = np.ones((4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.frames, {}

    def step(self, action: Any) -> Any:
        return self.frames, 1.0, False, False, {}


def stepped(n: int, size: int) -> dict[str, list[float]]:
    """Steps a second of each slice, by turns; both of the CPUs of the measurement are used."""
    classes = {"gymnasium": gymnasium.vector.AsyncVectorEnv, "baton": baton.gymnasium.AsyncVectorEnv}
    rates: dict[str, list[float]] = {name: [] for name in classes}
    with both_cpus():
        all_ = {name: make([Frames] * ENVIRONMENTS) for name, make in classes.items()}
        for envs in all_.values():
            envs.reset()
        actions = all_["baton"].action_space.sample()
        for k in range(-1, SLICES):
            for name in list(all_) if k % 2 else reversed(all_):
                start = now()
                for _ in range(n):
                    all_[name].step(actions)
                if k >= 0:
                    rates[name].append(n / (now() - start) * 1e9)
        for envs in all_.values():
            envs.close()
    return rates


ROLES = {"environments": stepped}
