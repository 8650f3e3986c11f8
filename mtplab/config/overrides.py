"""From a configuration back to the command that makes it, and from one arm's configuration to another's."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mtplab.config.compose import compose_unchecked, leaves
from mtplab.config.locate import default_options, options

AXES = ("graph", "spec", "sparse")  # the axes of the question: named even at their defaults
RESERVED = ("null", "true", "false", "nan", "inf")
BOOKKEEPING = ("run", "resume", "fail_on", "track")  # where a run is kept, not what it computes


def describe(cfg: DictConfig) -> list[str]:
    """The shortest overrides that compose to `cfg`: the main axes, then whatever differs from the defaults.

    Paths below the home folder are written with `~`, which every reader of a path expands.
    """
    defaults = default_options()
    chosen = {group: str(cfg[group].name) for group in defaults if cfg[group].name in options(group)}
    named = [g for g in (*AXES, *chosen) if g in chosen and (g in AXES or chosen[g] != defaults[g])]
    picks = [f"{group}={chosen[group]}" for group in dict.fromkeys(named)]
    base, ours = leaves(compose_unchecked(*picks)), home_to_tilde(leaves(cfg))
    changed = {key: value for key, value in ours.items() if key not in base or base[key] != value}
    if changed.get("memory.tier") == ours["sparse.tier"]:
        del changed["memory.tier"]  # follows from sparse.tier
    values = [f"{'' if key in base else '+'}{key}={literal(value)}" for key, value in changed.items()]
    return sorted(picks + values, key=_is_bookkeeping)


def without_bookkeeping(overrides: Sequence[str]) -> list[str]:
    """What decides the numbers of a run."""
    return [o for o in overrides if not _is_bookkeeping(o)]


def command(overrides: Sequence[str]) -> str:
    """The shell line of these overrides."""
    return shlex.join(["python", "scripts/run.py", *overrides])


def replaced(overrides: Sequence[str], *new: str) -> list[str]:
    """`overrides` with `new` in place of what they set before, or added; a new option drops its group's old values."""
    keys = {o.split("=")[0] for o in new}
    return [o for o in overrides if not {(key := o.split("=")[0]), key.partition(".")[0]} & keys] + list(new)


def derive(cfg: DictConfig, source: DictConfig, groups: Sequence[str], values: dict[str, Any]) -> DictConfig:
    """A copy of `cfg` with whole groups taken from `source` and then single keys set to values."""
    derived = copy.deepcopy(cfg)
    for group in groups:
        derived[group] = copy.deepcopy(source[group])
    for key, value in values.items():
        OmegaConf.update(derived, key, value)
    return derived


def literal(value: Any) -> str:
    """A value as Hydra's override grammar reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(literal(v) for v in value)}]"
    if isinstance(value, str) and (not re.fullmatch(r"[A-Za-z/.][\w./:-]*", value) or value.lower() in RESERVED):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def home_to_tilde(value: Any) -> Any:
    """The same value with the home folder written `~`, so that no file we write names a person."""
    home = str(Path.home())
    if isinstance(value, dict):
        return {key: home_to_tilde(item) for key, item in value.items()}
    if isinstance(value, list):
        return [home_to_tilde(item) for item in value]
    if isinstance(value, str) and len(home) > 1 and (value == home or value.startswith(home + "/")):
        return "~" + value[len(home) :]
    return value


def _is_bookkeeping(override: str) -> bool:
    return re.split(r"[.=]", override.lstrip("+"))[0] in BOOKKEEPING
