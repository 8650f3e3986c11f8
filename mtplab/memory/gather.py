"""Gather rows of a pool. On the GPU the host pool is pinned memory that only a kernel can read; else plain indexing."""

from __future__ import annotations

from torch import Tensor


def gather_rows(pool: Tensor, rows: Tensor) -> Tensor:
    """pool[rows]: pool [R, W], rows [M] int64 in range -> [M, W] on the device of `rows`."""
    if rows.is_cuda:
        from mtplab.memory.gather_triton import gather_rows_triton

        return gather_rows_triton(pool, rows)
    return pool.index_select(0, rows)
