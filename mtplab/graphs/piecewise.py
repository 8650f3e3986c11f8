"""`graph=piecewise`: segments between attention calls are graphs; attention and its hooks run eagerly, live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.engine.inputs import StaticInputs, StepInputs
from mtplab.graphs.graph import Graph
from mtplab.graphs.runner import CaptureSizes, GraphFactory
from mtplab.model.network import Carry, LayerHook, Network


@dataclass(frozen=True, slots=True)
class Pieces:
    """Graphs of one capture size; `attended[i]` is the static buffer that segment i+1 reads."""

    segments: tuple[Graph, ...]
    attended: tuple[Tensor, ...]


class PiecewiseRunner:
    mode = "PIECEWISE"

    def __init__(self, network: Network, example: StepInputs, sizes: Sequence[int], factory: GraphFactory) -> None:
        self._network = network
        self._sizes = CaptureSizes(tuple(sizes))
        static = StaticInputs(example, sizes[-1])
        self.static: StaticInputs | None = static
        self._pieces = {size: self._capture(static, size, factory) for size in sizes}
        self.captures = sum(len(pieces.segments) for pieces in self._pieces.values())
        self.replays = 0

    def bucket(self, rows: int) -> int:
        return self._sizes.bucket(rows)

    def run(self, live: StepInputs, hook: LayerHook | None) -> object:
        pieces = self._pieces[live.input_ids.shape[0]]
        context = self._network.begin(live)
        pieces.segments[0].replay()
        for index, buffer in enumerate(pieces.attended):
            carry = pieces.segments[index].outputs
            assert isinstance(carry, Carry)
            buffer.copy_(self._network.attention(index, carry, context, hook))
            pieces.segments[index + 1].replay()
        self.replays += len(pieces.segments)
        return pieces.segments[-1].outputs

    def _capture(self, static: StaticInputs, size: int, factory: GraphFactory) -> Pieces:
        network, view = self._network, static.view(size)
        first = factory()
        carry = first.capture(lambda: network.segment(0, view, None, None), bindings=lambda: static.buffers)
        graphs, buffers = [first], []
        for index in range(len(network.layers)):
            assert isinstance(carry, Carry)
            # sentinel inputs: this eager attention writes only the sink row and tells the buffer's shape
            buffer = torch.empty_like(network.attention(index, carry, network.begin(view), None))
            graph = factory()
            carry = graph.capture(
                lambda i=index, c=carry, b=buffer: network.segment(i + 1, view, c, b), bindings=lambda: static.buffers
            )
            graphs.append(graph)
            buffers.append(buffer)
        return Pieces(tuple(graphs), tuple(buffers))


class PiecewiseStrategy:
    mode = "PIECEWISE"

    def wrap(
        self, network: Network, example: StepInputs, sizes: Sequence[int], factory: GraphFactory
    ) -> PiecewiseRunner:
        return PiecewiseRunner(network, example, sizes, factory)
