"""Finds, once, the cheapest call that repeats a recorded operator into the tensors it filled at capture.

Measured per one-element operator: `torch.add(a, b, out=o)` 1.0 us, the same through an `OpOverload` 3.5 us. So each
operator is looked up among torch's C bindings. A candidate is accepted on two proofs: a dry run shows that it
dispatches to exactly the wanted overload with exactly the recorded arguments, and, where that overload is the
`out=` form of the recorded one, a real run into poisoned memory reproduces the eager bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from mtplab.graphs.tape_guard import base_name, nested_tensors

Kind = Literal["out", "inplace", "copy", "constant"]

_COPIES = frozenset({"clone", "_to_copy"})
# Namespaces of torch's C bindings.
_BINDINGS = tuple(
    getattr(torch._C, namespace) for namespace in ("_VariableFunctions", "TensorBase", "_nn", "_linalg", "_special")
)
# What a binding raises when it does not take the recorded arguments.
_REJECTED = (TypeError, RuntimeError, ValueError, IndexError)


@dataclass(frozen=True, slots=True)
class Operator:
    """One call seen by the recorder; its tensors are the tape's own aliases."""

    func: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.func)


@dataclass(frozen=True, slots=True)
class TapeOp:
    """One replayable operator.

    kind: `out` writes through an out= form, `inplace` repeats a mutation, `copy` runs the operator and copies its
    result, `constant` restores a value that does not depend on any tensor.
    """

    name: str
    kind: Kind
    call: Callable[[], Any]


def resolve_mutation(operator: Operator, fresh: Sequence[Tensor | None]) -> TapeOp:
    """An in-place or out= call made by the captured function; `fresh` holds results it returned besides."""
    if any(tensor is not None for tensor in fresh):
        return _call_and_copy(operator, fresh)
    return TapeOp(operator.name, "inplace", fastest(operator))


def resolve_constant(operator: Operator, outs: Sequence[Tensor]) -> list[TapeOp]:
    """Values without tensor inputs: rewritten at each replay, because later operators may mutate them in place."""
    return [TapeOp(operator.name, "constant", _restore(out)) for out in outs]


def resolve_pure(operator: Operator, fresh: Sequence[Tensor | None]) -> TapeOp:
    """An operator without side effects; `fresh` are its results in order, None where a result is a view."""
    outs = [tensor for tensor in fresh if tensor is not None]
    if base_name(operator.func) in _COPIES:
        call = partial(outs[0].copy_, operator.args[0])
        if _reproduces(call, outs):
            return TapeOp(operator.name, "out", call)
    if len(outs) == len(fresh):
        for writer in out_forms(operator, outs):
            call = fastest(writer)
            if _reproduces(call, outs):
                return TapeOp(operator.name, "out", call)
    return _call_and_copy(operator, fresh)


def _restore(out: Tensor) -> Callable[[], Any]:
    """A call that rewrites `out` with what it holds now; a uniform value needs no snapshot."""
    value = out.clone()
    if out.numel() and not out.is_complex():
        call = partial(out.fill_, value.flatten()[0].item())
        if _reproduces(call, [out]):
            return call
    return partial(out.copy_, value)


def _call_and_copy(operator: Operator, fresh: Sequence[Tensor | None]) -> TapeOp:
    return TapeOp(operator.name, "copy", partial(_run_and_copy, _entry(operator), tuple(fresh)))


def _run_and_copy(call: Callable[[], Any], outs: tuple[Tensor | None, ...]) -> None:
    for out, result in zip(outs, nested_tensors(call()), strict=True):
        if out is not None:
            out.copy_(result)


def _entry(operator: Operator) -> Callable[[], Any]:
    """The C entry point under an OpOverload (saves a Python frame per call)."""
    return partial(getattr(operator.func, "_op", operator.func), *operator.args, **operator.kwargs)


def out_forms(operator: Operator, outs: Sequence[Tensor]) -> Iterator[Operator]:
    """The out= overloads that take the arguments of `operator`, writing to `outs`."""
    wanted = [(argument.name, str(argument.type)) for argument in operator.func._schema.arguments]
    packet = operator.func._overloadpacket
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        arguments = overload._schema.arguments
        names = [argument.name for argument in arguments if argument.is_out]
        plain = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        if len(names) == len(outs) and plain == wanted:
            yield Operator(overload, operator.args, {**operator.kwargs, **dict(zip(names, outs, strict=True))})


def fastest(operator: Operator) -> Callable[[], Any]:
    """A C binding that provably dispatches to `operator`, else the operator itself."""
    outs = [argument.name for argument in operator.func._schema.arguments if argument.is_out]
    kwargs = {key: value for key, value in operator.kwargs.items() if key not in outs}
    if outs:
        values = [operator.kwargs[name] for name in outs]
        kwargs["out"] = values[0] if len(values) == 1 else tuple(values)
    bindings = _BINDINGS if operator.func.namespace == "aten" else ()
    for binding in bindings:
        function = getattr(binding, base_name(operator.func), None)
        if function is not None:
            call = partial(function, *operator.args, **kwargs)
            if _dispatches_to(call, operator):
                return call
    return _entry(operator)


class _DryRun(TorchDispatchMode):
    """Notes the operators a call would run and runs none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Operator] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see CaptureMode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.seen.append(Operator(func, args, kwargs))
        written = [
            args[position] if position < len(args) else kwargs.get(argument.name)
            for position, argument in enumerate(func._schema.arguments)
            if argument.is_write
        ]
        if len(written) != len(func._schema.returns):
            raise TypeError(f"{func} does not return what it writes")
        return written[0] if len(written) == 1 else tuple(written)


def _dispatches_to(call: Callable[[], Any], operator: Operator) -> bool:
    dry = _DryRun()
    try:
        with dry:
            call()
    except _REJECTED:
        return False
    if len(dry.seen) != 1:
        return False
    seen = dry.seen[0]
    return seen.func is operator.func and _same(seen.args, operator.args) and _same(seen.kwargs, operator.kwargs)


def _same(left: Any, right: Any) -> bool:
    """Equality of operator arguments: tensors by identity, numbers by type and value."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return left is right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return type(left) is type(right) and (left == right or (left != left and right != right))


def _reproduces(call: Callable[[], Any], outs: Sequence[Tensor]) -> bool:
    """Whether `call` rewrites poisoned `outs` with the bits they hold now; leaves them as they were."""
    expected = [out.clone() for out in outs]
    layouts = [(out.data_ptr(), out.shape, out.stride()) for out in outs]
    for out, value in zip(outs, expected, strict=True):
        out.copy_(_poison(value))
    try:
        call()
    except _REJECTED:
        good = False
    else:
        good = all(map(same_bits, outs, expected))
    if [(out.data_ptr(), out.shape, out.stride()) for out in outs] != layouts:
        raise AssertionError("an out= form moved its output; the tape cannot hold it")
    if not good:
        for out, value in zip(outs, expected, strict=True):
            out.copy_(value)
    return good


def _poison(value: Tensor) -> Tensor:
    """A tensor that differs from `value` in every byte (in every element for bool)."""
    if value.dtype == torch.bool:
        return value.logical_not()
    if value.numel() == 0:
        return value
    return bytes_of(value).bitwise_not().view(value.dtype).view(value.shape)


def bytes_of(value: Tensor) -> Tensor:
    """The bytes of a tensor in logical order, uint8[numel * itemsize]."""
    return value.contiguous().flatten().view(torch.uint8)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Bit equality: unlike `torch.equal` it tells -0.0 from 0.0 and takes a NaN for itself."""
    return torch.equal(bytes_of(left), bytes_of(right))
