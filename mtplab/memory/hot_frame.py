"""What the resolver needs to know of a forward, the same for all its layers.

Tables have C = 1 + S columns per request: column 1 + position, and column 0 for "unused" (position -1). So an unused or
unknown entry needs no masking: it lands in column 0, which is resident, is the sink, and is wanted by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.memory.layout import MemoryLayout


@dataclass(frozen=True, slots=True)
class HotConstants:
    """rows [max_requests + 1, hot] int64 hot device rows of each state row (the last is the pads'); columns [C] int64;
    the sinks are the zero rows of device and host pool.
    """

    rows: Tensor
    columns: Tensor
    device_sink: int
    host_sink: int

    @classmethod
    def of(cls, layout: MemoryLayout, hot_base: int, device_sink: int) -> HotConstants:
        states, span = layout.max_requests + 1, layout.pages_per_request * layout.page_size
        # the pads' hot rows do not exist; they are never loaded
        rows = hot_base + torch.arange(states * layout.hot_size, device=layout.device)
        columns = torch.arange(1 + span, device=layout.device)
        return cls(rows.view(states, layout.hot_size), columns, device_sink, layout.source_rows)


@dataclass(frozen=True, slots=True)
class HotFrame:
    """B requests, T rows.

    state [B] int64 state row, pads the last; rows [B, hot] int64 their hot device rows; base [T, 1] int64 flat index of
    position 0 of each row's request; device, host [B, C] int64 device or host row, or the sink; absent [B, C] bool: on
    the host only; column_of [B, host_sink + 2] int64 column that a host row serves, by row + 1, else 0; columns [B, C].
    """

    state: Tensor
    rows: Tensor
    base: Tensor
    device: Tensor
    host: Tensor
    absent: Tensor
    column_of: Tensor
    columns: Tensor


def hot_frame(resident: Tensor, host: Tensor, request: Tensor, state: Tensor, constants: HotConstants) -> HotFrame:
    """resident, host [B * S] int64 rows by position (-1 = none); request [T], state [B] int64 (-1 = pad)."""
    requests, width = state.shape[0], constants.columns.shape[0]
    tables = torch.stack([resident, host]).view(2, requests, -1)
    device_rows, host_rows = torch.cat([torch.full_like(tables[..., :1], -1), tables], 2)
    known = host_rows >= 0
    column_of = torch.zeros(requests, constants.host_sink + 2, dtype=torch.int64, device=state.device)
    columns = constants.columns.expand(requests, -1)
    column_of.scatter_(1, host_rows + 1, columns)
    column_of[:, 0].fill_(0)
    state = torch.where(state >= 0, state, constants.rows.shape[0] - 1)
    return HotFrame(
        state=state,
        rows=constants.rows.index_select(0, state),
        base=(request * width + 1).unsqueeze(1),
        device=torch.where(device_rows >= 0, device_rows, constants.device_sink),
        host=torch.where(known, host_rows, constants.host_sink),
        absent=(device_rows < 0) & known,
        column_of=column_of,
        columns=columns,
    )
