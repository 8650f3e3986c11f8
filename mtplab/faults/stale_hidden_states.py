"""`fault=stale_hidden_states` (C1): the target's hidden states are not copied before the draft replay.

llm-scaler #640: acceptance 64..86 % fell to 0.16 %, AL 1.00, text fine.
"""

from __future__ import annotations

from mtplab.engine.inputs import DraftInputs, StaticInputs
from mtplab.faults.fault import Fault
from mtplab.sync.policy import InputPolicy
from mtplab.sync.wrapped_inputs import WrappedInputs


class StaleHiddenStates(Fault):
    def inputs(self, policy: InputPolicy) -> InputPolicy:
        return _WithoutHidden(policy)


class _WithoutHidden(WrappedInputs):
    """The draft prefill's buffer keeps what capture saw; later passes hand their own states on and are right."""

    def draft(self, name: str, static: StaticInputs, live: DraftInputs, step: int) -> None:
        with static.held(*(["hidden_states"] if name == "draft" else [])):
            super().draft(name, static, live, step)
