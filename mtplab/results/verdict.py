"""The verdict on the requested arm against the reference arm (rules of METHODS section 4).

Order: `corrupted` (output differs from plain greedy) > nothing to compare > `collapsed` > `suspicious_high` > `healthy`
> `inconclusive`, which says how many prompts would decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mtplab.results.stats import FEWEST_REQUESTS, Counts, Interval, Loss, length_interval, relative_loss

THRESHOLD = 0.20
FLOOR = 1.05  # a reference that accepts less has nothing to lose
MOST_PROMPTS = 100_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """`name` is one of `VERDICTS`; `try_next` is the override that would turn an `inconclusive` into an answer."""

    name: str
    reason: str
    loss: Loss | None = None
    try_next: str | None = None


def judge(arm: Counts, reference: Counts, arm_identical: bool, reference_identical: bool) -> Verdict:
    """Apply the rules. `*_identical`: the arm's output equals plain greedy decoding (identity gate)."""
    loss = relative_loss(arm, reference)
    if not arm_identical:
        return Verdict("corrupted", "the output differs from plain greedy decoding", loss)
    if not reference_identical:
        reason = "the reference arm's own output differs from plain greedy decoding"
        return Verdict("inconclusive", reason, loss, "engine.dtype=float64")
    if arm.length is None or reference.length is None:
        return Verdict("inconclusive", "nothing was drafted, so there is no acceptance to compare", None, "spec=mtp")
    if reference.length < FLOOR:
        reason = f"the reference accepts almost nothing (AL {reference.length:.2f}), so nothing can be lost"
        return Verdict("inconclusive", reason, loss, "workload=edit")
    ours, theirs = length_interval(arm), length_interval(reference)
    assert ours is not None and theirs is not None
    if loss is None or loss.requests < FEWEST_REQUESTS:
        reason = f"fewer than {FEWEST_REQUESTS} requests drafted in both arms"
        return Verdict("inconclusive", reason, loss, f"workload.num_prompts={FEWEST_REQUESTS}")
    return _compare(loss, ours, theirs, arm.length - reference.length)


def _compare(loss: Loss, ours: Interval, theirs: Interval, difference: float) -> Verdict:
    size = _share(loss.value, loss.interval.low, loss.interval.high)
    if ours.high < theirs.low and loss.value > THRESHOLD:
        return Verdict("collapsed", f"the arm loses {size}", loss)
    if ours.low > theirs.high and loss.value < -THRESHOLD:
        gain = _share(-loss.value, -loss.interval.high, -loss.interval.low)
        return Verdict("suspicious_high", f"the arm gains {gain}", loss)
    if loss.interval.high < THRESHOLD:
        return Verdict("healthy", f"the arm loses {size}, {THRESHOLD:.0%} would count", loss)
    needed = _prompts_needed(loss, ours, theirs, difference)
    reason = f"the loss is {size}; about {needed} prompts would decide (now {loss.requests})"
    return Verdict("inconclusive", reason, loss, f"workload.num_prompts={needed}")


def _share(*values: float) -> str:
    value, low, high = (f"{round(v, 2) + 0.0:.0%}" for v in values)  # + 0.0: no "-0%"
    return f"{value} [{low}, {high}] of the reference's AL-1"


def _prompts_needed(loss: Loss, ours: Interval, theirs: Interval, difference: float) -> int:
    """Requests at which the intervals, shrinking with 1 / sqrt(requests) around today's estimates, would decide."""
    if abs(loss.value) > THRESHOLD:
        shrink = (ours.half + theirs.half) / abs(difference)
    else:
        shrink = (loss.interval.high - loss.value) / max(THRESHOLD - loss.value, 1e-9)
    needed = math.ceil(loss.requests * min(shrink, 1e6) ** 2) + 1
    return min(max(needed, loss.requests + 1), MOST_PROMPTS)
