"""Parity with transformers: every forward of a running engine is repeated by transformers, request by request.

The engine decodes as it always does (paged rows, chunked prefill, several requests, 1+k rows to verify); its target
runner is wrapped, and transformers sees the same rows with a cache of its own per request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from mtplab.bench.hf import Reference
from mtplab.build import Arm
from mtplab.engine.engine import Engine
from mtplab.engine.inputs import StaticInputs, StepInputs
from mtplab.engine.request import Request
from mtplab.engine.scheduler import Scheduler
from mtplab.graphs.runner import Runner
from mtplab.model.network import LayerHook, TargetOutput

LOGIT_TOLERANCE = 1e-4  # float32, absolute
MARGIN_TOLERANCE = 1e-4  # draft tokens may differ where the two best logits are this close


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Rows [first, first + len(ids)) of a forward: tokens `ids` of `request` at positions start, start+1, ..."""

    request: int
    first: int
    start: int
    ids: tuple[int, ...]


def request_rows(live: StepInputs, running: Sequence[Request]) -> Iterator[RequestRows]:
    """Who owns which rows of a target forward, padding left out."""
    owners = {request.state: request.id for request in running}
    bounds, states = live.query_start_loc.tolist(), live.request_state_indices.tolist()
    for index, state in enumerate(states):
        if state >= 0:
            rows = slice(bounds[index], bounds[index + 1])
            ids = tuple(live.input_ids[rows].tolist())
            yield RequestRows(owners[state], rows.start, int(live.positions[rows.start]), ids)


class Twin:
    """transformers' target with one cache per request; rejected rows are cropped as soon as they are overwritten."""

    def __init__(self, reference: Reference) -> None:
        self._target = reference.target
        self._caches: dict[int, DynamicCache] = {}
        self._selected: list[Tensor] = []
        layers: Any = self._target.model.layers
        for layer in layers:
            layer.self_attn.indexer.register_forward_hook(lambda _, __, chosen: self._selected.append(chosen[0]))

    def forward(self, rows: RequestRows) -> tuple[Tensor, list[Tensor]]:
        """Logits [n, V] of the rows and, per layer, the positions [n, top_k] its indexer selects (-1 = unused)."""
        cache = self._caches.setdefault(rows.request, DynamicCache(config=self._target.config))
        surplus = cache.get_seq_length() - rows.start
        if surplus > 0:
            cache.crop(-surplus)
        self._selected.clear()
        logits = self._target(torch.tensor([rows.ids]), cache=cache, use_cache=True).logits[0]
        last = torch.arange(rows.start, rows.start + len(rows.ids)).unsqueeze(1)
        chosen = [positions.to(torch.int64) for positions in self._selected]
        return logits, [torch.where(positions <= last, positions, -1) for positions in chosen]


class ComparedRunner:
    """A target runner whose every forward is repeated by a twin; `worst` is the largest difference of logits so far.

    `selected` (one list for life) holds the twin's choice for the forward that is about to run, per layer [T, top_k].
    """

    def __init__(self, inner: Runner, scheduler: Scheduler, twin: Twin) -> None:
        self._inner = inner
        self._scheduler = scheduler
        self._twin = twin
        self.static: StaticInputs | None = inner.static
        self.mode = inner.mode
        self.captures, self.replays = inner.captures, inner.replays
        self.selected: list[Tensor] = []
        self.worst = 0.0
        self.rows = 0

    def bucket(self, rows: int) -> int:
        return self._inner.bucket(rows)

    def run(self, live: StepInputs, hook: LayerHook | None) -> object:
        seen = list(request_rows(live, self._scheduler.running))
        answers = [self._twin.forward(rows) for rows in seen]
        layers = zip(*(chosen for _, chosen in answers), strict=True)
        self.selected[:] = [_scatter(live, seen, chosen) for chosen in layers]
        output = self._inner.run(live, hook)
        assert isinstance(output, TargetOutput)
        for rows, (logits, _) in zip(seen, answers, strict=True):
            own = output.logits[rows.first : rows.first + len(rows.ids)]
            self.worst = max(self.worst, float((own - logits).abs().max()))
            self.rows += len(rows.ids)
        return output


