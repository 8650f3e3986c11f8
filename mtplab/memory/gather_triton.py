"""Triton form of `gather_rows`: reads device or pinned host memory, so a captured graph can load host rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gather_kernel(pool, rows, out, width, BLOCK: tl.constexpr):
    item = tl.program_id(0)
    row = tl.load(rows + item)
    column = tl.arange(0, BLOCK)
    mask = column < width
    value = tl.load(pool + row * width + column, mask=mask)
    tl.store(out + item * width + column, value, mask=mask)


def gather_rows_triton(pool: Tensor, rows: Tensor) -> Tensor:
    """pool [R, W] contiguous (device or pinned), rows [M] int64 -> [M, W] on the device of `rows`."""
    width = pool.shape[1]
    out = torch.empty(rows.shape[0], width, dtype=pool.dtype, device=rows.device)
    _gather_kernel[(rows.shape[0],)](pool, rows, out, width, BLOCK=tl.constexpr(triton.next_power_of_2(width)))
    return out
