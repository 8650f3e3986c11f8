"""What can be known about files before anything is written: weights are whole, prompts fit."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from mtplab.config.locate import model_directory
from mtplab.errors import ConfigError


def check_weights(cfg: DictConfig) -> None:
    """Refuse missing or cut-off weights by the safetensors header, without reading the tensors."""
    from safetensors import SafetensorError, safe_open

    path = model_directory(cfg) / "model.safetensors"
    if not path.is_file():
        raise ConfigError("model.path", f"no {path.name} in {path.parent.name}/", "restore it or run scripts/train.py")
    try:
        with safe_open(path, framework="np"):
            pass
    except (OSError, SafetensorError) as error:
        raise ConfigError("model.path", f"{path.name} is corrupt ({error})", "restore it or retrain") from error


def check_prompts(cfg: DictConfig, lengths: Sequence[int], sources: Sequence[str]) -> None:
    """Refuse a prompt that, with its output, exceeds the context or the page pool."""
    context, output = cfg.engine.context, cfg.workload.max_new_tokens
    for length, source in zip(lengths, sources, strict=True):
        if length == 0:
            raise ConfigError("workload", f"the prompt from {source} has no token", "give it text")
        if length + output > context:
            problem = (
                f"the prompt from {source} has {length} tokens, with {output} new ones above engine.context={context}"
            )
            spare = context - length
            remedy = (
                f"use workload.max_new_tokens={spare} or less" if spare > 1 else f"cut it to {context - output} tokens"
            )
            raise ConfigError("workload", problem, f"{remedy}, or raise engine.context")
        rows = (cfg.memory.pool_pages or context) * cfg.memory.page_size
        if length + output > rows:
            problem = (
                f"{rows} rows in memory.pool_pages={cfg.memory.pool_pages} pages cannot hold the prompt from {source}"
            )
            need = -(-(length + output + cfg.spec.k) // cfg.memory.page_size) + 1
            raise ConfigError("memory.pool_pages", f"{problem} ({length} tokens + {output})", f"use {need} or more")
