"""Sizes of the paged memory, worked out once from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """`layers` counts target layers plus draft layers; page 0 of every table is the null page and never handed out.

    `resident_pages` is what a request keeps under pressure (None: everything stays); `hot_size` is 0 on tier `device`.
    """

    tier: str
    layers: int
    row_width: int
    index_width: int
    page_size: int
    context: int
    max_requests: int
    max_rows: int
    pool_pages: int
    resident_pages: int | None
    hot_size: int
    plan_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def pages_per_request(self) -> int:
        return -(-self.context // self.page_size)

    @property
    def source_pages(self) -> int:
        """Pages of the host pool (and of the indexer keys): every request of a batch, and one batch that still owes."""
        return 2 * self.max_requests * self.pages_per_request + 1

    @property
    def pool_rows(self) -> int:
        return self.pool_pages * self.page_size

    @property
    def source_rows(self) -> int:
        return self.source_pages * self.page_size

    @property
    def on_host(self) -> bool:
        return self.tier == "hisparse"
