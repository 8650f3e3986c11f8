"""Page life cycle: dirty -> clean -> unpinned -> lost, and the block tables that say where each page lives.

A page is `page_size` consecutive rows of one request and has a source page (host pool, indexer keys) for life and a
device page until it is lost. Host code only; kernels see the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from mtplab.memory.layout import MemoryLayout


class PageState(Enum):
    DIRTY = "dirty"
    CLEAN = "clean"
    UNPINNED = "unpinned"
    LOST = "lost"


@dataclass(slots=True)
class Page:
    source: int
    resident: int
    state: PageState


@dataclass(frozen=True, slots=True)
class PageRef:
    """Page `index` of the request in state row `state`."""

    state: int
    index: int
    source: int
    resident: int


class PageBook:
    """Hands out pages, tracks their state and keeps both block tables [max_requests, pages] int32 (0 = null)."""

    def __init__(self, layout: MemoryLayout) -> None:
        self._layout = layout
        # last freed, first reused: a reused page carries another request's rows, as in a busy engine
        self._free_resident = list(range(layout.pool_pages - 1, 0, -1))
        self._free_source = list(range(layout.source_pages - 1, 0, -1))
        self._held: list[Page] = []
        shape = (layout.max_requests, layout.pages_per_request)
        self.resident_table = np.zeros(shape, np.int32)
        self.source_table = np.zeros(shape, np.int32)
        self.pages: list[list[Page]] = [[] for _ in range(layout.max_requests)]
        self.evicted = 0

    @property
    def free_pages(self) -> int:
        return len(self._free_resident)

    def extend(self, state: int, rows: int) -> None:
        """Give the request in `state` pages for `rows` positions."""
        pages = self.pages[state]
        while len(pages) * self._layout.page_size < rows:
            assert self._free_resident and self._free_source, "admission reserved too few pages"
            page = Page(self._free_source.pop(), self._free_resident.pop(), PageState.DIRTY)
            self.resident_table[state, len(pages)] = page.resident
            self.source_table[state, len(pages)] = page.source
            pages.append(page)

    def hand_over(self, state: int, committed: int) -> list[PageRef]:
        """Declare clean every dirty page whose rows are all committed; returns those pages."""
        fresh = []
        for index, page in enumerate(self.pages[state][: committed // self._layout.page_size]):
            if page.state is PageState.DIRTY:
                page.state = PageState.CLEAN
                fresh.append(PageRef(state, index, page.source, page.resident))
        return fresh

    def evict(self, state: int, committed: int, keep: int) -> int:
        """Drop the oldest clean pages from the device until `keep` remain; never the last two tail pages (I7)."""
        pages = self.pages[state]
        for page in pages[: max(committed // self._layout.page_size - 1, 0)]:
            if page.state is PageState.CLEAN:
                page.state = PageState.UNPINNED
        resident = sum(page.state is not PageState.LOST for page in pages)
        before = self.evicted
        for index, page in enumerate(pages):
            if resident <= keep:
                break
            if page.state is PageState.UNPINNED:
                self._free_resident.append(page.resident)
                self.resident_table[state, index] = page.resident = 0
                page.state = PageState.LOST
                resident -= 1
                self.evicted += 1
        return self.evicted - before

    def release(self, state: int, hold: bool) -> None:
        """Give back a finished request's pages; `hold` keeps them until `free_held` because a mirror is still owed."""
        self._held.extend(self.pages[state])
        self.pages[state] = []
        self.resident_table[state] = self.source_table[state] = 0
        if not hold:
            self.free_held()

    def free_held(self) -> None:
        for page in self._held:
            self._free_source.append(page.source)
            if page.state is not PageState.LOST:
                self._free_resident.append(page.resident)
        self._held.clear()
