"""Steps of a cycle as CUDA graphs, and the only traffic between host and device that a cycle needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import Tensor

from drafterforge.kernels import gpu
from drafterforge.kernels.devices import on_gpu

log = logging.getLogger(__name__)

WARM_UPS = 2  # runs before a capture, in which kernels are chosen and memory is allocated
Step = Callable[[], None]


def capture(
    steps: Sequence[Step], state: Sequence[Tensor], memory: gpu.Graph | None = None
) -> tuple[Sequence[Step], gpu.Graph | None]:
    """The steps of a cycle as graphs, and one of them; the steps themselves if they cannot be captured.

    state: tensors that the steps change; restored after the capture.  memory: a graph of other steps, whose memory
    these share: what steps leave there must be read before others run.
    """
    device = state[0].device
    if not on_gpu(device):
        return steps, None
    values = [tensor.clone() for tensor in state]
    graphs: list[gpu.Graph] = []

    def cycle() -> None:
        for step in steps:
            step()

    try:
        gpu.warm_up(device, cycle, WARM_UPS)
        for step in steps:
            with gpu.capture(device, memory or (graphs[0] if graphs else None)) as graph:
                step()
            graphs.append(graph)
        replays: Sequence[Step] = [graph.replay for graph in graphs]
    except RuntimeError as error:
        log.warning("no CUDA graphs, decoding continues without: %s", str(error).strip().splitlines()[0])
        replays = steps
    for tensor, value in zip(state, values, strict=True):
        tensor.copy_(value)
    return replays, memory or (graphs[0] if graphs else None)


def host_copy(tensor: Tensor) -> Tensor:
    """The tensor in the host's memory: the only time in a cycle that the host waits for the device.

    Also used when a row joins.
    """
    return tensor.cpu()
