"""`spec=none`: plain decoding, one verified row per step."""

from __future__ import annotations

from mtplab.heads.head import HeadParts


class NoDrafter:
    """Proposes nothing."""

    num_layers = 0
    layer_names: tuple[str, ...] = ()

    def __init__(self, k: int = 0) -> None:
        self.k = k

    def network(self, parts: HeadParts) -> None:
        return None
