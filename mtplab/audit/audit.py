"""The audit of one arm: page audit and static-input audit behind the calls the engine makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mtplab.audit.findings import Findings
from mtplab.audit.pages import PageAudit
from mtplab.audit.static import StaticAudit
from mtplab.engine.inputs import StepInputs
from mtplab.engine.records import Culprit, MemoryCounts, Staleness
from mtplab.engine.request import Scheduled
from mtplab.graphs.runner import Runner
from mtplab.memory.memory import Memory
from mtplab.memory.mirror import RowSpan
from mtplab.memory.pages import PageRef

HOST_ROWS = "host_rows"


class Audit(Protocol):
    """Calls in the order of a step; `target` tells the target's forward from the drafter's."""

    def begin_step(self, step: int, batch: Sequence[Scheduled]) -> None: ...

    def on_copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        """The mirror copies the rows of `span` of `layers`."""
        ...

    def on_clean(self, pages: Sequence[PageRef]) -> None: ...

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int) -> None: ...

    def after_run(self, live: StepInputs, step: int, target: bool) -> None: ...

    def mark_decisive(self, step: int, suspect: str) -> None:
        """A shadow run found that freshening `suspect` alone changes a draft of `step`.

        `suspect` is a static input with or without its pass (`draft.positions`, `draft_decode.1.positions`) or
        `host_rows mtp.0`. Before `end_step` of that step its record says so, later the culprit's evidence alone.
        """
        ...

    def end_step(self, step: int) -> Findings: ...

    def memory_counts(self, evicted: int) -> MemoryCounts: ...

    def staleness(self) -> dict[str, Staleness]: ...

    def culprits(self) -> tuple[Culprit, ...]: ...


class NullAudit:
    """`engine.audit=false`: nothing is compared and nothing is counted, so the engine's own cost can be measured."""

    def begin_step(self, step: int, batch: Sequence[Scheduled]) -> None:
        pass

    def on_copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        pass

    def on_clean(self, pages: Sequence[PageRef]) -> None:
        pass

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int) -> None:
        pass

    def after_run(self, live: StepInputs, step: int, target: bool) -> None:
        pass

    def mark_decisive(self, step: int, suspect: str) -> None:
        pass

    def end_step(self, step: int) -> Findings:
        return Findings()

    def memory_counts(self, evicted: int) -> MemoryCounts:
        return MemoryCounts(evicted, 0, 0, 0, 0, 0)

    def staleness(self) -> dict[str, Staleness]:
        return {}

    def culprits(self) -> tuple[Culprit, ...]:
        return ()


class FullAudit:
    """Everything is compared in every step."""

    def __init__(self, memory: Memory, target_layers: Sequence[int], draft_layers: Sequence[int], names: Sequence[str]):
        self._memory = memory
        self._target_layers = tuple(target_layers) if memory.host is not None else ()
        self._draft_layers = tuple(draft_layers) if memory.host is not None else ()
        self._draft = frozenset(names[len(target_layers) :])
        self._pages = PageAudit(memory, names, frozenset(draft_layers))
        self._static = StaticAudit(memory.layout.page_size)
        self._ids: tuple[int, ...] = ()  # requests by batch row
        self._owners: dict[int, int] = {}  # request by state row
        self._seen: StepInputs | None = None
        self._host_reads = 0

    def begin_step(self, step: int, batch: Sequence[Scheduled]) -> None:
        self._pages.versions.begin_step(step)
        self._ids = tuple(item.request.id for item in batch)
        self._owners.update((item.request.state, item.request.id) for item in batch)

    def on_copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        self._pages.versions.on_copy(layers, span)

    def on_clean(self, pages: Sequence[PageRef]) -> None:
        self._pages.on_clean(pages)

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int) -> None:
        self._seen = self._static.before_run(name, runner, live, step, self._ids)
        self._pages.versions.on_write(self._seen.slot_mapping, target=name == "target")

    def after_run(self, live: StepInputs, step: int, target: bool) -> None:
        assert self._seen is not None, "before_run() comes first"
        layers = self._target_layers if target else self._draft_layers
        self._pages.after_run(self._seen, layers, step, self._ids)

    def mark_decisive(self, step: int, suspect: str) -> None:
        state, _, layer = suspect.partition(" ")
        if state == HOST_ROWS:
            self._pages.mark_decisive(step, layer)
        else:
            self._static.mark_decisive(step, suspect)

    def end_step(self, step: int) -> Findings:
        clean, rows = self._pages.end_step(step, self._owners)
        total = sum(int(counts[0]) for counts in self._memory.counts)
        read, self._host_reads = total - self._host_reads, total
        return Findings(
            pages_clean=clean,
            pages_wrong=sum(record.pages_wrong for record in rows),
            rows_read_from_host=read,
            reads_wrong=sum(record.reads_wrong for record in rows),
            inputs=self._static.end_step(step),
            rows=rows,
        )

    def memory_counts(self, evicted: int) -> MemoryCounts:
        totals = [sum(int(counts[i]) for counts in self._memory.counts) for i in range(3)]
        audited = sum(layer.pages_audited for layer in self._pages.layers)
        wrong = sum(layer.pages_wrong for layer in self._pages.layers)
        return MemoryCounts(evicted, *totals, pages_audited=audited, pages_wrong=wrong)

    def staleness(self) -> dict[str, Staleness]:
        return self._static.staleness()

    def culprits(self) -> tuple[Culprit, ...]:
        """What was wrong and read: stale inputs first, because inputs decide what rows hold; then rows of the target,
        because the drafter depends on it and the output on nothing else; then the drafter's. Most read first in each.
        """
        inputs = sorted(self._static.culprits(), key=lambda culprit: -culprit.reads_wrong)
        rows = sorted(self._pages.culprits(), key=lambda culprit: (culprit.layer in self._draft, -culprit.reads_wrong))
        return (*inputs, *rows)
