"""Thirteen named breaks of the library, one for each invariant: with the break the matching check fails.

Each break is a bug of the kind its invariant is there for. Without it the same run passes every check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import invariant_lab
import pytest
import torch
from invariant_cases import Case, oracle
from invariant_runs import ALL, NAMES, examine, examined

from mtplab.engine.prepare import InputBuilder
from mtplab.memory import memory, resolver
from mtplab.memory.memory import Memory
from mtplab.memory.mirror import RowSpan
from mtplab.memory.pages import PageBook
from mtplab.memory.pools import HotBuffer
from mtplab.sparse import dsa
from mtplab.sync.mirror_after_draft import MirrorAfterDraft
from mtplab.sync.mirror_next_step import MirrorNextStep
from mtplab.verify.greedy import GreedyVerifier
from mtplab.verify.verifier import Accepted

CASE = Case()
Break = Callable[[pytest.MonkeyPatch], None]


def draft_rows_are_mirrored_with_the_target(patch: pytest.MonkeyPatch) -> None:
    """I1: one batch after the target copies the draft layer before the drafter writes."""

    def after_target(self: MirrorAfterDraft, mode: str) -> None:
        self.mirror.copy(self.mirror.draft_layers, self.span)

    patch.setattr(MirrorAfterDraft, "after_target", after_target)
    patch.setattr(MirrorAfterDraft, "after_draft", lambda self, mode: self.mirror.hand_over())


def pages_are_handed_over_before_the_mirror(patch: pytest.MonkeyPatch) -> None:
    """I2: completion is recorded first, the draft rows follow."""

    def after_draft(self: MirrorAfterDraft, mode: str) -> None:
        self.mirror.hand_over()
        self.mirror.copy(self.mirror.draft_layers, self.span)

    patch.setattr(MirrorAfterDraft, "after_draft", after_draft)


def deferred_mirror_follows_the_live_slots(patch: pytest.MonkeyPatch) -> None:
    """I3: the span is not snapshotted, so draft decode has overwritten it when the owed copy is made."""
    live: list[RowSpan] = []
    real = InputBuilder.draft_decode

    def draft_decode(self: InputBuilder, *arguments: object) -> object:
        inputs = real(self, *arguments)  # type: ignore[arg-type]
        rows = inputs.slot_mapping >= 0
        live[:] = [RowSpan(inputs.slot_mapping[rows], inputs.source_slots[rows])]
        return inputs

    patch.setattr(InputBuilder, "draft_decode", draft_decode)
    patch.setattr(MirrorNextStep, "after_draft", lambda self, mode: setattr(self, "_owed", live[0]))


def lru_repeats_a_slot(patch: pytest.MonkeyPatch) -> None:
    """I4: the oldest place and the newest name the same hot row."""
    real = resolver._new_order

    def new_order(*arguments: torch.Tensor) -> torch.Tensor:
        order = real(*arguments)
        order[:, 0] = order[:, -1]
        return order

    patch.setattr(resolver, "_new_order", new_order)


def a_miss_loads_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """I5: the tag is right, the bytes are the neighbour's."""
    real = resolver.gather_rows
    patch.setattr(resolver, "gather_rows", lambda pool, rows: real(pool, (rows - 1).clamp(min=0)))


def tags_outlive_their_rows(patch: pytest.MonkeyPatch) -> None:
    """I6: neither a write nor a finished request drops its tags."""
    patch.setattr(Memory, "_invalidate", lambda self, tags, source: None)
    patch.setattr(HotBuffer, "clear", lambda self, state: None)


def tail_pages_are_evicted(patch: pytest.MonkeyPatch) -> None:
    """I7: every clean page may go, the newest too."""
    real = PageBook.evict
    patch.setattr(PageBook, "evict", lambda self, state, committed, keep: real(self, state, committed + 99, 1))


def a_row_sees_its_future(patch: pytest.MonkeyPatch) -> None:
    """I8: the selector scores the whole context."""
    real = dsa.top_positions

    def top_positions(scores: torch.Tensor, visible: torch.Tensor, top_k: int) -> torch.Tensor:
        return real(scores, torch.arange(visible.shape[1]).expand_as(visible), top_k)

    patch.setattr(dsa, "top_positions", top_positions)


