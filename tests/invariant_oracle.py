"""What is right, computed without pages, batches, graphs or policies: one sequence, all rows in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtplab.engine.inputs import DraftInputs, StepInputs
from mtplab.memory.context import RowContext
from mtplab.model.checkpoint import load_checkpoint
from mtplab.model.layers import rope_table
from mtplab.model.network import DraftOutput, MtpNetwork, TargetNetwork, TargetOutput, forward
from mtplab.sparse.dense import DenseSelector
from mtplab.sparse.dsa import DsaSelector

CPU = torch.device("cpu")


class FlatMemory:
    """Position is address. Stands in for `Memory` under a network that sees one sequence from its first token."""

    def __init__(self, layers: int, length: int, row_width: int, index_width: int, dtype: torch.dtype) -> None:
        self.rows = [torch.zeros(length, row_width, dtype=dtype) for _ in range(layers)]
        self.keys = [torch.zeros(length, index_width, dtype=dtype) for _ in range(layers)]

    def context(self, inputs: StepInputs) -> RowContext:
        order = inputs.positions
        none = torch.empty(0, dtype=torch.int64)
        visible = torch.where(order[None] <= order[:, None], order[None], -1)
        return RowContext(order >= 0, none, order, order, visible, none, none, none, len(order))

    def write(self, layer: int, context: RowContext, row: Tensor, index_key: Tensor | None) -> None:
        self.rows[layer][context.slot] = row
        if index_key is not None:
            self.keys[layer][context.slot] = index_key

    def index_keys(self, layer: int, context: RowContext) -> Tensor:
        return self.keys[layer][: context.span].expand(context.span, -1, -1)

    def read(self, layer: int, positions: Tensor, context: RowContext) -> Tensor:
        return self.rows[layer][positions.clamp(min=0)]


@dataclass(frozen=True, slots=True)
class Fresh:
    """Caches after a fresh prefill of n tokens, per memory layer; the draft layer has n-1 rows (token i+1 is known)."""

    rows: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]


class Oracle:
    """Plain greedy decoding and fresh prefills of one checkpoint, recomputed from the first token every time."""

    def __init__(self, directory: Path, top_k: int | None, dtype: torch.dtype) -> None:
        self._selector = DenseSelector() if top_k is None else DsaSelector(top_k)
        self._checkpoint = load_checkpoint(directory, dtype, CPU, self._selector.needs_index)
        self._dtype = dtype
        self._greedy: dict[tuple[int, ...], list[int]] = {}
        self._fresh: dict[tuple[int, ...], Fresh] = {}
        self._drafts: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._rope = rope_table(self._checkpoint.config, self._checkpoint.config.max_position_embeddings, dtype, CPU)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """`prompt` and `count` tokens after it, or more where more are known."""
        tokens = self._greedy.setdefault(tuple(prompt), list(prompt))
        while len(tokens) < len(prompt) + count:
            tokens.append(self._target(tokens)[1][-1])
        return tokens

    def fresh(self, tokens: Sequence[int]) -> Fresh:
        """By causality a longer sequence serves its prefixes."""
        wanted = tuple(tokens)
        for known, fresh in self._fresh.items():
            if known[: len(wanted)] == wanted:
                return fresh
        memory, _, hidden = self._target(wanted)
        self._draft(memory, wanted[1:], hidden[:-1])
        fresh = Fresh(tuple(memory.rows), tuple(memory.keys))
        self._fresh[wanted] = fresh
        return fresh

    def drafts(self, tokens: Sequence[int], k: int) -> list[int]:
        """What the drafter proposes after `tokens`, when it sees every row of this sequence fresh."""
        key = (tuple(tokens), k)
        if key not in self._drafts:
            memory, _, hidden = self._target(tokens)
            ids, states = list(tokens[1:]), hidden[:-1]
            for _ in range(k):
                output = self._draft(memory, ids, states)
                ids, states = [*ids, int(output.tokens[-1])], torch.cat([states, output.hidden])
            self._drafts[key] = ids[len(tokens) - 1 :]
        return self._drafts[key]

    def clone(self) -> Oracle:
        """Knows the same, learns apart: what a broken run asks for stays out of the original."""
        other = copy.copy(self)
        other._greedy = {prompt: list(tokens) for prompt, tokens in self._greedy.items()}
        other._fresh, other._drafts = dict(self._fresh), dict(self._drafts)
        return other

    def _draft(self, memory: FlatMemory, ids: Sequence[int], hidden: Tensor) -> DraftOutput:
        """Draft pass over rows 0, 1, ...: row i takes ids[i] (token i+1) and hidden[i]."""
        positions = torch.arange(len(ids))
        only = _only(torch.tensor(ids), positions)
        inputs = DraftInputs(**only, last_token_indices=positions[-1:], hidden_states=hidden)
        blocks = (self._checkpoint.mtp[0].block,)
        layers = (len(self._checkpoint.layers),)
        output = forward(MtpNetwork("draft", layers, blocks, *self._parts(memory)), inputs, None)
        assert isinstance(output, DraftOutput)
        return output

    def _target(self, tokens: Sequence[int]) -> tuple[FlatMemory, list[int], Tensor]:
        config = self._checkpoint.config
        layers = tuple(range(config.num_hidden_layers))
        length = config.max_position_embeddings
        memory = FlatMemory(len(layers) + 1, length, config.row_width, config.index_head_dim, self._dtype)
        network = TargetNetwork("target", layers, self._checkpoint.layers, *self._parts(memory))
        output = forward(network, StepInputs(**_only(torch.tensor(tokens), torch.arange(len(tokens)))), None)
        assert isinstance(output, TargetOutput)
        return memory, output.tokens.tolist(), output.hidden

    def _parts(self, memory: FlatMemory) -> tuple:
        return self._checkpoint, self._rope, memory, self._selector


def _only(ids: Tensor, positions: Tensor) -> dict[str, Tensor]:
    """Step inputs of a network over `FlatMemory`, which reads ids and positions alone."""
    none = torch.empty(0, dtype=torch.int32)
    names = ("slot_mapping", "source_slots", "req_id_per_token", "query_start_loc", "seq_lens")
    tables = ("resident_table", "source_table", "request_state_indices")
    return {"input_ids": ids, "positions": positions} | dict.fromkeys(names + tables, none)
