"""Intervals: Wilson for rates, bootstrap over requests for acceptance lengths (drafts of one request are correlated).

Notation: per request a_r accepted drafts in d_r drafts (steps that drafted). AL = 1 + sum a / sum d.
Loss L = 1 - (AL_arm - 1) / (AL_ref - 1), so 0 = no loss, 1 = nothing accepted any more, below 0 = a gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
BOOTSTRAP_SEED = 0
LEVEL = 0.95
Z = 1.959963984540054
FEWEST_REQUESTS = 4  # below it a bootstrap over requests says nothing


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval at level `LEVEL`."""

    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Counts:
    """Per request: accepted drafts and drafts, in request order. `k` bounds what one draft can accept."""

    accepted: tuple[int, ...]
    drafts: tuple[int, ...]
    k: int

    @property
    def length(self) -> float | None:
        """Mean acceptance length, bonus token included; None without drafts."""
        drafts = sum(self.drafts)
        return 1 + sum(self.accepted) / drafts if drafts else None


@dataclass(frozen=True, slots=True)
class Loss:
    """Relative loss of AL-1 against the reference."""

    value: float
    interval: Interval
    requests: int


def wilson(successes: int, trials: int) -> Interval:
    """Wilson score interval of a rate; [0, 1] without trials."""
    if trials == 0:
        return Interval(0.0, 1.0)
    p, z2 = successes / trials, Z * Z
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(0.0 if successes == 0 else low, 1.0 if successes == trials else high)


def length_interval(counts: Counts) -> Interval | None:
    """Bootstrap interval of AL over the requests that drafted; the whole range for a single one, None for none."""
    pairs = [(a, d) for a, d in zip(counts.accepted, counts.drafts, strict=True) if d]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Interval(1.0, 1.0 + counts.k)
    accepted, drafts = np.asarray(pairs, dtype=np.float64).T
    weights = resampling_weights(len(pairs))
    return percentiles(1 + (weights @ accepted) / (weights @ drafts))


def relative_loss(arm: Counts, reference: Counts) -> Loss | None:
    """L with its paired bootstrap interval (both arms resample the same requests); None if nothing can be compared."""
    arm_length, reference_length = arm.length, reference.length
    if arm_length is None or reference_length is None or reference_length == 1:
        return None
    columns = zip(arm.accepted, arm.drafts, reference.accepted, reference.drafts, strict=True)
    rows = [row for row in columns if row[1] and row[3]]
    if not rows:
        return None
    a, d, ra, rd = np.asarray(rows, dtype=np.float64).T
    weights = resampling_weights(len(rows))
    reference_rate = (weights @ ra) / (weights @ rd)
    usable = reference_rate > 0
    losses = 1 - ((weights @ a) / (weights @ d))[usable] / reference_rate[usable]
    value = 1 - (arm_length - 1) / (reference_length - 1)
    return Loss(value, percentiles(losses), len(rows))


def resampling_weights(requests: int) -> NDArray[np.float64]:
    """How often each request is drawn, one row a resample [RESAMPLES, requests]."""
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    return generator.multinomial(requests, np.full(requests, 1 / requests), size=RESAMPLES).astype(np.float64)


def percentiles(values: NDArray[np.float64]) -> Interval:
    """Interval at `LEVEL` of bootstrap values [RESAMPLES]."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(low), float(high))


def marginal_rates(per_pos: Sequence[int], drafts: int) -> list[float]:
    """Accepted at position i / drafts; never rises with i."""
    return [count / drafts if drafts else 0.0 for count in per_pos]


def conditional_rates(per_pos: Sequence[int], drafts: int) -> list[float]:
    """Rate of position i among the drafts accepted up to i-1."""
    tried = (drafts, *per_pos)[: len(per_pos)]
    return [count / before if before else 0.0 for count, before in zip(per_pos, tried, strict=True)]
