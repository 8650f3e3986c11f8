"""The bench on which both graph implementations are compared with eager execution, bit for bit.

Shapes: R rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from mtplab.graphs.cuda import CudaGraph
from mtplab.graphs.graph import Graph, output_tensors
from mtplab.graphs.tape import TapeGraph
from mtplab.graphs.tape_resolve import same_bits

R, D = 4, 8
MODES = [torch.no_grad, torch.inference_mode]
_NEEDS_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda is not available on this machine"),
]


@dataclass(frozen=True, slots=True)
class Lab:
    """One implementation and the device its tensors live on."""

    make: Callable[..., Graph]
    device: str

    def randn(self, *shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.device)

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, device=self.device)


def lab_fixture() -> Any:
    """A fixture that yields every implementation; a module assigns it to `lab`."""

    def lab(request: pytest.FixtureRequest) -> Lab:
        return request.param

    return pytest.fixture(
        params=[
            pytest.param(Lab(TapeGraph, "cpu"), id="tape"),
            pytest.param(Lab(CudaGraph, "cuda"), id="cuda", marks=_NEEDS_CUDA),
        ]
    )(lab)


def assert_same(left: Any, right: Any) -> None:
    pairs = zip(output_tensors(left), output_tensors(right), strict=True)
    for (path, a), (_, b) in pairs:
        assert a.shape == b.shape and a.dtype == b.dtype, path
        assert same_bits(a, b), f"{path} differs"


def poison(graph: Graph, keep: list[Tensor]) -> None:
    """Overwrite what the graph computes, inputs apart: a replay has to write all of it again."""
    tensors = graph.private if isinstance(graph, TapeGraph) else [t for _, t in output_tensors(graph.outputs)]
    inputs = {tensor.untyped_storage().data_ptr() for tensor in keep}
    with torch.inference_mode():
        for tensor in tensors:
            if tensor.untyped_storage().data_ptr() not in inputs:
                tensor.fill_(math.nan if tensor.is_floating_point() else 1)


def check_against_eager(lab: Lab, fn: Callable[[], Any], inputs: list[Tensor], trials: int = 2) -> Graph:
    """Capture `fn`, then change the inputs, poison, replay; outputs and mutated inputs must be those of eager."""
    start = [tensor.clone() for tensor in inputs]
    expected = copy_outputs(fn())
    states = [tensor.clone() for tensor in inputs]
    for tensor, value in zip(inputs, start, strict=True):
        tensor.copy_(value)
    graph = lab.make()
    outputs = graph.capture(fn)
    assert_same([outputs, inputs], [expected, states])
    for seed in range(1, trials + 1):
        values = [lab.randn(*t.shape, seed=seed).to(t.dtype) if t.is_floating_point() else t.clone() for t in inputs]
        for tensor, value in zip(inputs, values, strict=True):
            tensor.copy_(value)
        expected = copy_outputs(fn())
        states = [tensor.clone() for tensor in inputs]
        for tensor, value in zip(inputs, values, strict=True):
            tensor.copy_(value)
        poison(graph, inputs)
        graph.replay()
        assert_same([outputs, inputs], [expected, states])
    return graph


def copy_outputs(outputs: Any) -> list[Tensor]:
    return [tensor.clone() for _, tensor in output_tensors(outputs)]
