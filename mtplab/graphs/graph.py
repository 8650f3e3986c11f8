"""The contract of a captured step: what every graph does, whatever the device.

A graph records one call of a function and repeats it without running Python. What the function saw as an address, a
Python scalar, a shape or a branch is frozen; what it read *through* an address is read again at every replay. That is
the source of every staleness bug this project studies, so both implementations (`TapeGraph`, `CudaGraph`) keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

# A tensor, None, or any nesting of tuple, list, dict, NamedTuple and dataclass of them.
Outputs = Any
Bindings = Callable[[], Mapping[str, Tensor]]


class GraphError(RuntimeError):
    """Anything that goes wrong in capture or replay."""


class CaptureError(GraphError):
    """The function cannot be captured as it is written."""


class HostReadError(CaptureError):
    """The function reads tensor values on the host, so a replay could not follow it."""


class RandomOperatorError(CaptureError):
    """The function draws random numbers; noise has to be a static input."""


class NestedCaptureError(CaptureError):
    """A graph was captured or replayed inside the capture of another."""


class ReplayError(GraphError):
    """A graph was replayed before its capture, or an operator failed during replay."""


class ReboundTensorError(GraphError):
    """A captured buffer now lives elsewhere; a replay would read the old storage."""


@runtime_checkable
class Graph(Protocol):
    """One captured call.

    `capture` runs `fn` so that its effects happen exactly once, records it and returns its outputs; every `replay`
    writes into the storages of those outputs. `bindings` names the buffers the caller may be tempted to reassign:
    before each replay their address, shape, strides and dtype are compared with those at capture (`check=False` in the
    constructor lets a rebinding pass, and the replay then silently reads the old storage, as CUDA does).
    """

    name: str

    def capture(self, fn: Callable[[], Outputs], bindings: Bindings | None = None) -> Outputs: ...

    def replay(self) -> None: ...

    def check_bindings(self) -> None:
        """Raise `ReboundTensorError` if a named buffer moved since capture (whatever `check` says)."""
        ...

    @property
    def outputs(self) -> Outputs: ...

    @property
    def num_ops(self) -> int:
        """Operators that a replay repeats; views, allocations and host code cost nothing and are not counted."""
        ...


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a named buffer was at capture; the address is in bytes, the strides in elements."""

    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Binding:
        return cls(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def holds(self, tensor: Tensor) -> bool:
        return (
            tensor.data_ptr() == self.address
            and tensor.shape == self.shape
            and tensor.stride() == self.stride
            and tensor.dtype == self.dtype
        )

    def __str__(self) -> str:
        return f"{self.address:#x} {tuple(self.shape)} strides {self.stride} {self.dtype} on {self.device}"


class BindingTable:
    """The named buffers of one graph, as they were at capture."""

    __slots__ = ("_captured", "_current", "_graph")

    def __init__(self, graph: str, current: Bindings) -> None:
        self._graph = graph
        self._current = current
        self._captured = {name: Binding.of(tensor) for name, tensor in current().items()}

    def check(self) -> None:
        """Raise `ReboundTensorError` naming the first buffer that is gone, new or elsewhere."""
        current = self._current()
        for name, binding in self._captured.items():
            tensor = current.get(name)
            if tensor is None or not binding.holds(tensor):
                now = "missing" if tensor is None else str(Binding.of(tensor))
                raise ReboundTensorError(
                    f"graph {self._graph!r}: buffer {name!r} was rebound: captured at {binding}, now {now}. "
                    "A replay reads the captured storage. Write into the buffer (copy_) or capture again."
                )
        if len(current) != len(self._captured):
            extra = sorted(set(current) - set(self._captured))
            raise ReboundTensorError(
                f"graph {self._graph!r}: buffers {extra} did not exist at capture. Name the same buffers each time."
            )


def output_tensors(outputs: Outputs, path: str = "outputs") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of an output nesting with its path; refuses values a replay could not refresh."""
    if isinstance(outputs, Tensor):
        yield path, outputs
    elif isinstance(outputs, Mapping):
        for key, value in outputs.items():
            yield from output_tensors(value, f"{path}[{key!r}]")
    elif isinstance(outputs, tuple | list):
        names = getattr(outputs, "_fields", range(len(outputs)))
        for name, value in zip(names, outputs, strict=True):
            yield from output_tensors(value, f"{path}.{name}" if isinstance(name, str) else f"{path}[{name}]")
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        for field in fields(outputs):
            yield from output_tensors(getattr(outputs, field.name), f"{path}.{field.name}")
    elif outputs is not None:
        raise CaptureError(
            f"{path} is a {type(outputs).__name__}, which a replay cannot refresh. "
            "Return tensors, None, or tuples, lists, dicts and dataclasses of them."
        )
