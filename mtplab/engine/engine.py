"""The engine: the loop of one speculative-decoding arm. Read this first; the steps are ARCHITECTURE section 3.

`Engine` owns the loop and nothing else: model runners, drafter, verifier, memory, sync policy, audit are passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtplab.audit.audit import Audit
from mtplab.engine.drafting import Drafting
from mtplab.engine.margins import MarginProbe
from mtplab.engine.prepare import InputBuilder
from mtplab.engine.records import RequestStep, StepRecord
from mtplab.engine.request import Request, Scheduled, Verified
from mtplab.engine.scheduler import Scheduler
from mtplab.graphs.runner import Runner
from mtplab.memory.memory import Memory
from mtplab.memory.mirror import Mirror
from mtplab.memory.pages import PageBook
from mtplab.model.network import TargetOutput
from mtplab.sync.policy import Sync
from mtplab.verify.verifier import Verifier


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Everything an engine runs on; see `mtplab.build` for how a configuration becomes one."""

    target: Runner
    drafting: Drafting | None
    verifier: Verifier
    memory: Memory
    book: PageBook
    scheduler: Scheduler
    builder: InputBuilder
    mirror: Mirror
    sync: Sync
    audit: Audit
    probe: MarginProbe | None
    eos_token_id: int | None


class Engine:
    """`run` decodes prompts to the end and returns the finished requests in the order they were given."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.steps = 0
        self.mode_steps: dict[str, int] = {}

    def run(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, on_step: Callable[[StepRecord], None]
    ) -> list[Request]:
        requests = [self.parts.scheduler.add(p, i, max_new_tokens) for i, p in enumerate(prompts)]
        while self.parts.scheduler.busy:
            record = self.step()
            if record is not None:
                on_step(record)
        return requests

    def step(self) -> StepRecord | None:
        """One step; None when it only paid what an earlier one owed."""
        started = time.perf_counter()
        p = self.parts
        evicted = p.book.evicted
        batch = p.scheduler.schedule()
        if not batch:
            self._settle()
            return None
        bucket = p.target.bucket(sum(item.rows for item in batch))
        live = p.builder.target(batch, bucket)
        p.audit.begin_step(self.steps, batch)
        p.sync.inputs.prepare(self.steps)
        if p.target.static is not None:
            p.sync.inputs.target(p.target.static, live, self.steps)
        p.mirror.begin_step()
        p.sync.mirror.begin_step(p.mirror.snapshot(live.slot_mapping, live.source_slots))
        p.book.free_held()
        p.audit.before_run("target", p.target, live, self.steps)
        output = p.target.run(live, p.sync.mirror.on_layer)
        assert isinstance(output, TargetOutput)
        p.audit.after_run(live, self.steps, target=True)
        p.sync.mirror.after_target(p.target.mode)
        verified = self._accept(batch, output)
        draft_mode = self._draft(verified, output)
        p.sync.mirror.after_draft(draft_mode)
        findings = p.audit.end_step(self.steps)
        self._retire(batch)
        record = StepRecord(
            step=self.steps,
            mode=p.target.mode,
            draft_mode=draft_mode,
            num_tokens=sum(item.rows for item in batch),
            bucket=bucket,
            num_requests=len(batch),
            requests=tuple(_request_step(item) for item in verified),
            pages_clean=findings.pages_clean,
            pages_evicted=p.book.evicted - evicted,
            pages_wrong=findings.pages_wrong,
            rows_read_from_host=findings.rows_read_from_host,
            reads_wrong=findings.reads_wrong,
            inputs=findings.inputs,
            rows=findings.rows,
            seconds=time.perf_counter() - started,
        )
        self.mode_steps[p.target.mode] = self.mode_steps.get(p.target.mode, 0) + 1
        self.steps += 1
        return record

    def _accept(self, batch: Sequence[Scheduled], output: TargetOutput) -> list[Verified]:
        """Step 6: compare drafts with the target's own tokens, commit rows, emit tokens."""
        if self.parts.probe is not None:
            self.parts.probe.record(batch, output.logits)
        chosen = output.tokens.tolist()
        verified, row = [], 0
        for item in batch:
            request, row = item.request, row + item.rows
            if item.final:
                drafted = item.tokens[item.rows - item.drafted :]
                rule = self.parts.verifier.verify(drafted, chosen[row - item.drafted - 1 : row])
                done = Verified(item, rule.accepted, (*drafted[: rule.accepted], rule.token))
                request.count(item.drafted, rule.accepted)
            else:
                done = Verified(item, 0, ())
            request.num_computed += done.committed
            verified.append(done)
        return verified

    def _draft(self, verified: list[Verified], output: TargetOutput) -> str:
        """Steps 7 and 8; then the new tokens are appended, so that the drafter saw the request as it was verified."""
        drafting = self.parts.drafting
        if drafting is not None:
            drafts = drafting.draft(verified, output.hidden, self.parts.sync.mirror.on_layer, self.steps)
            for item, proposed in zip(verified, drafts, strict=True):
                item.scheduled.request.drafts = proposed if item.scheduled.final else []
        for item in verified:
            item.scheduled.request.emit(list(item.new), self.parts.eos_token_id)
        return drafting.mode if drafting is not None else "NONE"

    def _retire(self, batch: Sequence[Scheduled]) -> None:
        p = self.parts
        for item in batch:
            if item.request.finished:
                state = p.scheduler.finish(item.request, hold=p.sync.mirror.owes)
                if p.memory.hot is not None:
                    p.memory.hot.clear(state)

    def _settle(self) -> None:
        """Nothing could be scheduled because pages are held: pay what is owed and free them."""
        p = self.parts
        assert p.sync.mirror.owes, "nothing runs and nothing is owed"
        p.mirror.begin_step()
        p.sync.mirror.begin_step(p.sync.mirror.span)
        p.book.free_held()


def _request_step(item: Verified) -> RequestStep:
    done = item.scheduled
    return RequestStep(done.request.id, done.drafted, item.accepted, len(item.new), done.start + item.committed)
