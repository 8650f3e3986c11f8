"""The card of a fault: where it comes from, where it bites, where it does not, and the figures it is known by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtplab.config.overrides import replaced
from mtplab.engine.records import RequestOutcome
from mtplab.results.summary import ArmResult

HEALED_WITHIN = 0.05  # of the reference's AL-1, away from the trigger
HIT = 0.2  # a request is hit if it loses more of its AL-1


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """Thresholds, stated before measuring; what is None is not claimed.

    lost: share of the reference's AL-1 that is lost. positions: acceptance at each draft position over the reference's.
    requests_hit: requests that lose more than `HIT` of their own AL-1. culprit: beginning of a culprit the audit names
    (`state` or `state layer`), "" = it must name none. identical: output equals plain greedy decoding.
    """

    identical: bool
    lost: Range | None = None
    positions: tuple[Range | None, ...] = ()
    requests_hit: Range | None = None
    culprit: str | None = None


@dataclass(frozen=True, slots=True)
class FaultCard:
    """`trigger` are the overrides under which the fault bites, `away` the change that makes it harmless."""

    kind: str
    reference: str
    instrument: str
    trigger: tuple[str, ...]
    away: tuple[str, ...]
    signature: Signature

    @classmethod
    def read(cls, card: dict[str, Any]) -> FaultCard:
        """From the YAML; a range is [low, high]. Raises TypeError for a key that a card does not have."""
        signature = dict(card["signature"])
        for name in ("lost", "requests_hit"):
            signature[name] = _range(signature.get(name))
        signature["positions"] = tuple(map(_range, signature.get("positions", ())))
        lists = {name: tuple(card[name]) for name in ("trigger", "away")}
        return cls(**{**card, **lists, "signature": Signature(**signature)})

    def command(self, name: str, away: bool) -> list[str]:
        triggered = [f"fault={name}", f"spec={self.instrument}", *self.trigger]
        return replaced(triggered, *self.away) if away else triggered


def _range(value: list[float] | None) -> Range | None:
    return None if value is None else Range(*map(float, value))


@dataclass(frozen=True, slots=True)
class Observed:
    """What an arm did beside its reference; the fields of `Signature`."""

    lost: float
    positions: tuple[float, ...]
    requests_hit: int
    culprits: tuple[str, ...]
    identical: bool

    @classmethod
    def of(cls, reference: ArmResult, requested: ArmResult) -> Observed:
        pairs = list(zip(requested.outcome.requests, reference.outcome.requests, strict=True))
        ours, theirs = _per_pos(requested), _per_pos(reference)
        found = requested.outcome.culprits
        return cls(
            lost=1 - sum(ours) / sum(theirs),
            positions=tuple(a / b if b else 1.0 for a, b in zip(ours, theirs, strict=True)),
            requests_hit=sum(_accepted(a) < (1 - HIT) * _accepted(b) for a, b in pairs),
            culprits=tuple(" ".join(part for part in (c.state, c.layer) if part) for c in found),
            identical=requested.identity.identical,
        )


def _accepted(request: RequestOutcome) -> float:
    return request.num_accepted_tokens / max(request.num_drafts, 1)


def _per_pos(arm: ArmResult) -> list[float]:
    """Marginal acceptance at each draft position; their sum is AL-1."""
    requests = arm.outcome.requests
    drafts = max(sum(r.num_drafts for r in requests), 1)
    return [sum(counts) / drafts for counts in zip(*(r.per_pos for r in requests), strict=True)]


def refute(signature: Signature, seen: Observed) -> list[str]:
    """What of the signature does not hold; empty = all of it."""
    wrong = [] if seen.identical is signature.identical else [f"output identical: {seen.identical}"]
    claims = [("lost", signature.lost, seen.lost), ("requests hit", signature.requests_hit, seen.requests_hit)]
    claims += [
        (f"acceptance at position {i} over the reference's", claimed, seen.positions[i])
        for i, claimed in enumerate(signature.positions)
    ]
    wrong += [f"{what} {value:.2f}, claimed {c}" for what, c, value in claims if c is not None and not c.holds(value)]
    if signature.culprit == "" and seen.culprits:
        wrong.append(f"culprit {seen.culprits[0]}, claimed none")
    if signature.culprit and not any(name.startswith(signature.culprit) for name in seen.culprits):
        wrong.append(f"culprits {list(seen.culprits)}, claimed {signature.culprit}")
    return wrong


AWAY = Signature(identical=True, lost=Range(-HEALED_WITHIN, HEALED_WITHIN), culprit="")
