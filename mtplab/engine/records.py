"""What the engine reports: plain counts and facts, never ratios (ratios are derived in `mtplab.results`).

`StepRecord` is one line of `steps.jsonl`; `ArmOutcome` is everything one arm produced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mtplab.audit.records import InputRecord, RowRecord


@dataclass(frozen=True, slots=True)
class RequestStep:
    """One request's part of one step. `drafted` is 0 while its prompt is being prefilled."""

    request: int
    drafted: int
    accepted: int
    emitted: int
    context: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step: what ran, what was accepted, what moved; `inputs` and `rows`: what was not as it should be."""

    step: int
    mode: str
    draft_mode: str
    num_tokens: int
    bucket: int
    num_requests: int
    requests: tuple[RequestStep, ...]
    pages_clean: int
    pages_evicted: int
    pages_wrong: int
    rows_read_from_host: int
    reads_wrong: int
    inputs: tuple[InputRecord, ...]
    rows: tuple[RowRecord, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Counts and tokens of one finished request.

    `per_pos[i]` counts the drafts accepted at draft position i. `margins[n]` is the top-1 minus top-2 target logit at
    output token n, `select_gaps[n]` the smallest relative gap between the last selected and the first unselected
    indexer score over all layers in the forward that emitted it (inf where everything is selected); both are recorded
    only when the engine is asked to (`record_margins`), else empty.
    """

    request: int
    prompt_tokens: int
    output: tuple[int, ...]
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    per_pos: tuple[int, ...]
    margins: tuple[float, ...] = ()
    select_gaps: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Culprit:
    """A piece of state that was wrong when it was read. `layer` is null for static inputs."""

    state: str
    layer: str | None
    first_step: int
    rows_wrong: int
    reads_wrong: int
    evidence: str


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """Steps by the target's graph mode, graphs captured, graphs replayed (target and drafter together)."""

    mode_steps: dict[str, int]
    captures: int
    replays: int


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """Pages and rows moved; `pages_audited` and `pages_wrong` count (page, layer) pairs as pages turn clean."""

    pages_evicted: int
    rows_read_from_host: int
    hot_hits: int
    hot_misses: int
    pages_audited: int
    pages_wrong: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """How one static input behaved over all replays that could read it."""

    max_age: int
    share_stale: float
    share_harmful: float


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """Everything one arm produced; `seconds` is decode and prefill wall time without capture."""

    requests: tuple[RequestOutcome, ...]
    seconds: float
    capture_seconds: float
    steps: int
    graph: GraphCounts
    memory: MemoryCounts
    staleness: dict[str, Staleness] = field(default_factory=dict)
    culprits: tuple[Culprit, ...] = ()
