"""I1 to I13 of ROOT_CAUSE section 4 over random batches, page sizes, k, accept patterns and eviction orders.

One run serves all checks: hypothesis draws the same cases for every invariant of a pair, and the run is cached. I4 to
I13 must hold in every arm that leaves target state right, I1 to I3 under every healthy (graph, sync) pair; they are
shown violated under FULL + `mirror_after_target` and FULL + `mirror_never`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from invariant_cases import Case, config, oracle
from invariant_lab import Lab
from invariant_runs import ALL, NAMES, examined

from mtplab.build import build_arm, run_arm

HEALTHY = {
    "none": ("mirror_after_draft", "mirror_next_step", "mirror_after_target", "mirror_never"),
    "piecewise": ("mirror_after_draft", "mirror_next_step", "mirror_after_target", "mirror_never"),
    "full": ("mirror_after_draft", "mirror_next_step"),
}
MIRROR_INVARIANTS = {"I1", "I2", "I3"}
POISONED = Case(prompts=(26, 26, 26), chunk=4, poison=True)  # the first case drawn, so its runs are cached


def cases(captured: bool) -> st.SearchStrategy[Case]:
    """The simplest case, which hypothesis tries first, is a full one. Capture is slow: captured batches are small."""
    most = 2 if captured else 3
    return st.builds(
        Case,
        page_size=st.sampled_from([4, 2, 8, 1]),
        k=st.integers(2, 3) if captured else st.integers(1, 4),
        max_requests=_falling(1, most),
        prompts=st.lists(_falling(5 if captured else 1, 26), min_size=3, max_size=5 - captured).map(tuple),
        new_tokens=_falling(10 if captured else 3, 14),
        resident_pages=st.sampled_from([2, 3, 5]),
        top_k=st.sampled_from([6, 3, 9]),
        hot_extra=st.sampled_from([0, 1, 7, 20]),
        chunk=st.integers(4, 5) if captured else st.integers(5, 12),
        seed=st.integers(0, 10**6),
        reorder=st.sampled_from([True, False]),
        evict=st.sampled_from([True, False]),
        poison=st.sampled_from([True, False]),
        tight=st.booleans(),
    )


def _falling(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(0, high - low).map(lambda less: high - less)


def drawn(examples: int, captured: bool) -> Any:
    """`given` the same `examples` cases in every test; no shrinking, because a case reads as it is."""

    def decorate(test: Any) -> Any:
        test = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(test)
        return seed(20240)(given(case=cases(captured))(test))

    return decorate


def hold(case: Case, graph: str, sync: str, name: str) -> None:
    violation = examined(case, graph, sync).get(name)
    assert violation is None, f"{name} under graph={graph} sync={sync}: {violation}"


@pytest.mark.parametrize("sync", HEALTHY["none"])
@pytest.mark.parametrize("name", ALL)
@drawn(3, captured=False)
def test_holds_eagerly(name: str, sync: str, case: Case) -> None:
    """Python runs everywhere, so even the faulty mirror policies are right."""
    hold(case, "none", sync, name)


@pytest.mark.parametrize("sync", HEALTHY["piecewise"])
@pytest.mark.parametrize("name", ALL)
@drawn(2, captured=True)
def test_holds_piecewise(name: str, sync: str, case: Case) -> None:
    """Attention and its hooks run eagerly, so even the faulty mirror policies are right."""
    hold(case, "piecewise", sync, name)


@pytest.mark.parametrize("sync", HEALTHY["full"])
@pytest.mark.parametrize("name", ALL)
@drawn(2, captured=True)
def test_holds_under_full_replays(name: str, sync: str, case: Case) -> None:
    """Both forms of the fix."""
    hold(case, "full", sync, name)


@pytest.mark.parametrize("graph", ["none", "full"])
@pytest.mark.parametrize("max_requests", [1, 2])
@pytest.mark.parametrize("sparse", ["dsa", "dense"])
def test_holds_without_a_host_tier(sparse: str, max_requests: int, graph: str) -> None:
    """I7 and I10 to I13 do not need HiSparse; one request alone takes a path of its own through the row tables."""
    case = Case(sparse=sparse, max_requests=max_requests, chunk=3, prompts=(17, 5), poison=True)
    names = ("I7", "I10", "I11", "I12", "I13", "drafts")
    assert examined(case, graph, "mirror_after_target", names=names) == {}


@drawn(2, captured=True)
def test_mirror_after_target_loses_draft_rows_and_nothing_else(case: Case) -> None:
    """The bug: I1 to I3 broken, the draft layer alone is not fresh (I12), drafts change, the text does not (I13)."""
    found = examined(case, "full", "mirror_after_target")
    assert found.keys() >= MIRROR_INVARIANTS, found
    assert found.keys() <= MIRROR_INVARIANTS | {"I12", "drafts"}, found
    assert "layer 2" in found["I1"], "the draft layer is the one that differs"


def test_mirror_after_target_changes_drafts() -> None:
    """Where lost pages are read, the wrong rows reach the drafts."""
    found = examined(POISONED, "full", "mirror_after_target")
    assert {"I12", "drafts"} <= found.keys() and "layer 2" in found["I12"], found


@drawn(2, captured=True)
def test_mirror_never_loses_target_rows_too(case: Case) -> None:
    """I1 to I3 are broken for the target as well, so nothing can be promised about the text."""
    found = examined(case, "full", "mirror_never")
    assert found.keys() >= MIRROR_INVARIANTS, found
    assert "layer 0" in found["I1"], "the target's rows are lost too"


def test_mirror_never_changes_the_text() -> None:
    assert {"I12 target", "I13"} <= examined(POISONED, "full", "mirror_never").keys()


@pytest.mark.parametrize("graph", ["piecewise", "full"])
def test_stale_draft_inputs_leave_the_target_right(graph: str) -> None:
    """`inputs_before_accept` breaks what the drafter reads and writes; I4 to I13 hold for the target."""
    found = examined(POISONED, graph, "inputs_before_accept", target_only=True)
    assert found.keys() <= MIRROR_INVARIANTS | {"I12", "drafts"}, found
    assert "drafts" in found, "the drafts were computed from last step's inputs"


@pytest.mark.parametrize("graph", HEALTHY)
def test_poison_is_never_read(graph: str) -> None:
    """I9, I11: with everything filled that nobody may read, each draft and each token is what it was."""
    drafts = []
    for poison in (False, True):
        with torch.inference_mode():
            lab = Lab(Case(poison=poison), graph, "mirror_next_step")
            while lab.busy:
                lab.step()
        drafts.append((lab.drafting.proposed, [request.tokens for request in lab.requests]))
    assert drafts[0] == drafts[1]


def test_batch_order_does_not_matter() -> None:
    """I10: drafts and tokens of a request do not depend on the batch rows it is given."""
    seen = []
    for reorder in (False, True):
        with torch.inference_mode():
            lab = Lab(Case(reorder=reorder, max_requests=3), "none", "mirror_after_draft")
            while lab.busy:
                lab.step()
        seen.append((lab.drafting.proposed, [request.tokens for request in lab.requests]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("graph", ["piecewise", "full"])
def test_capture_leaves_live_state_alone(graph: str) -> None:
    """I9: capture runs on padded rows alone, so no row, tag or order changes."""
    case = Case(max_requests=1, chunk=3)
    with torch.inference_mode():
        memory = build_arm(config(case, graph, "mirror_after_draft")).engine.parts.memory
    assert memory.host is not None and memory.hot is not None
    for pool in (*memory.pool.layers, *memory.host.layers, *memory.keys.layers):
        assert not pool.any()
    order = torch.arange(memory.layout.hot_size, dtype=torch.int16)
    for tags, lru, counts in zip(memory.hot.tags, memory.hot.lru, memory.counts, strict=True):
        assert (tags == -1).all() and torch.equal(lru, order.expand_as(lru)) and not counts.any()


def test_the_cases_reach_what_they_are_for() -> None:
    """No invariant holds for want of trying: every accept count, lost pages, hot hits and misses, a reused state."""
    with torch.inference_mode():
        lab = Lab(Case(), "none", "mirror_after_draft")
        while lab.busy:
            lab.step()
        counts = torch.stack(lab.memory.counts)
    assert set(lab.drafting.accepted) == {0, 1, 2}
    assert lab.book.evicted > 3 and (counts > 20).all()
    assert len(lab.requests) > lab.case.max_requests
    assert set(NAMES) < set(ALL)


def test_the_oracle_is_the_engine_without_drafts() -> None:
    """I13 through the public entry: the text with drafts is the text of `spec=none`, and the oracle's."""
    case = Case()
    cfg = config(case, "none", "mirror_next_step")
    spoken = [request.output for request in run_arm(cfg, case.tokens(), lambda record: None).requests]
    cfg.spec = {"name": "none", "_target_": "mtplab.heads.no_drafter.NoDrafter", "k": 0}
    plain = [request.output for request in run_arm(cfg, case.tokens(), lambda record: None).requests]
    truth = [oracle(case.budget).greedy(prompt, case.new_tokens)[len(prompt) :] for prompt in case.tokens()]
    assert spoken == plain == [tuple(tokens[: case.new_tokens]) for tokens in truth]
