"""`graph=none`: nothing is captured, Python runs everywhere, kernels read the live tensors."""

from __future__ import annotations

from collections.abc import Sequence

from mtplab.engine.inputs import StaticInputs, StepInputs
from mtplab.graphs.runner import GraphFactory
from mtplab.model.network import LayerHook, Network, forward


class EagerRunner:
    mode = "NONE"

    def __init__(self, network: Network) -> None:
        self._network = network
        self.static: StaticInputs | None = None
        self.captures = 0
        self.replays = 0

    def bucket(self, rows: int) -> int:
        return rows

    def run(self, live: StepInputs, hook: LayerHook | None) -> object:
        return forward(self._network, live, hook)


class EagerStrategy:
    mode = "NONE"

    def wrap(self, network: Network, example: StepInputs, sizes: Sequence[int], factory: GraphFactory) -> EagerRunner:
        return EagerRunner(network)
