"""Several runs side by side: per-position acceptance and accepted length over decode steps.

Colour = graph strategy and marker = sync policy, as everywhere; further runs of one strategy are paler and dashed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from omegaconf import OmegaConf

from mtplab.plots.style import REFERENCE, policy_marker, strategy_colour
from mtplab.results.stats import wilson
from mtplab.runner import RunResult

WINDOW = 9  # decode steps in the running mean


def per_position_of_runs(results: Mapping[str, RunResult]) -> pd.DataFrame:
    """One row per run and draft position: marginal rate with its Wilson interval; each run's requested arm."""
    rows = []
    for label, result in results.items():
        arm = result.arm()
        for position, accepted in enumerate(arm["num_accepted_tokens_per_pos"], start=1):
            interval = wilson(accepted, arm["num_drafts"])
            rows.append((label, position, accepted / arm["num_drafts"], interval.low, interval.high))
    return pd.DataFrame(rows, columns=["run", "position", "rate", "low", "high"])


def compare_per_position(results: Mapping[str, RunResult], axes: Axes) -> Axes:
    """Grouped bars from zero, one group per draft position, with 95 % Wilson intervals."""
    frame = per_position_of_runs(results)
    width = 0.8 / len(results)
    for index, (label, look) in enumerate(_looks(results).items()):
        part = frame.query("run == @label")
        x = part["position"] + (index - (len(results) - 1) / 2) * width
        axes.bar(x, part["rate"], width * 0.92, color=look.colour, label=label)
        axes.vlines(x, part["low"], part["high"], color="black", linewidth=1.2)
        axes.plot(x, part["rate"], linestyle="none", color="black", marker=look.marker, markersize=5)
    positions = sorted(frame["position"].unique())
    axes.set_xticks(positions, [str(p) for p in positions])
    axes.set(ylim=(0, 1), ylabel="marginal acceptance (Wilson 95 %)", xlabel=f"draft position ({_sample(results)})")
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return axes


def compare_length(results: Mapping[str, RunResult], axes: Axes, window: int = WINDOW) -> Axes:
    """Running mean of the accepted length over decode steps, the floor line at 1.00."""
    for label, look in _looks(results).items():
        result = results[label]
        steps = result.steps.query("arm == 'requested' and decode_step >= 0")
        rolling = steps[["accepted", "drafts"]].rolling(window, min_periods=1, center=True).sum()
        text = f"{label}: AL {result.arm()['mean_acceptance_length']:.2f}"
        every = max(len(steps) // 10, 1)
        axes.plot(
            steps["decode_step"],
            1 + rolling["accepted"] / rolling["drafts"],
            color=look.colour,
            linestyle=look.line,
            linewidth=look.width,
            marker=look.marker,
            markevery=every,
            label=text,
        )
    axes.axhline(1.0, color=REFERENCE, linestyle="--", linewidth=1)
    axes.set(ylim=(0.8, None), xlim=(0, None), ylabel="acceptance length with bonus token")
    axes.set_xlabel(f"decode step (running mean of {window}; {_sample(results)}; floor 1.00: nothing accepted)")
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return axes


@dataclass(frozen=True, slots=True)
class _Look:
    colour: tuple[float, float, float]
    marker: str
    line: str
    width: float


def _looks(results: Mapping[str, RunResult]) -> dict[str, _Look]:
    """Eager lines are wide, so that a healed arm that lies on top of one hides neither."""
    looks, seen = {}, Counter()
    for label, result in results.items():
        cfg = OmegaConf.load(result.directory / "config.yaml")
        nth = seen[cfg.graph.name]
        seen[cfg.graph.name] += 1
        pale = min(0.32 * nth, 0.7)
        red, green, blue = (pale + (1 - pale) * channel for channel in strategy_colour(cfg.graph.name))
        width = 4.5 if cfg.graph.name == "none" else 1.8
        looks[label] = _Look((red, green, blue), policy_marker(cfg.sync.name), ("-", "--", ":")[min(nth, 2)], width)
    return looks


def _sample(results: Mapping[str, RunResult]) -> str:
    arm = next(iter(results.values())).arm()
    return f"n = {arm['num_requests']} requests a run"
