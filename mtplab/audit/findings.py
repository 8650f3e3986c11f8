"""What the audit found in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Findings:
    """`stale_inputs` maps a stale static input to its age in steps; `input_written` to the step of its last write."""

    pages_clean: int
    pages_wrong: int
    rows_read_from_host: int
    reads_wrong: int
    stale_inputs: dict[str, int]
    input_written: dict[str, int]
