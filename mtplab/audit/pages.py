"""Page audit: are the host rows of a clean page the device rows they claim to mirror, and are wrong ones read?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mtplab.audit.records import BENIGN, DECISIVE, HARMFUL, RowRecord
from mtplab.audit.versions import Lag, RowVersions
from mtplab.engine.inputs import StepInputs
from mtplab.engine.records import Culprit
from mtplab.memory.memory import Memory
from mtplab.memory.pages import PageRef


@dataclass(slots=True)
class LayerFindings:
    """Totals of one layer. `first_step`: its first wrong page was declared clean; `max_age` in steps, of rows read.

    Wrong rows by cause: `too_early` mirrored before their last write, first in step `first_early`; `never` mirrored;
    the others were mirrored after it, with something else.
    """

    writer: str
    pages_audited: int = 0
    pages_wrong: int = 0
    rows_wrong: int = 0
    reads_wrong: int = 0
    decisive: int = 0
    first_step: int = -1
    max_age: int = 0
    too_early: int = 0
    first_early: int = -1
    never: int = 0

    def blame(self, lag: Lag) -> None:
        """Count wrong rows by what their versions say."""
        early = lag.too_early
        self.never += int(lag.never.sum())
        self.too_early += int(early.sum())
        if self.first_early < 0 and bool(early.any()):
            self.first_early = int(lag.mirrored_step[early].min())

    def evidence(self, host_reads: int) -> str:
        causes = [
            (self.too_early, f"mirrored before the {self.writer} wrote them, first in step {self.first_early}"),
            (self.never, "never mirrored"),
            (self.rows_wrong - self.too_early - self.never, "mirrored after they were written, but not from there"),
        ]
        return (
            f"{self.pages_wrong} of {self.pages_audited} pages declared clean hold {self.rows_wrong} host rows that "
            f"differ from the device rows they claim to mirror, first at step {self.first_step} "
            f"({', '.join(f'{rows} {cause}' for rows, cause in causes if rows)}); wrong host rows were read "
            f"{self.reads_wrong} times in {host_reads} host reads, up to {self.max_age} steps after they went wrong"
            + (f"; decisive in {self.decisive} sampled steps" if self.decisive else "")
        )


@dataclass(slots=True)
class LayerStep:
    """One layer in the step that runs; `since` is the step of the oldest row found, `read_since` of those read."""

    pages: int = 0
    rows: int = 0
    reads: int = 0
    since: int = -1
    read_since: int = -1
    owners: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)

    def record(self, layer: str, step: int, decisive: bool) -> RowRecord:
        kind = HARMFUL if self.reads else BENIGN
        return RowRecord(
            layer=layer,
            pages_wrong=self.pages,
            rows_wrong=self.rows,
            reads_wrong=self.reads,
            age=step - (self.read_since if self.reads else self.since),
            kind=DECISIVE if decisive and self.reads else kind,
            requests=tuple(sorted(self.readers if self.reads else self.owners)),
        )


class PageAudit:
    """Marks wrong rows when their page is declared clean; counts reads of marked rows from the plan buffers.

    `names` are the layers' names, `draft_layers` their numbers where the drafter writes.
    """

    def __init__(self, memory: Memory, names: Sequence[str], draft_layers: frozenset[int]) -> None:
        self._memory = memory
        self._names = tuple(names)
        self._fresh: list[PageRef] = []
        self._decisive: set[tuple[int, str]] = set()
        self.versions = RowVersions(memory, draft_layers)
        rows = memory.host.sink + 1 if memory.host is not None else 0
        # the step of the device write that a wrong host row misses, -1 = the row is right; CPU
        self._wrong_since = torch.full((len(names), rows), -1)
        self.layers = [LayerFindings("drafter" if i in draft_layers else "target") for i in range(len(names))]
        self._now = [LayerStep() for _ in names]

    def on_clean(self, pages: Sequence[PageRef]) -> None:
        self._fresh.extend(pages)

    def after_run(self, seen: StepInputs, layers: Sequence[int], step: int, ids: Sequence[int]) -> None:
        """Count reads of wrong host rows in the forward that just ran; `seen` is what its attention read."""
        for layer in layers:
            if self.layers[layer].rows_wrong:
                self._count_reads(seen, layer, step, ids)

    def mark_decisive(self, step: int, layer: str) -> None:
        self.layers[self._names.index(layer)].decisive += 1
        self._decisive.add((step, layer))

    def end_step(self, step: int, ids: Mapping[int, int]) -> tuple[int, tuple[RowRecord, ...]]:
        """Compare this step's clean pages, now that every writer has run; `ids` gives the request of a state row.

        Returns the pages declared clean and a record of each layer with a wrong page or a wrong read.
        """
        clean = len(self._fresh)
        if clean:
            self._compare(step, ids)
        records = [
            now.record(name, step, (step, name) in self._decisive)
            for name, now in zip(self._names, self._now, strict=True)
            if now.pages or now.reads
        ]
        if records:
            self._now = [LayerStep() for _ in self._names]
        self._fresh = []
        self._decisive.clear()
        return clean, tuple(records)

    def culprits(self) -> list[Culprit]:
        """Layers whose wrong host rows were read; wrong rows nobody read show in `pages_wrong` alone."""
        totals = [int(counts[0]) for counts in self._memory.counts]
        return [
            Culprit(
                "host_rows", name, found.first_step, found.rows_wrong, found.reads_wrong, found.evidence(host_reads)
            )
            for name, found, host_reads in zip(self._names, self.layers, totals, strict=False)
            if found.reads_wrong
        ]

    def _compare(self, step: int, ids: Mapping[int, int]) -> None:
        size = self._memory.layout.page_size
        offsets = torch.arange(size)
        host_rows = (torch.tensor([page.source for page in self._fresh])[:, None] * size + offsets).flatten()
        device_rows = (torch.tensor([page.resident for page in self._fresh])[:, None] * size + offsets).flatten()
        on_device = device_rows.to(self._memory.layout.device)
        for index, found in enumerate(self.layers):
            found.pages_audited += len(self._fresh)
            differs = self._differs(index, host_rows, on_device)
            self._wrong_since[index].index_fill_(0, host_rows, -1)
            if bool(differs.any()):
                pages = differs.view(-1, size).any(1)
                owners = {ids[page.state] for page, wrong in zip(self._fresh, pages.tolist(), strict=True) if wrong}
                self._mark(index, host_rows[differs], device_rows[differs], int(pages.sum()), owners, step)

    def _differs(self, index: int, host_rows: Tensor, device_rows: Tensor) -> Tensor:
        assert self._memory.host is not None
        device = self._memory.pool.layers[index].index_select(0, device_rows).cpu()
        return (self._memory.host.layers[index].index_select(0, host_rows) != device).any(1)

    def _mark(
        self, index: int, host_rows: Tensor, device_rows: Tensor, pages: int, owners: set[int], step: int
    ) -> None:
        """Wrong rows [n] of one layer, in `pages` pages."""
        lag = self.versions.compare(index, device_rows, host_rows)
        since = torch.where(lag.written >= 0, lag.written_step, step)
        self._wrong_since[index].index_copy_(0, host_rows, since)
        found, now = self.layers[index], self._now[index]
        found.blame(lag)
        found.pages_wrong += pages
        found.rows_wrong += host_rows.shape[0]
        found.first_step = step if found.first_step < 0 else found.first_step
        now.pages, now.rows, now.since, now.owners = pages, host_rows.shape[0], int(since.min()), owners

    def _count_reads(self, seen: StepInputs, layer: int, step: int, ids: Sequence[int]) -> None:
        assert self._memory.host is not None
        rows, size = seen.slot_mapping.shape[0], self._memory.layout.page_size
        positions, device_rows = self._memory.plan_positions[layer][:rows], self._memory.plan_rows[layer][:rows]
        read = (device_rows >= self._memory.pool.hot_base) & (positions >= 0) & (seen.slot_mapping >= 0).unsqueeze(1)
        row, column = read.nonzero().unbind(1)
        position, owner = positions[row, column], seen.req_id_per_token[row]
        page = seen.source_table[owner, position // size]
        host = torch.where(page > 0, page * size + position % size, self._memory.host.sink).cpu()
        since = self._wrong_since[layer][host]
        wrong = since >= 0
        if not bool(wrong.any()):
            return
        oldest = int(since[wrong].min())
        found, now = self.layers[layer], self._now[layer]
        found.reads_wrong += int(wrong.sum())
        found.max_age = max(found.max_age, step - oldest)
        now.reads += int(wrong.sum())
        now.read_since = oldest if now.read_since < 0 else min(now.read_since, oldest)
        now.readers.update(ids[b] for b in owner.cpu()[wrong].unique().tolist() if b < len(ids))
