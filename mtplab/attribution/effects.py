"""Effects with paired bootstrap intervals over requests, and the exact McNemar test per draft position.

All arms are judged on the same trajectory, so arm and arm are compared request by request, draft by draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtplab.results.stats import Interval, percentiles, resampling_weights


@dataclass(frozen=True, slots=True)
class Drafted:
    """Accepted drafts of each judged step, request by request in the same order in every arm; k drafts a step."""

    k: int
    accepted: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> float:
        """Mean acceptance length, bonus token included."""
        return 1 + sum(map(sum, self.accepted)) / sum(map(len, self.accepted))

    def lengths(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """AL of each bootstrap resample; weights [RESAMPLES, requests]."""
        accepted = np.array([sum(steps) for steps in self.accepted], dtype=np.float64)
        drafts = np.array([len(steps) for steps in self.accepted], dtype=np.float64)
        return 1 + (weights @ accepted) / (weights @ drafts)


@dataclass(frozen=True, slots=True)
class Effect:
    """AL gained (or, below zero, lost) and its interval; `share` is of the whole loss that is being attributed."""

    value: float
    interval: Interval
    share: float

    @property
    def is_zero(self) -> bool:
        return self.interval.low <= 0 <= self.interval.high


def effect(arm: Drafted, base: Drafted, whole: float) -> Effect:
    """AL of `arm` minus AL of `base`; `whole` is the AL lost in all, signed, for the share."""
    weights = resampling_weights(len(base.accepted))
    value = arm.length - base.length
    share = value / whole if whole else 0.0
    return Effect(value, percentiles(arm.lengths(weights) - base.lengths(weights)), share)


def mcnemar(arm: Drafted, base: Drafted) -> list[tuple[int, int, float]]:
    """Per position: drafts accepted in `base` only, in `arm` only, two-sided exact p-value."""
    pairs = [
        (a, b)
        for mine, theirs in zip(arm.accepted, base.accepted, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    found = []
    for position in range(arm.k):
        lost = sum(b > position >= a for a, b in pairs)
        won = sum(a > position >= b for a, b in pairs)
        found.append((lost, won, _binomial_two_sided(lost, won)))
    return found


def _binomial_two_sided(lost: int, won: int) -> float:
    total, fewer = lost + won, min(lost, won)
    tail = sum(math.comb(total, i) for i in range(fewer + 1))
    return min(1.0, 2 * tail / 2**total)


def counts(judged: dict[int, list[int]], requests: Sequence[int], k: int) -> Drafted:
    """From `Judged.accepted`, in the order of `requests`; requests too short to be judged are left out."""
    return Drafted(k, tuple(tuple(judged[request]) for request in requests if judged.get(request)))
