"""`steps.jsonl`: one line a step, appended and flushed, so that a killed run leaves every finished step readable.

A line is a `StepRecord` with the role of its arm and the attempt it belongs to: an arm that was interrupted starts
again under the next attempt, and readers take the last attempt of each arm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pandas as pd

from mtplab.audit.records import BENIGN, UNCHANGED
from mtplab.engine.records import StepRecord

NAME = "steps.jsonl"


class StepWriter:
    """Appends one arm's steps. Opening it cuts off a half-written last line, which only a kill can leave."""

    def __init__(self, directory: Path, arm: str) -> None:
        path = directory / NAME
        if path.exists():
            _cut_torn_line(path)
        self._arm = arm
        self.attempt = 1 + max((line["attempt"] for line in read_lines(directory) if line["arm"] == arm), default=0)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def __enter__(self) -> StepWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, record: StepRecord) -> None:
        line = {"arm": self._arm, "attempt": self.attempt, **asdict(record)}
        self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()


def read_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of the directory's `steps.jsonl`."""
    path = directory / NAME
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def read_steps(directory: Path) -> pd.DataFrame:
    """Tidy frame, one row per arm and step of each arm's last attempt.

    `decode_step` counts the steps that drafted (-1 elsewhere); `accept_length` is theirs: 1 + accepted / drafts.
    `accepted_at_<i>` are the drafts accepted at position i; `stale_<runner>.<buffer>` is the age, in steps, of a static
    input that differed from its live value (the oldest of the runner's passes).
    """
    frame = pd.DataFrame([_row(line) for line in _last_attempts(directory)])
    if frame.empty:
        return frame
    positions = [name for name in frame.columns if name.startswith("accepted_at_")]
    frame[positions] = frame[positions].fillna(0).astype(int)
    drafting = frame["drafts"] > 0
    frame["decode_step"] = drafting.groupby(frame["arm"]).cumsum().where(drafting, 0).astype(int) - 1
    frame["accept_length"] = (1 + frame["accepted"] / frame["drafts"].where(drafting)).astype(float)
    return frame


def read_staleness(directory: Path) -> pd.DataFrame:
    """Tidy frame, one row per record of the audit: what was not as it should be, when, and whether it was read.

    `line` is replay and buffer (`draft_decode.1.positions`), or what is wrong with a layer's host rows; `count` are
    entries that differ, pages or reads; `rows` the rows hit; `age`, `kind`, `requests` as in `mtplab.audit.records`.
    """
    found = []
    for line in _last_attempts(directory):
        at = {"arm": line["arm"], "step": line["step"]}
        found += [at | _of_input(record) for record in line["inputs"]]
        found += [at | part for record in line["rows"] for part in _of_rows(record)]
    columns = ["arm", "step", "line", "age", "kind", "count", "rows", "requests", "max_abs", "written"]
    return pd.DataFrame(found, columns=columns)


def _of_input(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "line": f"{record['replay']}.{record['buffer']}", "count": record["entries"]}


def _of_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Pages found wrong and reads of wrong rows are two lines: nobody has read a page when it is declared clean."""
    layer, common = record["layer"], {"age": record["age"], "requests": record["requests"]}
    parts = []
    if record["pages_wrong"]:
        found = {"kind": BENIGN, "count": record["pages_wrong"], "rows": record["rows_wrong"]}
        parts.append({**common, "line": f"host_rows {layer}: pages wrong", **found})
    if record["reads_wrong"]:
        found = {"kind": record["kind"], "count": record["reads_wrong"]}
        parts.append({**common, "line": f"host_rows {layer}: reads wrong", **found})
    return parts


def _last_attempts(directory: Path) -> list[dict[str, Any]]:
    lines = list(read_lines(directory))
    last: dict[str, int] = {}
    for line in lines:
        last[line["arm"]] = max(line["attempt"], last.get(line["arm"], 0))
    return [line for line in lines if line["attempt"] == last[line["arm"]]]


def _row(line: dict[str, Any]) -> dict[str, Any]:
    requests = [request for request in line.pop("requests") if request["drafted"]]
    deepest = max((request["drafted"] for request in requests), default=0)
    stale: dict[str, int] = {}
    for record in line.pop("inputs"):
        if record["kind"] != UNCHANGED:
            name = f"stale_{record['replay'].partition('.')[0]}.{record['buffer']}"
            stale[name] = max(record["age"], stale.get(name, 0))
    del line["rows"]
    return {
        **line,
        "drafts": len(requests),
        "drafted": sum(request["drafted"] for request in requests),
        "accepted": sum(request["accepted"] for request in requests),
        **{f"accepted_at_{i}": sum(request["accepted"] > i for request in requests) for i in range(deepest)},
        **stale,
    }


def _cut_torn_line(path: Path) -> None:
    with path.open("rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
