"""What the audit found in one step."""

from __future__ import annotations

from dataclasses import dataclass

from mtplab.audit.records import InputRecord, RowRecord


@dataclass(frozen=True, slots=True)
class Findings:
    """Page counts are (page, layer) pairs except `pages_clean`; records only of what was not as it should be."""

    pages_clean: int = 0
    pages_wrong: int = 0
    rows_read_from_host: int = 0
    reads_wrong: int = 0
    inputs: tuple[InputRecord, ...] = ()
    rows: tuple[RowRecord, ...] = ()
