"""Contracts of the two halves of a sync policy: when rows are mirrored, and when static inputs are refreshed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mtplab.engine.inputs import DraftInputs, StaticInputs, StepInputs
from mtplab.memory.mirror import Mirror, RowSpan


class MirrorPolicy(ABC):
    """When rows reach the host pool and pages are handed over. One instance serves one arm."""

    def __init__(self) -> None:
        self._mirror: Mirror | None = None
        self._span: RowSpan | None = None

    def bind(self, mirror: Mirror) -> None:
        self._mirror = mirror

    @property
    def mirror(self) -> Mirror:
        assert self._mirror is not None, "bind() comes first"
        return self._mirror

    @property
    def span(self) -> RowSpan:
        assert self._span is not None, "begin_step() comes first"
        return self._span

    @property
    def owes(self) -> bool:
        """True while rows of an earlier step are still to be copied; their pages must not be reused."""
        return False

    def begin_step(self, span: RowSpan) -> None:
        self._span = span

    @abstractmethod
    def on_layer(self, layer: int) -> None:
        """After a layer's KV write, where Python runs (never inside a FULL replay)."""

    @abstractmethod
    def after_target(self, mode: str) -> None: ...

    @abstractmethod
    def after_draft(self, mode: str) -> None: ...


class InputPolicy(ABC):
    """When the true inputs reach the static buffers that a captured graph reads."""

    def prepare(self, step: int) -> None:  # noqa: B027 (most policies copy nothing this early)
        """Before the target runs, so before accept."""

    def target(self, static: StaticInputs, live: StepInputs, step: int) -> None:
        """Target inputs are always fresh."""
        static.copy_all(live, step)

    @abstractmethod
    def draft(self, name: str, static: StaticInputs, live: DraftInputs, step: int) -> None:
        """Before a draft replay; `name` is the runner (`draft`, or `draft_decode.j` for pass j)."""


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync preset: its two fields."""

    name: str
    mirror: MirrorPolicy
    inputs: InputPolicy
