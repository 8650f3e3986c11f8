"""What a captured step must do, on every implementation (ARCHITECTURE section 4): what is frozen, what is read again,
what is refused, and how a rebound buffer is noticed. Results of operators and programs have their own modules.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graph_lab import MODES, D, Lab, R, assert_same, check_against_eager, lab_fixture
from torch import Tensor

from mtplab.graphs.graph import (
    CaptureError,
    Graph,
    HostReadError,
    NestedCaptureError,
    RandomOperatorError,
    ReboundTensorError,
    ReplayError,
    output_tensors,
)
from mtplab.graphs.tape import TapeGraph

lab = lab_fixture()


# --- what is frozen and what is read again ----------------------------------------------------------------------------


def test_inputs_are_read_at_replay_and_outputs_keep_their_storage(lab: Lab) -> None:
    x = lab.randn(R, D)
    graph = lab.make("double")
    out = graph.capture(lambda: x * 2)
    assert isinstance(graph, Graph) and graph.name == "double" and graph.num_ops == 1
    assert_same(out, x * 2)
    address = out.data_ptr()
    for seed in range(3):
        x.copy_(lab.randn(R, D, seed=seed))
        graph.replay()
        assert out is graph.outputs and out.data_ptr() == address
        assert_same(out, x * 2)


def test_scalars_shapes_and_control_flow_are_frozen(lab: Lab) -> None:
    x = lab.randn(R, D)
    host = {"scale": 2.0, "rows": 3, "negate": True}

    def fn() -> Tensor:
        y = x[: host["rows"]] * host["scale"]
        return -y if host["negate"] else y

    graph = lab.make()
    out = graph.capture(fn)
    host.update(scale=5.0, rows=1, negate=False)
    x.copy_(lab.randn(R, D, seed=1))
    graph.replay()
    assert_same(out, -(x[:3] * 2.0))


def test_no_host_code_runs_at_replay(lab: Lab) -> None:
    x, calls = lab.randn(R), []

    def fn() -> Tensor:
        calls.append(None)
        return x + 1

    graph = lab.make()
    graph.capture(fn)
    after_capture = len(calls)
    for _ in range(5):
        graph.replay()
    assert len(calls) == after_capture


def test_capture_has_the_effects_of_one_call(lab: Lab) -> None:
    state, weight = lab.zeros(R, D), torch.nn.Parameter(lab.randn(D))
    x, index = lab.randn(R, D), lab.ints(0, 2, 2, 1)

    def fn() -> Tensor:
        state.index_put_((index,), x * weight, accumulate=True)
        state[0] = 3.0
        return state.sum(-1)

    expected = lab.zeros(R, D).index_put_((index,), (x * weight).detach(), accumulate=True)
    expected[0] = 3.0
    random_state, before = torch.get_rng_state(), copy.deepcopy(x)
    out = lab.make().capture(fn)
    assert_same([state, out, x], [expected, expected.sum(-1), before])
    assert weight.requires_grad and not out.requires_grad and torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), random_state)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@dataclass(frozen=True, slots=True)
class Record:
    hidden: Tensor
    parts: dict[str, Any]


def test_outputs_may_be_nested(lab: Lab) -> None:
    x = lab.randn(R, D)

    def fn() -> Record:
        return Record(x + 1, {"pair": Pair(x * 2, None), "list": [x.sum(), (x.mean(),)]})

    graph = lab.make()
    out = graph.capture(fn)
    x.copy_(lab.randn(R, D, seed=1))
    graph.replay()
    assert_same(out, fn())
    paths = [path for path, _ in output_tensors(out)]
    assert paths[:2] == ["outputs.hidden", "outputs.parts['pair'].left"]


def test_an_output_that_cannot_be_refreshed_is_refused(lab: Lab) -> None:
    x = lab.randn(R)
    with pytest.raises(CaptureError, match=r"outputs\['rows'\] is a int"):
        lab.make().capture(lambda: {"x": x + 1, "rows": 4})


# --- what is refused --------------------------------------------------------------------------------------------------

HOST_READS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x[0].item(), r"\.item\(\)"),
    "tolist": (lambda x: x.tolist(), r"\.tolist\(\)"),
    "numpy": (lambda x: x.numpy(), r"\.numpy\(\)"),
    "asarray": (np.asarray, "numpy conversion"),
    "cpu": (lambda x: x.cpu(), r"\.cpu\(\)"),
    "bool": (lambda x: bool(x[0] > 0), r"bool\(tensor\)"),
    "if": (lambda x: x if x.sum() > 0 else -x, r"bool\(tensor\)"),
    "int": (lambda x: int(x[0]), r"int\(tensor\)"),
    "float": (lambda x: math.sqrt(x[0] * x[0]), r"float\(tensor\)"),
    "index": (lambda x: [1, 2, 3][x[0].long() * 0], "Python index"),
    "slice bound": (lambda x: x[: (x[0] * 0).long()], "_local_scalar_dense|item"),
    "zero-dim index": (lambda x: x[(x[0] * 0).long()], "_local_scalar_dense|item"),
    "in": (lambda x: 3.0 in x, "'in'"),
    "print": (lambda x: f"{x}", "formatting"),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "allclose": (lambda x: torch.allclose(x, x), "allclose"),
    "tensor of tensors": (lambda x: torch.tensor([x[0], x[1]]), "torch.tensor of a tensor"),
    "deepcopy": (copy.deepcopy, "deepcopy"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "where": (lambda x: torch.where(x > 0), "nonzero"),
    "masked_select": (lambda x: x.masked_select(x > 0), "masked_select"),
    "unique": (lambda x: x.unique(), "unique"),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, x.long().abs()), "repeat_interleave"),
    "bool mask": (lambda x: x[x > 0], "boolean indexing"),
    "byte mask": (lambda x: torch.ops.aten.index(x, [(x > 0).byte()]), "boolean indexing"),
    "bool mask write": (lambda x: x.__setitem__(x > 0, x[:1]), "boolean indexing"),
    "one_hot": (lambda x: F.one_hot(x.long().abs()), "one_hot"),
}


@pytest.mark.parametrize("name", HOST_READS)
@pytest.mark.parametrize("mode", MODES)
def test_host_reads_are_refused_by_name(lab: Lab, name: str, mode: Callable[[], Any]) -> None:
    read, said = HOST_READS[name]
    x = lab.randn(D)
    with mode(), pytest.raises(HostReadError, match=said) as caught:
        lab.make().capture(lambda: (read(x), x + 1)[1])
    assert "frozen: " in str(caught.value)  # the remedy follows


def test_integer_indexing_is_allowed(lab: Lab) -> None:
    x, index = lab.randn(R, D), lab.ints(0, -1, 2)

    def fn() -> list[Tensor]:
        return [x[index], x[:, index], x[index, index], x[index.int()], x[1], x[..., None, 1:3]]

    check_against_eager(lab, fn, [x])


RANDOM: dict[str, Callable[[Tensor], Any]] = {
    "rand": lambda x: torch.rand(3, device=x.device),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(3, (2,), device=x.device),
    "randperm": lambda x: torch.randperm(3, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 1),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "attention dropout": lambda x: F.scaled_dot_product_attention(*[x.expand(1, 1, 4, D)] * 3, dropout_p=0.5),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("mode", MODES)
def test_random_operators_are_refused(lab: Lab, name: str, mode: Callable[[], Any]) -> None:
    x = lab.randn(D)
    with mode(), pytest.raises(RandomOperatorError, match="static input"):
        lab.make().capture(lambda: RANDOM[name](x))


def test_nested_capture_and_replay_are_refused(lab: Lab) -> None:
    x = lab.randn(R)
    inner = lab.make("inner")
    with pytest.raises(NestedCaptureError, match="'inner'"):
        lab.make("outer").capture(lambda: inner.capture(lambda: x + 1))
    inner.capture(lambda: x + 1)  # the refusal left no trace
    with pytest.raises(NestedCaptureError, match="replay"):
        lab.make("outer").capture(inner.replay)


def test_a_graph_is_captured_once_and_before_replay(lab: Lab) -> None:
    x = lab.randn(R)
    graph = lab.make("g")
    with pytest.raises(ReplayError, match="capture"):
        graph.replay()
    graph.capture(lambda: x + 1)
    with pytest.raises(CaptureError, match="already captured"):
        graph.capture(lambda: x + 2)


@pytest.mark.parametrize("change", [lambda x: x.resize_(2), lambda x: x.resize_as_(x[:2]), lambda x: x.set_(x.clone())])
def test_moving_a_tensor_in_place_is_refused(lab: Lab, change: Callable[[Tensor], Any]) -> None:
    x = lab.randn(R)
    with pytest.raises(CaptureError, match="during capture"):
        lab.make().capture(lambda: change(x) + 1)


def test_a_failing_function_leaves_no_half_recorded_graph(lab: Lab) -> None:
    x = lab.randn(R)
    graph = lab.make()

    def fails() -> Tensor:
        _ = x * 2
        raise KeyError("from fn")

    for fn, error in [(fails, KeyError), (lambda: x.sum().item(), HostReadError)]:
        with pytest.raises(error):
            graph.capture(fn)
        assert torch._C._len_torch_dispatch_stack() == 0 and x.tolist()
        with pytest.raises(ReplayError):
            graph.replay()
    out = graph.capture(lambda: x + 1)
    assert graph.num_ops == 1
    assert_same(out, x + 1)


def test_a_failing_operator_is_named_at_replay() -> None:
    x, index = torch.randn(R, D), torch.tensor([0, 1])
    graph = TapeGraph("g")
    graph.capture(lambda: x.index_select(0, index) * 2)
    index.fill_(R)
    with pytest.raises(ReplayError, match=r"operator 0 \(aten.index_select.default\)"):
        graph.replay()


# --- rebinding --------------------------------------------------------------------------------------------------------


class Buffers:
    """Two named static inputs, as a model runner would hold them."""

    def __init__(self, lab: Lab) -> None:
        self.ids = lab.ints(*range(R))
        self.hidden = lab.randn(R, D)

    def named(self) -> dict[str, Tensor]:
        return vars(self)


REBINDINGS: dict[str, Callable[[Buffers], Any]] = {
    "assigned": lambda b: setattr(b, "hidden", b.hidden.clone()),
    "shape": lambda b: setattr(b, "hidden", b.hidden[:2]),
    "strides": lambda b: setattr(b, "hidden", b.hidden.as_strided((R, D), (1, R))),
    "dtype": lambda b: setattr(b, "hidden", b.hidden.view(torch.int32)),
    "data": lambda b: setattr(b.hidden, "data", b.hidden.data.clone()),
    "missing": lambda b: delattr(b, "hidden"),
}


@pytest.mark.parametrize("name", REBINDINGS)
def test_a_rebound_buffer_is_named(lab: Lab, name: str) -> None:
    buffers = Buffers(lab)
    graph = lab.make("draft")
    graph.capture(lambda: buffers.hidden[buffers.ids], buffers.named)
    buffers.hidden.copy_(lab.randn(R, D, seed=1))
    graph.replay()  # writing into a buffer is no rebinding
    REBINDINGS[name](buffers)
    with pytest.raises(ReboundTensorError, match=r"graph 'draft': buffer 'hidden' .*copy_"):
        graph.replay()


def test_a_new_buffer_name_is_reported(lab: Lab) -> None:
    buffers = Buffers(lab)
    graph = lab.make()
    graph.capture(lambda: buffers.hidden + 1, buffers.named)
    buffers.extra = buffers.ids
    with pytest.raises(ReboundTensorError, match="extra"):
        graph.replay()


def test_unchecked_rebinding_silently_reads_the_old_storage(lab: Lab) -> None:
    buffers = Buffers(lab)
    graph = lab.make(check=False)
    out = graph.capture(lambda: buffers.hidden * 2, buffers.named)
    captured = buffers.hidden
    buffers.hidden = lab.randn(R, D, seed=1)
    graph.replay()
    assert_same(out, captured * 2)
    captured.zero_()
    graph.replay()
    assert_same(out, lab.zeros(R, D))
    with pytest.raises(ReboundTensorError):
        graph.check_bindings()


def test_assigning_data_does_not_redirect_a_graph(lab: Lab) -> None:
    x = lab.randn(R, D)
    old = x.detach()
    graph = lab.make()
    out = graph.capture(lambda: x + 1)
    x.data = lab.zeros(R, D)
    graph.replay()
    assert_same(out, old + 1)


def test_rebinding_inside_the_function_is_refused(lab: Lab) -> None:
    buffers = Buffers(lab)

    def fn() -> Tensor:
        buffers.hidden = buffers.hidden + 1
        return buffers.hidden

    with pytest.raises(ReboundTensorError, match="hidden"):
        lab.make().capture(fn, buffers.named)
