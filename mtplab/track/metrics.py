"""Steps to W&B's metric names (`accept/length`, `accept/pos0`, `cost/ms_per_step`, `stale/<buffer>`)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

STEP_METRIC = "decode_step"


def step_metrics(role: str, steps: pd.DataFrame) -> Iterator[dict[str, float]]:
    """One dictionary per decode step; names of every arm but the requested one carry its role in front."""
    prefix = "" if role == "requested" else f"{role}/"
    positions = sorted(name for name in steps.columns if name.startswith("accepted_at_"))
    buffers = [name for name in steps.columns if name.startswith("stale_")]
    for row in steps.query("decode_step >= 0").to_dict(orient="records"):
        metrics = {
            "accept/length": row["accept_length"],
            **{f"accept/pos{i}": row[name] / row["drafts"] for i, name in enumerate(positions)},
            "cost/ms_per_step": 1e3 * row["seconds"],
            "memory/pages_evicted": row["pages_evicted"],
            "memory/rows_read_from_host": row["rows_read_from_host"],
            "memory/reads_wrong": row["reads_wrong"],
            **{f"stale/{name.removeprefix('stale_')}": row[name] for name in buffers if pd.notna(row[name])},
        }
        yield {STEP_METRIC: int(row[STEP_METRIC]), **{prefix + name: float(value) for name, value in metrics.items()}}
