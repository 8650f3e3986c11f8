"""Static-input audit: does each captured buffer hold what an eager step would have passed, and is it read?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mtplab.audit.reads import read_mask, requests_of
from mtplab.audit.records import BENIGN, DECISIVE, HARMFUL, UNCHANGED, InputRecord
from mtplab.engine.inputs import StaticInputs, StepInputs
from mtplab.engine.records import Culprit, Staleness
from mtplab.graphs.runner import Runner


@dataclass(slots=True)
class BufferFindings:
    """Counts over the replays of one buffer; `max_age` in steps. `rebound`: first step whose replay found that the
    name had moved to another tensor, -1 = never.
    """

    stale: int = 0
    harmful: int = 0
    decisive: int = 0
    max_age: int = 0
    first_step: int = -1
    rows_wrong: int = 0
    rebound: int = -1


@dataclass(slots=True)
class CapturedBuffer:
    """The tensor a graph reads, whatever its name means later; with the stamps it had while the name was still its."""

    key: str
    tensor: Tensor
    found: BufferFindings
    written: int = -1
    value_step: int = -1
    slices: dict[int, Tensor] = field(default_factory=dict)

    def stamp(self, name: str, static: StaticInputs, step: int) -> None:
        """Take over the stamps; those of another tensor say nothing of this one."""
        if static.buffers[name] is self.tensor:
            self.written, self.value_step = static.written[name], static.value_step[name]
        elif self.found.rebound < 0:
            self.found.rebound = step

    def front(self, rows: int) -> Tensor:
        """The first `rows` entries, which a graph of that size reads."""
        if rows not in self.slices:
            self.slices[rows] = self.tensor[:rows]
        return self.slices[rows]


class StaticAudit:
    """Compares captured buffers with the live inputs right before each replay; `page_size` in rows."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._replays: dict[str, int] = {}
        self._captured: dict[str, dict[str, CapturedBuffer]] = {}
        self._now: list[InputRecord] = []
        self._decisive: set[tuple[int, str]] = set()

    def before_run(self, name: str, runner: Runner, live: StepInputs, step: int, ids: Sequence[int]) -> StepInputs:
        """`name` is the runner and its pass, `ids` the requests by batch row. Returns the inputs that attention reads.

        Passes of one runner (`draft_decode.1`, `.2`, ...) share its buffers and are counted together.
        """
        static = runner.static
        if static is None:
            return live
        prefix = name.partition(".")[0]
        captured = self._captured.get(prefix)
        if captured is None:
            captured = self._captured[prefix] = _capture(prefix, static)
        self._replays[prefix] = self._replays.get(prefix, 0) + 1
        replay, seen = _Replay(name, runner.mode, live, step, ids, self._page_size), {}
        for buffer, value in live.items():
            held = captured[buffer]
            held.stamp(buffer, static, step)
            front = seen[buffer] = held.front(value.shape[0])
            if not torch.equal(front, value):
                self._note(held, replay.difference(buffer, held, value), step)
            elif held.value_step != step:
                self._now.append(InputRecord(name, buffer, step - held.value_step, held.written, UNCHANGED))
        return type(live)(**seen) if runner.mode == "FULL" else live

    def mark_decisive(self, step: int, key: str) -> None:
        """`key` as in `culprits`, with or without the pass: freshening it alone changes a draft of `step`."""
        runner, _, buffer = key.partition(".")
        found = self._captured[runner][buffer.rpartition(".")[2]].found
        found.decisive += 1
        self._decisive.add((step, key))

    def end_step(self, step: int) -> tuple[InputRecord, ...]:
        records, self._now = self._now, []
        marked = {key for at, key in self._decisive if at == step}
        self._decisive.clear()
        return tuple(_marked(record, marked) for record in records) if marked else tuple(records)

    def staleness(self) -> dict[str, Staleness]:
        """Per buffer over all its replays; a value that only was written late is not stale."""
        return {
            held.key: Staleness(held.found.max_age, held.found.stale / replays, held.found.harmful / replays)
            for held, replays in sorted(self._all(), key=lambda pair: pair[0].key)
        }

    def culprits(self) -> list[Culprit]:
        return [
            Culprit(
                held.key,
                None,
                held.found.first_step,
                held.found.rows_wrong,
                held.found.harmful,
                _evidence(held.found, replays),
            )
            for held, replays in self._all()
            if held.found.harmful
        ]

    def _all(self) -> list[tuple[CapturedBuffer, int]]:
        return [(held, self._replays[runner]) for runner, all_ in self._captured.items() for held in all_.values()]

    def _note(self, held: CapturedBuffer, record: InputRecord, step: int) -> None:
        self._now.append(record)
        found = held.found
        found.stale += 1
        found.max_age = max(found.max_age, record.age)
        if record.kind == HARMFUL:
            found.harmful += 1
            found.rows_wrong += record.rows
            found.first_step = step if found.first_step < 0 else found.first_step


@dataclass(frozen=True, slots=True)
class _Replay:
    """One replay about to happen."""

    name: str
    mode: str
    live: StepInputs
    step: int
    ids: Sequence[int]
    page_size: int

    def difference(self, buffer: str, held: CapturedBuffer, value: Tensor) -> InputRecord:
        """The record of a buffer that does not hold the live `value`."""
        front = held.front(value.shape[0])
        different = (front != value).reshape(value.shape[0], -1)
        hit = (different & read_mask(buffer, self.live, self.page_size, self.mode)).any(1)
        harmful = bool(hit.any())
        rows = (hit if harmful else different.any(1)).nonzero().flatten()
        largest = float((front.double() - value.double()).abs().max())
        return InputRecord(
            replay=self.name,
            buffer=buffer,
            age=self.step - held.value_step,
            written=held.written,
            kind=HARMFUL if harmful else BENIGN,
            max_abs=largest if math.isfinite(largest) else None,
            entries=int(different.sum()),
            rows=rows.shape[0],
            requests=requests_of(buffer, rows, self.live, self.ids),
        )


def _capture(prefix: str, static: StaticInputs) -> dict[str, CapturedBuffer]:
    return {
        name: CapturedBuffer(f"{prefix}.{name}", tensor, BufferFindings()) for name, tensor in static.buffers.items()
    }


def _marked(record: InputRecord, marked: set[str]) -> InputRecord:
    names = {f"{record.replay}.{record.buffer}", f"{record.runner}.{record.buffer}"}
    return replace(record, kind=DECISIVE) if record.kind == HARMFUL and names & marked else record


def _evidence(found: BufferFindings, replays: int) -> str:
    how = (
        f"held an older value (age up to {found.max_age} steps)" if found.max_age else "held a wrong value of its step"
    )
    text = f"{how} in {found.harmful} of {replays} replays that read it, first at step {found.first_step}"
    if found.rebound >= 0:
        text = f"rebound at step {found.rebound}: replays read the old storage; it {text}"
    return text + (f"; decisive in {found.decisive} sampled steps" if found.decisive else "")
