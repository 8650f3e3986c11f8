"""Contract of a drafter: how many tokens it proposes, which memory layers it owns, and its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mtplab.memory.memory import Memory
from mtplab.model.checkpoint import Checkpoint
from mtplab.model.layers import RopeTable
from mtplab.model.network import Network
from mtplab.sparse.selector import Selector


@dataclass(frozen=True, slots=True)
class HeadParts:
    """What a head may build on; `first_layer` is the memory layer after the target's last one."""

    checkpoint: Checkpoint
    rope: RopeTable
    memory: Memory
    selector: Selector
    first_layer: int


class Head(Protocol):
    """`k` tokens per draft, 0 = none; `num_layers` memory layers; `layer_names` for reports, e.g. `mtp.0`."""

    k: int
    num_layers: int
    layer_names: tuple[str, ...]

    def network(self, parts: HeadParts) -> Network | None: ...
