"""`mirror_next_step`: vLLM 0.31.0 as released. Draft rows are owed until the next step begins."""

from __future__ import annotations

from mtplab.memory.mirror import RowSpan
from mtplab.sync.mirror_after_draft import MirrorAfterDraft


class MirrorNextStep(MirrorAfterDraft):
    """As `mirror_after_draft`, but the copy and the hand-over happen at the top of the next step, before any page of
    the owing step can be reused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owed: RowSpan | None = None

    @property
    def owes(self) -> bool:
        return self._owed is not None

    def begin_step(self, span: RowSpan) -> None:
        if self._owed is not None:
            self.mirror.copy(self.mirror.draft_layers, self._owed)
            self.mirror.hand_over()
            self._owed = None
        super().begin_step(span)

    def after_draft(self, mode: str) -> None:
        self._owed = self.span
