"""What must not happen inside a capture, and how it is noticed on any device.

Two interception points are needed. Operators (`item`, `nonzero`, random draws) reach a `TorchDispatchMode`; reads that
bypass the dispatcher (`tolist`, `numpy`, `__array__`) only reach a `TorchFunctionMode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from mtplab.graphs.graph import CaptureError, HostReadError, NestedCaptureError, RandomOperatorError

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_BACKENDS = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)

_KEEP_ON_DEVICE = "keep the value in a tensor (torch.where, masked arithmetic) or read it after the replay"
_STATIC_SHAPE = "use a fixed-size form: torch.where, masked_fill, topk, or a padded index with a sink row"

# Host reads that the dispatcher never sees, or that it sees under a name no user wrote: method -> how to say it.
_HOST_METHODS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "apply_": ".apply_()",
    "map_": ".map_()",
    "__array__": "numpy conversion (__array__)",
    "__dlpack__": "dlpack export",
    "__bool__": "bool(tensor)",
    "__int__": "int(tensor)",
    "__float__": "float(tensor)",
    "__complex__": "complex(tensor)",
    "__index__": "a tensor used as a Python index",
    "__contains__": "'in' on a tensor",
    "__repr__": "printing a tensor",
    "__format__": "formatting a tensor",
    "__deepcopy__": "copy.deepcopy(tensor)",
    "__reduce_ex__": "serialising a tensor",
}
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_MOVES = frozenset({"resize_", "resize_as_", "set_"})
_CONSTRUCTORS = frozenset({"tensor", "new_tensor", "as_tensor", "asarray"})
_HOST_OPERATORS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"})
_MASK_INDEXING = frozenset(
    {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
)


def capturing() -> bool:
    """Whether the calling code runs inside a capture."""
    return any(isinstance(mode, CaptureMode) for mode in _get_current_dispatch_mode_stack())


def refuse_nested(name: str, action: str) -> None:
    if torch._C._len_torch_dispatch_stack() and capturing():
        raise NestedCaptureError(
            f"graph {name!r}: {action} inside the capture of another graph. Finish that capture first; "
            "graphs are composed by replaying one after the other."
        )


def base_name(func: OpOverload) -> str:
    """`aten::add.Tensor` -> `add`."""
    return func._schema.name.rpartition("::")[2]


def is_composite(func: OpOverload) -> bool:
    """Whether eager execution on any backend is nothing but other operators."""
    name = func.name()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, COMPOSITE) and not any(has_kernel(name, backend) for backend in _BACKENDS)


def nested_tensors(value: Any) -> Iterable[Tensor]:
    """Tensors in the arguments or results of an operator."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nested_tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from nested_tensors(item)


def storage_id(tensor: Tensor) -> int:
    """Identity of a tensor's memory; two live tensors share it exactly if one is a view of the other's memory."""
    return tensor.untyped_storage()._cdata


def fresh_results(result: Any, inputs: Iterable[Tensor]) -> list[Tensor | None]:
    """The tensors of `result` in order, with None for those that are views of an input.

    A view is recognised by storage and never by schema: `reshape`, `contiguous` and `to` may or may not copy.
    """
    known = {storage_id(tensor) for tensor in inputs}
    return [None if storage_id(tensor) in known else tensor for tensor in nested_tensors(result)]


def allocates_only(func: OpOverload) -> bool:
    """Whether the result is uninitialised memory, which needs no repetition."""
    return base_name(func) in _ALLOCATIONS


class HostReadGuard(TorchFunctionMode):
    """Refuses host reads by the name the user wrote, and remembers which torch function is running."""

    def __init__(self) -> None:
        super().__init__()
        self.caller: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        kwargs = kwargs or {}
        if name in _HOST_METHODS and args and isinstance(args[0], Tensor):
            raise host_read(_HOST_METHODS[name], _KEEP_ON_DEVICE)
        if name in _CONSTRUCTORS and _built_from_tensors(name, args, kwargs):
            raise host_read(f"torch.{name} of a tensor", "use clone(), to() or torch.stack, which are recorded")
        self.caller.append(name)
        try:
            return func(*args, **kwargs)
        finally:
            self.caller.pop()


def _built_from_tensors(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a constructor would read its values out of tensors (`as_tensor(t)` alone is a view and is fine)."""
    data = args[1:2] if name == "new_tensor" else args[:1]
    data = data[0] if data else kwargs.get("data")
    if name in ("as_tensor", "asarray") and isinstance(data, Tensor):
        return False
    return any(True for _ in nested_tensors(data))


def host_read(what: str, remedy: str) -> HostReadError:
    return HostReadError(f"{what} reads a tensor on the host during capture; its value would be frozen: {remedy}.")


def refuse_operator(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, composite: bool, caller: Sequence[str]
) -> None:
    """Raise the error that names `func` if a replay could not repeat it; a composite is judged by its parts."""
    name, tags = base_name(func), func.tags
    if name in _HOST_OPERATORS or torch.Tag.data_dependent_output in tags:
        raise host_read(_said(func, caller), _KEEP_ON_DEVICE)
    if composite:
        return
    if name in _MASK_INDEXING:
        if any(index.dtype in (torch.bool, torch.uint8) for index in nested_tensors(args[1])):
            raise host_read(f"boolean indexing, {_said(func, caller)},", f"its row count is data; {_STATIC_SHAPE}")
    elif torch.Tag.dynamic_output_shape in tags and kwargs.get("output_size") is None:
        raise host_read(_said(func, caller), f"the shape of its result depends on the data; {_STATIC_SHAPE}")
    if torch.Tag.nondeterministic_seeded in tags and _draws(func, args, kwargs):
        raise RandomOperatorError(
            f"{_said(func, caller)} draws random numbers during capture. "
            "Draw the noise outside and pass it in as a static input."
        )
    if name in _MOVES:
        raise CaptureError(
            f"{_said(func, caller)} changes the storage of an existing tensor during capture. "
            "Allocate the buffer with its final shape before the capture."
        )


def _said(func: OpOverload, caller: Sequence[str]) -> str:
    return f"{func} (called by {caller[0]})" if caller else str(func)


def _draws(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Attention carries the random tag for its dropout alone: without dropout it draws nothing."""
    if base_name(func) == "_fused_sdp_choice":
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = args[position] if position < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(value)
    return True


class CaptureMode(TorchDispatchMode):
    """Shows every primitive operator of a capture to `observe`, after the forbidden ones were refused.

    Composite operators are taken apart here because inference mode, unlike no_grad, hands them over whole: the tape
    would otherwise depend on the ambient mode, and a host read inside a composite would go unnoticed.
    """

    def __init__(self, guard: HostReadGuard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise CaptureError(f"{func} is not a plain operator and cannot be captured. Call its parts instead.")
        composite = is_composite(func)
        refuse_operator(func, args, kwargs, composite=composite, caller=self.guard.caller)
        if composite:
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        return self.observe(func, args, kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: the default imports torch._dynamo at the first operator, more than a second for nothing."""
        return False

    def observe(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operator and return its result."""
        raise NotImplementedError
