"""Page audit: are the host rows of a clean page the device rows they claim to mirror, and are wrong ones read?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.engine.inputs import StepInputs
from mtplab.engine.records import Culprit
from mtplab.memory.memory import Memory
from mtplab.memory.pages import PageRef


@dataclass(slots=True)
class LayerFindings:
    """Totals of one layer; `first_step` is the step in which its first wrong page was declared clean."""

    pages_audited: int = 0
    pages_wrong: int = 0
    rows_wrong: int = 0
    reads_wrong: int = 0
    first_step: int = -1


class PageAudit:
    """Marks wrong rows when their page is declared clean; counts reads of marked rows from the plan buffers."""

    def __init__(self, memory: Memory, layer_names: Sequence[str]) -> None:
        self._memory = memory
        self._names = tuple(layer_names)
        self._fresh: list[PageRef] = []
        rows = memory.host.sink + 1 if memory.host is not None else 0
        self._wrong = torch.zeros(len(layer_names), rows, dtype=torch.bool)
        self.layers = [LayerFindings() for _ in layer_names]

    def on_clean(self, pages: Sequence[PageRef]) -> None:
        self._fresh.extend(pages)

    def end_step(self, step: int) -> tuple[int, int]:
        """Compare this step's clean pages, now that every writer has run. Returns pages clean, (page, layer) wrong."""
        if not self._fresh:
            return 0, 0
        size = self._memory.layout.page_size
        offsets = torch.arange(size)
        host_rows = (torch.tensor([page.source for page in self._fresh])[:, None] * size + offsets).flatten()
        device_rows = (torch.tensor([page.resident for page in self._fresh])[:, None] * size + offsets).flatten()
        found = 0
        for index, layer in enumerate(self.layers):
            differs = self._differs(index, host_rows, device_rows)
            self._wrong[index].index_copy_(0, host_rows, differs)
            pages = int(differs.view(-1, size).any(1).sum())
            layer.pages_audited += len(self._fresh)
            layer.pages_wrong += pages
            layer.rows_wrong += int(differs.sum())
            if pages and layer.first_step < 0:
                layer.first_step = step
            found += pages
        clean = len(self._fresh)
        self._fresh = []
        return clean, found

    def after_run(self, live: StepInputs, layers: Sequence[int]) -> int:
        """Reads of wrong host rows in the forward that just ran over `live`."""
        return sum(self._reads_wrong(live, layer) for layer in layers if self.layers[layer].rows_wrong)

    def culprits(self) -> list[Culprit]:
        """Layers whose wrong host rows were read; wrong rows nobody read show in `pages_wrong` alone."""
        found = []
        reads = [int(counts[0]) for counts in self._memory.counts]
        for name, layer, total in zip(self._names, self.layers, reads, strict=False):
            if layer.reads_wrong:
                evidence = (
                    f"{layer.pages_wrong} of {layer.pages_audited} pages declared clean hold {layer.rows_wrong} host "
                    f"rows that differ from the device rows they claim to mirror, first at step {layer.first_step}; "
                    f"wrong host rows were read {layer.reads_wrong} times in {total} host reads"
                )
                found.append(
                    Culprit("host_rows", name, layer.first_step, layer.rows_wrong, layer.reads_wrong, evidence)
                )
        return found

    def _differs(self, index: int, host_rows: Tensor, device_rows: Tensor) -> Tensor:
        assert self._memory.host is not None
        device = self._memory.pool.layers[index].index_select(0, device_rows.to(self._memory.layout.device)).cpu()
        return (self._memory.host.layers[index].index_select(0, host_rows) != device).any(1)

    def _reads_wrong(self, live: StepInputs, layer: int) -> int:
        rows, size = live.slot_mapping.shape[0], self._memory.layout.page_size
        positions, device_rows = self._memory.plan_positions[layer][:rows], self._memory.plan_rows[layer][:rows]
        read = (device_rows >= self._memory.pool.hot_base) & (positions >= 0) & (live.slot_mapping >= 0).unsqueeze(1)
        row, column = read.nonzero().unbind(1)
        position = positions[row, column]
        page = live.source_table[live.req_id_per_token[row], position // size]
        host = torch.where(page > 0, page * size + position % size, -1).cpu()
        count = int(self._wrong[layer][host[host >= 0]].sum())
        self.layers[layer].reads_wrong += count
        return count
