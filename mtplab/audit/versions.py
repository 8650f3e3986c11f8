"""Row versions: when each device row and each host row was last written, to the step and to the order within it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtplab.memory.memory import Memory
from mtplab.memory.mirror import RowSpan

ORDERS = 1 << 16  # stamp = step * ORDERS + order within the step; -1 = never written


class RowVersions:
    """Device rows are stamped by the forward that writes them (one stamp for all layers of target, one for all of the
    drafter), host rows of each layer by the mirror. A per-layer hook fires inside a forward, so a forward's rows carry
    the moment it began: a mirror that follows the write is later, one that precedes the forward is earlier.
    """

    def __init__(self, memory: Memory, draft_layers: frozenset[int]) -> None:
        layout = memory.layout
        self._draft_layers = draft_layers
        self._clock = 0
        host_rows = layout.source_rows + 1 if layout.on_host else 0
        # the last row is the sink's, where a padded row (-1) lands
        self._device = [_never(memory.pool.sink + 1, layout.device) for _ in range(2 if layout.on_host else 0)]
        self._host = [_never(host_rows, layout.device) for _ in range(layout.layers if layout.on_host else 0)]

    def begin_step(self, step: int) -> None:
        self._clock = step * ORDERS

    def on_write(self, slots: Tensor, target: bool) -> None:
        """A forward writes device rows `slots` [T] (-1 = pad) of all its layers."""
        if self._device:
            self._clock += 1
            self._device[0 if target else 1].index_fill_(0, slots, self._clock)

    def on_copy(self, layers: tuple[int, ...], span: RowSpan) -> None:
        """The mirror copies the rows of `span` of `layers`."""
        self._clock += 1
        for layer in layers:
            self._host[layer].index_fill_(0, span.host_rows, self._clock)

    def compare(self, layer: int, device_rows: Tensor, host_rows: Tensor) -> Lag:
        """Stamps of rows [n] that should be each other's copies, on the CPU."""
        device = self._device[1 if layer in self._draft_layers else 0]
        return Lag(device[device_rows].cpu(), self._host[layer][host_rows].cpu())


@dataclass(frozen=True, slots=True)
class Lag:
    """Stamps [n] int64: `written` of device rows by their forward, `mirrored` of the host rows that should be them."""

    written: Tensor
    mirrored: Tensor

    @property
    def written_step(self) -> Tensor:
        """Steps [n], -1 = never."""
        return torch.div(self.written, ORDERS, rounding_mode="floor")

    @property
    def mirrored_step(self) -> Tensor:
        return torch.div(self.mirrored, ORDERS, rounding_mode="floor")

    @property
    def never(self) -> Tensor:
        """Rows no mirror ever touched [n]."""
        return self.mirrored < 0

    @property
    def too_early(self) -> Tensor:
        """Mirrored before their last write [n]."""
        return ~self.never & (self.mirrored < self.written)


def _never(rows: int, device: torch.device) -> Tensor:
    return torch.full((rows,), -1, dtype=torch.int64, device=device)
