"""Rules across groups. `validate` refuses an impossible combination with the reason and the nearest valid value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from omegaconf import DictConfig

from mtplab.config.locate import model_directory
from mtplab.config.schema import check_types
from mtplab.errors import ConfigError
from mtplab.results.records import VERDICTS

MAX_K = 8


def validate(cfg: DictConfig) -> None:
    """Raise `ConfigError` for the first rule that `cfg` breaks. Command line and notebooks both come through here."""
    check_types(cfg)
    for rule in RULES:
        rule(cfg)


def _at_least(cfg: DictConfig, key: str, low: int, reason: str) -> None:
    group, _, name = key.rpartition(".")
    value = (cfg[group] if group else cfg)[name]
    if value is not None and value < low:
        raise ConfigError(key, f"{value} is below {low} ({reason})", f"use {key}={low} or more")


def _one_of(key: str, value: str, valid: list[str]) -> None:
    if value not in valid:
        close = difflib.get_close_matches(value, valid, n=1, cutoff=0.0)
        raise ConfigError(key, f"{value!r} is not one of {', '.join(valid)}", f"use {close[0] if close else valid[0]}")


def sizes_are_positive(cfg: DictConfig) -> None:
    _at_least(cfg, "seed", 0, "seeds count from zero")
    _at_least(cfg, "engine.threads", 1, "something must compute")
    _at_least(cfg, "engine.max_requests", 1, "one request at a time is the least")
    if min(cfg.engine.capture_requests or [1]) < 1:
        problem = f"{list(cfg.engine.capture_requests)} holds a batch without requests"
        raise ConfigError("engine.capture_requests", problem, "use numbers from 1 to engine.max_requests, or null")
    _at_least(cfg, "memory.page_size", 1, "rows of a page")
    _at_least(cfg, "workload.num_prompts", 1, "no prompt, no acceptance")
    _at_least(cfg, "workload.max_new_tokens", 2, "the first token comes from prefill, drafts need a second")


def draft_depth(cfg: DictConfig) -> None:
    k = cfg.spec.k
    if cfg.spec.name == "none":
        if k != 0:
            raise ConfigError("spec.k", f"{k} with spec=none, which drafts nothing", "use spec.k=0 or spec=mtp")
    elif not 1 <= k <= MAX_K:
        raise ConfigError("spec.k", f"{k} is outside 1..{MAX_K}", f"use spec.k={min(max(k, 1), MAX_K)}")


def names_are_known(cfg: DictConfig) -> None:
    _one_of("engine.dtype", cfg.engine.dtype, ["float32", "float64"])
    _one_of("engine.device", re.sub(r":\d+$", "", cfg.engine.device), ["auto", "cpu", "cuda"])
    _one_of("sparse.tier", cfg.sparse.tier, ["device", "hisparse"])
    if cfg.memory.tier != cfg.sparse.tier:
        problem = f"{cfg.memory.tier} while sparse.tier={cfg.sparse.tier}"
        raise ConfigError("memory.tier", problem, f"set sparse.tier={cfg.memory.tier} instead")
    for verdict in cfg.fail_on:
        _one_of("fail_on", verdict, list(VERDICTS))
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", cfg.run.experiment):
        safe = re.sub(r"[^\w.-]+", "-", cfg.run.experiment).strip("-.") or "default"
        raise ConfigError("run.experiment", f"{cfg.run.experiment!r} is not a folder name", f"use {safe}")


def budget(cfg: DictConfig) -> None:
    top_k, context = cfg.sparse.top_k, cfg.engine.context
    if cfg.sparse.tier == "hisparse" and top_k is None:
        problem = f"sparse={cfg.sparse.name} reads every row, the host tier serves selectors with a budget"
        raise ConfigError("sparse.tier", problem, "use sparse=hisparse, or sparse=dense with sparse.tier=device")
    if top_k is not None and not 1 <= top_k <= context:
        problem = f"{top_k} is outside 1..engine.context={context}"
        raise ConfigError("sparse.top_k", problem, f"use sparse.top_k={min(max(top_k, 1), context)}")


def hot_buffer(cfg: DictConfig) -> None:
    if cfg.sparse.tier != "hisparse" or cfg.memory.hot_size is None:
        return
    need = (cfg.spec.k + 1) * cfg.sparse.top_k
    if cfg.memory.hot_size < need:
        problem = f"{cfg.memory.hot_size} is below (k+1) * top_k = {need}, the rows one verify step may need"
        raise ConfigError("memory.hot_size", problem, f"use memory.hot_size={need} or more, or null")


def pages(cfg: DictConfig) -> None:
    _at_least(cfg, "memory.resident_pages", 2, "the two tail pages are never evicted")
    page, context = cfg.memory.page_size, cfg.engine.context
    if context % page:
        nearest = max(page, round(context / page) * page)
        problem = f"{context} is not a multiple of memory.page_size={page}"
        raise ConfigError("engine.context", problem, f"use engine.context={nearest}")
    _at_least(cfg, "memory.pool_pages", 3, "two tail pages and the null page")


def context_fits_model(cfg: DictConfig) -> None:
    from mtplab.model.config import read_model_config

    limit = read_model_config(model_directory(cfg)).max_position_embeddings
    if cfg.engine.context > limit:
        problem = f"{cfg.engine.context} is above the model's {limit} positions"
        raise ConfigError("engine.context", problem, f"use engine.context={limit} or less")


def chunk_holds_a_verify_step(cfg: DictConfig) -> None:
    _at_least(cfg, "engine.prefill_chunk", cfg.spec.k + 1, "a chunk is padded to a multiple of 1+k rows")
    if cfg.workload.max_new_tokens >= cfg.engine.context:
        problem = f"{cfg.workload.max_new_tokens} leaves no room for a prompt in engine.context={cfg.engine.context}"
        raise ConfigError("workload.max_new_tokens", problem, f"use {cfg.engine.context // 2} or less")


RULES: tuple[Callable[[DictConfig], None], ...] = (
    sizes_are_positive,
    draft_depth,
    names_are_known,
    budget,
    pages,
    hot_buffer,
    chunk_holds_a_verify_step,
    context_fits_model,
)
