"""Several runs side by side: per-position acceptance and accepted length over decode steps.

Colour = graph strategy and marker = sync policy, as everywhere; runs that share both are told apart by their labels.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

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
    for index, (label, result) in enumerate(results.items()):
        part = frame.query("run == @label")
        strategy, policy = _look(result)
        x = part["position"] + (index - (len(results) - 1) / 2) * width
        axes.bar(x, part["rate"], width * 0.92, color=strategy_colour(strategy), alpha=0.75, label=label)
        axes.vlines(x, part["low"], part["high"], color="black", linewidth=1.2)
        axes.plot(x, part["rate"], linestyle="none", color="black", marker=policy_marker(policy), markersize=5)
    positions = sorted(frame["position"].unique())
    axes.set_xticks(positions, [str(p) for p in positions])
    axes.set(ylim=(0, 1), ylabel="marginal acceptance (Wilson 95 %)", xlabel=f"draft position ({_sample(results)})")
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return axes


def compare_length(results: Mapping[str, RunResult], axes: Axes, window: int = WINDOW) -> Axes:
    """Running mean of the accepted length over decode steps, the floor line at 1.00."""
    for label, result in results.items():
        steps = result.steps.query("arm == 'requested' and decode_step >= 0")
        rolling = steps[["accepted", "drafts"]].rolling(window, min_periods=1, center=True).sum()
        strategy, policy = _look(result)
        text = f"{label}: AL {result.arm()['mean_acceptance_length']:.2f}"
        every = max(len(steps) // 10, 1)
        axes.plot(
            steps["decode_step"],
            1 + rolling["accepted"] / rolling["drafts"],
            color=strategy_colour(strategy),
            marker=policy_marker(policy),
            markevery=every,
            label=text,
        )
    axes.axhline(1.0, color=REFERENCE, linestyle="--", linewidth=1)
    axes.set(ylim=(0.8, None), xlim=(0, None), ylabel="acceptance length with bonus token")
    axes.set_xlabel(f"decode step (running mean of {window}; {_sample(results)}; floor 1.00: nothing accepted)")
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    return axes


def _look(result: RunResult) -> tuple[str, str]:
    """Graph strategy and sync policy of a run, from its resolved configuration."""
    from omegaconf import OmegaConf

    cfg = OmegaConf.load(result.directory / "config.yaml")
    return cfg.graph.name, cfg.sync.name


def _sample(results: Mapping[str, RunResult]) -> str:
    arm = next(iter(results.values())).arm()
    return f"n = {arm['num_requests']} requests a run"
