"""An input policy around another one: what faults and interventions of an attribution are made of."""

from __future__ import annotations

from mtplab.engine.inputs import DraftInputs, StaticInputs, StepInputs
from mtplab.sync.policy import InputPolicy


class WrappedInputs(InputPolicy):
    """Passes everything on. A subclass spoils, holds or refreshes single buffers around a call of `inner`."""

    def __init__(self, inner: InputPolicy) -> None:
        self.inner = inner

    def prepare(self, step: int) -> None:
        self.inner.prepare(step)

    def target(self, static: StaticInputs, live: StepInputs, step: int) -> None:
        self.inner.target(static, live, step)

    def draft(self, name: str, static: StaticInputs, live: DraftInputs, step: int) -> None:
        self.inner.draft(name, static, live, step)
