"""I1 to I13 of ROOT_CAUSE section 4 as checks of a live arm. Each raises AssertionError and says what it found.

Those that take a run hold after every forward, the others at the end of a step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from invariant_lab import Lab, Run
from torch import Tensor

from mtplab.engine.request import Request
from mtplab.memory.pages import Page, PageState

TOLERANCE = 1e-9


def page_rows(number: int, size: int) -> Tensor:
    return torch.arange(number * size, (number + 1) * size)


def clean_pages(lab: Lab) -> Iterator[tuple[Request, int, Page]]:
    """Every page reported clean, lost ones too."""
    for request in lab.running:
        for index, page in enumerate(lab.book.pages[request.state]):
            if page.state is not PageState.DIRTY:
                yield request, index, page


def check_i1(lab: Lab) -> None:
    """Page clean => for every layer, the draft layer too, host rows == device rows for all committed positions."""
    size = lab.layout.page_size
    for request, index, page in clean_pages(lab):
        assert (index + 1) * size <= request.num_computed, f"page {index} is clean, its rows are not all committed"
        if page.state is PageState.LOST:
            continue
        for layer in range(lab.layout.layers):
            device = lab.memory.pool.layers[layer][page_rows(page.resident, size)]
            host = lab.memory.host.layers[layer][page_rows(page.source, size)]
            assert torch.equal(device, host), f"page {index} of request {request.id} is clean, layer {layer} differs"


def check_i2(lab: Lab) -> None:
    """Exactly one mirror of draft rows per step, and no page completion recorded before it."""
    ledger = lab.ledger
    assert not ledger.early, ledger.early[0]
    owed = int(lab.parts.sync.mirror.owes)
    assert ledger.draft_copies == ledger.draft_runs - owed, f"{ledger.draft_copies} mirrors, {ledger.draft_runs} runs"


def check_i3(lab: Lab) -> None:
    """A row is durable only after its last writer ran."""
    for request, index, page in clean_pages(lab):
        rows = page_rows(page.source, lab.layout.page_size)
        written, mirrored = lab.ledger.written[:, rows], lab.ledger.mirrored[:, rows]
        where = f"page {index} of request {request.id}"
        assert (written >= 0).all(), f"{where} is durable and was never written"
        assert (mirrored > written).all(), f"{where} is durable, its last writer ran after the last mirror"


def check_i4(lab: Lab, run: Run) -> None:
    """`lru` of each (group, request) is a permutation of 0..hot_size-1 after every call."""
    order = torch.arange(lab.layout.hot_size, dtype=torch.int16)
    for layer, lru in enumerate(lab.memory.hot.lru):
        assert torch.equal(lru.sort(1).values, order.expand_as(lru)), f"layer {layer}: lru is no permutation"


def check_i5(lab: Lab, run: Run) -> None:
    """Hot tags are unique per request; data[slot] == host row(tag) for tag >= 0."""
    memory, hot_size = lab.memory, lab.layout.hot_size
    for layer, tags in enumerate(memory.hot.tags):
        for state in range(lab.layout.max_requests):
            slots = (tags[state] >= 0).nonzero().flatten()
            held = tags[state, slots].long()
            assert len(held.unique()) == len(held), f"layer {layer}, state {state}: a tag appears twice"
            data = memory.pool.layers[layer][memory.pool.hot_base + state * hot_size + slots]
            assert torch.equal(data, memory.host.layers[layer][held]), f"layer {layer}, state {state}: hot row differs"


def check_i6(lab: Lab, run: Run) -> None:
    """A written or recycled position leaves no stale tag behind: a tag names a lost page of its own request."""
    size = lab.layout.page_size
    lost = torch.zeros(lab.layout.max_requests + 1, lab.layout.source_pages, dtype=torch.bool)
    for state, pages in enumerate(lab.book.pages):
        lost[state, [page.source for page in pages if page.state is PageState.LOST]] = True
    for layer, tags in enumerate(lab.memory.hot.tags):
        named = lost.gather(1, tags.long().clamp(min=0) // size)
        assert (named | (tags < 0)).all(), f"layer {layer}: a tag names no host row of its request"
    if lab.target_only and run.kind != "target":
        return
    written = run.seen.source_slots[run.seen.slot_mapping >= 0]
    for layer in run.layers:
        assert not torch.isin(lab.memory.hot.tags[layer], written).any(), f"layer {layer}: a written row keeps its tag"


def check_i7(lab: Lab, run: Run) -> None:
    """The last two tail pages are never evicted; the newest rows are always resident."""
    size = lab.layout.page_size
    for request in lab.running:
        pages = lab.book.pages[request.state]
        for index in range(max(request.num_computed // size - 1, 0), len(pages)):
            table = lab.book.resident_table[request.state, index]
            assert pages[index].state is not PageState.LOST, f"tail page {index} of request {request.id} was evicted"
            assert table == pages[index].resident > 0, f"tail page {index} of request {request.id} has no device page"
    live = run.live.slot_mapping[run.live.source_slots >= 0]
    assert (live >= size).all(), "a newest row has no device row"


def check_i8(lab: Lab, run: Run) -> None:
    """Selected positions are distinct, valid, causal for their own row (<= pos_s); unused = -1."""
    if lab.target_only and run.kind != "target":
        return
    context = lab.memory.context(run.seen)
    allowed = (context.visible >= 0).sum(1)  # positions 0 .. allowed-1
    for layer in run.layers:
        chosen = lab.memory.plan_positions[layer][: len(allowed)]
        rows = lab.memory.plan_rows[layer][: len(allowed)]
        used = chosen >= 0
        assert (chosen[~used] == -1).all(), "an unused entry is not -1"
        assert (chosen < allowed.unsqueeze(1)).all(), f"layer {layer}: a row sees its future"
        assert (rows[used] != lab.memory.pool.sink).all(), f"layer {layer}: a selected position has no row"
        assert (used.sum(1) == allowed.clamp(max=chosen.shape[1])).all(), f"layer {layer}: too few or too many"
        ordered = torch.where(used, chosen, -1 - torch.arange(chosen.shape[1])).sort(1).values
        assert (ordered.diff(dim=1) != 0).all(), f"layer {layer}: a position is selected twice"


def check_i9(lab: Lab, run: Run) -> None:
    """Padded rows write nothing (slot -1), read nothing (-1 out), and never touch LRU or tags."""
    memory, size = lab.memory, lab.layout.page_size
    states = run.seen.request_state_indices[run.seen.seq_lens > 0].long()
    padded = run.seen.slot_mapping < 0
    writable = torch.zeros(memory.pool.sink + 1, dtype=torch.bool)
    writable[run.seen.slot_mapping[~padded]] = True
    hot = writable[memory.pool.hot_base : -1].view(lab.layout.max_requests, -1)
    hot[states] = True
    quiet = torch.ones(lab.layout.max_requests + 1, dtype=torch.bool)
    quiet[states] = False
    for layer in range(lab.layout.layers):
        pool = memory.pool.layers[layer]
        changed = (pool != run.pools[layer]).any(1)
        assert not (changed & ~writable).any(), f"layer {layer}: a row outside this run's slots was written"
        for sink in (pool[-1], pool[:size], memory.keys.layers[layer][-1], memory.keys.layers[layer][:size]):
            assert not sink.any(), f"layer {layer}: a sink row or the null page holds data"
        for before, now in ((run.tags, memory.hot.tags), (run.lru, memory.hot.lru)):
            assert torch.equal(before[layer][quiet], now[layer][quiet]), f"layer {layer}: hot state of a pad changed"
    for layer in run.layers:
        assert (memory.plan_positions[layer][: len(padded)][padded] == -1).all(), "a padded row selects"
        assert (memory.plan_rows[layer][: len(padded)][padded] == memory.pool.sink).all(), "a padded row reads"


def check_i10(lab: Lab, run: Run) -> None:
    """Per-request state follows the request when the batch is reordered or condensed."""
    size = lab.layout.page_size
    owner_of = {lab.book.pages[r.state][0].source: r for r in lab.running if lab.book.pages[r.state]}
    seen = run.seen
    for index in range(int((seen.source_table[:, 0] > 0).sum())):
        request = owner_of[int(seen.source_table[index, 0])]
        state = int(seen.request_state_indices[index])
        assert state == request.state, f"request {request.id} is in state {request.state}, not {state}"
        rows = (seen.req_id_per_token == index) & (seen.slot_mapping >= 0)
        for position, slot, token in zip(
            seen.positions[rows].tolist(), seen.slot_mapping[rows].tolist(), seen.input_ids[rows].tolist(), strict=True
        ):
            if run.kind == "target":
                assert token == (request.tokens + request.drafts)[position], f"request {request.id} verifies another's"
                page = lab.book.pages[request.state][position // size]
                assert slot == page.resident * size + position % size, f"request {request.id} writes elsewhere"


def check_i11(lab: Lab, run: Run) -> None:
    """Rejected positions: lengths drop by the rejected count everywhere; their rows are rewritten before they are read.

    A position at or beyond the committed length may be read only if this very run wrote it (target), or a draft
    decode pass of this step did.
    """
    if lab.target_only and run.kind != "target":
        return
    if run.kind == "draft":
        lab.drafted_at = run.time
    context = lab.memory.context(run.seen)
    committed = torch.zeros(lab.layout.max_requests + 1, dtype=torch.int64)
    for request in lab.running:
        committed[request.state] = request.num_computed
    limit = committed[context.state][context.request].unsqueeze(1)
    fresh = context.visible >= limit
    assert run.kind != "draft" or not fresh.any(), "the drafter's length counts rejected rows"
    flat = context.request.unsqueeze(1) * context.span + context.visible.clamp(min=0)
    since = run.time if run.kind == "target" else lab.drafted_at + 1
    for layer in run.layers:
        written = lab.ledger.written[layer][context.host[flat].clamp(min=0)]
        assert not (fresh & (written < since)).any(), f"layer {layer}: a rejected row is read before it is rewritten"


def check_i12(lab: Lab) -> None:
    """After any step, caches equal those of a fresh prefill of the committed prefix (1e-9 in float64)."""
    caches_are_fresh(lab, lab.parts.mirror.target_layers + lab.parts.mirror.draft_layers)


def check_i12_target(lab: Lab) -> None:
    """I12 for the target's layers alone: all that an arm which leaves target state right can promise."""
    caches_are_fresh(lab, lab.parts.mirror.target_layers)


