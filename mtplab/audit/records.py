"""What the audit says of one step: compact records for `steps.jsonl`, one per thing that was not as it should be."""

from __future__ import annotations

from dataclasses import dataclass

UNCHANGED, BENIGN, HARMFUL, DECISIVE = "unchanged", "benign", "harmful", "decisive"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A static input that, at one replay, did not hold the value an eager step would have written there just then.

    replay: the runner and its pass (`target`, `draft`, `draft_decode.1`). age: steps since the step whose value it
    holds (0: written in this step, but for an earlier pass or wrong). written: step of its last write; -1 = capture,
    for age too. kind: unchanged (an older value, equal to the live one), benign (differs where nothing reads), harmful
    (differs where this replay reads) or decisive (harmful, and freshening it alone changes a draft). max_abs: largest
    difference, None if it is not finite; entries: how many differ. rows and requests (ids) are those that read a
    difference; of a benign record those that hold one.
    """

    replay: str
    buffer: str
    age: int
    written: int
    kind: str
    max_abs: float | None = 0.0
    entries: int = 0
    rows: int = 0
    requests: tuple[int, ...] = ()

    @property
    def runner(self) -> str:
        return self.replay.partition(".")[0]

    @property
    def differs(self) -> bool:
        return self.kind != UNCHANGED


@dataclass(frozen=True, slots=True)
class RowRecord:
    """Wrong host rows of one layer in one step.

    pages_wrong, rows_wrong: found as pages were declared clean in this step. reads_wrong: reads of rows found so far.
    age: steps since the device wrote what the host row misses, the oldest row of those read, else of those found. kind:
    benign (found, none read in this step), harmful (read) or decisive. requests: ids that read, else that own the page.
    """

    layer: str
    pages_wrong: int
    rows_wrong: int
    reads_wrong: int
    age: int
    kind: str
    requests: tuple[int, ...]
