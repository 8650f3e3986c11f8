"""`summary.json`, schema 1: counts first, every ratio derived from them here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtplab.engine.records import ArmOutcome
from mtplab.results.identity import Identity
from mtplab.results.records import SCHEMA
from mtplab.results.stats import Counts, conditional_rates, length_interval, marginal_rates
from mtplab.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm: what it was asked, what came out, whether its output is plain greedy's."""

    role: str
    name: str
    overrides: tuple[str, ...]
    k: int
    outcome: ArmOutcome
    identity: Identity

    @property
    def counts(self) -> Counts:
        requests = self.outcome.requests
        return Counts(tuple(r.num_accepted_tokens for r in requests), tuple(r.num_drafts for r in requests), self.k)


def summarise(
    run_id: str,
    experiment: str,
    started: str,
    seconds: float,
    verdict: Verdict,
    following: str,
    arms: Sequence[ArmResult],
) -> dict[str, Any]:
    """The public contract. `culprits` are the requested arm's, ranked by the engine."""
    requested = next(arm for arm in arms if arm.role == "requested")
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "experiment": experiment,
        "started": started,
        "seconds": round(seconds, 3),
        "verdict": verdict.name,
        "culprits": [asdict(culprit) for culprit in requested.outcome.culprits],
        "next": following,
        "arms": [_arm(arm) for arm in arms],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    requests, outcome = arm.outcome.requests, arm.outcome
    drafts = sum(r.num_drafts for r in requests)
    drafted = sum(r.num_draft_tokens for r in requests)
    accepted = sum(r.num_accepted_tokens for r in requests)
    per_pos = [sum(r.per_pos[i] for r in requests if i < len(r.per_pos)) for i in range(arm.k)]
    interval = length_interval(arm.counts)
    tokens = sum(len(r.output) for r in requests)
    return {
        "name": arm.name,
        "role": arm.role,
        "overrides": list(arm.overrides),
        "num_requests": len(requests),
        "num_drafts": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "num_accepted_tokens_per_pos": per_pos,
        "mean_acceptance_length": arm.counts.length,
        "mean_acceptance_length_interval": None if interval is None else [interval.low, interval.high],
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_per_pos": marginal_rates(per_pos, drafts),
        "acceptance_per_pos_conditional": conditional_rates(per_pos, drafts),
        "output_identical": arm.identity.identical,
        "tokens_per_second": tokens / outcome.seconds if outcome.seconds > 0 else None,
        "graph": asdict(outcome.graph),
        "memory": asdict(outcome.memory),
        "staleness": {name: asdict(item) for name, item in outcome.staleness.items()},
    }
