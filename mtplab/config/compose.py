"""Compose a configuration from override strings, with one clear line for everything a user can get wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mtplab.config.locate import config_directory, default_options, options
from mtplab.config.schema import check_types, register_schema
from mtplab.errors import ConfigError


def compose_config(*overrides: str) -> DictConfig:
    """The configuration `python scripts/run.py` would run with these overrides. Raises `ConfigError`."""
    cfg = compose_unchecked(*overrides)
    check_types(cfg)
    return cfg


def compose_unchecked(*overrides: str) -> DictConfig:
    """As `compose_config`, but required values may still be missing."""
    register_schema()
    try:
        with _hydra():
            return compose("config", overrides=list(overrides))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _explain(error, overrides) from error


@contextmanager
def _hydra() -> Iterator[None]:
    """Hydra set up for one compose, also inside a Hydra job (whose own state comes back afterwards)."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_directory()), job_name="mtplab", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _explain(error: Exception, overrides: Iterable[str]) -> ConfigError:
    """Turn Hydra's and OmegaConf's messages into key, problem, remedy."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return ConfigError(group or "config", f"no option {name!r}", _choose(name, error.options or options(group)))
    chain = [str(e) for e in (error, error.__cause__, error.__context__) if e is not None]
    text = "\n".join(chain)
    key = _key(text, overrides)
    if "not in struct" in text or "Could not override" in text or "not in '" in text:
        return ConfigError(key, "no such key", _choose(key, _known_keys()))
    problem = next((m for m in chain[::-1] if "Value" in m or "not " in m), chain[0]).splitlines()[0]
    return ConfigError(key, problem.rstrip("."), _remedy(key, text))


def _remedy(key: str, text: str) -> str:
    if "is not a ListConfig" in text:
        return f"write a list: {key}=[...]"
    if "Ambiguous value" in text:
        return "add -m to run each of them, or give one"
    if "could not be converted" in text:
        return "give a value of that type"
    return "write group=option or key=value (python scripts/run.py --help lists them)"


def _key(text: str, overrides: Iterable[str]) -> str:
    """The key a message is about: its own word for it, else the first override it quotes."""
    for pattern in (r"full_key: ([\w.]+)", r"override '([\w.@/]+)'", r"(?:override|merging) '?([\w.]+)="):
        if found := re.search(pattern, text):
            return found.group(1)
    return next((o for o in overrides if o in text), "overrides").split("=")[0].lstrip("+~")


def _known_keys() -> list[str]:
    return [*default_options(), *leaves(compose_unchecked())]


def leaves(cfg: DictConfig, prefix: str = "") -> dict[str, Any]:
    """Full key -> resolved value of everything that is not a mapping; a missing value reads `???`."""
    found: dict[str, Any] = {}
    for key in map(str, cfg):
        value = "???" if OmegaConf.is_missing(cfg, key) else cfg[key]
        if isinstance(value, DictConfig):
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return found


def _choose(given: str, valid: Sequence[str]) -> str:
    close = difflib.get_close_matches(given, valid, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?" + (f" (valid: {', '.join(valid)})" if len(valid) < 20 else "")
    return f"valid: {', '.join(valid)}"
