"""Step 8, draft: draft prefill over the verified rows, then k-1 single-row passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.audit.audit import Audit
from mtplab.engine.inputs import DraftInputs
from mtplab.engine.prepare import InputBuilder
from mtplab.engine.request import Verified
from mtplab.graphs.runner import Runner
from mtplab.model.network import DraftOutput, LayerHook
from mtplab.sync.policy import InputPolicy


@dataclass(frozen=True, slots=True)
class DraftRunners:
    """The drafter's two runners: `prefill` for the verified rows, `decode` for one row per request."""

    prefill: Runner
    decode: Runner


class Drafting:
    """Proposes k tokens per request from the target's hidden states."""

    def __init__(self, k: int, runners: DraftRunners, builder: InputBuilder, inputs: InputPolicy, audit: Audit) -> None:
        self._k = k
        self.runners = runners
        self._builder = builder
        self._inputs = inputs
        self._audit = audit

    @property
    def mode(self) -> str:
        return self.runners.prefill.mode

    def draft(
        self, verified: Sequence[Verified], hidden: Tensor, hook: Callable[[int], None], step: int
    ) -> list[list[int]]:
        """Drafts [request][k]; `hidden` [bucket, D] is the target's. The hook fires for the verified rows alone:
        rows of the decode passes are provisional and never mirrored.
        """
        live = self._builder.draft_prefill(verified, hidden.shape[0], hidden)
        output = self._run("draft", self.runners.prefill, live, hook, step)
        tokens = [output.tokens.clone()]
        for depth in range(1, self._k):
            bucket = self.runners.decode.bucket(len(verified))
            live = self._builder.draft_decode(verified, bucket, depth, output.tokens, output.hidden)
            output = self._run(f"draft_decode.{depth}", self.runners.decode, live, None, step)
            tokens.append(output.tokens.clone())
        return torch.stack(tokens, 1)[: len(verified)].tolist()

    def _run(self, name: str, runner: Runner, live: DraftInputs, hook: LayerHook | None, step: int) -> DraftOutput:
        if runner.static is not None:
            self._inputs.draft(name, runner.static, live, step)
        self._audit.before_run(name, runner, live, step)
        output = runner.run(live, hook)
        self._audit.after_run(live, step, target=False)
        assert isinstance(output, DraftOutput)
        return output
