"""Every kind of operator replays the bits eager execution would produce, with changed inputs and poisoned results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graph_lab import MODES, D, Lab, R, assert_same, check_against_eager, lab_fixture, poison
from torch import Tensor

from mtplab.graphs.tape import TapeGraph
from mtplab.graphs.tape_resolve import Operator, fastest, out_forms

lab = lab_fixture()

# Arguments: x [R, D], y [R, D], i [R] row numbers in 0..R-1.
OPERATORS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "linear": lambda x, y, i: [F.linear(x, y), F.linear(x, y, y[:, 0]), F.linear(x[None], y), F.linear(x[0], y)],
    "matmul": lambda x, y, i: [x @ y.T, x[:, None] @ y[None, :, :, None], torch.mv(x, y[0]), torch.dot(x[0], y[0])],
    "bmm": lambda x, y, i: [torch.bmm(x[None], y.T[None]), torch.baddbmm(x[None, :, :R], x[None], y.T[None], beta=0.5)],
    "addmm": lambda x, y, i: torch.addmm(x[:, :R], x, y.T, beta=2.0, alpha=0.5),
    "einsum": lambda x, y, i: [torch.einsum("rd,sd->rs", x, y), torch.einsum("rd,rd->d", x, y)],
    "rms_norm": lambda x, y, i: [F.rms_norm(x, (D,), y[0]), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)],
    "layer_norm": lambda x, y, i: [F.layer_norm(x, (D,)), F.layer_norm(x, (D,), y[0], y[1])],
    "softmax": lambda x, y, i: [x.softmax(-1), F.log_softmax(x, 0), torch.logsumexp(x, -1)],
    "attention": lambda x, y, i: F.scaled_dot_product_attention(x[None, None], y[None, None], x[None, None]),
    "causal attention": lambda x, y, i: F.scaled_dot_product_attention(
        x.view(1, 2, 2, D), y.view(1, 2, 2, D), x.view(1, 2, 2, D), is_causal=True
    ),
    "masked attention": lambda x, y, i: F.scaled_dot_product_attention(
        x[None, None], y[None, None], x[None, None], attn_mask=(x @ y.T > 0) | torch.eye(R, device=x.device).bool()
    ),
    "activations": lambda x, y, i: [F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), x.sigmoid(), x.tanh()],
    "arithmetic": lambda x, y, i: [x + y, x - 2, 3 - x, x * y, x / y, x // 1, x % 2, -x, torch.add(x, y, alpha=2)],
    "powers": lambda x, y, i: [x**2, x.exp(), x.abs().log(), x.abs().sqrt(), 2**x, x.cos(), x.sin(), x.square()],
    "integers": lambda x, y, i: [i + 1, i // 2, i * i, i % 3, i.float() / 3, i << 1, i.div(2, rounding_mode="floor")],
    "compare": lambda x, y, i: [x > y, x == y, i >= 2, (x > 0) & (y > 0), (x > 0) | ~(y > 0), (x > 0) ^ (y > 0)],
    "bitwise": lambda x, y, i: [i & 1, i | 4, i ^ 3, ~i, i.bitwise_left_shift(2), i.bitwise_right_shift(1)],
    "where": lambda x, y, i: [torch.where(x > 0, x, y), torch.where(x > 0, x, 0.0), torch.where(x > y, 1.0, -1.0)],
    "masked_fill": lambda x, y, i: [x.masked_fill(y > 0, -1.0), x.masked_fill(y > 0, y[0, 0])],
    "clamp": lambda x, y, i: [x.clamp(-0.5, 0.5), x.clamp(min=y), i.clamp(max=2), torch.maximum(x, y), x.clamp_min(0)],
    "reduce": lambda x, y, i: [x.sum(), x.sum(0), x.mean(-1), x.std(-1), x.var(0), x.prod(-1), x.norm(), x.any()],
    "extremes": lambda x, y, i: [x.max(), x.min(-1), x.max(0), x.argmax(-1), x.argmin(), x.amax(0), torch.aminmax(x)],
    "topk": lambda x, y, i: [x.topk(3, -1), x.topk(2, 0, largest=False, sorted=True), x.kthvalue(2, -1), x.median(-1)],
    "sort": lambda x, y, i: [x.sort(-1), x.sort(stable=True, dim=0, descending=True), x.argsort(-1)],
    "cumulate": lambda x, y, i: [x.cumsum(-1), x.cumprod(0), x.cummax(-1), i.cumsum(0), x.logcumsumexp(0), x.diff()],
    "gather": lambda x, y, i: [x.gather(0, i[:, None].expand(R, D)), torch.take_along_dim(x, i[:, None] * 0, 1)],
    "index_select": lambda x, y, i: [x.index_select(0, i), x[i], x[i, i], x[:, i], x[None, i], x.take(i)],
    "embedding": lambda x, y, i: [F.embedding(i, x), F.embedding(i.view(2, 2), y)],
    "scatter": lambda x, y, i: [x.scatter(0, i[:, None], y), x.scatter(1, i[:, None], 2), x.scatter_add(0, i[None], y)],
    "scatter_reduce": lambda x, y, i: [x.scatter_reduce(0, i[:, None], y, "amax"), x.index_add(0, i, y)],
    "index writes": lambda x, y, i: [x.index_copy(0, i, y), x.index_fill(0, i, 1.0), x.index_put((i,), y)],
    "bucketize": lambda x, y, i: [torch.bucketize(x, y[0].sort()[0]), torch.searchsorted(y.sort(-1)[0], x)],
    "join": lambda x, y, i: [torch.cat([x, y]), torch.stack([x, y], -1), F.pad(x, (1, 2), value=3.0)],
    "repeat": lambda x, y, i: [x.repeat(2, 1), x.repeat_interleave(2, 0), x.tile(2), x.roll(1, 0), x.flip(-1)],
    "views": lambda x, y, i: [x.view(-1), x.T, x[1:, ::2], x.unfold(1, 4, 2), x.expand(2, R, D), x.chunk(2)],
    "copies": lambda x, y, i: [x.T.reshape(-1), x.T.contiguous(), x.T.clone(), x.expand(2, R, D).reshape(-1, D)],
    "dtypes": lambda x, y, i: [x.double(), x.half(), x.bfloat16() * 2, i.to(torch.int16), x.bool(), (x > 0).int()],
    "bit views": lambda x, y, i: [x.view(torch.int32) ^ 1, (x.view(torch.int32) & -2).view(torch.float32)],
    "factories": lambda x, y, i: [torch.zeros_like(x) + x, x.new_full((2,), 3.0) * x[0, 0], torch.arange(R).to(i) + i],
    "triangles": lambda x, y, i: [x.tril(), x.triu(1), torch.ones_like(x).tril() * x, torch.outer(x[0], y[0])],
    "interpolate": lambda x, y, i: [torch.lerp(x, y, 0.3), torch.addcmul(x, x, y), torch.addcdiv(x, x, y)],
    "foreach": lambda x, y, i: [*torch._foreach_add([x, y], [y, x]), *torch._foreach_mul([x, y], 2.0)],
    "complex": lambda x, y, i: torch.view_as_real(
        torch.view_as_complex(x.view(R, -1, 2)) * torch.polar(y.abs(), y)[:, :4]
    ),
    "identity": lambda x, y, i: [x, x.detach(), x.contiguous(), x.to(torch.float32), x.reshape(R, D), x.clone()],
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("mode", MODES)
def test_operators_replay_bit_for_bit(lab: Lab, name: str, mode: Callable[[], Any]) -> None:
    with mode():
        x, y, index = lab.randn(R, D), lab.randn(R, D, seed=9), lab.ints(2, 0, 3, 1)
        check_against_eager(lab, lambda: OPERATORS[name](x, y, index), [x, y, index])


@pytest.mark.parametrize("capture_mode", MODES)
@pytest.mark.parametrize("replay_mode", [*MODES, torch.enable_grad, partial(torch.autocast, "cpu", torch.bfloat16)])
def test_replay_does_not_depend_on_the_ambient_mode(
    lab: Lab, capture_mode: Callable[[], Any], replay_mode: Callable[[], Any]
) -> None:
    x, weight = lab.randn(R, D), torch.nn.Parameter(lab.randn(D, D))
    pool = lab.zeros(R, D)

    def fn() -> Tensor:
        pool.add_(x)
        return F.silu(F.linear(pool, weight))

    graph = lab.make()
    with capture_mode():
        out = graph.capture(fn)
        expected_pool = pool + x
        expected = F.silu(F.linear(expected_pool, weight))
    with replay_mode():
        graph.replay()
    assert_same([out, pool], [expected, expected_pool])


def test_autocast_is_recorded_at_capture() -> None:
    x, weight = torch.randn(R, D), torch.randn(D, D)
    graph = TapeGraph()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        out = graph.capture(lambda: x @ weight)
        x.copy_(torch.randn(R, D))
        expected = x @ weight
    graph.replay()
    assert out.dtype == torch.bfloat16
    assert_same(out, expected)


IN_PLACE: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "arithmetic": lambda x, y, i: x.add_(y).mul_(2).sub_(y, alpha=3),
    "slice write": lambda x, y, i: (x[1:3].copy_(y[:2]), x[:, 0].fill_(7), x.__setitem__(0, y[0]), x + 1)[-1],
    "index_put": lambda x, y, i: x.index_put_((i,), y),
    "index_put accumulate": lambda x, y, i: x.index_put_((i * 0,), y, accumulate=True),
    "index_copy": lambda x, y, i: x.index_copy_(0, i, y),
    "index_add": lambda x, y, i: x.index_add_(0, i, y, alpha=2),
    "scatter": lambda x, y, i: x.scatter_(0, i[:, None].expand(R, D), y),
    "masked_fill": lambda x, y, i: x.masked_fill_(y > 0, 0.5),
    "where out": lambda x, y, i: torch.where(y > 0, x, y, out=x),
    "explicit out": lambda x, y, i: [torch.add(x, y, out=y), torch.mm(x, y.T, out=torch.empty(R, R, device=x.device))],
    "through a view": lambda x, y, i: (x.view(-1)[::2].mul_(2), x.T.add_(1), x * 1)[-1],
    "chained cache": lambda x, y, i: (x.index_put_((i,), y), (x @ y.T).softmax(-1) @ x)[-1],
    "foreach": lambda x, y, i: (torch._foreach_mul_([x, y], 0.5), x + y)[-1],
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("mode", MODES)
def test_in_place_operators_write_the_captured_storages(lab: Lab, name: str, mode: Callable[[], Any]) -> None:
    with mode():
        x, y, index = lab.randn(R, D), lab.randn(R, D, seed=9), lab.ints(2, 0, 3, 1)
        check_against_eager(lab, lambda: IN_PLACE[name](x, y, index), [x, y, index])


def test_state_advances_by_one_call_per_replay(lab: Lab) -> None:
    count, log, step = lab.ints(0), lab.zeros(8), lab.randn(1)

    def fn() -> Tensor:
        log.index_put_((count,), step)
        return count.add_(1)

    graph = lab.make()
    graph.capture(fn)
    for seed in range(1, 4):
        step.copy_(lab.randn(1, seed=seed))
        graph.replay()
    assert count.item() == 4
    assert_same(log[:4], torch.cat([lab.randn(1, seed=seed) for seed in range(4)]))


def test_factory_results_start_afresh_even_when_mutated(lab: Lab) -> None:
    x, index = lab.randn(R, D), lab.ints(0, 0, 1, 3)

    def fn() -> list[Tensor]:
        device = x.device
        total = torch.zeros(R, D, device=device).index_add_(0, index, x)
        ramp = torch.arange(R, device=device).mul_(index)
        mask = torch.ones_like(x, dtype=torch.bool).logical_and_(x > 0)
        filled = torch.full((D,), 2.5, device=device).sub_(x[0])
        scratch = torch.empty(R, D, device=device).fill_(1.0).add_(x)
        lines = torch.linspace(0, 1, D, device=device).add_(x[0]), torch.eye(D, device=device).mul_(x[0])
        return [total, ramp, mask, filled, scratch, *lines, x.new_zeros(2).add_(x[0, 0]), x.new_ones(2).neg_()]

    check_against_eager(lab, fn, [x])


def test_host_constants_are_frozen_and_start_afresh() -> None:
    x, host = torch.randn(R), [1.0, -2.0, math.nan, 4.0]
    graph = TapeGraph()
    out = graph.capture(lambda: torch.tensor(host).add_(x) + torch.tensor(3.0).mul_(x[0]))
    expected = torch.tensor(host)
    host[0] = 100.0
    for _ in range(2):
        x.copy_(torch.randn(R))
        poison(graph, [x])
        graph.replay()
        assert_same(out, (expected + x) + 3.0 * x[0])


def test_memory_borrowed_from_numpy_is_an_input() -> None:
    array = np.ones(R, dtype=np.float32)
    graph = TapeGraph()
    out = graph.capture(lambda: torch.from_numpy(array) * 2)
    array[:] = 5
    graph.replay()
    assert out.tolist() == [10.0] * R and array.tolist() == [5.0] * R


def test_a_view_is_free_and_a_copy_is_not() -> None:
    x = torch.randn(R, D)
    views, copies = TapeGraph(), TapeGraph()
    views.capture(lambda: [x.reshape(-1), x.contiguous(), x.to(torch.float32), x.T, x.view(torch.int32), x.split(2)])
    copies.capture(lambda: [x.T.reshape(-1), x.T.contiguous(), x.to(torch.float64), torch.empty(3)])
    assert (views.num_ops, copies.num_ops) == (0, 3)


def test_a_sink_row_takes_the_writes_of_padding(lab: Lab) -> None:
    """Slot -1 would wrap to the last row in index_put_; inside the graph it is mapped to the sink row instead."""
    pool, rows, slots = lab.zeros(R + 1, D), lab.randn(R, D), lab.ints(2, -1, 0, -1)

    def fn() -> Tensor:
        sink = pool.shape[0] - 1
        pool.index_put_((torch.where(slots < 0, sink, slots),), rows)
        pool[sink].zero_()
        return pool.index_select(0, torch.where(slots < 0, sink, slots))

    graph = check_against_eager(lab, fn, [pool, rows, slots])
    pool.zero_()
    slots.copy_(lab.ints(-1, 3, -1, -1))
    graph.replay()
    assert_same(pool[3], rows[1])
    assert pool[[0, 1, 2, 4]].abs().sum().item() == 0 and graph.outputs[0].abs().sum().item() == 0


def test_custom_operators_are_recorded_and_do_not_see_autocast() -> None:
    @torch.library.custom_op("mtplab_test::accumulate", mutates_args={"pool"})
    def accumulate(pool: Tensor, factor: float) -> Tensor:
        pool.mul_(factor)
        return pool @ pool.T

    pool = torch.full((R, D), 1.001)
    graph = TapeGraph()
    out = graph.capture(lambda: accumulate(pool, 2.0) + 1)
    doubled = pool * 2.0
    poison(graph, [pool])
    with torch.autocast("cpu", torch.bfloat16):
        graph.replay()
    assert_same([pool, out], [doubled, doubled @ doubled.T + 1])


def test_fast_forms_are_chosen_by_proof_and_not_by_name() -> None:
    x = torch.randn(R, D)
    before = x.clone()
    outs = [torch.empty(R), torch.empty(R, dtype=torch.long)]
    aten = torch.ops.aten
    forms = [
        ("aten.add.out", Operator(aten.add.Tensor, (x, x), {}), outs[:1]),
        ("aten.sum.IntList_out", Operator(aten.sum.dim_IntList, (x, [1]), {}), outs[:1]),
        ("aten.max.dim_max", Operator(aten.max.dim, (x, 1), {}), outs),
    ]
    for expected, operator, results in forms:
        assert [form.name for form in out_forms(operator, results)] == [expected]
    # torch.Tensor.add_(x, 1.0) dispatches to add_.Tensor: the same numbers, but not the recorded operator
    assert fastest(Operator(aten.add_.Scalar, (x, 1.0), {})).func is aten.add_.Scalar._op
    assert fastest(Operator(aten.add_.Tensor, (x, x), {})).func is not aten.add_.Tensor._op
    assert_same(x, before)  # looking for a form runs nothing
