"""The resolver against its plain-Python twin: rows, tags, order, bytes and counts, call after call.

Requests of random lengths are extended, rolled back (rejected rows are written again), evicted page by page in random
order, finished and replaced, in a batch that is reordered every time. Here finished requests sometimes leave their tags
behind, so that invalidate-on-write (I6) alone must remove them.
"""

from __future__ import annotations

import random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariant_lab import lose_page

from mtplab.engine.inputs import StepInputs
from mtplab.engine.prepare import InputBuilder
from mtplab.engine.request import Request, Scheduled
from mtplab.memory.layout import MemoryLayout
from mtplab.memory.memory import Memory
from mtplab.memory.naive import NaiveHotRows
from mtplab.memory.pages import PageBook, PageState

CONTEXT, WIDTH, ROWS = 32, 2, 3


def layout(page_size: int, requests: int, hot_size: int, top_k: int) -> MemoryLayout:
    return MemoryLayout(
        tier="hisparse",
        layers=1,
        row_width=WIDTH,
        index_width=1,
        page_size=page_size,
        context=CONTEXT,
        max_requests=requests,
        max_rows=requests * ROWS + 2,
        pool_pages=requests * (CONTEXT // page_size) + 1,
        resident_pages=2,
        hot_size=hot_size,
        plan_width=top_k,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


class World:
    """Memory of one layer with its page book, and a naive twin of every request's hot rows."""

    def __init__(self, sizes: MemoryLayout, seed: int) -> None:
        self.layout, self.draw = sizes, random.Random(seed)
        self.memory, self.book = Memory(sizes), PageBook(sizes)
        self.builder = InputBuilder(sizes, self.book)
        self.twins = [NaiveHotRows(sizes.hot_size, self._first(s)) for s in range(sizes.max_requests)]
        self.requests = {state: Request(state, 1, [], 0, state=state) for state in range(sizes.max_requests)}
        assert self.memory.host is not None and self.memory.hot is not None
        self.host, self.hot = self.memory.host.layers[0], self.memory.hot

    def _first(self, state: int) -> int:
        return self.memory.pool.hot_base + state * self.layout.hot_size

    def batch(self) -> list[Scheduled]:
        """Some of the requests in random order, one to three new rows each."""
        states = self.draw.sample(sorted(self.requests), self.draw.randint(1, len(self.requests)))
        items = []
        for state in states:
            request, rows = self.requests[state], self.draw.randint(1, ROWS)
            if request.num_computed + rows > CONTEXT:
                self._replace(state)
            self.book.extend(state, request.num_computed + rows)
            items.append(Scheduled(request, request.num_computed, (0,) * rows, 0))
        return items

    def write(self, inputs: StepInputs) -> None:
        """New rows to the device and, as the mirror would, to the host; the padded rows carry NaN (I9)."""
        live = inputs.slot_mapping >= 0
        rows = torch.tensor([[self.draw.random() for _ in range(WIDTH)] for _ in live], dtype=torch.float64)
        rows[~live] = torch.nan
        self.memory.write(0, self.memory.context(inputs), rows, None)
        self.host[inputs.source_slots[live]] = rows[live]
        for twin in self.twins:
            twin.invalidate(set(inputs.source_slots[live].tolist()))

    def choose(self, inputs: StepInputs) -> torch.Tensor:
        """Distinct positions each row may see, in random places, -1 elsewhere; padded rows choose nothing."""
        chosen = torch.full((len(inputs.slot_mapping), self.layout.plan_width), -1)
        for row, (slot, position) in enumerate(zip(inputs.slot_mapping, inputs.positions.tolist(), strict=True)):
            if slot >= 0:
                most = min(position + 1, self.layout.plan_width)
                picked = self.draw.sample(range(position + 1), self.draw.randint(0, most))
                picked += [-1] * (self.layout.plan_width - len(picked))
                chosen[row] = torch.tensor(self.draw.sample(picked, len(picked)))
        return chosen

    def expected(self, items: list[Scheduled], chosen: torch.Tensor) -> list[list[int | None]]:
        """The twins resolve request by request; padded rows get nothing."""
        rows: list[list[int | None]] = []
        data = [tuple(row) for row in self.host.tolist()]
        size = self.layout.page_size
        for item in items:
            resident, host = {}, {}
            for index, page in enumerate(self.book.pages[item.request.state]):
                for offset in range(size):
                    host[index * size + offset] = page.source * size + offset
                    if page.state is not PageState.LOST:
                        resident[index * size + offset] = page.resident * size + offset
            mine = chosen[len(rows) : len(rows) + item.rows].tolist()
            rows += self.twins[item.request.state].resolve(mine, resident, host, data)
        return rows + [[None] * self.layout.plan_width] * (len(chosen) - len(rows))

    def commit(self, items: list[Scheduled]) -> None:
        """Keep some of the new rows, declare pages clean, lose some of them, finish a request now and then."""
        for item in items:
            item.request.num_computed += self.draw.randint(1, item.rows)
            self.book.hand_over(item.request.state, item.request.num_computed)
            for index, page in enumerate(self.book.pages[item.request.state]):
                if page.state is PageState.CLEAN and self.draw.random() < 0.4:
                    lose_page(self.book, item.request.state, index)
            if self.draw.random() < 0.05:
                self._replace(item.request.state)

    def _replace(self, state: int) -> None:
        self.book.release(state, hold=False)
        self.requests[state].num_computed = 0
        if self.draw.random() < 0.5:
            self.hot.clear(state)
            self.twins[state].clear()

    def compare(self, rows: torch.Tensor, expected: list[list[int | None]]) -> None:
        sink, pool = self.memory.pool.sink, self.memory.pool.layers[0]
        assert rows.tolist() == [[sink if row is None else row for row in line] for line in expected]
        for state, twin in enumerate(self.twins):
            assert self.hot.tags[0][state].tolist() == [-1 if tag is None else tag for tag in twin.tags]
            assert self.hot.lru[0][state].tolist() == twin.order
            for slot, data in twin.data.items():
                assert tuple(pool[self._first(state) + slot].tolist()) == data
        assert self.memory.counts[0].tolist() == [sum(c) for c in zip(*(t.counts for t in self.twins), strict=True)]
        order = torch.arange(self.layout.hot_size, dtype=torch.int16)
        assert (self.hot.tags[0][-1] == -1).all() and torch.equal(self.hot.lru[0][-1], order), "a pad left a trace (I9)"
        assert not pool[-1].any() and not self.host[-1].any(), "a sink row holds data (I9)"


@settings(max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    page_size=st.sampled_from([1, 2, 4]),
    requests=st.integers(1, 3),
    hot_size=st.integers(1, 14),
    top_k=st.integers(1, 6),
    pads=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_parity_with_the_naive_twin(
    page_size: int, requests: int, hot_size: int, top_k: int, pads: int, seed: int
) -> None:
    """Also where a hot buffer is too small for what a launch wants: the surplus reads the sink in both."""
    world = World(layout(page_size, requests, hot_size, top_k), seed)
    for _ in range(25):
        items = world.batch()
        inputs = world.builder.target(items, sum(item.rows for item in items) + pads)
        world.write(inputs)
        chosen = world.choose(inputs)
        context = world.memory.context(inputs)
        read = world.memory.read(0, chosen, context)
        rows = world.memory.plan_rows[0][: len(chosen)].long()
        world.compare(rows, world.expected(items, chosen))
        assert torch.equal(read, world.memory.pool.layers[0][rows]) and read.isfinite().all()
        world.commit(items)


def test_the_walk_meets_every_case() -> None:
    """Hits, misses, evicted hot rows and surplus misses all occur in such a walk."""
    world = World(layout(2, 2, 5, 4), 1)
    surplus = replaced = 0
    for _ in range(60):
        items = world.batch()
        inputs = world.builder.target(items, sum(item.rows for item in items) + 1)
        world.write(inputs)
        chosen = world.choose(inputs)
        before = [list(twin.tags) for twin in world.twins]
        rows = world.expected(items, chosen)
        surplus += sum(r is None and p >= 0 for line, row in zip(rows, chosen.tolist(), strict=True)
                       for r, p in zip(line, row, strict=True))  # fmt: skip
        replaced += sum(a is not None and a != b for old, twin in zip(before, world.twins, strict=True)
                        for a, b in zip(old, twin.tags, strict=True))  # fmt: skip
        world.commit(items)
    reads, hits, misses = (sum(c) for c in zip(*(twin.counts for twin in world.twins), strict=True))
    assert min(surplus, replaced, hits, misses) > 5 and reads > hits


def test_a_write_drops_every_tag_of_its_row() -> None:
    """I6: whoever holds the row in its hot buffer, tags of other rows and of the pads stay."""
    world = World(layout(2, 2, 4, 2), 0)
    world.book.extend(0, 6)
    tags = world.hot.tags[0]
    written = world.book.pages[0][1].source * 2  # position 2
    tags[0, 1] = tags[1, 3] = written
    tags[0, 2] = tags[1, 0] = written + 7
    item = Scheduled(world.requests[0], 2, (0,), 0)
    world.write(world.builder.target([item], 3))
    assert tags.tolist() == [[-1, -1, written + 7, -1], [written + 7, -1, -1, -1], [-1] * 4]
