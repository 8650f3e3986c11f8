"""Locked trajectories (ARCHITECTURE section 6): every arm drafts at the prefixes of the reference.

The reference is run once; its committed tokens and its drafts are recorded. Another arm then proposes its own drafts,
which are judged and put aside, while the engine goes on with the recorded ones: so the same rows are verified, the same
counts accepted, steps end at the same places, and arms differ by their drafts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from mtplab.engine.drafting import Drafting
from mtplab.engine.inputs import StepInputs
from mtplab.engine.request import Verified
from mtplab.engine.scheduler import Scheduler
from mtplab.graphs.runner import Runner
from mtplab.model.network import LayerHook, TargetOutput


@dataclass(slots=True)
class Trajectory:
    """tokens[request] is prompt and output; drafts[request, first row of the step] what the reference proposed then."""

    k: int
    tokens: dict[int, list[int]] = field(default_factory=dict)
    drafts: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def accepted(self, item: Verified, drafts: Sequence[int]) -> int | None:
        """How many of `drafts` the target would keep: those that its own greedy continuation begins with.

        None where fewer than k tokens of the continuation are known: such drafts count in no arm.
        """
        known = self.tokens[item.scheduled.request.id]
        first = item.scheduled.start + item.committed + 1
        if first + self.k > len(known):
            return None
        count = 0
        while count < self.k and drafts[count] == known[first + count]:
            count += 1
        return count


class WrappedDrafting:
    """A drafter around another one; the parts the engine touches."""

    def __init__(self, inner: Drafting) -> None:
        self.inner = inner

    @property
    def mode(self) -> str:
        return self.inner.mode

    @property
    def runners(self) -> object:
        return self.inner.runners


class RecordingDrafting(WrappedDrafting):
    """Notes the drafts of the reference."""

    def __init__(self, inner: Drafting, trajectory: Trajectory) -> None:
        super().__init__(inner)
        self._trajectory = trajectory

    def draft(
        self, verified: Sequence[Verified], hidden: Tensor, hook: Callable[[int], None], step: int
    ) -> list[list[int]]:
        drafts = self.inner.draft(verified, hidden, hook, step)
        for item, proposed in zip(verified, drafts, strict=True):
            if item.scheduled.final:
                self._trajectory.drafts[item.scheduled.request.id, item.scheduled.start] = proposed
        return drafts


@dataclass(slots=True)
class Judged:
    """Per request, how many drafts of each step would have been accepted, in order of steps."""

    accepted: dict[int, list[int]] = field(default_factory=dict)


class LockedDrafting(WrappedDrafting):
    """Judges the arm's own drafts, hands the recorded ones to the engine."""

    def __init__(self, inner: Drafting, trajectory: Trajectory, judged: Judged) -> None:
        super().__init__(inner)
        self._trajectory = trajectory
        self._judged = judged

    def draft(
        self, verified: Sequence[Verified], hidden: Tensor, hook: Callable[[int], None], step: int
    ) -> list[list[int]]:
        own = self.inner.draft(verified, hidden, hook, step)
        for item, proposed in zip(verified, own, strict=True):
            if item.scheduled.final:
                accepted = self._trajectory.accepted(item, proposed)
                if accepted is not None:
                    self._judged.accepted.setdefault(item.scheduled.request.id, []).append(accepted)
        return [self._recorded(item) for item in verified]

    def _recorded(self, item: Verified) -> list[int]:
        recorded = self._trajectory.drafts.get((item.scheduled.request.id, item.scheduled.start))
        return recorded if recorded is not None else [0] * self._trajectory.k


class LockedTarget:
    """A target that answers what the reference's target answered, so that a corrupted arm stays on the trajectory too.

    Only the tokens are replaced; hidden states, which the drafter reads, are the arm's own.
    """

    def __init__(self, inner: Runner, trajectory: Trajectory, scheduler: Scheduler) -> None:
        self._inner = inner
        self._trajectory = trajectory
        self._scheduler = scheduler
        self.static = inner.static
        self.mode = inner.mode

    @property
    def captures(self) -> int:
        return self._inner.captures

    @property
    def replays(self) -> int:
        return self._inner.replays

    def bucket(self, rows: int) -> int:
        return self._inner.bucket(rows)

    def run(self, live: StepInputs, hook: LayerHook | None) -> object:
        output = self._inner.run(live, hook)
        assert isinstance(output, TargetOutput)
        by_state = {request.state: self._trajectory.tokens[request.id] for request in self._scheduler.running}
        tokens = output.tokens.clone()
        states = live.request_state_indices[live.req_id_per_token.to(live.positions.dtype)].tolist()
        live_rows = (live.slot_mapping >= 0).tolist()
        for row, (position, state, is_live) in enumerate(zip(live.positions.tolist(), states, live_rows, strict=True)):
            if is_live and position + 1 < len(by_state[state]):
                tokens[row] = by_state[state][position + 1]
        return replace(output, tokens=tokens)
