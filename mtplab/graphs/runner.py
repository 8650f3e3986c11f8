"""Contract between the engine and a graph strategy: a runner executes one network, live or from static inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mtplab.engine.inputs import StaticInputs, StepInputs
from mtplab.graphs.graph import Graph
from mtplab.model.network import LayerHook, Network

GraphFactory = Callable[[], Graph]


@dataclass(frozen=True, slots=True)
class CaptureSizes:
    """Row counts to capture, ascending; every one a multiple of 1+k."""

    sizes: tuple[int, ...]

    def bucket(self, rows: int) -> int:
        """Smallest captured size that holds `rows`. Raises ValueError beyond the largest."""
        for size in self.sizes:
            if size >= rows:
                return size
        raise ValueError(f"{rows} rows exceed the largest capture size {self.sizes[-1]}")


class Runner(Protocol):
    """One network under one strategy. `static` is None where nothing is captured."""

    static: StaticInputs | None
    mode: str
    captures: int
    replays: int

    def bucket(self, rows: int) -> int: ...

    def run(self, live: StepInputs, hook: LayerHook | None) -> object:
        """Run on `live` (already padded to the bucket). Static inputs, if any, were refreshed by the sync policy."""
        ...


class GraphStrategy(Protocol):
    """`mode` is NONE, PIECEWISE or FULL; `wrap` captures a network for all `sizes` and returns its runner."""

    mode: str

    def wrap(self, network: Network, example: StepInputs, sizes: Sequence[int], factory: GraphFactory) -> Runner: ...
