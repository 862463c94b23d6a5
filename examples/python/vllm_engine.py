"""vLLM's weights by Baton: engines of both sides over `baton.torch.weights`, for one machine.

In each process, trainer's and workers', before vLLM makes its engines (a plugin of vLLM's may do it):

    import vllm_engine; vllm_engine.register()
    LLM(..., weight_transfer_config=WeightTransferConfig(backend="baton"))

The trainer copies what has changed once into Baton's memory; the workers load from there, all from the same bytes.
Without vLLM the interface of engine_bases.py stands in for vLLM's.

    python vllm_engine.py       # a trainer and a worker on the CPU
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import baton
import baton.torch.weights
import torch

try:
    from vllm.distributed.weight_transfer.base import (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
except ImportError:
    from engine_bases import (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )

    def initialize_layerwise_reload(model: torch.nn.Module) -> None:
        """vLLM's: makes room for weights as a checkpoint has them."""

    def finalize_layerwise_reload(model: torch.nn.Module, model_config: Any) -> None:
        """vLLM's: makes of them what the kernels take."""


@dataclass
class BatonInitInfo(WeightTransferInitInfo):
    """name: under which the trainer publishes versions. timeout: seconds to wait for one."""

    name: str
    timeout: float = 600.0


@dataclass
class BatonUpdateInfo(WeightTransferUpdateInfo):
    """number: of the update that is to be loaded, or a later one. Versions of Baton begin anew with another broker."""

    number: int


@dataclass
class BatonTrainerInitInfo(TrainerInitInfo):
    """name: chosen where none is given."""

    backend: ClassVar[str] = "baton"

    name: str = ""


class BatonWeightTransferEngine(WeightTransferEngine):
    """In a worker of vLLM's."""

    init_info_cls = BatonInitInfo
    update_info_cls = BatonUpdateInfo
    receiver: baton.torch.weights.Receiver | None = None
    number = 0
    weights: dict[str, torch.Tensor]

    def init_transfer_engine(self, init_info: BatonInitInfo) -> None:
        self.receiver = baton.torch.weights.Receiver(init_info.name)
        self.timeout = init_info.timeout

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BatonUpdateInfo) -> None:
        assert self.receiver is not None, "init_transfer_engine comes first"
        while self.number < update_info.number:
            self.weights = self.receiver.receive(self.timeout)
            self.number = self.receiver.meta
        self.model.load_weights(self.weights.items())  # also of an update that another model has had

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self.receiver is not None:
            self.receiver.close()


class BatonTrainerWeightTransferEngine(TrainerWeightTransferEngine):
    """In each rank of the trainer; the first one sends."""

    init_info_cls = BatonTrainerInitInfo
    sender: baton.torch.weights.Sender | None = None

    @classmethod
    def trainer_init(cls, init_info: BatonTrainerInitInfo, *, client: Any, source: Any = None) -> Self:
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if init_info.is_sender:
            engine.sender = baton.torch.weights.Sender(init_info.name or f"vllm/{secrets.token_hex(8)}")
            client.init_weight_transfer_engine({"name": engine.sender.name})
        return engine

    def send_weights(self) -> None:
        # Every rank goes through the source, which gathers, and may do so into one buffer.
        weights = {name: w.detach().to("cpu", copy=True) if self.is_sender else None for name, w in self.source}
        if self.sender is None:
            return
        number = time.time_ns()  # grows, also from one trainer to the next
        self.sender.send(weights, meta=number)
        self.client.start_weight_update()
        self.client.update_weights({"number": number})
        self.client.finish_weight_update()


def register() -> None:
    """Makes both known to vLLM as "baton"."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    WeightTransferEngineFactory.register_engine("baton", BatonWeightTransferEngine)
    WeightTransferTrainerFactory.register_engine("baton", BatonTrainerWeightTransferEngine)


class Model(torch.nn.Linear):
    """A model that loads weights as vLLM's do."""

    def load_weights(self, weights: Any) -> None:
        with torch.no_grad():
            for name, w in weights:
                self.get_parameter(name).copy_(w)


class Client:
    """Drives a worker in this process, as vLLM's clients drive those of a server."""

    def __init__(self, worker: BatonWeightTransferEngine) -> None:
        self.worker = worker
        self.start_weight_update = worker.start_weight_update
        self.update_weights = worker.update_weights

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.worker.init_transfer_engine(self.worker.init_info_cls(**init_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.worker.finish_weight_update()


def main() -> None:
    torch.manual_seed(0)
    trained, served = torch.nn.Linear(4, 2), Model(4, 2)
    worker = BatonWeightTransferEngine(None, None, torch.device("cpu"), served)
    source = list(trained.named_parameters())
    trainer = BatonTrainerWeightTransferEngine.trainer_init(
        BatonTrainerInitInfo(rank=0), client=Client(worker), source=source
    )
    for step in range(2):
        with torch.no_grad():
            trained.bias.fill_(float(step))
        trainer.send_weights()
        same = all(torch.equal(a, b) for a, b in zip(trained.parameters(), served.parameters(), strict=True))
        print(
            f"step {step}: version {worker.receiver.version}, equal {same}, changed {sorted(worker.receiver.changed)}"
        )
    worker.shutdown()
    baton.delete(trainer.sender.name)


if __name__ == "__main__":
    main()
