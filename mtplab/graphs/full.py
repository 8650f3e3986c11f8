"""`graph=full`: the whole forward, attention too, is one graph per capture size. No hook runs inside a replay."""

from __future__ import annotations

from collections.abc import Sequence

from mtplab.engine.inputs import StaticInputs, StepInputs
from mtplab.graphs.graph import Graph
from mtplab.graphs.runner import CaptureSizes, GraphFactory
from mtplab.model.network import LayerHook, Network, forward


class FullRunner:
    mode = "FULL"

    def __init__(self, network: Network, example: StepInputs, sizes: Sequence[int], factory: GraphFactory) -> None:
        self._sizes = CaptureSizes(tuple(sizes))
        static = StaticInputs(example, sizes[-1])
        self.static: StaticInputs | None = static
        self._graphs: dict[int, Graph] = {}
        for size in sizes:
            view = static.view(size)
            graph = factory()
            # captured on sentinels: padded rows write only the sink row, so capture leaves live state alone
            graph.capture(lambda view=view: forward(network, view, None), bindings=lambda: static.buffers)
            self._graphs[size] = graph
        self.captures = len(self._graphs)
        self.replays = 0

    def bucket(self, rows: int) -> int:
        return self._sizes.bucket(rows)

    def run(self, live: StepInputs, hook: LayerHook | None) -> object:
        graph = self._graphs[live.input_ids.shape[0]]
        graph.replay()
        self.replays += 1
        return graph.outputs


class FullStrategy:
    mode = "FULL"

    def wrap(self, network: Network, example: StepInputs, sizes: Sequence[int], factory: GraphFactory) -> FullRunner:
        return FullRunner(network, example, sizes, factory)
