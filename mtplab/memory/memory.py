"""The memory a network sees: write a layer's rows, read selected rows. Tier `device` or `hisparse` below it."""

from __future__ import annotations

import torch
from torch import Tensor

from mtplab.engine.inputs import StepInputs
from mtplab.memory.context import RowContext, RowContexts
from mtplab.memory.hot_frame import HotConstants
from mtplab.memory.layout import MemoryLayout
from mtplab.memory.pools import HostPool, HotBuffer, IndexKeys, PagedPool, masked_write
from mtplab.memory.resolver import ResolverState, resolve


class Memory:
    """All pools of one engine. `plan_positions` and `plan_rows` keep each layer's last top-k plan for the audit."""

    def __init__(self, layout: MemoryLayout) -> None:
        self.layout = layout
        self.pool = PagedPool(layout)
        self.keys = IndexKeys(layout)
        self.host = HostPool(layout) if layout.on_host else None
        self.hot = HotBuffer(layout) if layout.on_host else None
        constants = HotConstants.of(layout, self.pool.hot_base, self.pool.sink) if layout.on_host else None
        self._contexts = RowContexts(layout, self.pool.sink, self.keys.sink, constants)
        layers = range(layout.layers if layout.on_host else 0)
        shape = (layout.max_rows, layout.plan_width)
        self.plan_positions = [torch.full(shape, -1, dtype=torch.int32, device=layout.device) for _ in layers]
        self.plan_rows = [torch.full(shape, -1, dtype=torch.int32, device=layout.device) for _ in layers]
        self.counts = [torch.zeros(3, dtype=torch.int64, device=layout.device) for _ in layers]

    def context(self, inputs: StepInputs) -> RowContext:
        return self._contexts(inputs)

    def write(self, layer: int, context: RowContext, row: Tensor, index_key: Tensor | None) -> None:
        """Store KV rows [T, W] (and indexer keys [T, d]) of this step; padded rows write nothing (I9)."""
        masked_write(self.pool.layers[layer], context.slot, row)
        if index_key is not None:
            masked_write(self.keys.layers[layer], context.source, index_key)
        if self.hot is not None:
            self._invalidate(self.hot.tags[layer], context.written_tags)

    def index_keys(self, layer: int, context: RowContext) -> Tensor:
        """Indexer keys [T, S, d] of every position of each row's request; [1, S, d] if there is one request only."""
        rows = context.key_rows
        return self.keys.layers[layer].index_select(0, rows.flatten()).view(*rows.shape, -1)

    def read(self, layer: int, positions: Tensor, context: RowContext) -> Tensor:
        """KV rows [T, N, W] at logical positions [T, N]; unused positions (-1) read the zero sink row.

        [1, N, W] where all T rows share them (see `RowContext.device_rows`).
        """
        if self.hot is None:
            rows = context.device_rows(positions)
        else:
            rows = resolve(self.resolver_state(layer), positions, context.hot_frame)
            self.plan_positions[layer][: rows.shape[0]].copy_(positions)
            self.plan_rows[layer][: rows.shape[0]].copy_(rows)
        return self.pool.layers[layer].index_select(0, rows.flatten()).view(*rows.shape, -1)

    def resolver_state(self, layer: int) -> ResolverState:
        assert self.host is not None and self.hot is not None
        return ResolverState(
            rows=self.pool.layers[layer],
            host=self.host.layers[layer],
            tags=self.hot.tags[layer],
            lru=self.hot.lru[layer],
            counts=self.counts[layer],
        )

    def _invalidate(self, tags: Tensor, written: Tensor) -> None:
        """A written position leaves no tag behind (I6): drop every tag of a host row in `written` (by row + 1)."""
        tags.masked_fill_(written.index_select(0, (tags + 1).flatten()).view_as(tags), -1)
