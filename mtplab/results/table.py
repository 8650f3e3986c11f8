"""The incident table that people paste into issues: Markdown, one row an arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADER = ("arm", "AL [95 %]", "rate", "per position", "tok/s", "output identical")


def incident_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """Reference first, then the requested arm; the cells of `HEADER`."""
    arms = sorted(summary["arms"], key=lambda arm: arm["role"] != "reference")
    return [_row(arm) for arm in arms]


def incident_table(summary: dict[str, Any]) -> str:
    """The rows as aligned Markdown."""
    return markdown(HEADER, incident_rows(summary))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up as plain text too."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in lines)


def _row(arm: dict[str, Any]) -> tuple[str, ...]:
    length, interval = arm["mean_acceptance_length"], arm["mean_acceptance_length_interval"]
    rate, speed = arm["draft_acceptance_rate"], arm["tokens_per_second"]
    return (
        f"{arm['role']}: {arm['name']}",
        "no drafts" if length is None else f"{length:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]",
        "-" if rate is None else f"{rate:.1%}",
        " ".join(f"{share:.2f}" for share in arm["acceptance_per_pos"]) or "-",
        "-" if speed is None else f"{speed:.0f}",
        {True: "yes", False: "no", None: "-"}[arm["output_identical"]],
    )
