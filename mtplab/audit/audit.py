"""The audit of one arm: page audit and static-input audit behind the calls the engine makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mtplab.audit.findings import Findings
from mtplab.audit.pages import PageAudit
from mtplab.audit.static import StaticAudit
from mtplab.engine.inputs import StepInputs
from mtplab.engine.records import Culprit, MemoryCounts, Staleness
from mtplab.graphs.runner import Runner
from mtplab.memory.memory import Memory
from mtplab.memory.pages import PageRef


class Audit(Protocol):
    """`after_run` is told whether the target or the drafter ran, because each writes its own layers."""

    def on_clean(self, pages: Sequence[PageRef]) -> None: ...

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int) -> None: ...

    def after_run(self, live: StepInputs, step: int, target: bool) -> None: ...

    def end_step(self, step: int) -> Findings: ...

    def memory_counts(self, evicted: int) -> MemoryCounts: ...

    def staleness(self) -> dict[str, Staleness]: ...

    def culprits(self) -> tuple[Culprit, ...]: ...


class NullAudit:
    """`engine.audit=false`: nothing is compared and nothing is counted, so the engine's own cost can be measured."""

    def on_clean(self, pages: Sequence[PageRef]) -> None:
        pass

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int) -> None:
        pass

    def after_run(self, live: StepInputs, step: int, target: bool) -> None:
        pass

    def end_step(self, step: int) -> Findings:
        return Findings(0, 0, 0, 0, {}, {})

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
        self._pages = PageAudit(memory, names)
        self._draft = frozenset(names[len(target_layers) :])
        self._static = StaticAudit()
        self._reads_wrong = 0
        self._host_reads = 0

    def on_clean(self, pages: Sequence[PageRef]) -> None:
        self._pages.on_clean(pages)

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int) -> None:
        if runner.static is not None:
            self._static.before_run(name, runner.static, live, step)

    def after_run(self, live: StepInputs, step: int, target: bool) -> None:
        self._reads_wrong += self._pages.after_run(live, self._target_layers if target else self._draft_layers)

    def end_step(self, step: int) -> Findings:
        clean, wrong = self._pages.end_step(step)
        reads_wrong, self._reads_wrong = self._reads_wrong, 0
        total = sum(int(counts[0]) for counts in self._memory.counts)
        read, self._host_reads = total - self._host_reads, total
        return Findings(clean, wrong, read, reads_wrong, self._static.end_step(), dict(self._static.written))

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
