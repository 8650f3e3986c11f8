"""Resolver of the HiSparse tier: logical position -> resident row, hot row, or host row copied into the hot buffer.

Runs inside the captured graph: static shapes, no host code. `mtplab.memory.naive` holds the plain-Python form it is
tested against. Rule (ROOT_CAUSE section 5): a resident row wins; else a hot row with that tag; else the m-th miss takes
the m-th oldest hot row that is no hit, and the new LRU order is [kept | loaded | hits].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.memory.context import RowContext
from mtplab.memory.gather import gather_rows


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
    hot_base: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Non-resident rows wanted by each request. flat [T, N] index into B * S (B * S = none); mask [B, S] bool."""

    flat: Tensor
    used: Tensor
    resident: Tensor
    mask: Tensor


def resolve(state: ResolverState, positions: Tensor, context: RowContext) -> Tensor:
    """Device rows [T, N] int64 of logical positions [T, N] (-1 = unused -> sink); loads what is missing."""
    wanted = _wanted(positions, context)
    batch_state = torch.where(context.state >= 0, context.state, state.tags.shape[0] - 1)
    tags = state.tags.index_select(0, batch_state).to(torch.int64)
    lru = state.lru.index_select(0, batch_state).to(torch.int64)
    hot_rows = (
        state.hot_base + batch_state.unsqueeze(1) * tags.shape[1] + torch.arange(tags.shape[1], device=tags.device)
    )
    located, hit = _locate(tags, hot_rows, wanted, context, state.host.shape[0] - 1)
    loads = _plan_loads(located, hit.gather(1, lru), wanted, context)
    loaded_host = torch.where(loads.mask, context.host.view(hit.shape[0], -1).gather(1, loads.position), -1)
    loaded_row = torch.where(loads.mask, hot_rows.gather(1, lru), state.rows.shape[0] - 1)
    host_row = torch.where(loads.mask, loaded_host, state.host.shape[0] - 1)
    state.rows.index_copy_(0, loaded_row.flatten(), gather_rows(state.host, host_row.flatten()))
    tags.scatter_(1, lru, torch.where(loads.mask, loaded_host, tags.gather(1, lru)))
    state.tags.index_copy_(0, batch_state, tags.to(torch.int32))
    order = _new_order(lru, hit.gather(1, lru), loads.mask)
    state.lru.index_copy_(0, batch_state, order.to(torch.int16))
    located.scatter_(0, loads.flat.flatten(), loaded_row.flatten())
    rows = torch.where(
        wanted.resident >= 0, wanted.resident, located.index_select(0, wanted.flat.flatten()).view_as(positions)
    )
    from_host = wanted.used & (wanted.resident < 0)
    state.counts.add_(torch.stack([from_host.sum(), hit.sum(), loads.mask.sum()]))
    return torch.where(wanted.used & (rows >= 0), rows, state.rows.shape[0] - 1)


def _wanted(positions: Tensor, context: RowContext) -> Wanted:
    """Which (request, position) pairs must come from the hot buffer, as indices into the flattened [B, S] table."""
    none = context.resident.shape[0]
    used = positions >= 0
    flat = context.request.unsqueeze(1) * context.span + positions.clamp(min=0)
    resident = context.resident.index_select(0, flat.flatten()).view_as(positions)
    flat = torch.where(used & (resident < 0), flat, none)
    mask = torch.zeros(none + 1, dtype=torch.bool, device=positions.device)
    mask.index_fill_(0, flat.flatten(), True)
    mask = mask[:none] & (context.host >= 0)
    return Wanted(flat, used, resident, mask.view(-1, context.span))


def _locate(
    tags: Tensor, hot_rows: Tensor, wanted: Wanted, context: RowContext, host_sink: int
) -> tuple[Tensor, Tensor]:
    """(located [B * S + 1] device row of each wanted position or -1, hit [B, hot] bool).

    A presence table over host rows stands in for a hash table: it says which wanted position, if any, a tag serves.
    """
    requests, none = tags.shape[0], context.resident.shape[0]
    serves = torch.full((host_sink + 1,), -1, dtype=torch.int64, device=tags.device)
    key = torch.where(wanted.mask.flatten(), context.host, host_sink)
    serves.index_copy_(0, key, torch.arange(none, device=tags.device))
    serves[host_sink].fill_(-1)
    served = serves.index_select(0, torch.where(tags >= 0, tags, host_sink).flatten()).view_as(tags)
    first = torch.arange(requests, device=tags.device).unsqueeze(1) * context.span
    hit = (served >= first) & (served < first + context.span)
    located = torch.full((none + 1,), -1, dtype=torch.int64, device=tags.device)
    located.scatter_(0, torch.where(hit, served, none).flatten(), hot_rows.flatten())
    located[none].fill_(-1)
    return located, hit


@dataclass(frozen=True, slots=True)
class Loads:
    """In LRU order [B, hot]: mask = this hot row is loaded now, position = which logical position, flat = its index."""

    mask: Tensor
    position: Tensor
    flat: Tensor


def _plan_loads(located: Tensor, hit_in_order: Tensor, wanted: Wanted, context: RowContext) -> Loads:
    """Pair the m-th missing position with the m-th oldest hot row that is not a hit."""
    requests, hot = hit_in_order.shape
    none = context.resident.shape[0]
    missing = wanted.mask & (located[:none].view(requests, -1) < 0)
    rank = missing.cumsum(1) - 1
    by_rank = torch.zeros(requests, hot + 1, dtype=torch.int64, device=located.device)
    every = torch.arange(context.span, device=located.device).expand(requests, -1)
    by_rank.scatter_(1, torch.where(missing, rank.clamp(max=hot), hot), every)
    evictable = ~hit_in_order
    turn = evictable.cumsum(1) - 1
    mask = evictable & (turn < missing.sum(1, keepdim=True))
    position = by_rank.gather(1, torch.where(mask, turn, hot))
    first = torch.arange(requests, device=located.device).unsqueeze(1) * context.span
    return Loads(mask, position, torch.where(mask, first + position, none))


def _new_order(lru: Tensor, hit: Tensor, loaded: Tensor) -> Tensor:
    """[kept | loaded | hits], each in its old order; a permutation of 0..hot-1 (I4). All [B, hot] in LRU order."""
    kept = ~(hit | loaded)
    after_kept = kept.sum(1, keepdim=True)
    after_loaded = after_kept + loaded.sum(1, keepdim=True)
    place = torch.where(
        kept, kept.cumsum(1), torch.where(loaded, after_kept + loaded.cumsum(1), after_loaded + hit.cumsum(1))
    )
    return torch.empty_like(lru).scatter_(1, place - 1, lru)
