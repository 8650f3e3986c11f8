"""Target and MTP networks as segments between attention calls: one form serves eager, PIECEWISE and FULL.

`forward` is the whole algorithm: segment 0, then for each layer attention and the next segment. A strategy may capture
all of it (FULL), each segment (PIECEWISE) or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mtplab.engine.inputs import DraftInputs, StepInputs
from mtplab.memory.context import RowContext
from mtplab.memory.memory import Memory
from mtplab.model.checkpoint import Checkpoint
from mtplab.model.layers import LayerWeights, Projected, RopeTable, attend, finish, project, unit
from mtplab.sparse.selector import Selector

LayerHook = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Carry:
    """What one segment hands to attention and to the next segment; turn [T, 1, R / 2] is the rotation of each row."""

    hidden: Tensor
    turn: Tensor
    projected: Projected


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """hidden [T, D] after the final norm, tokens [T] greedy, logits [T, V]."""

    hidden: Tensor
    tokens: Tensor
    logits: Tensor


@dataclass(frozen=True, slots=True)
class DraftOutput:
    """hidden [B, D] handed to the next draft pass (after the head's own norm), tokens [B] greedy."""

    hidden: Tensor
    tokens: Tensor


class Network(Protocol):
    """A forward in segments; `layers` are the memory layers it writes, in order."""

    name: str
    layers: tuple[int, ...]

    def begin(self, inputs: StepInputs) -> RowContext: ...

    def segment(self, index: int, inputs: StepInputs, carry: Carry | None, attended: Tensor | None) -> object: ...

    def attention(self, index: int, carry: Carry, context: RowContext, hook: LayerHook | None) -> Tensor: ...


def forward(network: Network, inputs: StepInputs, hook: LayerHook | None) -> object:
    """Run the whole network on `inputs`; `hook(layer)` fires after each layer's KV write."""
    context = network.begin(inputs)
    carry = network.segment(0, inputs, None, None)
    for index in range(len(network.layers)):
        assert isinstance(carry, Carry)
        attended = network.attention(index, carry, context, hook)
        carry = network.segment(index + 1, inputs, carry, attended)
    return carry


class Decoder:
    """What target and MTP head share: a stack of blocks over the paged memory."""

    def __init__(
        self,
        name: str,
        layers: tuple[int, ...],
        blocks: tuple[LayerWeights, ...],
        checkpoint: Checkpoint,
        rope: RopeTable,
        memory: Memory,
        selector: Selector,
    ) -> None:
        self.name = name
        self.layers = layers
        self._blocks = blocks
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._rope = rope
        self._memory = memory
        self._selector = selector

    def begin(self, inputs: StepInputs) -> RowContext:
        return self._memory.context(inputs)

    def embed(self, inputs: StepInputs) -> Tensor:
        raise TypeError(f"{type(self).__name__} must say how rows are embedded")

    def output(self, hidden: Tensor, inputs: StepInputs) -> object:
        raise TypeError(f"{type(self).__name__} must say what it returns")

    def segment(self, index: int, inputs: StepInputs, carry: Carry | None, attended: Tensor | None) -> object:
        """Segment `index`: finish block index-1 (if any), then project for block index, or return the output."""
        if carry is None or attended is None:
            hidden, turn = self.embed(inputs), self._rope.turn.index_select(0, inputs.positions)
        else:
            hidden, turn = finish(self._blocks[index - 1], carry.hidden, attended), carry.turn
        if index == len(self.layers):
            return self.output(hidden, inputs)
        needs = self._selector.needs_index
        return Carry(hidden, turn, project(self._blocks[index], self._config, hidden, turn, needs))

    def attention(self, index: int, carry: Carry, context: RowContext, hook: LayerHook | None) -> Tensor:
        """Write this block's rows, fire the hook, select, resolve to device rows, attend. Returns [T, H * L]."""
        layer = self.layers[index]
        self._memory.write(layer, context, carry.projected.row, carry.projected.index_key)
        if hook is not None:
            hook(layer)
        positions = self._selector.select(carry.projected, self._memory, layer, context)
        rows = self._memory.read(layer, positions, context)
        return attend(carry.projected.query, rows, context.bias(positions), self._config.kv_lora_rank)


class TargetNetwork(Decoder):
    """The main model; verify = its forward over 1+k rows per request."""

    def embed(self, inputs: StepInputs) -> Tensor:
        return self._checkpoint.embed.index_select(0, inputs.input_ids)

    def output(self, hidden: Tensor, inputs: StepInputs) -> TargetOutput:
        hidden = self._checkpoint.norm(hidden)
        logits = hidden @ self._checkpoint.lm_head
        return TargetOutput(hidden, logits.argmax(-1), logits)


class MtpNetwork(Decoder):
    """DeepSeek MTP module: row i from the hidden state h_i and token i+1, stored in slot i of its own layer."""

    def embed(self, inputs: StepInputs) -> Tensor:
        assert isinstance(inputs, DraftInputs)
        w = self._checkpoint.mtp[0]
        token = self._checkpoint.embed.index_select(0, inputs.input_ids)
        return torch.cat([unit(token, w.floor), unit(inputs.hidden_states, w.floor)], -1) @ w.eh_proj

    def output(self, hidden: Tensor, inputs: StepInputs) -> DraftOutput:
        assert isinstance(inputs, DraftInputs)
        # a stale index may lie beyond this bucket; an engine would read leftovers there, never fault
        last = hidden.index_select(0, inputs.last_token_indices.clamp(max=hidden.shape[0] - 1))
        last = self._checkpoint.mtp[0].out_norm(last)
        return DraftOutput(last, (last @ self._checkpoint.lm_head).argmax(-1))
