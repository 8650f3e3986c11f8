"""Build the object a configuration node names. Only classes of mtplab, or of modules the user allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import hydra.utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from mtplab.errors import ConfigError


def instantiate(node: DictConfig, allow: Sequence[str] = (), **arguments: Any) -> Any:
    """Call the node's `_target_` with its other keys and `arguments`.

    `name` labels the option, `card` describes it; neither is passed on. `allow` is `cfg.allow_targets`: modules beside
    `mtplab` whose classes may be named.
    """
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    key = str(node._get_full_key(None)) or "config"
    if "_target_" not in plain:
        raise ConfigError(f"{key}._target_", "is missing", "name the class that this option builds")
    for target in _targets(plain):
        if not any(target.startswith(f"{module}.") for module in ("mtplab", *allow)):
            remedy = f"use a class of mtplab, or add allow_targets=[{target.split('.')[0]}]"
            raise ConfigError(f"{key}._target_", f"{target} is not allowed", remedy)
    for label in ("name", "card"):
        plain.pop(label, None)
    try:
        return hydra.utils.instantiate(plain, _convert_="all", **arguments)
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ConfigError):
            cause = cause.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        raise ConfigError(key, f"cannot build {plain['_target_']} ({error})", "check its keys and its class") from error


def _targets(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "_target_" in value:
            yield str(value["_target_"])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _targets(item)
