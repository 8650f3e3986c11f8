"""What every layer of one forward needs to know about its rows, computed once per forward from the step inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mtplab.engine.inputs import StepInputs
from mtplab.memory.hot_frame import HotConstants, HotFrame, hot_frame
from mtplab.memory.layout import MemoryLayout

NEVER = -1e30  # added to the score of a slot that is not used: exp() of it is exactly 0


@dataclass(frozen=True)
class RowContext:
    """T rows, B requests, S = context positions.

    valid [T] bool (not padding); request [T] int64 batch row by `req_id_per_token`; slot, source [T] int64 as given
    (-1 = pad); visible [T, S] int64: each position a row may attend to, else -1; resident [B * S] int64 device row of a
    position, -1 = not resident; host [B * S] int64 host row, -1 = none; state [B] int64 state row, -1 = pad; the sinks
    are the rows of zeros that stand for -1. What only some selectors need is worked out on first use, for all layers.
    """

    valid: Tensor
    request: Tensor
    slot: Tensor
    source: Tensor
    visible: Tensor
    resident: Tensor
    host: Tensor
    state: Tensor
    span: int
    device_sink: int = -1
    key_sink: int = -1
    hot: HotConstants | None = None

    def bias(self, positions: Tensor) -> Tensor:
        """Score bias [T, 1, N] of selected positions [T, N]: `NEVER` where a slot is unused (-1), else 0."""
        return self._visible_bias if positions is self.visible else _bias(positions)

    def device_rows(self, positions: Tensor) -> Tensor:
        """Device rows [T, N] of positions [T, N], the sink for -1 and for what is not resident.

        [1, S] if all rows may share them: a dense selection of the only request. Rows beyond `visible` then hold
        anything finite, and `bias` hides them.
        """
        return self._visible_rows if positions is self.visible else self._table.gather(1, positions + 1)

    @cached_property
    def key_rows(self) -> Tensor:
        """Indexer-key rows [T, S] of every position of each row's request; [1, S] if there is one request only."""
        rows = _or_sink(self.host, self.key_sink).view(-1, self.span)
        return rows if rows.shape[0] == 1 else rows.index_select(0, self.request)

    @cached_property
    def hot_frame(self) -> HotFrame:
        """What the resolver needs, tier `hisparse` only."""
        assert self.hot is not None
        return hot_frame(self.resident, self.host, self.request, self.state, self.hot)

    @cached_property
    def written_tags(self) -> Tensor:
        """Host rows written now, [host rows + 1] bool by row + 1; entry 0 (padded rows, empty tags) is False."""
        assert self.hot is not None
        written = torch.zeros(self.hot.host_sink + 2, dtype=torch.bool, device=self.source.device)
        written.index_fill_(0, self.source + 1, True)
        written[0].fill_(False)
        return written

    @cached_property
    def _resident_or_sink(self) -> Tensor:
        return _or_sink(self.resident, self.device_sink).view(-1, self.span)

    @cached_property
    def _visible_rows(self) -> Tensor:
        rows = self._resident_or_sink
        if rows.shape[0] == 1:
            return rows
        return torch.where(self.visible >= 0, rows.index_select(0, self.request), self.device_sink)

    @cached_property
    def _table(self) -> Tensor:
        """Device rows [T, 1 + S] of each row's request; entry 0 is the sink, so that position -1 finds it."""
        rows = self._resident_or_sink
        return torch.cat([torch.full_like(rows[:, :1], self.device_sink), rows], 1).index_select(0, self.request)

    @cached_property
    def _visible_bias(self) -> Tensor:
        return _bias(self.visible)


def _or_sink(rows: Tensor, sink: int) -> Tensor:
    return torch.where(rows >= 0, rows, sink)


def _bias(positions: Tensor) -> Tensor:
    return (positions < 0).unsqueeze(1) * NEVER


class RowContexts:
    """Builds the `RowContext` of a forward; holds the constants it needs."""

    def __init__(self, layout: MemoryLayout, device_sink: int, key_sink: int, hot: HotConstants | None) -> None:
        self._sinks = (device_sink, key_sink)
        self._hot = hot
        self._span = layout.pages_per_request * layout.page_size
        self._positions = torch.arange(self._span, device=layout.device)
        self._order = torch.arange(layout.max_rows, dtype=torch.int32, device=layout.device)
        self._device_rows = _rows_of_pages(layout.pool_pages, layout)
        self._host_rows = _rows_of_pages(layout.source_pages, layout)

    def __call__(self, inputs: StepInputs) -> RowContext:
        """Expand block tables and lengths; a padded row (slot -1) sees nothing (I9)."""
        valid = inputs.slot_mapping >= 0
        # lengths follow the batch layout (query_start_loc), block tables the token map, as in the engines
        order = self._order[: inputs.slot_mapping.shape[0]]
        owner = torch.bucketize(order, inputs.query_start_loc[1:-1], right=True)
        length = inputs.seq_lens.index_select(0, owner)
        limit = torch.minimum(inputs.positions + 1, length) * valid
        return RowContext(
            valid,
            inputs.req_id_per_token.to(torch.int64),
            inputs.slot_mapping,
            inputs.source_slots,
            torch.where(self._positions < limit.unsqueeze(1), self._positions, -1),
            self._device_rows.index_select(0, inputs.resident_table.flatten()).flatten(),
            self._host_rows.index_select(0, inputs.source_table.flatten()).flatten(),
            inputs.request_state_indices.to(torch.int64),
            self._span,
            *self._sinks,
            self._hot,
        )


def _rows_of_pages(pages: int, layout: MemoryLayout) -> Tensor:
    """Rows [pages, page_size] of every page; -1 in the null page, page 0."""
    rows = torch.arange(pages * layout.page_size, device=layout.device).view(pages, layout.page_size)
    rows[0] = -1
    return rows
