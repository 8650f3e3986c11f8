"""Resolver of the HiSparse tier: logical position -> resident row, hot row, or host row copied into the hot buffer.

Runs inside the captured graph: static shapes, no host code. `mtplab.memory.naive` holds the plain-Python form it is
tested against. Rule (ROOT_CAUSE section 5): a resident row wins; else a hot row with that tag; else the m-th miss takes
the m-th oldest hot row that is no hit, and the new LRU order is [kept | loaded | hits].

Shape legend: T rows, N selected positions, B requests, C = 1 + S columns (`mtplab.memory.hot_frame`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.memory.gather import gather_rows
from mtplab.memory.hot_frame import HotFrame


@dataclass(frozen=True, slots=True)
class ResolverState:
    """One layer's storages: rows [.., W] (pool, hot rows, sink), host [.., W], tags, lru, counts int64 [3].

    counts accumulates rows read from host, hot hits, hot misses.
    """

    rows: Tensor
    host: Tensor
    tags: Tensor
    lru: Tensor
    counts: Tensor


def resolve(state: ResolverState, positions: Tensor, frame: HotFrame) -> Tensor:
    """Device rows [T, N] int64 of logical positions [T, N] (-1 = unused -> sink); loads what is missing."""
    sink = state.rows.shape[0] - 1
    tags = state.tags.index_select(0, frame.state).to(torch.int64)
    lru = state.lru.index_select(0, frame.state).to(torch.int64)
    flat = (positions + frame.base).flatten()
    wanted = _wanted(flat, frame.absent)
    column = frame.column_of.gather(1, tags + 1)
    hit = wanted.gather(1, column)
    located = frame.device.scatter(1, column * hit, frame.rows)
    hit_in_order = hit.gather(1, lru)
    loads = _plan_loads(wanted & (located == sink), hit_in_order, frame.columns)
    hot_rows = torch.where(loads.mask, frame.rows.gather(1, lru), sink)
    host_rows = frame.host.gather(1, loads.column)
    state.rows.index_copy_(0, hot_rows.flatten(), gather_rows(state.host, host_rows.flatten()))
    tags.scatter_(1, lru, torch.where(loads.mask, host_rows, tags.gather(1, lru)))
    state.tags.index_copy_(0, frame.state, tags.to(torch.int32))
    state.lru.index_copy_(0, frame.state, _new_order(lru, hit_in_order, loads.mask).to(torch.int16))
    located.scatter_(1, loads.column, hot_rows)
    located[:, 0].fill_(sink)  # hot rows that serve nothing were entered there
    from_host = frame.absent.flatten().index_select(0, flat)
    state.counts.add_(torch.stack([from_host.sum(), hit.sum(), loads.mask.sum()]))
    return located.flatten().index_select(0, flat).view_as(positions)


def _wanted(flat: Tensor, absent: Tensor) -> Tensor:
    """Which absent positions [B, C] some row has selected."""
    selected = torch.zeros(absent.numel(), dtype=torch.bool, device=absent.device)
    return selected.index_fill_(0, flat, True).view_as(absent) & absent


@dataclass(frozen=True, slots=True)
class Loads:
    """In LRU order [B, hot]: mask = this hot row is loaded now, column = with which position, else 0."""

    mask: Tensor
    column: Tensor


def _plan_loads(missing: Tensor, hit_in_order: Tensor, columns: Tensor) -> Loads:
    """Pair the m-th missing position with the m-th oldest hot row that is not a hit; missing [B, C], columns [B, C]."""
    requests, hot = hit_in_order.shape
    number = missing.cumsum(1)
    by_number = torch.zeros(requests, hot + 2, dtype=torch.int64, device=missing.device)
    by_number.scatter_(1, (number * missing).clamp_(max=hot + 1), columns)  # 0: not missing; hot + 1: no hot row left
    evictable = ~hit_in_order
    turn = evictable.cumsum(1)
    mask = evictable & (turn <= number[:, -1:])
    return Loads(mask, by_number.gather(1, turn) * mask)


def _new_order(lru: Tensor, hit: Tensor, loaded: Tensor) -> Tensor:
    """[kept | loaded | hits], each in its old order; a permutation of 0..hot-1 (I4). All [B, hot] in LRU order."""
    kept = ~(hit | loaded)
    kept_place, loaded_place, hit_place = kept.cumsum(1), loaded.cumsum(1), hit.cumsum(1)
    after_kept = kept_place[:, -1:]
    after_loaded = after_kept + loaded_place[:, -1:]
    place = torch.where(loaded, after_kept + loaded_place, after_loaded + hit_place)
    place = torch.where(kept, kept_place, place)
    return torch.empty_like(lru).scatter_(1, place - 1, lru)
