"""What `scripts/bench.py` compares: transformers, our arms one request at a time, and our arm with eight at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import mtplab
from mtplab.bench.hf import Reference, load_reference
from mtplab.bench.parity import ParityReport, check_parity, first_difference
from mtplab.bench.speed import Measured, Prompts, measure, ours, theirs
from mtplab.build import build_arm

PAGE = 16
HEALED = ("graph=full", "sparse=hisparse", "sync=mirror_next_step")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio` is to transformers in the same run. Step and capture are ours alone."""

    batch: int
    arm: str
    tokens_per_second: float
    ratio: float
    step_ms: float | None
    capture_seconds: float | None


class Suite:
    """Everything on the same weights and prompts, k=1, `new_tokens` per prompt on both sides.

    transformers' cache grows with the text; ours is captured for a context, so it gets the one these prompts need.
    """

    def __init__(self, directory: Path, prompts: Prompts, new_tokens: int, *overrides: str) -> None:
        self.prompts = prompts
        self.new_tokens = new_tokens
        self.context = -(-(max(map(len, prompts)) + new_tokens + 2) // PAGE) * PAGE
        self._model = (f"model.path={directory}", "spec.k=1", f"engine.context={self.context}", *overrides)
        self.reference: Reference = load_reference(directory, index_topk=self.context)
        self.transformers = theirs(self.reference, prompts, new_tokens)

    def parity(self) -> ParityReport:
        """The engine's FULL forwards against transformers', several requests at once."""
        cfg = mtplab.compose(*self._model, "graph=full", "sparse=dense", "engine.max_requests=3")
        with torch.inference_mode():
            return check_parity(build_arm(cfg), self.reference, self.prompts[:4], min(self.new_tokens, 24))

    def run(self, rounds: int) -> None:
        """Capture our arms, then interleaved rounds of all arms."""
        one, quiet = "engine.max_requests=1", "engine.audit=false"
        self.full = self._arm("graph=full sparse=dense", "graph=full", "sparse=dense", one, quiet)
        self.eager = self._arm("graph=none sparse=dense", "graph=none", "sparse=dense", one, quiet)
        self.dsa = self._arm("graph=full sparse=dsa", "graph=full", "sparse=dsa", one, quiet)
        self.hisparse = self._arm("graph=full sparse=hisparse", *HEALED, one, quiet)
        self.audited = self._arm("graph=full sparse=hisparse, audited", *HEALED, one)
        self.batched = self._arm(self.full.name, "graph=full", "sparse=dense", "engine.max_requests=8", quiet)
        measure([self.transformers, *self._single, self.batched], rounds)

    @property
    def _single(self) -> list[Measured]:
        return [self.full, self.eager, self.dsa, self.hisparse, self.audited]

    def wrong_outputs(self) -> list[str]:
        """Dense arms must emit transformers' tokens; after a near-tie of the two best logits they may part."""
        found = []
        for arm in (self.full, self.eager, self.batched):
            for index, prompt in enumerate(self.prompts):
                theirs, own = self.transformers.outputs[index], arm.outputs[index]
                difference = first_difference(self.reference, prompt, theirs, own)
                if difference is not None:
                    found.append(f"{arm.name}, prompt {index}: {difference}")
        return found

    def rows(self) -> list[Row]:
        base = self.transformers.tokens_per_second
        rows = [Row(1, f"{self.transformers.name} (dense)", base, 1.0, None, None)]
        for batch, arm in [*((1, arm) for arm in self._single), (8, self.batched)]:
            speed = arm.tokens_per_second
            rows.append(Row(batch, arm.name, speed, speed / base, arm.step_ms, arm.capture_seconds))
        return rows

    def by_threads(self, counts: Sequence[int]) -> str:
        """Both sides on one prompt, briefly, with each number of threads; leaves the number as it was."""
        before, found = torch.get_num_threads(), []
        overrides = (*self._model, "graph=full", "sparse=dense", "engine.max_requests=1", "engine.audit=false")
        one, few = self.prompts[:1], min(self.new_tokens, 24)
        arms = [theirs(self.reference, one, few), ours(self.full.name, one, few, *overrides)]
        for count in counts:
            torch.set_num_threads(count)
            for arm in arms:
                arm.rounds.clear()
            measure(arms, rounds=1)
            found.append(f"{count}: " + " and ".join(f"{arm.tokens_per_second:.0f}" for arm in arms))
        torch.set_num_threads(before)
        return f"tokens/s of transformers and `graph=full` on one short run by threads: {'; '.join(found)}"

    def _arm(self, name: str, *overrides: str) -> Measured:
        return ours(name, self.prompts, self.new_tokens, *self._model, *overrides)


def markdown(rows: Sequence[Row]) -> list[str]:
    """The table as README shows it."""
    lines = ["| batch | arm | tokens/s | x transformers | step ms | capture s |", "|---|---|---|---|---|---|"]
    for row in rows:
        step = "" if row.step_ms is None else f"{row.step_ms:.2f}"
        capture = "" if row.capture_seconds is None else f"{row.capture_seconds:.1f}"
        cells = (row.batch, row.arm, f"{row.tokens_per_second:.0f}", f"{row.ratio:.1f}", step, capture)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
