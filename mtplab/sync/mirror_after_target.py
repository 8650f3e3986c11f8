"""`mirror_after_target`: vLLM 0.30.0 to v0.31.0rc3. Faulty under FULL replays, right elsewhere."""

from __future__ import annotations

from mtplab.sync.policy import MirrorPolicy


class MirrorAfterTarget(MirrorPolicy):
    """Where Python runs each layer mirrors itself after its own write. A FULL replay runs no hook, so one batch mirrors
    all active layers after the target; the draft layer counts as active although the drafter has not written yet.
    """

    def on_layer(self, layer: int) -> None:
        self.mirror.copy((layer,), self.span)

    def after_target(self, mode: str) -> None:
        if mode == "FULL":
            self.mirror.copy(self.mirror.target_layers + self.mirror.draft_layers, self.span)
            self.mirror.hand_over()

    def after_draft(self, mode: str) -> None:
        if not self.mirror.handed_over:
            self.mirror.hand_over()
