"""A live arm under watch: what every forward read and wrote, and what was mirrored when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from invariant_cases import Case, ScriptedDrafting, config, oracle
from torch import Tensor

from mtplab.build import build_arm
from mtplab.engine.drafting import DraftRunners
from mtplab.engine.engine import Engine
from mtplab.engine.inputs import StepInputs
from mtplab.engine.request import Request
from mtplab.graphs.runner import Runner
from mtplab.memory.mirror import RowSpan
from mtplab.memory.pages import PageBook, PageState

POISON = 1e6


def lose_page(book: PageBook, state: int, index: int) -> None:
    """Evict one page, whichever its age."""
    page = book.pages[state][index]
    book._free_resident.append(page.resident)
    book.resident_table[state, index] = page.resident = 0
    page.state = PageState.LOST


@dataclass(frozen=True, slots=True)
class Run:
    """One forward: `kind` is target, draft or decode; `seen` are the inputs its attention read.

    `pools`, `tags`, `lru` are all layers' storages before it; `time` orders runs, mirrors and hand-overs.
    """

    kind: str
    layers: tuple[int, ...]
    live: StepInputs
    seen: StepInputs
    time: int
    pools: list[Tensor]
    tags: list[Tensor]
    lru: list[Tensor]


class WatchedRunner:
    """A runner that reports each run."""

    def __init__(self, lab: Lab, inner: Runner, kind: str, layers: tuple[int, ...]) -> None:
        self._lab = lab
        self._inner = inner
        self._kind = kind
        self._layers = layers

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def run(self, live: StepInputs, hook: Callable[[int], None] | None) -> object:
        static = self._inner.static if self._inner.mode == "FULL" else None
        seen = live if static is None else static.view(live.input_ids.shape[0])
        memory = self._lab.memory
        hot = ([], []) if memory.hot is None else (memory.hot.tags, memory.hot.lru)
        pools, tags, lru = ([t.clone() for t in part] for part in (memory.pool.layers, *hot))
        run = Run(self._kind, self._layers, live, seen, self._lab.ledger.tick(), pools, tags, lru)
        self._lab.ledger.on_run(run)
        output = self._inner.run(live, hook)
        self._lab.on_run(run)
        return output


class Ledger:
    """When each (layer, host slot) was last written and last mirrored; the order of drafts, mirrors and hand-overs."""

    def __init__(self, lab: Lab) -> None:
        self._mirror = lab.parts.mirror
        self._now = 0
        shape = (lab.layout.layers, lab.layout.source_rows)
        self.written = torch.full(shape, -1)
        self.mirrored = torch.full(shape, -1)
        self.draft_runs = 0
        self.draft_copies = 0
        self.early: list[str] = []
        self._copy, self._hand_over = self._mirror.copy, self._mirror.hand_over
        self._mirror.copy, self._mirror.hand_over = self._on_copy, self._on_hand_over  # type: ignore[method-assign]

    def tick(self) -> int:
        self._now += 1
        return self._now

    def on_run(self, run: Run) -> None:
        slots = run.seen.source_slots[run.seen.slot_mapping >= 0]
        for layer in run.layers:
            self.written[layer, slots] = run.time
        self.draft_runs += run.kind == "draft"

    def _on_copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        time = self.tick()
        for layer in layers:
            self.mirrored[layer, span.host_rows] = time
        if set(layers) & set(self._mirror.draft_layers):
            self.draft_copies += 1
            if self.draft_copies > self.draft_runs:
                self.early.append(f"draft rows of run {self.draft_copies} mirrored after {self.draft_runs} runs")
        self._copy(layers, span)

    def _on_hand_over(self) -> None:
        self.tick()
        if self.draft_copies != self.draft_runs:
            self.early.append(f"pages handed over after {self.draft_copies} mirrors of {self.draft_runs} draft runs")
        self._hand_over()


class Lab:
    """An arm with its ledger; `on_run` is called after every forward, `target_only` exempts the drafter's."""

    def __init__(self, case: Case, graph: str, sync: str, target_only: bool = False) -> None:
        self.case = case
        self.target_only = target_only
        self.engine: Engine = build_arm(config(case, graph, sync)).engine
        self.oracle = oracle(case.budget)
        self.parts = self.engine.parts
        self.memory, self.book = self.parts.memory, self.parts.book
        self.layout = self.memory.layout
        self.ledger = Ledger(self)
        self.drafted_at = 0
        self.on_run: Callable[[Run], None] = lambda run: None
        self._draw = random.Random(f"order {case.seed}")
        prompts = case.tokens()
        room = case.new_tokens + case.k + 1
        self.truth = {i: list(self.oracle.greedy(prompt, room)) for i, prompt in enumerate(prompts)}
        self.requests = [self.parts.scheduler.add(p, i, case.new_tokens) for i, p in enumerate(prompts)]
        self._watch()

    def _watch(self) -> None:
        target, draft = self.parts.mirror.target_layers, self.parts.mirror.draft_layers
        inner = self.parts.drafting
        assert inner is not None
        prefill = WatchedRunner(self, inner.runners.prefill, "draft", draft)
        inner.runners = DraftRunners(prefill, WatchedRunner(self, inner.runners.decode, "decode", draft))
        self.drafting = ScriptedDrafting(inner, self.case, self.truth)
        watched = WatchedRunner(self, self.parts.target, "target", target)
        self.parts = self.engine.parts = replace(self.parts, target=watched, drafting=self.drafting)

    @property
    def running(self) -> list[Request]:
        return self.parts.scheduler.running

    @property
    def busy(self) -> bool:
        return self.parts.scheduler.busy

    def step(self) -> None:
        if self.case.reorder:
            self._draw.shuffle(self.running)
        if self.case.evict:
            self._evict_one()
        if self.case.poison:
            self._poison()
        self.engine.step()

    def evictable(self, request: Request) -> list[int]:
        """Pages I7 lets go: clean, and older than the page being written and the one before it."""
        if request.prefilling:
            return []
        pages = self.book.pages[request.state][: max(request.num_computed // self.layout.page_size - 1, 0)]
        return [i for i, page in enumerate(pages) if page.state in (PageState.CLEAN, PageState.UNPINNED)]

    def _evict_one(self) -> None:
        choices = [(r.state, index) for r in self.running for index in self.evictable(r)]
        if not choices or self._draw.random() < 0.5:
            return
        lose_page(self.book, *self._draw.choice(choices))

    def _poison(self) -> None:
        """Everything but committed rows, rows of held pages, loaded hot rows, null pages and sinks."""
        memory, size = self.memory, self.layout.page_size
        device = torch.ones(memory.pool.sink + 1, dtype=torch.bool)
        source = torch.ones(memory.keys.sink + 1, dtype=torch.bool)
        for mask in (device, source):
            mask[:size] = mask[-1] = False
        held = [(page, size) for page in self.book._held]
        for request in self.running:
            for index, page in enumerate(self.book.pages[request.state]):
                held.append((page, max(min(request.num_computed - index * size, size), 0)))
        for page, rows in held:
            source[page.source * size :][:rows] = False
            if page.state is not PageState.LOST:
                device[page.resident * size :][:rows] = False
        for layer in range(self.layout.layers):
            unread = device.clone()
            if memory.host is not None and memory.hot is not None:
                unread[memory.pool.hot_base : -1] = (memory.hot.tags[layer][:-1] < 0).flatten()
                memory.host.layers[layer][source] = POISON
            memory.pool.layers[layer][unread] = POISON
            memory.keys.layers[layer][source] = POISON
