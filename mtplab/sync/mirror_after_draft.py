"""`mirror_after_draft`: an earlier form of vLLM's fix (PR #53781)."""

from __future__ import annotations

from mtplab.sync.policy import MirrorPolicy


class MirrorAfterDraft(MirrorPolicy):
    """Draft layers are left out of hooks and of the batch after the target; their rows are mirrored once, after the
    drafter, from the span snapshotted before the forward, and only then are pages handed over.
    """

    def on_layer(self, layer: int) -> None:
        if layer in self.mirror.target_layers:
            self.mirror.copy((layer,), self.span)

    def after_target(self, mode: str) -> None:
        if mode == "FULL":
            self.mirror.copy(self.mirror.target_layers, self.span)

    def after_draft(self, mode: str) -> None:
        self.mirror.copy(self.mirror.draft_layers, self.span)
        self.mirror.hand_over()
