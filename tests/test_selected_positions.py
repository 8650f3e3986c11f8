"""I8: selected positions are distinct, valid, causal for their own row; unused = -1. Scores full of exact ties."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplab.engine.inputs import StepInputs
from mtplab.memory.layout import MemoryLayout
from mtplab.memory.memory import Memory
from mtplab.sparse.dense import DenseSelector
from mtplab.sparse.dsa import top_positions

SCORES = [0.0, -0.0, 1.0, 1.0 + 2**-23, -1.0, -3.5, 7.0, 3e38, -3e38, 1e-45, float("inf"), float("-inf")]


def best(scores: list[float], visible: list[int], top_k: int) -> list[int]:
    """Plain Python: highest score first, of equal scores the newer position."""
    seen = sorted((position for position in visible if position >= 0), key=lambda p: (scores[p], p), reverse=True)
    return (seen + [-1] * top_k)[: min(top_k, len(scores))]


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    rows=st.integers(1, 12).flatmap(
        lambda span: st.lists(
            st.tuples(
                st.lists(st.sampled_from(SCORES), min_size=span, max_size=span),
                st.lists(st.booleans(), min_size=span, max_size=span),
            ),
            min_size=1,
            max_size=4,
        )
    ),
    top_k=st.integers(1, 14),
)
def test_top_positions_picks_the_best_of_what_a_row_may_see(
    rows: list[tuple[list[float], list[bool]]], top_k: int
) -> None:
    """Any visible set, also none (a padded row); 0.0 and -0.0 tie."""
    visible = [[p if seen else -1 for p, seen in enumerate(mask)] for _, mask in rows]
    scores = [line for line, _ in rows]
    chosen = top_positions(torch.tensor(scores), torch.tensor(visible), top_k).tolist()
    assert chosen == [best(line, seen, top_k) for line, seen in zip(scores, visible, strict=True)]
    for row, seen in zip(chosen, visible, strict=True):
        used = [position for position in row if position != -1]
        assert len(set(used)) == len(used) and set(used) <= set(seen)


@st.composite
def steps(draw: st.DrawFn) -> tuple[StepInputs, list[int], int]:
    """A batch of requests with a few rows each, padded rows and requests; how many positions each row may see."""
    page_size, pages = draw(st.integers(1, 4)), 4
    batch = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=3))
    pads, idle = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    positions, owner, slots, start, lengths, allowed = [], [], [], [0], [], []
    for index, (rows, first, rejected) in enumerate(batch):
        lengths.append(min(first + rows, page_size * pages) - min(rejected, rows - 1))
        for position in (min(first + row, page_size * pages - 1) for row in range(rows)):
            positions.append(position)
            owner.append(index)
            slots.append(len(slots))
            allowed.append(min(position + 1, lengths[-1]))
        start.append(len(positions))
    total = len(positions) + pads
    requests = len(batch) + idle
    table = torch.zeros(requests, pages, dtype=torch.int32)
    fill = [0] * pads
    inputs = StepInputs(
        input_ids=torch.zeros(total, dtype=torch.int64),
        positions=torch.tensor(positions + fill),
        slot_mapping=torch.tensor(slots + [-1] * pads),
        source_slots=torch.tensor(slots + [-1] * pads),
        req_id_per_token=torch.tensor(owner + fill, dtype=torch.int32),
        query_start_loc=torch.tensor(start + [total] * idle, dtype=torch.int32),
        seq_lens=torch.tensor(lengths + [0] * idle, dtype=torch.int32),
        resident_table=table,
        source_table=table,
        request_state_indices=torch.tensor([*range(len(batch))] + [-1] * idle, dtype=torch.int32),
    )
    return inputs, allowed + fill, page_size


def device_layout(inputs: StepInputs, page_size: int) -> MemoryLayout:
    requests, pages = inputs.resident_table.shape
    return MemoryLayout(
        tier="device",
        layers=1,
        row_width=1,
        index_width=1,
        page_size=page_size,
        context=pages * page_size,
        max_requests=requests,
        max_rows=len(inputs.slot_mapping),
        pool_pages=2,
        resident_pages=None,
        hot_size=0,
        plan_width=0,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(step=steps())
def test_dense_selects_every_position_a_row_may_see_once(step: tuple[StepInputs, list[int], int]) -> None:
    """Causal, cut at the committed length, nothing for a padded row."""
    inputs, allowed, page_size = step
    context = Memory(device_layout(inputs, page_size)).context(inputs)
    chosen = DenseSelector().select(None, None, 0, context).tolist()  # type: ignore[arg-type]
    for row, count in zip(chosen, allowed, strict=True):
        assert row == [*range(count)] + [-1] * (context.span - count)
