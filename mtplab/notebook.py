"""What the notebooks call beside `mtplab.run`: one recorded step, and controls that re-slice a figure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd
import torch

import mtplab
from mtplab.audit.timeline import Timeline
from mtplab.build import build_arm
from mtplab.config.instantiate import instantiate
from mtplab.config.locate import model_directory
from mtplab.runner import RunResult
from mtplab.workloads.workload import Workload, load_tokenizer

if TYPE_CHECKING:
    import ipywidgets


def record_step(*overrides: str, after: int) -> pd.DataFrame:
    """Timeline of one engine step, `after` steps into the configured workload. Same strings as the command line."""
    cfg = mtplab.compose(*overrides)
    workload: Workload = instantiate(cfg.workload, cfg.allow_targets)
    prompts = workload.load(load_tokenizer(model_directory(cfg)), cfg.seed)
    torch.set_num_threads(cfg.engine.threads)
    with torch.inference_mode():
        arm = build_arm(cfg)
        for index, prompt in enumerate(prompts):
            arm.engine.parts.scheduler.add(prompt.tokens, index, cfg.workload.max_new_tokens)
        for _ in range(after):
            arm.engine.step()
        with Timeline(arm) as timeline:
            arm.engine.step()
    return timeline.frame()


def explore_length(results: Mapping[str, RunResult]) -> ipywidgets.VBox:
    """Accepted length over steps with controls for the runs shown and the width of the running mean."""
    import ipywidgets
    from matplotlib.figure import Figure

    from mtplab.plots.compare import compare_length

    runs = ipywidgets.SelectMultiple(options=list(results), value=list(results), description="runs", rows=len(results))
    window = ipywidgets.IntSlider(value=9, min=1, max=25, step=2, description="window")
    summary = ipywidgets.Label()
    picture = ipywidgets.Image(format="png")

    def redraw(_: object = None) -> None:
        chosen = {label: results[label] for label in runs.value}
        lengths = [f"{label} {r.arm()['mean_acceptance_length']:.2f}" for label, r in chosen.items()]
        summary.value = f"AL: {', '.join(lengths) or 'choose a run'}; running mean of {window.value} steps"
        if chosen:
            figure, png = Figure(figsize=(8.5, 4.2), layout="constrained"), io.BytesIO()
            compare_length(chosen, figure.add_subplot(), window.value)
            figure.savefig(png, format="png", dpi=90)
            picture.value = png.getvalue()

    runs.observe(redraw, "value")
    window.observe(redraw, "value")
    redraw()
    return ipywidgets.VBox([ipywidgets.HBox([runs, window]), summary, picture])
