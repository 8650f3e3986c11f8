"""`inputs: complete`: every static input is refreshed right before the replay that reads it."""

from __future__ import annotations

from mtplab.engine.inputs import DraftInputs, StaticInputs
from mtplab.sync.policy import InputPolicy


class InputsComplete(InputPolicy):
    def draft(self, name: str, static: StaticInputs, live: DraftInputs, step: int) -> None:
        static.copy_all(live, step)
