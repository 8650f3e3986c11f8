"""Figure 2: accepted length over decode steps, with the floor line at 1.00 and an event rug."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from mtplab.plots.style import REFERENCE, policy_marker, strategy_colour

WINDOW = 9  # decode steps in the running mean


def plot_length_over_steps(
    steps: pd.DataFrame, axes: Axes, summary: dict[str, Any], strategy: str, policy: str, k: int, seed: int
) -> Axes:
    """Dots: one step, all its requests. Lines: running mean. Bands: AL of the arm with its bootstrap interval.

    `steps` is the frame of `read_steps`.
    """
    looks = {
        "reference": (REFERENCE, "none", "reference (eager, all on the device)"),
        "requested": (strategy_colour(strategy), policy_marker(policy), f"graph={strategy}, sync={policy}"),
    }
    for result in summary["arms"]:
        colour, marker, label = looks[result["role"]]
        arm = steps.query("arm == @result['role'] and decode_step >= 0")
        if arm.empty:
            continue
        low, high = result["mean_acceptance_length_interval"]
        label += f": AL {result['mean_acceptance_length']:.2f} [{low:.2f}, {high:.2f}]"
        x = arm["decode_step"]
        axes.axhspan(low, high, color=colour, alpha=0.15, linewidth=0)
        axes.scatter(x, arm["accept_length"], s=9, color=colour, alpha=0.2, linewidths=0)
        every = max(len(x) // 12, 1)
        axes.plot(x, _running_length(arm), color=colour, linewidth=2, marker=marker, markevery=every, label=label)
        if result["role"] == "requested":
            _event_rug(arm, axes)
    requests = summary["arms"][0]["num_requests"]
    _frame(axes, k)
    axes.set_xlabel(f"decode step (n = {requests} requests, running mean of {WINDOW} steps, k = {k}, seed {seed})")
    if not axes.get_legend_handles_labels()[0]:
        axes.text(0.5, 0.5, "nothing was drafted", ha="center", transform=axes.transAxes)
        return axes
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize="small")
    return axes


def _frame(axes: Axes, k: int) -> None:
    """Range, floor line and labels."""
    axes.axhline(1.0, color="crimson", linestyle="--", linewidth=1)
    place = {"xycoords": ("axes fraction", "data"), "xytext": (-4, -4), "textcoords": "offset points"}
    axes.annotate(
        "floor 1.00: nothing accepted", (1, 1.0), ha="right", va="top", fontsize="small", color="crimson", **place
    )
    axes.set(ylim=(0, k + 1.15), xlim=(0, None), ylabel="acceptance length with bonus token")
    axes.set_title(
        "Accepted length over decode steps (band: 95 % bootstrap over requests)", loc="left", fontsize="medium"
    )


def _running_length(arm: pd.DataFrame) -> list[float]:
    window = {"window": WINDOW, "min_periods": 1, "center": True}
    accepted, drafts = (arm[name].rolling(**window).sum() for name in ("accepted", "drafts"))
    return [1 + a / d for a, d in zip(accepted, drafts, strict=True)]


def _event_rug(arm: pd.DataFrame, axes: Axes) -> None:
    """Two rows of ticks at the bottom: steps that evicted pages, steps that read wrong host rows."""
    for column, colour, low, label in (
        ("pages_evicted", "0.35", 0.0, "pages evicted"),
        ("reads_wrong", "crimson", 0.045, "wrong rows read"),
    ):
        at = arm.loc[arm[column] > 0, "decode_step"]
        if len(at):
            axes.vlines(
                at, low, low + 0.035, transform=axes.get_xaxis_transform(), color=colour, linewidth=0.9, label=label
            )
