"""`spec=mtp`: DeepSeek-V3 MTP (2412.19437), one module reused for every depth, fed with its own normed output."""

from __future__ import annotations

from mtplab.errors import ConfigError
from mtplab.heads.head import HeadParts
from mtplab.model.network import MtpNetwork


class MtpHead:
    num_layers = 1
    layer_names = ("mtp.0",)

    def __init__(self, k: int) -> None:
        self.k = k

    def network(self, parts: HeadParts) -> MtpNetwork:
        mtp = parts.checkpoint.mtp
        if not mtp:
            raise ConfigError("spec", "this checkpoint has no MTP module", "use spec=none or a checkpoint with one")
        layers = (parts.first_layer,)
        blocks = (mtp[0].block,)
        return MtpNetwork("draft", layers, blocks, parts.checkpoint, parts.rope, parts.memory, parts.selector)