def caches_are_fresh(lab: Lab, layers: tuple[int, ...]) -> None:
    size = lab.layout.page_size
    for request in lab.running:
        count = request.num_computed
        if count == 0:
            continue
        fresh = lab.oracle.fresh(request.tokens[: count + 1])
        for index, page in enumerate(lab.book.pages[request.state][: -(-count // size)]):
            source = page_rows(page.source, size)[: count - index * size]
            for layer in layers:
                device = lab.memory.pool.layers[layer][page.resident * size :][: len(source)]
                rows = lab.memory.host.layers[layer][source] if page.state is PageState.LOST else device
                pairs = [(rows, fresh.rows)]
                if lab.case.budget is not None:
                    pairs.append((lab.memory.keys.layers[layer][source], fresh.keys))
                for found, right in pairs:
                    off = (found - right[layer][index * size :][: len(source)]).abs().max().item()
                    assert off <= TOLERANCE, f"request {request.id}, page {index}, layer {layer}: off by {off:.1e}"


def check_i13(lab: Lab) -> None:
    """Output tokens are identical to plain greedy decoding."""
    for request in lab.requests:
        assert request.tokens == lab.truth[request.id][: len(request.tokens)], f"request {request.id} differs"
        assert lab.busy or len(request.output) == lab.case.new_tokens, f"request {request.id} stopped early"


def check_drafts(lab: Lab) -> None:
    """What I11 and I12 are for: the drafter proposes what it would propose after a fresh prefill."""
    for request in lab.running:
        own = lab.drafting.proposed.get((request.id, len(request.tokens)))
        right = lab.oracle.drafts(request.tokens, lab.case.k) if own is not None else None
        assert own == right, f"request {request.id} drafts {own} instead of {right}"
