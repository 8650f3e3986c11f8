"""`inputs: before_accept`: the textbook story. Accept-dependent draft inputs are copied before accept is known."""

from __future__ import annotations

from torch import Tensor

from mtplab.engine.inputs import DraftInputs, StaticInputs
from mtplab.sync.policy import InputPolicy

ACCEPT_DEPENDENT = (
    "hidden_states",
    "positions",
    "seq_lens",
    "slot_mapping",
    "source_slots",
    "last_token_indices",
    "input_ids",
)


class InputsBeforeAccept(InputPolicy):
    """The copy happens at prepare, when only the previous step's values exist; the rest is refreshed at the replay.

    A draft decode pass takes its ids and hidden states from the pass before it, inside the loop: those are live.
    """

    def __init__(self) -> None:
        self._previous: dict[str, tuple[int, dict[str, Tensor]]] = {}
        self._known: dict[str, tuple[int, dict[str, Tensor]]] = {}

    def prepare(self, step: int) -> None:
        self._known.update(self._previous)
        self._previous = {}

    def draft(self, name: str, static: StaticInputs, live: DraftInputs, step: int) -> None:
        in_loop = {"input_ids", "hidden_states"} if name != "draft" else set()
        late = [field for field in ACCEPT_DEPENDENT if field not in in_loop]
        if name in self._known:
            known_step, values = self._known[name]
            for field in late:
                static.copy(field, values[field], step, value_step=known_step)
        for field, value in live.items():
            if field not in late:
                static.copy(field, value, step)
        self._previous[name] = (step, {field: getattr(live, field).clone() for field in late})