def compared(arm: Arm, reference: Reference) -> tuple[Engine, ComparedRunner]:
    """`arm` as an engine whose target forwards are compared with `reference`."""
    runner = ComparedRunner(arm.engine.parts.target, arm.engine.parts.scheduler, Twin(reference))
    return Engine(replace(arm.engine.parts, target=runner)), runner


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a request had when it was drafted for: `tokens` are committed, `following` comes next, then the drafts."""

    tokens: tuple[int, ...]
    following: int
    drafts: tuple[int, ...]


@torch.inference_mode()
def decode(engine: Engine, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Drafted]:
    """Decode to the end; returns every draft on the way."""
    scheduler = engine.parts.scheduler
    for index, prompt in enumerate(prompts):
        scheduler.add(prompt, index, max_new_tokens)
    drafted = []
    while scheduler.busy:
        engine.step()
        for request in scheduler.running:
            if request.drafts and not request.prefilling:
                known = tuple(request.tokens[: request.num_computed])
                drafted.append(Drafted(known, request.tokens[-1], tuple(request.drafts)))
    return drafted


@dataclass(frozen=True, slots=True)
class DraftParity:
    """Drafts compared, those left out because a near-tie came first, and those that differ."""

    compared: int
    near_ties: int
    different: int


def compare_drafts(drafted: Sequence[Drafted], reference: Reference) -> DraftParity:
    """Compare each draft token by token; after a near-tie the rest of that draft proves nothing."""
    compared = near = different = 0
    for item in drafted:
        expected, margins = reference.drafts(item.tokens, item.following, len(item.drafts))
        for position, (own, theirs) in enumerate(zip(item.drafts, expected, strict=True)):
            if own == theirs:
                compared += 1
                continue
            rest = len(expected) - position
            if margins[position] < MARGIN_TOLERANCE:
                near += rest
            else:
                different += rest
            break
    return DraftParity(compared, near, different)


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Rows of logits compared with their largest difference, and the drafts made on the way."""

    rows: int
    worst: float
    drafts: DraftParity

    @property
    def green(self) -> bool:
        return self.worst < LOGIT_TOLERANCE and self.drafts.different == 0 and self.drafts.compared > 0

    def __str__(self) -> str:
        drafts = self.drafts
        return (
            f"{self.rows} rows of logits, largest difference {self.worst:.1e} (tolerance {LOGIT_TOLERANCE:.0e}); "
            f"{drafts.compared} draft tokens equal, {drafts.near_ties} after a near-tie, {drafts.different} different"
        )


def check_parity(arm: Arm, reference: Reference, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> ParityReport:
    """Decode `prompts` with every target forward and every draft compared."""
    engine, runner = compared(arm, reference)
    drafted = decode(engine, prompts, max_new_tokens)
    return ParityReport(runner.rows, runner.worst, compare_drafts(drafted, reference))


def first_difference(
    reference: Reference, prompt: Sequence[int], theirs: Sequence[int], ours: Sequence[int]
) -> str | None:
    """Where two greedy continuations part, unless transformers' two best logits nearly tie there."""
    if list(theirs) == list(ours):
        return None
    pairs = enumerate(zip(theirs, ours, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), min(len(theirs), len(ours)))
    best = reference.logits([*prompt, *theirs[:position]])[-1].topk(2).values
    margin = float(best[0] - best[1])
    if margin < MARGIN_TOLERANCE and position < min(len(theirs), len(ours)):
        return None
    return f"outputs part at token {position}, where the logit margin is {margin:.1e}"


def _scatter(live: StepInputs, seen: Sequence[RequestRows], chosen: Sequence[Tensor]) -> Tensor:
    """Selections of several requests as one tensor [T, widest]; padded rows select nothing."""
    width = max(positions.shape[1] for positions in chosen)
    rows = torch.full((live.input_ids.shape[0], width), -1)
    for owner, positions in zip(seen, chosen, strict=True):
        rows[owner.first : owner.first + len(owner.ids), : positions.shape[1]] = positions
    return rows
