"""Whole programs on a graph: random ones, a transformer with a paged cache, a lossy tape, and what a replay costs."""

from __future__ import annotations

import gc
import math
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_lab import MODES, D, Lab, R, assert_same, copy_outputs, lab_fixture, poison
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtplab.graphs.tape import TapeGraph
from mtplab.graphs.tape_resolve import same_bits

lab = lab_fixture()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors here are small, and waiting for a second thread on a busy machine would drown what is measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- whole programs ---------------------------------------------------------------------------------------------------

# Each step maps tensors a, b [R, D] to a new [R, D], or mutates a and returns it.
STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * 0.5 - b,
    lambda a, b: F.silu(a),
    lambda a, b: a.softmax(-1),
    lambda a, b: (a @ b.T) @ b,
    lambda a, b: F.rms_norm(a, (D,), b[0]),
    lambda a, b: F.layer_norm(a, (D,)),
    lambda a, b: torch.where(a > b, a, -b),
    lambda a, b: a[b.sum(-1).argsort()],
    lambda a, b: a.gather(1, b.argsort(-1)),
    lambda a, b: a.T.reshape(R, D),
    lambda a, b: a.reshape(D, R).T,
    lambda a, b: a.flip(0).cumsum(0),
    lambda a, b: torch.cat([a[:, : D // 2], b[:, D // 2 :]], -1),
    lambda a, b: a.topk(D, -1).values,
    lambda a, b: a.masked_fill(b > 0, 0.25),
    lambda a, b: F.embedding(b.abs().argmax(0) % R, a).view(D, D)[:R],
    lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])[0, 0],
    lambda a, b: a.bfloat16().float(),
    lambda a, b: (a.contiguous().view(torch.int32) & -256).view(torch.float32),
    lambda a, b: torch.zeros_like(a).index_add_(0, b.sum(-1).argsort(), a),
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(0.5),
    lambda a, b: a.index_put_((b.sum(-1).argsort(),), b.clone()),
    lambda a, b: a.T.fill_(0.5).T,
    lambda a, b: a.copy_(b.clone()),
]

programs = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=14
)


def run_program(program: list[tuple[int, int, int]], inputs: list[Tensor]) -> list[Tensor]:
    values = list(inputs)
    for step, left, right in program:
        a, b = values[left % len(values)], values[right % len(values)]
        if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
            b = b.clone()  # torch refuses to mutate a tensor through an operand that overlaps it
        values.append(STEPS[step](a, b))
    return values


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, seed=st.integers(1, 2**31 - 1), scale=st.sampled_from([1.0, 1e-30, 1e30]))
def test_random_programs_equal_eager(lab: Lab, program: list[tuple[int, int, int]], seed: int, scale: float) -> None:
    with torch.inference_mode(seed % 2 == 0), torch.no_grad():
        statics = [lab.randn(R, D, seed=1), lab.randn(R, D, seed=2)]
        graph = lab.make()
        outputs = graph.capture(lambda: run_program(program, statics))
        for trial in range(2):
            values = [lab.randn(R, D, seed=seed + trial + i) * scale for i in range(2)]
            values[1][0, 0] = math.inf if trial else -0.0
            poison(graph, statics)
            for static, value in zip(statics, values, strict=True):
                static.copy_(value)
            graph.replay()
            assert_same(outputs, run_program(program, values))


class Transformer:
    """A decoder over a paged cache, as an engine would capture it: T rows, pool of P slots plus a zero sink row."""

    def __init__(self, lab: Lab, layers: int = 4, width: int = 64, heads: int = 4, slots: int = 32) -> None:
        self.heads, self.slots, self.width = heads, slots, width
        weight = iter(range(100, 1000))
        wide = 4 * width
        shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (wide, width), "down": (width, wide)}
        self.layers = [
            {name: lab.randn(*shape, seed=next(weight)) / shape[1] ** 0.5 for name, shape in shapes.items()}
            for _ in range(layers)
        ]
        self.embed = lab.randn(50, width, seed=99)
        self.norm = lab.randn(width, seed=98).abs()
        self.pools = [lab.zeros(2, slots + 1, width) for _ in range(layers)]

    def __call__(self, ids: Tensor, positions: Tensor, slots: Tensor) -> dict[str, Tensor]:
        hidden = F.embedding(ids, self.embed)
        rows = torch.where(slots < 0, self.slots, slots)
        visible = torch.arange(self.slots, device=ids.device)[None] <= positions[:, None]
        for weights, pool in zip(self.layers, self.pools, strict=True):
            q, k, v = F.linear(F.rms_norm(hidden, (self.width,), self.norm), weights["qkv"]).chunk(3, -1)
            pool[0].index_put_((rows,), k)
            pool[1].index_put_((rows,), v)
            q, k, v = (t.view(len(t), self.heads, -1).transpose(0, 1) for t in (q, pool[0, :-1], pool[1, :-1]))
            scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~visible, -math.inf)
            hidden = hidden + F.linear((scores.softmax(-1) @ v).transpose(0, 1).reshape(hidden.shape), weights["out"])
            hidden = hidden + F.linear(F.silu(F.linear(hidden, weights["up"])), weights["down"])
        logits = F.linear(F.rms_norm(hidden, (self.width,), self.norm), self.embed)
        return {"logits": logits, "tokens": logits.argmax(-1), "hidden": hidden}


