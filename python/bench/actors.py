"""Ray's actors that hand tensors over: by its object store, and by Baton's transport."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import baton.ray
import ray
import torch
from pair import both_cpus, now

baton.ray.register()  # before a class names it


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Giver:
    @ray.method(tensor_transport="BATON")
    def by_baton(self, n: int) -> torch.Tensor:
        return torch.full((n,), 2.0)

    def by_store(self, n: int) -> torch.Tensor:
        return torch.full((n,), 2.0)


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Taker:
    def ends(self, t: torch.Tensor) -> float:
        return float(t[0] + t[-1])


def handed(n: int, size: int) -> dict[str, list[float]]:
    """ns from the call that makes a tensor until another actor has read it, by turns."""
    paths = [os.path.dirname(os.path.abspath(__file__)), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"BATON_ADDRESS": os.environ["BATON_ADDRESS"], "PYTHONPATH": ":".join(paths)}
    with both_cpus(), tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": variables},
            _temp_dir=folder,
        )
        giver, taker = Giver.remote(), Taker.remote()
        gives = {"store": giver.by_store, "baton": giver.by_baton}
        times: dict[str, list[float]] = {name: [] for name in gives}
        for k in range(-2, n):
            for name in list(gives) if k % 2 else reversed(gives):
                start = now()
                ray.get(taker.ends.remote(gives[name].remote(size // 4)))
                if k >= 0:
                    times[name].append(now() - start)
        ray.shutdown()
    return times


ROLES: dict[str, Callable[..., Any]] = {"ray": handed}
