"""A distillation that two processes share on the fake device; test_training_on_device.py starts it
in each of them:

RANK=… WORLD_SIZE=2 … python tests/device/fake_cuda.py tests/device/two_processes.py OUTPUT_DIR
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
from tiny_trainer import logged, tensors, tiny_data, tiny_trainer
from torch import Tensor, distributed
from torch._C._distributed_c10d import AllgatherOptions, Work, _create_work_from_future

SETTINGS = {"max_steps": 2, "per_device_train_batch_size": 20, "use_cpu": False}
places: set[tuple[str, str]] = set()


class ThroughTheCPU(distributed.ProcessGroup):
    """Exchanges tensors by gloo, which in a CPU build takes no CUDA tensors, and notes where they
    were.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo = distributed.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "through_the_cpu"

    def allreduce(self, given: list[Tensor], options: Any = None) -> Work:
        return self._in_place("allreduce", given, options or distributed.AllreduceOptions())

    def broadcast(self, given: list[Tensor], options: Any = None) -> Work:
        return self._in_place("broadcast", given, options or distributed.BroadcastOptions())

    def allgather(self, to: list[list[Tensor]], given: list[Tensor], options: Any = None) -> Work:
        places.update(("allgather", x.device.type) for x in (*to[0], *given))
        parts = [torch.empty_like(given[0], device="cpu") for _ in to[0]]
        self.gloo.allgather([parts], [given[0].cpu()], AllgatherOptions()).wait()
        for x, part in zip(to[0], parts, strict=True):
            x.copy_(part)
        return done(to)

    def _allgather_base(self, to: Tensor, given: Tensor, options: Any = None) -> Work:
        return self.allgather([list(to.view(self.size(), *given.shape))], [given])

    all_gather_single = _allgather_base

    def barrier(self, options: Any = None) -> Work:
        self.gloo.barrier().wait()
        return done([])

    def _in_place(self, name: str, given: list[Tensor], options: Any) -> Work:
        places.update((name, x.device.type) for x in given)
        here = [x.cpu() for x in given]
        getattr(self.gloo, name)(here, options).wait()
        for x, y in zip(given, here, strict=True):
            x.copy_(y)
        return done(given)


def done(result: Any) -> Work:
    future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


if __name__ == "__main__":
    distributed.Backend.register_backend("through_the_cpu", ThroughTheCPU, devices=["cpu", "cuda"])
    distributed.init_process_group("through_the_cpu", timeout=timedelta(minutes=2))
    trainer = tiny_trainer(sys.argv[2], *tiny_data(), **SETTINGS)
    trainer.train()
    found = {
        "devices": {str(x.device) for x in tensors(trainer)},
        "metrics": trainer.evaluate(),
        "places": places,
        "tensors": [x.cpu() for x in tensors(trainer)],
        "losses": logged(trainer, "loss"),
        "world_size": trainer.args.world_size,
    }
    torch.save(found, f"{sys.argv[2]}-{trainer.args.process_index}.pt")
    distributed.destroy_process_group()
