"""What every layer of one forward needs to know about its rows, computed once per forward from the step inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.engine.inputs import StepInputs


@dataclass(frozen=True, slots=True)
class RowContext:
    """T rows, B requests, S = context positions.

    valid [T] bool (not padding); request [T] int64 batch row by `req_id_per_token`; slot, source [T] int64 as given
    (-1 = pad); visible [T, S] int64: each position a row may attend to, else -1; resident [B * S] int64 device row of a
    position, -1 = not resident; host [B * S] int64 host row, -1 = none; state [B] int64 state row, -1 = pad.
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


def row_context(inputs: StepInputs, page_size: int) -> RowContext:
    """Expand block tables and lengths; a padded row (slot -1) sees nothing (I9)."""
    rows = inputs.slot_mapping.shape[0]
    requests = inputs.seq_lens.shape[0]
    device = inputs.slot_mapping.device
    valid = inputs.slot_mapping >= 0
    # lengths follow the batch layout (query_start_loc), block tables the token map, as in the engines
    order = torch.arange(rows, dtype=torch.int32, device=device)
    owner = torch.bucketize(order, inputs.query_start_loc[1:], right=True).clamp_(max=requests - 1)
    length = inputs.seq_lens.to(torch.int64).index_select(0, owner)
    limit = torch.where(valid, torch.minimum(inputs.positions + 1, length), 0)
    span = inputs.resident_table.shape[1] * page_size
    positions = torch.arange(span, dtype=torch.int64, device=device)
    visible = torch.where(positions < limit.unsqueeze(1), positions, -1)
    return RowContext(
        valid=valid,
        request=inputs.req_id_per_token.to(torch.int64),
        slot=inputs.slot_mapping,
        source=inputs.source_slots,
        visible=visible,
        resident=_row_table(inputs.resident_table, page_size),
        host=_row_table(inputs.source_table, page_size),
        state=inputs.request_state_indices.to(torch.int64),
        span=span,
    )


def _row_table(table: Tensor, page_size: int) -> Tensor:
    """Page table [B, P] (0 = null) to row table [B * P * page_size] (-1 = null)."""
    pages = table.to(torch.int64).unsqueeze(-1)
    rows = pages * page_size + torch.arange(page_size, device=table.device)
    return torch.where(pages > 0, rows, -1).flatten()
