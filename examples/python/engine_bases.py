"""The interfaces that verl_engine.py and vllm_engine.py implement, for a machine without verl and vLLM.

Names, methods and their arguments are those of verl's `CheckpointEngine` and of vLLM's `WeightTransferEngine`; nothing
else of these programs is here.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch


class CheckpointEngineWithCache(ABC):
    """As verl.checkpoint_engine.base has it."""

    @abstractmethod
    def prepare(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]: ...

    @abstractmethod
    def init_process_group(self, **kwargs: Any) -> None: ...

    @abstractmethod
    def finalize(self) -> None: ...

    @abstractmethod
    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None: ...

    @abstractmethod
    def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]: ...

    @abstractmethod
    def get_weights(self) -> AsyncIterator[tuple[str, torch.Tensor]]: ...


class CheckpointEngineRegistry:
    """As verl.checkpoint_engine.base has it."""

    _registry: ClassVar[dict[str, type[CheckpointEngineWithCache]]] = {}

    @staticmethod
    def register(backend: str) -> Callable[[Any], Any]:
        def enter(cls: Any) -> Any:
            CheckpointEngineRegistry._registry[backend] = cls
            return cls

        return enter

    @classmethod
    def new(cls, backend: str, *args: Any, **kwargs: Any) -> Any:
        return cls._registry[backend](*args, **kwargs)


class WeightTransferEngine(ABC):
    """As vllm.distributed.weight_transfer.base has it."""

    init_info_cls: type
    update_info_cls: type

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        self.config, self.device, self.model = config, device, model
        self.model_config = getattr(vllm_config, "model_config", None)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))

    @abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...


class TrainerWeightTransferEngine(ABC):
    """As vllm.distributed.weight_transfer.base has it."""

    init_info_cls: type

    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any: ...

    @abstractmethod
    def send_weights(self) -> None: ...


@dataclass
class WeightTransferInitInfo:
    """As vllm.distributed.weight_transfer.base has it."""


@dataclass
class WeightTransferUpdateInfo:
    """As vllm.distributed.weight_transfer.base has it."""


@dataclass
class TrainerInitInfo:
    """As vllm.distributed.weight_transfer.base has it."""

    backend: ClassVar[str]

    rank: int = field(kw_only=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not getattr(cls, "backend", None):
            raise TypeError(f"{cls.__name__} must set a class-level backend")

    @property
    def is_sender(self) -> bool:
        return self.rank == 0
