"""Attribution bars (STYLE_AND_UX figure 5) and acceptance waterfall (figure 8). Both take the frames of a study."""

from __future__ import annotations

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes

from mtplab.attribution.study import Attribution


def attribution_bars(found: Attribution, axes: Axes, most: int = 12) -> Axes:
    """Gain of refreshing and loss of freezing each suspect, 95 % intervals; the `most` that do most, remainder last."""
    frame = found.suspects
    order = np.lexsort((-frame["loss"].abs(), -frame["gain"].abs()))
    shown = frame.iloc[order[:most]]
    places = np.arange(len(shown), dtype=float)
    gain, loss = sns.color_palette("colorblind", 4)[2:4]
    for kind, colour, offset, label in (
        ("gain", gain, -0.2, "refreshed alone in the faulty arm"),
        ("loss", loss, 0.2, "frozen alone in the healthy arm"),
    ):
        axes.barh(places + offset, shown[kind], 0.38, color=colour, label=label)
        axes.hlines(places + offset, shown[f"{kind}_low"], shown[f"{kind}_high"], color="black", linewidth=1.2)
    axes.barh([len(shown)], [found.remainder], 0.38, color="0.6", label="interaction remainder of the gains")
    axes.axvline(0, color="0.25", linewidth=1)
    axes.set_yticks([*places, len(shown)], [*shown["suspect"], "remainder"])
    axes.invert_yaxis()
    axes.set_xlabel(
        f"change of AL ({found.lost:.2f} lost in all; n = {found.requests} requests, {found.drafts} drafts, 95 %)"
    )
    axes.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return axes


def acceptance_waterfall(found: Attribution, axes: Axes) -> Axes:
    """From the perfect drafter's k+1 down to the arm's AL; each bar hangs from the level before it, axis from zero."""
    frame = found.waterfall
    length, change = frame["length"].to_numpy(), frame["change"].to_numpy()
    fall = sns.color_palette("colorblind", 4)[3]
    axes.bar(range(len(frame)), np.abs(change), bottom=np.minimum(length, length - change), color=fall, width=0.6)
    axes.bar([0, len(frame)], [length[0], length[-1]], color="0.7", width=0.6)
    for index, (level, step) in enumerate(zip(length[1:], change[1:], strict=True), start=1):
        axes.annotate(f"{step:+.2f}", (index, level), ha="center", va="top", xytext=(0, -4), textcoords="offset points")
    for index, level in ((0, length[0]), (len(frame), length[-1])):
        axes.annotate(f"{level:.2f}", (index, level), ha="center", va="bottom")
    axes.axhline(1.0, color="0.25", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(frame) + 1), [*(f"{s}" for s in frame["step"]), "this arm"])
    axes.set_ylabel("acceptance length with bonus token")
    axes.set_xlabel(
        f"locked trajectory, n = {found.requests} requests, {found.drafts} drafts; dashed: nothing accepted"
    )
    return axes