@pytest.mark.parametrize("mode", MODES)
def test_a_transformer_decodes_like_eager_for_many_steps(lab: Lab, mode: Callable[[], Any]) -> None:
    with mode():
        eager, graphed = Transformer(lab), Transformer(lab)
        ids, positions, slots = lab.ints(1, 2), lab.ints(0, 1), lab.ints(0, 1)
        graph = lab.make()
        out = graph.capture(lambda: graphed(ids, positions, slots))
        assert_same(out, eager(ids, positions, slots))
        for step in range(1, 12):
            ids.copy_(out["tokens"])
            positions.add_(2)
            slots.copy_(torch.where(positions == 9, -1, positions) if step == 4 else positions)
            poison(graph, [])
            graph.replay()
            assert_same([out, graphed.pools], [eager(ids, positions, slots), eager.pools])


# --- the suite notices a tape that skips work -------------------------------------------------------------------------


class LossyTape(TapeGraph):
    """A tape whose replay leaves out one operator."""

    skip = 0

    def replay(self) -> None:
        assert self._calls is not None
        self._run(self._calls[: self.skip] + self._calls[self.skip + 1 :])


def test_leaving_out_any_operator_is_noticed() -> None:
    lab = Lab(LossyTape, "cpu")
    with torch.no_grad():
        model = Transformer(lab, layers=1)
        ids, positions, slots = lab.ints(1, 2), lab.ints(2, 3), lab.ints(2, 3)

        def fn() -> list[Any]:
            constant = torch.tensor([0.5, 2.0]).mul_(positions)
            return [model(ids, positions, slots), constant, positions.sort().values]

        graph = LossyTape()
        out = graph.capture(fn)
        positions.copy_(lab.ints(4, 5))
        ids.copy_(lab.ints(7, 8))
        slots.copy_(lab.ints(4, -1))
        before = [pool.clone() for pool in model.pools]
        expected = copy_outputs([fn(), model.pools])
        assert {op.kind for op in graph.ops} >= {"out", "inplace", "constant"}
        for position, op in enumerate(graph.ops):
            graph.skip = position
            for pool, value in zip(model.pools, before, strict=True):
                pool.copy_(value)
            poison(graph, [])
            graph.replay()
            found = copy_outputs([out, model.pools])
            assert not all(map(same_bits, found, expected)), f"nothing noticed that {op.name} was left out"


# --- cost -------------------------------------------------------------------------------------------------------------


def live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_memory_does_not_grow_over_a_thousand_replays(lab: Lab) -> None:
    x, index = lab.randn(R, D), lab.ints(0, 1, 2, 3)

    def fn() -> list[Tensor]:
        attended = F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        return [F.silu(x) @ x.T, x[index], attended, x.topk(2).values, torch.tensor_split(x, 2)[0]]

    graph = lab.make()
    graph.capture(fn)

    def a_thousand_replays() -> None:
        for _ in range(1000):
            graph.replay()

    gc.collect()
    a_thousand_replays()  # fills the allocators' free lists
    tensors, resident = live_tensors(), resident_bytes()
    a_thousand_replays()
    assert live_tensors() == tensors
    assert resident_bytes() - resident < 2**20
    tracemalloc.start()
    a_thousand_replays()
    traced, _ = tracemalloc.get_traced_memory()
    a_thousand_replays()
    traced_after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert traced_after - traced < 1024


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def seconds(run: Callable[[], Any]) -> float:
    """Processor time of one call on this thread, so that waiting for a busy machine is not counted."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def test_a_small_operator_costs_at_most_three_microseconds() -> None:
    x, one = torch.zeros(1), torch.ones(1)

    def fn() -> Tensor:
        total = x
        for _ in range(300):
            total = total + one
        return total

    graph = TapeGraph()
    graph.capture(fn)
    assert graph.num_ops == 300
    assert min(seconds(graph.replay) for _ in range(500)) / 300 < 3e-6


def test_a_transformer_replays_faster_than_eager() -> None:
    with torch.inference_mode():
        lab = Lab(TapeGraph, "cpu")
        model = Transformer(lab)
        ids, positions, slots = lab.ints(1, 2), lab.ints(2, 3), lab.ints(2, 3)
        graph = TapeGraph()
        graph.capture(lambda: model(ids, positions, slots))
        pairs = [(seconds(graph.replay), seconds(lambda: model(ids, positions, slots))) for _ in range(100)]
        assert min(replay for replay, _ in pairs) < min(eager for _, eager in pairs)
