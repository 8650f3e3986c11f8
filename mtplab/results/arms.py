"""`arm_<role>.json`: a finished arm, written whole, so that `resume=` repeats no finished arm."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtplab.engine.records import ArmOutcome, Culprit, GraphCounts, MemoryCounts, RequestOutcome, Staleness
from mtplab.results.directory import RunDirectory


def save_arm(directory: RunDirectory, role: str, outcome: ArmOutcome) -> None:
    """JSON has no infinity: a gap where everything is selected is written null."""
    value = asdict(outcome)
    for request in value["requests"]:
        for name in ("margins", "select_gaps"):
            request[name] = [x if math.isfinite(x) else None for x in request[name]]
    directory.write_json(f"arm_{role}.json", value)


def load_arm(directory: Path, role: str) -> ArmOutcome | None:
    """The finished arm of that role, or None."""
    path = directory / f"arm_{role}.json"
    if not path.exists():
        return None
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return ArmOutcome(
        requests=tuple(_request(request) for request in value["requests"]),
        seconds=value["seconds"],
        capture_seconds=value["capture_seconds"],
        steps=value["steps"],
        graph=GraphCounts(**value["graph"]),
        memory=MemoryCounts(**value["memory"]),
        staleness={name: Staleness(**item) for name, item in value["staleness"].items()},
        culprits=tuple(Culprit(**item) for item in value["culprits"]),
    )


def _request(value: dict[str, Any]) -> RequestOutcome:
    floats = {n: tuple(math.inf if x is None else float(x) for x in value[n]) for n in ("margins", "select_gaps")}
    return RequestOutcome(**{**value, **floats, "output": tuple(value["output"]), "per_pos": tuple(value["per_pos"])})
