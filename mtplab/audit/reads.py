"""Which entries of an input a forward reads, and which request each of them belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mtplab.engine.inputs import ROW_FIELDS, StepInputs

TABLES = frozenset({"resident_table", "source_table"})
# what the segments between attention calls read; under PIECEWISE attention reads the live tensors
SEGMENT_FIELDS = frozenset({"input_ids", "positions", "hidden_states", "last_token_indices"})


def read_mask(field: str, live: StepInputs, page_size: int, mode: str) -> Tensor:
    """Entries of a static input that a replay reads, broadcastable to [first dimension, rest]; others are benign.

    A row is read where it is not padding, a request's entry where there is a request. A block table is read up to the
    page of the last position of the context; an entry of an evicted page (0) too, which says that it is evicted.
    """
    device = live.slot_mapping.device
    if mode == "PIECEWISE" and field not in SEGMENT_FIELDS:
        return torch.zeros(1, 1, dtype=torch.bool, device=device)
    if field in ROW_FIELDS:
        return (live.slot_mapping >= 0).unsqueeze(1)
    if field == "query_start_loc":
        return torch.ones(1, 1, dtype=torch.bool, device=device)
    present = (live.request_state_indices >= 0).unsqueeze(1)
    if field in TABLES:
        first_row = torch.arange(live.resident_table.shape[1], device=device) * page_size
        return present & (first_row < live.seq_lens.unsqueeze(1))
    return present


def requests_of(field: str, rows: Tensor, live: StepInputs, ids: Sequence[int]) -> tuple[int, ...]:
    """Ids of the requests that `rows` (of the first dimension of `field`) belong to; padding belongs to nobody."""
    if field in ROW_FIELDS:
        rows = live.req_id_per_token[rows[live.slot_mapping[rows] >= 0]]
    elif field == "query_start_loc":
        rows = (rows - 1).clamp(min=0)  # entry b + 1 is where request b ends
    return tuple(sorted({ids[row] for row in rows.tolist() if row < len(ids)}))
