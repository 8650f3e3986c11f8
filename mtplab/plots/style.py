"""Colours, markers and the page: the same strategy looks the same in every figure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

REFERENCE = "0.25"
STRATEGIES = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
POLICIES = ("mirror_after_target", "mirror_next_step", "mirror_after_draft", "mirror_never", "inputs_before_accept")
MARKERS = "oDs^vP*Xphd"


def strategy_colour(strategy: str) -> tuple[float, float, float]:
    """Seaborn's colour-blind palette by strategy; one that is not listed takes a colour of its own."""
    palette = sns.color_palette("colorblind", 10)
    return palette[STRATEGIES.index(strategy)] if strategy in STRATEGIES else palette[9 - len(strategy) % 4]


def policy_marker(policy: str) -> str:
    return MARKERS[POLICIES.index(policy)] if policy in POLICIES else MARKERS[len(POLICIES) + len(policy) % 5]


@contextmanager
def page(path: Path, width: float, height: float) -> Iterator[Axes]:
    """An Axes in the house theme; saved as PNG when the block ends. No pyplot: nothing global is touched."""
    with sns.axes_style("whitegrid", {"grid.color": "0.9", "axes.edgecolor": "0.6"}), sns.plotting_context("notebook"):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()
        figure.savefig(path, dpi=130, metadata={"Software": "mtplab"})
