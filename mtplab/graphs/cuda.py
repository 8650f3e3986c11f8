"""A graph on the GPU: `torch.cuda.CUDAGraph` behind the contract of `mtplab.graphs.graph.Graph`.

Two calls of `fn` are needed: a warm-up on a side stream, which really runs (cuBLAS handles, lazy kernels), and the
capture, which only records. So the effects of `fn` still happen exactly once, but its Python code runs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mtplab.graphs.graph import Bindings, BindingTable, CaptureError, Outputs, ReplayError, output_tensors
from mtplab.graphs.tape_guard import (
    CaptureMode,
    HostReadGuard,
    allocates_only,
    fresh_results,
    nested_tensors,
    refuse_nested,
)


class CudaGraph:
    """See `mtplab.graphs.graph.Graph`. Memory comes from a pool of its own, so graphs never share intermediates."""

    def __init__(self, name: str = "cuda", *, check: bool = True) -> None:
        self.name = name
        self.check = check
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_ops = 0
        self._bindings: BindingTable | None = None
        self._outputs: Outputs = None

    def capture(self, fn: Callable[[], Outputs], bindings: Bindings | None = None) -> Outputs:
        """Warm up and record `fn`. Returns outputs that hold the warm-up's values; replays write into them."""
        if not torch.cuda.is_available():
            raise CaptureError(f"graph {self.name!r} needs a CUDA device. Use TapeGraph on the CPU.")
        if self._graph is not None:
            raise CaptureError(f"graph {self.name!r} is already captured. Make a new graph to capture again.")
        refuse_nested(self.name, "capture")
        table = None if bindings is None else BindingTable(self.name, bindings)
        with torch.no_grad():
            expected, num_ops = self._warm_up(fn)
            graph, outputs = self._record(fn)
            _fill(outputs, expected)
        if table is not None:
            table.check()  # fn itself must not rebind what it captures
        self._graph, self._num_ops = graph, num_ops
        self._bindings, self._outputs = table, outputs
        return outputs

    def _warm_up(self, fn: Callable[[], Outputs]) -> tuple[dict[str, Tensor], int]:
        """Run `fn` once under the same refusals as a tape: its outputs by path, and the operators it ran."""
        guard = HostReadGuard()
        counter = _Counter(guard)
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side), guard, counter:
            outputs = fn()
        current.wait_stream(side)
        torch.cuda.synchronize()
        return dict(output_tensors(outputs)), counter.count

    def _record(self, fn: Callable[[], Outputs]) -> tuple[torch.cuda.CUDAGraph, Outputs]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                outputs = fn()
        except RuntimeError as error:
            raise CaptureError(f"graph {self.name!r}: CUDA refused the capture: {error}") from error
        return graph, outputs

    def replay(self) -> None:
        """Launch the recorded kernels on the current stream; runs no code of the captured function."""
        if self._graph is None:
            raise ReplayError(f"graph {self.name!r} has not been captured. Call capture(fn) first.")
        if self.check:
            self.check_bindings()
        refuse_nested(self.name, "replay")
        self._graph.replay()

    def check_bindings(self) -> None:
        """Raise `ReboundTensorError` if a named buffer moved since capture (whatever `check` says)."""
        if self._bindings is not None:
            self._bindings.check()

    @property
    def outputs(self) -> Outputs:
        return self._outputs

    @property
    def num_ops(self) -> int:
        """ATen operators seen in the warm-up; an operator may launch several kernels."""
        return self._num_ops

    def __repr__(self) -> str:
        if self._graph is None:
            return f"CudaGraph({self.name!r}, not captured)"
        return f"CudaGraph({self.name!r}, {self.num_ops} operators)"


class _Counter(CaptureMode):
    """Counts the operators a replay repeats and refuses those it would silently skip."""

    def __init__(self, guard: HostReadGuard) -> None:
        super().__init__(guard)
        self.count = 0

    def observe(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            return result  # squeeze_ and the like only change metadata
        with torch._C.DisableTorchFunction():
            inputs = [*nested_tensors(args), *nested_tensors(kwargs)]
            fresh = [tensor for tensor in fresh_results(result, inputs) if tensor is not None]
            written = inputs[:1] if func._schema.is_mutable else []
            # zero-dimensional CPU tensors travel to kernels as frozen scalars; anything larger would never be redone
            if any(tensor.device.type == "cpu" and tensor.dim() > 0 for tensor in fresh + written):
                raise CaptureError(f"{func} computes on the CPU, which a CUDA graph cannot repeat. Move it to the GPU.")
            self.count += bool(func._schema.is_mutable or fresh) and not allocates_only(func)
        return result


def _fill(outputs: Outputs, expected: dict[str, Tensor]) -> None:
    """Give captured outputs, which no kernel has written yet, the values of the warm-up."""
    captured = dict(output_tensors(outputs))
    if captured.keys() != expected.keys():
        raise CaptureError(
            f"fn returned {sorted(expected)} in its first call and {sorted(captured)} in its second. "
            "Its outputs must have the same structure every time."
        )
    for path, tensor in captured.items():
        if tensor.device.type != "cuda":
            raise CaptureError(f"{path} is on {tensor.device}; a CUDA graph writes CUDA tensors only.")
        if tensor.data_ptr() != expected[path].data_ptr():  # else a view of a buffer that outlives the call
            tensor.copy_(expected[path])
