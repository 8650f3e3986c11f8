"""mtplab: which piece of state went stale when acceptance fell, when, and how much acceptance it cost.

Importing the package is light; the functions below import what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from mtplab.runner import RunResult

__version__ = "0.1.0"
__all__ = ["compose", "run", "run_config"]


def compose(*overrides: str) -> DictConfig:
    """Configuration of the same strings as the command line: `compose("graph=full", "sparse=hisparse")`."""
    from mtplab.config.compose import compose_config

    return compose_config(*overrides)


def run(*overrides: str) -> RunResult:
    """What `python scripts/run.py` does with the same strings: both arms, the run directory, the W&B run."""
    return run_config(compose(*overrides))


def run_config(cfg: DictConfig) -> RunResult:
    """As `run`, for a configuration from `compose` (which a notebook may have changed)."""
    from mtplab.runner import execute

    return execute(cfg)
