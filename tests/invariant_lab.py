"""A live arm under watch: what every forward read and wrote, and what was mirrored when."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from invariant_oracle import Oracle
from omegaconf import DictConfig
from random_model import write_random_model
from torch import Tensor

import mtplab
from mtplab.build import build_arm
from mtplab.engine.drafting import Drafting, DraftRunners
from mtplab.engine.engine import Engine
from mtplab.engine.inputs import StepInputs
from mtplab.engine.request import Request, Verified
from mtplab.graphs.runner import Runner
from mtplab.memory.mirror import RowSpan
from mtplab.memory.pages import PageBook, PageState

CONTEXT = 64
POISON = 1e6
DTYPE = torch.float64


@dataclass(frozen=True)
class Case:
    """One random run. `prompts` are lengths; `seed` draws tokens, accept pattern, batch order, evictions.

    `reorder` shuffles the batch before every step, `evict` drops further evictable pages in random order, `poison`
    fills before every step whatever nobody may read, `tight` leaves a pool that holds little more than one request.
    """

    page_size: int = 4
    k: int = 2
    max_requests: int = 2
    prompts: tuple[int, ...] = (17, 5, 22)
    new_tokens: int = 14
    resident_pages: int = 2
    top_k: int = 6
    hot_extra: int = 0
    chunk: int = 6
    seed: int = 0
    reorder: bool = True
    evict: bool = True
    poison: bool = False
    tight: bool = False

    def tokens(self) -> list[list[int]]:
        draw = random.Random(f"prompts {self.seed}")
        return [[draw.randrange(96) for _ in range(length)] for length in self.prompts]


@functools.cache
def model_directory() -> Path:
    directory = tempfile.mkdtemp(prefix="mtplab-invariants-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_random_model(Path(directory))


@functools.cache
def oracle(top_k: int) -> Oracle:
    return Oracle(model_directory(), top_k, DTYPE)


@functools.cache
def _composed(graph: str, sync: str) -> DictConfig:
    return mtplab.compose(f"graph={graph}", f"sync={sync}", "spec=mtp", "sparse=hisparse", "memory=pressure")


def config(case: Case, graph: str, sync: str) -> DictConfig:
    cfg = _composed(graph, sync).copy()
    cfg.model.path = str(model_directory())
    cfg.spec.k = case.k
    cfg.sparse.top_k = case.top_k
    cfg.engine.update(context=CONTEXT, max_requests=case.max_requests, prefill_chunk=case.chunk)
    cfg.engine.update(dtype="float64", device="cpu")
    cfg.memory.update(page_size=case.page_size, resident_pages=case.resident_pages)
    cfg.memory.hot_size = (case.k + 1) * case.top_k + case.hot_extra
    cfg.workload.max_new_tokens = case.new_tokens
    if case.tight:
        rows = max(case.prompts) + case.new_tokens + 2 * case.k
        cfg.memory.pool_pages = -(-rows // case.page_size) + 3
    return cfg


def lose_page(book: PageBook, state: int, index: int) -> None:
    """Evict one page, whichever its age."""
    page = book.pages[state][index]
    book._free_resident.append(page.resident)
    book.resident_table[state, index] = page.resident = 0
    page.state = PageState.LOST


class ScriptedDrafting:
    """The real drafter runs; its proposals are then replaced, so that 0..k of them agree with greedy decoding.

    How many is drawn from the request and its length alone, so every arm sees the same prefixes. Every fourth time
    the real drafts stay. `proposed` keeps the real ones by (request, length), `accepted` how many were accepted.
    """

    def __init__(self, inner: Drafting, case: Case, truth: dict[int, list[int]]) -> None:
        self._inner = inner
        self._case = case
        self._truth = truth
        self.proposed: dict[tuple[int, int], list[int]] = {}
        self.accepted: list[int] = []

    @property
    def runners(self) -> DraftRunners:
        return self._inner.runners

    @property
    def mode(self) -> str:
        return self._inner.mode

    def draft(
        self, verified: Sequence[Verified], hidden: Tensor, hook: Callable[[int], None], step: int
    ) -> list[list[int]]:
        drafts = self._inner.draft(verified, hidden, hook, step)
        return [self._script(item, own) for item, own in zip(verified, drafts, strict=True)]

    def _script(self, item: Verified, own: list[int]) -> list[int]:
        request = item.scheduled.request
        length = len(request.tokens) + len(item.new)
        if not item.scheduled.final:
            return own
        if item.scheduled.drafted:
            self.accepted.append(item.accepted)
        self.proposed[request.id, length] = own
        draw = random.Random(f"accept {self._case.seed} {request.id} {length}")
        right = draw.randrange(self._case.k + 1)
        if draw.randrange(4) == 0:
            return own
        following = self._truth[request.id][length : length + self._case.k]
        return [token if i < right else (token + 1) % 96 for i, token in enumerate(following)]


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
        assert memory.hot is not None
        pools, tags, lru = ([t.clone() for t in part] for part in (memory.pool.layers, memory.hot.tags, memory.hot.lru))
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
    """An arm with its ledger; `on_run` is called after every forward, `target_only` is for checks of single runs."""

    def __init__(self, case: Case, graph: str, sync: str, target_only: bool = False) -> None:
        self.case = case
        self.target_only = target_only
        self.engine: Engine = build_arm(config(case, graph, sync)).engine
        self.oracle = oracle(case.top_k)
        self.parts = self.engine.parts
        self.memory, self.book = self.parts.memory, self.parts.book
        self.layout = self.memory.layout
        self.ledger = Ledger(self)
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
        assert memory.host is not None and memory.hot is not None
        device = torch.ones(memory.pool.sink + 1, dtype=torch.bool)
        source = torch.ones(memory.host.sink + 1, dtype=torch.bool)
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
            hot = device.clone()
            hot[memory.pool.hot_base : -1] = (memory.hot.tags[layer][:-1] < 0).flatten()
            memory.pool.layers[layer][hot] = POISON
            memory.host.layers[layer][source] = POISON
            memory.keys.layers[layer][source] = POISON