def padded_rows_write_slot_zero(patch: pytest.MonkeyPatch) -> None:
    """I9: a pad is clamped instead of masked."""
    patch.setattr(memory, "masked_write", lambda pool, slots, values: pool.index_copy_(0, slots.clamp(min=0), values))


def state_is_found_by_batch_row(patch: pytest.MonkeyPatch) -> None:
    """I10: hot tags and LRU stay with the batch row when the request moves."""
    real = InputBuilder._tensors

    def tensors(self: InputBuilder, rows: object) -> dict[str, torch.Tensor]:
        found = real(self, rows)  # type: ignore[arg-type]
        states = found["request_state_indices"]
        found["request_state_indices"] = torch.where(states < 0, states, torch.arange(len(states), dtype=states.dtype))
        return found

    patch.setattr(InputBuilder, "_tensors", tensors)


def draft_length_counts_rejected_rows(patch: pytest.MonkeyPatch) -> None:
    """I11: the drafter's seq_lens do not drop by the rejected count."""
    real = InputBuilder.draft_prefill

    def draft_prefill(self: InputBuilder, verified: list, bucket: int, hidden: torch.Tensor) -> object:
        inputs = real(self, verified, bucket, hidden)
        lengths = inputs.seq_lens.clone()
        for index, item in enumerate(verified):
            lengths[index] += item.scheduled.rows - item.committed
        return replace(inputs, seq_lens=lengths)

    patch.setattr(InputBuilder, "draft_prefill", draft_prefill)


def draft_rows_take_their_own_token(patch: pytest.MonkeyPatch) -> None:
    """I12: MTP row i is built from token i instead of token i+1."""
    patch.setattr("mtplab.engine.prepare._shifted", lambda item: item.scheduled.tokens)


def verifier_accepts_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """I13: the first rejected draft is kept."""
    real = GreedyVerifier.verify

    def verify(self: GreedyVerifier, drafted: list[int], target: list[int]) -> Accepted:
        accepted = min(real(self, drafted, target).accepted + 1, len(drafted))
        return Accepted(accepted, target[accepted])

    patch.setattr(GreedyVerifier, "verify", verify)


BREAKS: dict[str, Break] = {
    "I1": draft_rows_are_mirrored_with_the_target,
    "I2": pages_are_handed_over_before_the_mirror,
    "I3": deferred_mirror_follows_the_live_slots,
    "I4": lru_repeats_a_slot,
    "I5": a_miss_loads_the_row_before,
    "I6": tags_outlive_their_rows,
    "I7": tail_pages_are_evicted,
    "I8": a_row_sees_its_future,
    "I9": padded_rows_write_slot_zero,
    "I10": state_is_found_by_batch_row,
    "I11": draft_length_counts_rejected_rows,
    "I12": draft_rows_take_their_own_token,
    "I13": verifier_accepts_one_too_many,
}


@pytest.fixture(autouse=True)
def own_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broken run asks the oracle is not remembered; what it needs to know first is learnt unbroken."""
    for prompt in CASE.tokens():
        oracle(CASE.budget).greedy(prompt, CASE.new_tokens + CASE.k + 1)
    clone = oracle(CASE.budget).clone()
    monkeypatch.setattr(invariant_lab, "oracle", lambda budget: clone)


def sync_of(name: str) -> str:
    return "mirror_next_step" if name == "I3" else "mirror_after_draft"


def hold(name: str) -> None:
    found = examine(CASE, "none", sync_of(name), names=(name,))
    assert not found, f"{name} {found[name]}"


@pytest.mark.parametrize("sync", ["mirror_after_draft", "mirror_next_step"])
def test_the_unbroken_run_passes(sync: str) -> None:
    assert examined(CASE, "none", sync, names=ALL) == {}


@pytest.mark.parametrize("name", NAMES)
def test_the_matching_check_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[name](monkeypatch)
    with pytest.raises(AssertionError, match=f"^{name} step"):
        hold(name)
