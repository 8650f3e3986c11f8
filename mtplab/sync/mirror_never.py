"""`mirror_never`: a FULL replay is followed by no mirror at all, target rows included (vLLM #56158)."""

from __future__ import annotations

from mtplab.sync.policy import MirrorPolicy


class MirrorNever(MirrorPolicy):
    """Hooks mirror where Python runs; after a FULL replay nothing does, and pages are handed over all the same."""

    def on_layer(self, layer: int) -> None:
        self.mirror.copy((layer,), self.span)

    def after_target(self, mode: str) -> None:
        pass

    def after_draft(self, mode: str) -> None:
        self.mirror.hand_over()
