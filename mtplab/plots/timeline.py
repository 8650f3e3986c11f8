"""Figure 9: what one step did when; a copy of draft rows made before the drafter wrote them is red."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

LANES = ("pages", "mirror", "drafter", "target")  # bottom to top
COLOURS = {"target": "#4c72b0", "drafter": "#dd8452", "mirror": "#55a868", "pages": "#8c8c8c"}
TOO_EARLY = "crimson"
NARROWEST = 0.02  # of the time shown: a copy of microseconds must still be seen


def plot_timeline(events: pd.DataFrame, axes: Axes, title: str) -> Axes:
    """`events` is the frame of `mtplab.audit.timeline.Timeline`; time in milliseconds, numbers give the order."""
    start = events["start"].min()
    span = events["end"].max() - start
    for order, event in enumerate(events.to_dict("records"), start=1):
        y = LANES.index(event["lane"])
        colour = TOO_EARLY if event["too_early"] else COLOURS[event["lane"]]
        width = max(event["end"] - event["start"], NARROWEST * span)
        axes.barh(y, width, left=event["start"] - start, height=0.5, color=colour, edgecolor="white", linewidth=0.6)
        label = f"{order} {event['name']}"
        lift = 0.33 if order % 2 else -0.36
        axes.annotate(label, (event["start"] - start, y + lift), fontsize="x-small", va="center", color="0.15")
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set(ylim=(-0.7, len(LANES) - 0.4), xlim=(-0.01 * span, 1.18 * span), xlabel="ms from the start of the step")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.grid(axis="y", visible=False)
    handles = [Patch(color=TOO_EARLY, label="copies draft rows before the drafter wrote them")]
    if bool(events["too_early"].any()):
        axes.legend(handles=handles, loc="lower right", frameon=False, fontsize="small")
    return axes
