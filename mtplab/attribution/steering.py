"""Interventions on one built arm: single suspects refreshed (always right) or frozen (one step behind), nothing else.

A suspect is a static input, `draft.positions`, or the host rows of a layer, `host_rows mtp.0`. `Steering` goes into the
arm the way a fault does, around the arm's own fault, so the engine does not know of it; what it does can be changed
between runs of the same captured graphs.
"""

from __future__ import annotations

import copy

from torch import Tensor

from mtplab.engine.engine import EngineParts
from mtplab.engine.inputs import DraftInputs, StaticInputs, StepInputs
from mtplab.faults.fault import Fault, Site
from mtplab.graphs.runner import GraphFactory
from mtplab.heads.head import HeadParts
from mtplab.memory.memory import Memory
from mtplab.memory.mirror import Mirror, RowSpan
from mtplab.sparse.selector import Selector
from mtplab.sync.policy import InputPolicy
from mtplab.sync.wrapped_inputs import WrappedInputs

ROWS = "host_rows"


class SteeredInputs(WrappedInputs):
    """Around the arm's policy: `refreshed` buffers get the live value last of all, `frozen` ones the one before."""

    def __init__(self, inner: InputPolicy) -> None:
        super().__init__(inner)
        self._pristine = copy.deepcopy(inner)
        self.refreshed: frozenset[str] = frozenset()
        self.frozen: frozenset[str] = frozenset()
        self._before: dict[tuple[str, str], tuple[Tensor, int]] = {}

    def reset(self) -> None:
        """Forget what the last run left in the policy."""
        self.inner = copy.deepcopy(self._pristine)
        self._before = {}

    def target(self, static: StaticInputs, live: StepInputs, step: int) -> None:
        super().target(static, live, step)
        self._steer("target", static, live, step)

    def draft(self, name: str, static: StaticInputs, live: DraftInputs, step: int) -> None:
        super().draft(name, static, live, step)
        self._steer(name, static, live, step)

    def _steer(self, name: str, static: StaticInputs, live: StepInputs, step: int) -> None:
        prefix = name.partition(".")[0]
        for field, value in live.items():
            suspect = f"{prefix}.{field}"
            if suspect in self.refreshed:
                static.copy(field, value, step)
            elif suspect in self.frozen:
                now = value.clone(), step
                if (name, field) in self._before:
                    held, known = self._before[name, field]
                    static.copy(field, held[: value.shape[0]], step, value_step=known)
                self._before[name, field] = now


class SteeredMirror(Mirror):
    """Around the arm's mirror: rows of `frozen` layers are copied before anything of the step is written, and never
    again; rows of `refreshed` layers are copied once more when the step is over.
    """

    def __init__(self, inner: Mirror) -> None:
        self._inner = inner
        self.target_layers = inner.target_layers
        self.draft_layers = inner.draft_layers
        self.refreshed: tuple[int, ...] = ()
        self.frozen: tuple[int, ...] = ()
        self._last: RowSpan | None = None

    @property
    def active(self) -> bool:
        return self._inner.active

    @property
    def copies(self) -> dict[int, int]:
        return self._inner.copies

    @property
    def handed_over(self) -> bool:
        return self._inner.handed_over

    def begin_step(self) -> None:
        if self._last is not None and self.refreshed:
            self._inner.copy(self.refreshed, self._last)
        self._last = None
        self._inner.begin_step()

    def snapshot(self, slot_mapping: Tensor, source_slots: Tensor) -> RowSpan:
        self._last = self._inner.snapshot(slot_mapping, source_slots)
        self._inner.copy(self.frozen, self._last)
        return self._last

    def copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        self._inner.copy(tuple(layer for layer in layers if layer not in self.frozen), span)

    def hand_over(self) -> None:
        self._inner.hand_over()


class Steering(Fault):
    """The arm's own fault with the two interventions around its policies."""

    def __init__(self, inner: Fault) -> None:
        super().__init__()
        self._inner = inner
        self._inputs: SteeredInputs | None = None
        self._mirror: SteeredMirror | None = None

    def bind(self, site: Site) -> None:
        super().bind(site)
        self._inner.bind(site)

    def memory(self, memory: Memory) -> Memory:
        return self._inner.memory(memory)

    def mirror(self, mirror: Mirror) -> Mirror:
        self._mirror = SteeredMirror(self._inner.mirror(mirror))
        return self._mirror

    def inputs(self, policy: InputPolicy) -> InputPolicy:
        self._inputs = SteeredInputs(self._inner.inputs(policy))
        return self._inputs

    def selector(self, selector: Selector) -> Selector:
        return self._inner.selector(selector)

    def head(self, parts: HeadParts) -> HeadParts:
        return self._inner.head(parts)

    def graphs(self, factory: GraphFactory) -> GraphFactory:
        return self._inner.graphs(factory)

    def engine(self, parts: EngineParts) -> EngineParts:
        return self._inner.engine(parts)

    def steer(self, refreshed: frozenset[str], frozen: frozenset[str], layers: dict[str, int]) -> None:
        """Set what the next run does; `layers` gives the memory layer of each `host_rows` suspect."""
        assert self._inputs is not None and self._mirror is not None, "the arm is not built yet"
        self._inputs.reset()
        self._inputs.refreshed, self._inputs.frozen = refreshed, frozen
        self._mirror.refreshed = tuple(layers[name] for name in sorted(refreshed) if name in layers)
        self._mirror.frozen = tuple(layers[name] for name in sorted(frozen) if name in layers)
