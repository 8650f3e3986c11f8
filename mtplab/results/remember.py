"""Arms that many runs share (plain decoding, the reference) are decoded once per configuration and prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from mtplab.config.compose import leaves
from mtplab.config.overrides import BOOKKEEPING
from mtplab.engine.records import ArmOutcome, StepRecord
from mtplab.results.execution import RunArm

Done = tuple[ArmOutcome, list[StepRecord]]


class RememberedArms:
    """A `RunArm` that repeats what it has already run; `runs` counts the arms that were really decoded."""

    def __init__(self, run_arm: RunArm) -> None:
        self._run_arm = run_arm
        self._done: dict[tuple[object, ...], Done] = {}
        self.runs = 0

    def __call__(
        self,
        cfg: DictConfig,
        prompts: Sequence[Sequence[int]],
        on_step: Callable[[StepRecord], None],
        record_margins: bool = False,
    ) -> ArmOutcome:
        values = {k: v for k, v in leaves(cfg).items() if k.partition(".")[0] not in BOOKKEEPING}
        key = (record_margins, repr(sorted(values.items(), key=lambda item: item[0])), tuple(map(tuple, prompts)))
        if key in self._done:
            outcome, records = self._done[key]
            for record in records:
                on_step(record)
            return outcome
        records = []

        def keep(record: StepRecord) -> None:
            records.append(record)
            on_step(record)

        outcome = self._run_arm(cfg, prompts, keep, record_margins)
        self._done[key] = outcome, records
        self.runs += 1
        return outcome
