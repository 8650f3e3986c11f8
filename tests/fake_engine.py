"""A stand-in for `mtplab.build.run_arm`: real records and real counts, drawn from a seed instead of a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from mtplab.audit.records import HARMFUL, RowRecord
from mtplab.engine.records import (
    ArmOutcome,
    Culprit,
    GraphCounts,
    MemoryCounts,
    RequestOutcome,
    RequestStep,
    Staleness,
    StepRecord,
)

PER_DRAFT = {"healthy": 0.85, "collapsed": 0.25}
HOST_ROWS = Culprit("host_rows", "mtp.0", 6, 480, 120, "480 rows written after their page was mirrored, read 120 times")


class FakeEngine:
    """Callable like `run_arm`; collapses where the shipped default does in the field. Remembers the arms it ran."""

    def __init__(self, corrupt: bool = False, die_at_step: int | None = None) -> None:
        self.arms: list[DictConfig] = []
        self._corrupt = corrupt
        self._die_at_step = die_at_step

    def __call__(
        self,
        cfg: DictConfig,
        prompts: Sequence[Sequence[int]],
        on_step: Callable[[StepRecord], None],
        record_margins: bool = False,
    ) -> ArmOutcome:
        self.arms.append(cfg)
        faulty = cfg.graph.name == "full" and cfg.sparse.tier == "hisparse" and cfg.sync.name == "mirror_after_target"
        draw = random.Random(f"{cfg.seed} {faulty}")
        chance = PER_DRAFT["collapsed" if faulty else "healthy"]
        done: list[RequestOutcome] = []
        step = 0
        for request, prompt in enumerate(prompts):
            per_pos, drafts, emitted = [0] * cfg.spec.k, 0, 0
            while emitted < cfg.workload.max_new_tokens:
                if self._die_at_step is not None and step >= self._die_at_step and cfg.graph.name == "full":
                    raise KeyboardInterrupt
                k = cfg.spec.k if emitted else 0
                accepted = next((i for i in range(k) if draw.random() > chance), k)
                for position in range(accepted):
                    per_pos[position] += 1
                drafts += k > 0
                new = min(accepted + 1, cfg.workload.max_new_tokens - emitted)
                emitted += new
                on_step(_step(cfg, step, RequestStep(request, k, accepted, new, len(prompt) + emitted), faulty))
                step += 1
            output = [(7 * n + request) % 90 for n in range(emitted)]
            if self._corrupt and cfg.graph.name == "full":
                output[5] += 1
            margins = (1.0,) * emitted if record_margins else ()
            counts = (drafts, drafts * cfg.spec.k, sum(per_pos), tuple(per_pos))
            gaps = (float("inf"),) * len(margins)
            done.append(RequestOutcome(request, len(prompt), tuple(output), *counts, margins, gaps))
        return ArmOutcome(
            requests=tuple(done),
            seconds=0.01 * step,
            capture_seconds=0.5,
            steps=step,
            graph=GraphCounts({cfg.graph.name.upper(): step}, captures=4, replays=2 * step),
            memory=MemoryCounts(10, 40 * faulty, 30, 10, 80, 12 * faulty),
            staleness={"draft.hidden_states": Staleness(0, 0.0, 0.0)},
            culprits=(HOST_ROWS,) if faulty else (),
        )


def _step(cfg: DictConfig, step: int, request: RequestStep, faulty: bool) -> StepRecord:
    reads = 3 if faulty and request.drafted else 0
    return StepRecord(
        step, cfg.graph.name.upper(), cfg.graph.name.upper(), 4, 4, 1, (request,), 1, int(step % 7 == 0),
        int(reads > 0),
        4 * faulty, reads, (), (RowRecord("mtp.0", 0, 0, reads, 2, HARMFUL, (request.request,)),) * (reads > 0), 0.01,
    )  # fmt: skip
