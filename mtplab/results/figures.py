"""The figures every run leaves in `figures/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig


def draw_figures(cfg: DictConfig, summary: dict[str, Any], steps: pd.DataFrame, directory: Path) -> list[Path]:
    """`per_position.png` and `al_over_steps.png`; returns their paths."""
    from mtplab.plots.length_over_steps import plot_length_over_steps
    from mtplab.plots.per_position import per_position_frame, plot_per_position
    from mtplab.plots.style import page

    folder = directory / "figures"
    folder.mkdir(exist_ok=True)
    strategy, policy = cfg.graph.name, cfg.sync.name
    by_position, over_steps = folder / "per_position.png", folder / "al_over_steps.png"
    with page(by_position, 8, 5) as axes:
        plot_per_position(per_position_frame(summary), axes, strategy, policy, cfg.seed)
    with page(over_steps, 9, 5) as axes:
        plot_length_over_steps(steps, axes, summary, strategy, policy, cfg.spec.k, cfg.seed)
    return [by_position, over_steps]
