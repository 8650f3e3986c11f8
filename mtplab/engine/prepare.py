"""Step 2 and step 7: the true inputs of target and drafter, built on the host and padded to the capture size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtplab.engine.inputs import DraftInputs, StepInputs
from mtplab.engine.request import Scheduled, Verified
from mtplab.memory.layout import MemoryLayout
from mtplab.memory.pages import PageBook


class InputBuilder:
    """Builds `StepInputs` and `DraftInputs`; padding: slot -1, seq_lens 0, query_start_loc = T, state -1."""

    def __init__(self, layout: MemoryLayout, book: PageBook) -> None:
        self._layout = layout
        self._book = book

    def target(self, batch: Sequence[Scheduled], bucket: int) -> StepInputs:
        rows = _RowArrays(bucket, self._layout.max_requests)
        for index, item in enumerate(batch):
            rows.add(index, item.request.state, item.start, item.tokens, item.start + item.rows)
        return StepInputs(**self._tensors(rows))

    def draft_prefill(self, verified: Sequence[Verified], bucket: int, hidden: Tensor) -> DraftInputs:
        """The target's rows shifted by one: row i takes token i+1. `hidden` [bucket, D] comes from the target."""
        rows = _RowArrays(bucket, self._layout.max_requests)
        last = np.zeros(self._layout.max_requests, np.int64)
        for index, item in enumerate(verified):
            done = item.scheduled
            last[index] = rows.count + item.committed - 1
            tokens = _shifted(item)
            rows.add(index, done.request.state, done.start, tokens, done.start + item.committed)
        return DraftInputs(**self._tensors(rows), last_token_indices=self._tensor(last), hidden_states=hidden)

    def draft_decode(
        self, verified: Sequence[Verified], bucket: int, depth: int, ids: Tensor, hidden: Tensor
    ) -> DraftInputs:
        """One row per request at `depth` rows past its last committed one; row b belongs to batch row b."""
        size = self._layout.max_requests
        rows = _RowArrays(bucket, size)
        for index, item in enumerate(verified):
            request = item.scheduled.request
            if item.scheduled.final:
                rows.add(index, request.state, item.scheduled.start + item.committed - 1 + depth, (0,), None)
            else:
                rows.skip(index, request.state)
        own = np.minimum(np.arange(size), bucket - 1)
        tensors = self._tensors(rows)
        tensors["input_ids"] = ids[:bucket]
        return DraftInputs(**tensors, last_token_indices=self._tensor(own), hidden_states=hidden[:bucket])

    def _tensors(self, rows: _RowArrays) -> dict[str, Tensor]:
        used, count = rows.requests, rows.count
        resident, source = self._book.resident_table[rows.states], self._book.source_table[rows.states]
        resident[used:] = source[used:] = 0
        rows.start[used + 1 :] = rows.ids.shape[0]
        # block tables by the token map, as a kernel would address them
        size, owner = self._layout.page_size, rows.owner[:count]
        page, offset = np.divmod(rows.positions[:count], size)
        slots, sources = np.full((2, rows.ids.shape[0]), -1, np.int64)
        slots[:count] = resident[owner, page] * size + offset
        sources[:count] = source[owner, page] * size + offset
        slots[~rows.live] = sources[~rows.live] = -1
        arrays = {
            "input_ids": rows.ids,
            "positions": rows.positions,
            "slot_mapping": slots,
            "source_slots": sources,
            "req_id_per_token": rows.owner,
            "query_start_loc": rows.start,
            "seq_lens": rows.lengths,
            "resident_table": resident,
            "source_table": source,
            "request_state_indices": rows.states,
        }
        return {name: self._tensor(array) for name, array in arrays.items()}

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._layout.device)


class _RowArrays:
    """Host arrays of one forward, filled request by request."""

    def __init__(self, bucket: int, max_requests: int) -> None:
        self.count = 0
        self.requests = 0
        self.ids = np.zeros(bucket, np.int64)
        self.positions = np.zeros(bucket, np.int64)
        self.live = np.zeros(bucket, bool)
        self.owner = np.zeros(bucket, np.int32)
        self.start = np.zeros(max_requests + 1, np.int32)
        self.lengths = np.zeros(max_requests, np.int32)
        self.states = np.full(max_requests, -1, np.int32)

    def add(self, index: int, state: int, start: int, tokens: Sequence[int], length: int | None) -> None:
        end = self.count + len(tokens)
        self.ids[self.count : end] = tokens
        self.positions[self.count : end] = np.arange(start, start + len(tokens))
        self.live[self.count : end] = True
        self._close(index, state, end, start + len(tokens) if length is None else length)

    def skip(self, index: int, state: int) -> None:
        """A padded row: this request does not run in this pass."""
        self._close(index, state, self.count + 1, 0)

    def _close(self, index: int, state: int, end: int, length: int) -> None:
        self.owner[self.count : end] = index
        self.start[index + 1] = end
        self.states[index] = state
        self.lengths[index] = length
        self.requests = index + 1
        self.count = end


def _shifted(item: Verified) -> tuple[int, ...]:
    """Token i+1 for each row i: known tokens up to the new one, then whatever was drafted (those rows are rejected)."""
    done = item.scheduled
    known = done.tokens[1 : item.committed]
    following = item.new[-1] if done.final else done.request.tokens[done.start + item.committed]
    rest = done.tokens[item.committed + 1 :]
    row = (*known, following, *rest)
    return row + (0,) * (done.rows - len(row))
