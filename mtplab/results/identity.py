"""Identity gate: an arm must emit exactly the tokens of plain greedy decoding without speculation.

In float64 without tolerance. In float32 a request's first divergence is excused where plain decoding itself was
undecided: its top-1 minus top-2 logit at that token, or the gap between the last selected and the first unselected
indexer score at or before it, is within the tolerance (row counts change the order of reduction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mtplab.engine.records import RequestOutcome

MARGIN_TOLERANCE = 1e-3  # logits
GAP_TOLERANCE = 1e-6  # relative


@dataclass(frozen=True, slots=True)
class Identity:
    """`first` is (request, output token) of the first divergence that counts."""

    requests: int
    diverged: int
    excused: int
    first: tuple[int, int] | None

    @property
    def identical(self) -> bool:
        return self.first is None


def check_identity(plain: Sequence[RequestOutcome], arm: Sequence[RequestOutcome], exact: bool) -> Identity:
    """Compare request by request; `exact` excuses nothing."""
    outputs = {outcome.request: outcome.output for outcome in arm}
    diverged = excused = 0
    first: tuple[int, int] | None = None
    for outcome in sorted(plain, key=lambda o: o.request):
        token = _first_divergence(outcome.output, outputs.get(outcome.request, ()))
        if token is None:
            continue
        diverged += 1
        if not exact and _undecided(outcome, token):
            excused += 1
        elif first is None:
            first = (outcome.request, token)
    return Identity(len(plain), diverged, excused, first)


def _first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    pairs = enumerate(zip_longest(ours, theirs))
    return next((index for index, (a, b) in pairs if a != b), None)


def _undecided(outcome: RequestOutcome, token: int) -> bool:
    margin = outcome.margins[token] if token < len(outcome.margins) else float("inf")
    gap = min(outcome.select_gaps[: token + 1], default=float("inf"))
    return margin <= MARGIN_TOLERANCE or gap <= GAP_TOLERANCE
