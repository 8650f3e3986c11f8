"""A graph on the CPU: the ATen stream of one call, repeated on the same storages.

    graph = TapeGraph("verify")
    logits = graph.capture(lambda: model(static.ids, static.positions))
    static.ids.copy_(ids)          # inputs are read when replayed
    graph.replay()                 # logits now holds the new result, in the same storage

Recording follows storages, not names: a result that shares storage with an argument is a view and costs nothing at
replay; every other result keeps the storage it got at capture (the graph's private memory) and is written again.
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
    base_name,
    fresh_results,
    nested_tensors,
    refuse_nested,
    storage_id,
)
from mtplab.graphs.tape_resolve import Operator, TapeOp, resolve_constant, resolve_mutation, resolve_pure

# Results that take shape and dtype from a tensor, but no value.
_LIKE = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})


class TapeGraph:
    """See `mtplab.graphs.graph.Graph`. Captures under no_grad or inference mode; replays are valid in either."""

    def __init__(self, name: str = "tape", *, check: bool = True) -> None:
        self.name = name
        self.check = check
        self._ops: tuple[TapeOp, ...] = ()
        self._calls: tuple[Callable[[], Any], ...] | None = None
        self._bindings: BindingTable | None = None
        self._outputs: Outputs = None
        self._private: tuple[Tensor, ...] = ()

    def capture(self, fn: Callable[[], Outputs], bindings: Bindings | None = None) -> Outputs:
        """Run `fn` once and record it. Returns its outputs; every replay writes into their storages."""
        if self._calls is not None:
            raise CaptureError(f"graph {self.name!r} is already captured. Make a new graph to capture again.")
        refuse_nested(self.name, "capture")
        table = None if bindings is None else BindingTable(self.name, bindings)
        guard = HostReadGuard()
        recorder = _Recorder(guard)
        with torch.no_grad(), guard, recorder:
            outputs = fn()
        for path, tensor in output_tensors(outputs):
            _require_cpu(tensor, path)
        if table is not None:
            table.check()  # fn itself must not rebind what it captures
        self._ops = tuple(recorder.ops)
        self._calls = tuple(op.call for op in self._ops)
        self._bindings, self._outputs, self._private = table, outputs, tuple(recorder.private)
        return outputs

    def replay(self) -> None:
        """Repeat the recorded operators; runs no code of the captured function."""
        calls = self._calls
        if calls is None:
            raise ReplayError(f"graph {self.name!r} has not been captured. Call capture(fn) first.")
        if self.check:
            self.check_bindings()
        refuse_nested(self.name, "replay")
        if torch.is_autocast_enabled("cpu"):  # casts were recorded as operators; they must not be applied twice
            with torch.autocast("cpu", enabled=False):
                self._run(calls)
        else:
            self._run(calls)

    def _run(self, calls: tuple[Callable[[], Any], ...]) -> None:
        call = None
        try:
            with torch.inference_mode():  # the only mode that may write both normal and inference tensors
                for call in calls:
                    call()
        except Exception as error:
            position = next((i for i, op in enumerate(self._ops) if op.call is call), -1)
            named = self._ops[position].name if position >= 0 else "entering the replay"
            raise ReplayError(f"graph {self.name!r}: operator {position} ({named}) failed: {error}") from error

    def check_bindings(self) -> None:
        """Raise `ReboundTensorError` if a named buffer moved since capture (whatever `check` says)."""
        if self._bindings is not None:
            self._bindings.check()

    @property
    def outputs(self) -> Outputs:
        return self._outputs

    @property
    def num_ops(self) -> int:
        return len(self._ops)

    @property
    def ops(self) -> tuple[TapeOp, ...]:
        """The recorded operators in order, for audits."""
        return self._ops

    @property
    def private(self) -> tuple[Tensor, ...]:
        """Every tensor the graph allocated, intermediates included, in order of allocation: its private memory."""
        return self._private

    def __repr__(self) -> str:
        if self._calls is None:
            return f"TapeGraph({self.name!r}, not captured)"
        kinds = [op.kind for op in self._ops]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return f"TapeGraph({self.name!r}, {self.num_ops} operators: {counts})"


class _Recorder(CaptureMode):
    """Runs the operators of a capture and notes how to repeat them."""

    def __init__(self, guard: HostReadGuard) -> None:
        super().__init__(guard)
        self.ops: list[TapeOp] = []
        self.private: list[Tensor] = []
        self._aliases: dict[tuple[Any, ...], Tensor] = {}

    def observe(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace in ("prim", "profiler") or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)  # host bookkeeping; squeeze_ and the like only change metadata
        with torch._C.DisableTorchFunction():  # the guard watches the captured function, not its recorder
            inputs = [*nested_tensors(args), *nested_tensors(kwargs)]
            own_args, own_kwargs = self._own(args, func), self._own(kwargs, func)
            layouts = [_layout(tensor) for tensor in inputs]
            result = func(*args, **kwargs)
            if layouts != [_layout(tensor) for tensor in inputs]:
                raise CaptureError(f"{func} resized or moved one of its arguments. Allocate it with its final shape.")
            fresh = [self._own(tensor, func) for tensor in fresh_results(result, inputs)]
            self.private.extend(tensor for tensor in fresh if tensor is not None)
            self.ops.extend(_resolve(Operator(func, own_args, own_kwargs), fresh))
        return result

    def _own(self, value: Any, func: OpOverload) -> Any:
        """Private aliases of the tensors in `value`.

        The tape must keep the captured address even if the caller later assigns to `.data` of its tensor, as a CUDA
        kernel argument would; an alias also drops requires_grad, which out= forms refuse.
        """
        if isinstance(value, Tensor):
            _require_cpu(value, func)
            key = (storage_id(value), *_layout(value), value.dtype, value.is_conj(), value.is_neg())
            if key not in self._aliases:
                self._aliases[key] = value.detach()
            return self._aliases[key]
        if isinstance(value, list | tuple):
            return [self._own(item, func) for item in value]
        if isinstance(value, dict):
            return {key: self._own(item, func) for key, item in value.items()}
        return value


def _resolve(operator: Operator, fresh: list[Tensor | None]) -> list[TapeOp]:
    """The replayable form of one operator; nothing for views and allocations."""
    name = base_name(operator.func)
    if operator.func._schema.is_mutable:
        return [resolve_mutation(operator, fresh)]
    if name == "lift_fresh":  # torch.tensor(...) of host values; memory borrowed from numpy is an input instead
        value = operator.args[0]
        return resolve_constant(operator, [value]) if value.untyped_storage().resizable() else []
    outs = [tensor for tensor in fresh if tensor is not None]
    if not outs or allocates_only(operator.func):
        return []
    if name in _LIKE or not [*nested_tensors(operator.args), *nested_tensors(operator.kwargs)]:
        return resolve_constant(operator, outs)
    return [resolve_pure(operator, fresh)]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def _require_cpu(tensor: Tensor, where: object) -> None:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise CaptureError(
            f"{where}: a {tensor.layout} tensor on {tensor.device} in a tape, which holds dense CPU tensors. "
            "Use CudaGraph on a GPU."
        )
