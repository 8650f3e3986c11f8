"""Figure 1: acceptance by draft position, marginal and conditional, with Wilson intervals; the reference as outline."""

from __future__ import annotations

from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mtplab.plots.style import REFERENCE, policy_marker, strategy_colour
from mtplab.results.stats import wilson

MARGINAL, CONDITIONAL = "marginal (accepted at i / drafts)", "conditional (accepted at i / accepted at i-1)"


def per_position_frame(summary: dict[str, Any]) -> pd.DataFrame:
    """One row per arm, kind and draft position: rate, low, high, trials."""
    rows = []
    for arm in summary["arms"]:
        accepted = arm["num_accepted_tokens_per_pos"]
        tried = [arm["num_drafts"], *accepted][: len(accepted)]
        for kind, trials in ((MARGINAL, [arm["num_drafts"]] * len(accepted)), (CONDITIONAL, tried)):
            for position, (count, trial) in enumerate(zip(accepted, trials, strict=True), start=1):
                interval = wilson(count, trial)
                rate = count / trial if trial else 0.0
                rows.append((arm["role"], kind, position, rate, interval.low, interval.high, trial))
    return pd.DataFrame(rows, columns=["role", "kind", "position", "rate", "low", "high", "trials"])


def plot_per_position(frame: pd.DataFrame, axes: Axes, strategy: str, policy: str, seed: int) -> Axes:
    """Bars of the requested arm (full: marginal, pale: conditional), outlines of the reference."""
    colour = strategy_colour(strategy)
    hues = {MARGINAL: colour, CONDITIONAL: tuple(0.5 + 0.5 * channel for channel in colour)}
    requested = frame.query("role == 'requested'")
    if requested.empty:
        axes.text(0.5, 0.5, "nothing was drafted", ha="center", transform=axes.transAxes)
        return axes
    sns.barplot(
        requested, x="position", y="rate", hue="kind", palette=hues, errorbar=None, saturation=1, gap=0.08, ax=axes
    )
    _outline_and_intervals(frame, axes, policy)
    drafts = {role: part["trials"].max() for role, part in frame.query("kind == @MARGINAL").groupby("role")}
    counts = ", ".join(f"{role} n = {count}" for role, count in sorted(drafts.items()))
    axes.set(ylim=(0, 1), ylabel="acceptance rate (bars: Wilson 95 %)")
    axes.set_xlabel(f"draft position ({counts} drafts; seed {seed})")
    handles: list[Any] = [Patch(color=hues[kind], label=kind) for kind in (MARGINAL, CONDITIONAL)]
    handles.append(Patch(facecolor="none", edgecolor=REFERENCE, label="reference (eager, all on the device)"))
    handles.append(Line2D([], [], color="black", marker=policy_marker(policy), label=f"sync={policy}"))
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False, fontsize="small"
    )
    axes.set_title(f"Acceptance by draft position, graph={strategy}", loc="left")
    return axes


def _outline_and_intervals(frame: pd.DataFrame, axes: Axes, policy: str) -> None:
    """Intervals on both arms: the requested arm's from its bar, the reference's beside it on its outline."""
    kinds = (MARGINAL, CONDITIONAL)
    rates = frame.set_index(["role", "kind", "position"])
    roles = [role for role in ("requested", "reference") if role in set(frame["role"])]
    for kind, bars in zip(kinds, axes.containers, strict=False):
        for position, bar in enumerate(bars, start=1):
            left, width = bar.get_x(), bar.get_width()
            for role in roles:
                rate, low, high = rates.loc[(role, kind, position), ["rate", "low", "high"]]
                ours = role == "requested"
                centre = left + width * (0.38 if ours else 0.72)
                if not ours:
                    axes.bar(left, rate, width, align="edge", fill=False, edgecolor=REFERENCE, linewidth=1.6, zorder=3)
                axes.plot([centre, centre], [low, high], color="black" if ours else REFERENCE, linewidth=1.4, zorder=4)
                if ours:
                    axes.plot([centre], [rate], color="black", marker=policy_marker(policy), markersize=5, zorder=5)
