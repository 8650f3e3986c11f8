"""Attribution: how much acceptance each piece of state costs, on locked trajectories.

from mtplab.attribution import attribute
found = attribute("graph=full", "spec=mtp", "sparse=hisparse")
found.suspects, found.waterfall
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtplab.attribution.study import Attribution

__all__ = ["attribute"]


def attribute(*overrides: str, quiet: bool = False) -> Attribution:
    """Attribute the loss of the arm that these overrides make. See `mtplab.attribution.study.Attribution`."""
    from mtplab.attribution.study import study
    from mtplab.config.compose import compose_config

    return study(compose_config(*overrides), quiet)
