"""Sizes that follow from the configuration: which row counts are captured, and how large every pool is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from omegaconf import DictConfig

from mtplab.errors import ConfigError
from mtplab.heads.head import Head
from mtplab.memory.layout import MemoryLayout
from mtplab.model.config import ModelConfig


def capture_batches(capture_requests: Sequence[int] | None, max_requests: int) -> tuple[int, ...]:
    """Decode batches to capture, in requests: every one (null), or the given ones and the largest."""
    if capture_requests is None:
        return tuple(range(1, max_requests + 1))
    return tuple(sorted({n for n in capture_requests if n < max_requests} | {max_requests}))


def capture_sizes(k: int, batches: Sequence[int], prefill_chunk: int) -> tuple[int, ...]:
    """Multiples of 1+k: every decode batch, then in steps of about an eighth up to a full mixed batch."""
    unit = 1 + k
    sizes = [unit * n for n in batches]
    largest = -(-(prefill_chunk + sizes[-1]) // unit) * unit
    while sizes[-1] < largest:
        step = max(sizes[-1] // 4 // unit, 1) * unit
        sizes.append(min(sizes[-1] + step, largest))
    return tuple(sizes)


def memory_layout(
    cfg: DictConfig, model: ModelConfig, head: Head, dtype: torch.dtype, device: torch.device
) -> MemoryLayout:
    """Sizes of all pools; `pool_pages: null` gives every request a full context, half of it under eviction."""
    if cfg.engine.context > model.max_position_embeddings:
        raise ConfigError(
            "engine.context",
            f"{cfg.engine.context} exceeds the model's {model.max_position_embeddings} positions",
            f"set engine.context={model.max_position_embeddings}",
        )
    on_host = cfg.sparse.tier == "hisparse"
    per_request = -(-cfg.engine.context // cfg.memory.page_size)
    evicts = on_host and cfg.memory.resident_pages is not None
    automatic = cfg.engine.max_requests * per_request // (2 if evicts else 1) + per_request
    top_k = cfg.sparse.top_k or 0
    return MemoryLayout(
        tier=cfg.sparse.tier,
        layers=model.num_hidden_layers + head.num_layers,
        row_width=model.row_width,
        index_width=model.index_head_dim,
        page_size=cfg.memory.page_size,
        context=cfg.engine.context,
        max_requests=cfg.engine.max_requests,
        max_rows=capture_sizes(head.k, (cfg.engine.max_requests,), cfg.engine.prefill_chunk)[-1],
        pool_pages=cfg.memory.pool_pages or automatic + 1,
        resident_pages=cfg.memory.resident_pages,
        hot_size=(cfg.memory.hot_size or (head.k + 2) * top_k) if on_host else 0,
        plan_width=top_k if on_host else 0,
        dtype=dtype,
        device=device,
    )
