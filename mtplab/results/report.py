"""What a run prints when it ends: table, verdict, culprits with their evidence, what to try next, where to look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mtplab.config.locate import display_path
from mtplab.results.identity import GAP_TOLERANCE, MARGIN_TOLERANCE
from mtplab.results.summary import ArmResult
from mtplab.results.table import incident_table
from mtplab.results.verdict import Verdict

COLOURS = {"healthy": "green", "collapsed": "red", "corrupted": "red", "suspicious_high": "magenta"}
SHOWN_CULPRITS = 5


def print_report(
    console: Console,
    summary: dict[str, Any],
    verdict: Verdict,
    arms: Sequence[ArmResult],
    directory: Path,
    look: Sequence[str],
) -> None:
    """Print everything; lines never wrap, so that the table and the commands can be copied."""
    _line(console, "")
    _line(console, incident_table(summary))
    _line(console, "")
    _labelled(console, "verdict", f"{verdict.name}: {verdict.reason}", f"bold {COLOURS.get(verdict.name, 'yellow')}")
    found = "culprit" if verdict.name in ("collapsed", "corrupted") else "suspect"
    for culprit in summary["culprits"][:SHOWN_CULPRITS]:
        _labelled(console, found, _culprit(culprit))
    if hidden := summary["culprits"][SHOWN_CULPRITS:]:
        _labelled(console, "", f"and {len(hidden)} more in summary.json")
    for arm in arms:
        _labelled(console, "output", f"{arm.role}: {_identity(arm)}")
    _labelled(console, "next", summary["next"], "bold")
    shown = display_path(directory)
    _labelled(console, "files", f"{shown}/: summary.json, steps.jsonl, figures/*.png, config.yaml, provenance.json")
    for line in look:
        _labelled(console, "look", line)


def _culprit(culprit: dict[str, Any]) -> str:
    layer = f" of layer {culprit['layer']}" if culprit["layer"] else ""
    return f"{culprit['state']}{layer}: {culprit['evidence']}"


def _identity(arm: ArmResult) -> str:
    identity = arm.identity
    if identity.diverged == 0:
        return f"all {identity.requests} requests emit exactly the tokens of plain greedy decoding"
    tolerance = (
        f"plain decoding undecided there: logit margin <= {MARGIN_TOLERANCE:g} or top-k gap <= {GAP_TOLERANCE:g}"
    )
    text = f"{identity.diverged} of {identity.requests} requests diverge, {identity.excused} excused ({tolerance})"
    if identity.first is not None:
        text += f"; first that counts: request {identity.first[0]}, output token {identity.first[1]}"
    return text


def _labelled(console: Console, label: str, text: str, style: str = "") -> None:
    line = Text(f"{label:<8}", style="dim")
    line.append(text, style=style)
    console.print(line, soft_wrap=True)


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
