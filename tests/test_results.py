"""Statistics, verdict, identity gate and the files of a run directory, as properties."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fake_engine import HOST_ROWS, FakeEngine
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mtplab
from mtplab.audit.records import BENIGN, HARMFUL, InputRecord, RowRecord
from mtplab.engine.records import RequestOutcome, RequestStep, StepRecord
from mtplab.results.advice import next_command
from mtplab.results.arms import load_arm, save_arm
from mtplab.results.directory import RunDirectory
from mtplab.results.identity import check_identity
from mtplab.results.records import VERDICTS
from mtplab.results.stats import (
    Counts,
    conditional_rates,
    length_interval,
    marginal_rates,
    relative_loss,
    wilson,
)
from mtplab.results.steps import StepWriter, read_lines, read_staleness, read_steps
from mtplab.results.table import markdown
from mtplab.results.verdict import FLOOR, THRESHOLD, Verdict, judge

K = 3


def arm(rate: float, requests: int = 16, drafts: int = 30, seed: int = 0) -> Counts:
    """Requests whose every draft accepts each of K positions with `rate` (position by position)."""
    generator = np.random.default_rng(seed)
    accepted = (generator.random((requests, drafts, K)) < rate).cumprod(axis=2).sum(axis=(1, 2))
    return Counts(tuple(int(a) for a in accepted), (drafts,) * requests, K)


def verdict(ours: Counts, theirs: Counts, identical: bool = True, reference: bool = True) -> Verdict:
    return judge(ours, theirs, identical, reference)


requests = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=20)


@st.composite
def arms(draw: st.DrawFn) -> Counts:
    rows = [(min(a, K * d), d) for a, d in draw(requests)]
    return Counts(tuple(a for a, _ in rows), tuple(d for _, d in rows), K)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_wilson_holds_the_rate_and_stays_in_0_1(successes: int, failures: int) -> None:
    interval = wilson(successes, successes + failures)
    assert 0 <= interval.low <= interval.high <= 1
    if successes + failures:
        assert interval.low <= successes / (successes + failures) <= interval.high


def test_wilson_known_values() -> None:
    interval = wilson(8, 10)  # Wilson 1927, as in any textbook
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.4902, 0.9433)
    assert wilson(500, 1000).half < wilson(50, 100).half


@given(arms())
def test_length_and_its_interval_stay_between_1_and_k_plus_1(counts: Counts) -> None:
    interval, length = length_interval(counts), counts.length
    if length is None:
        assert interval is None
    else:
        assert interval is not None
        assert 1 <= length <= K + 1
        assert 1 <= interval.low <= interval.high <= K + 1


@given(arms())
def test_the_interval_does_not_depend_on_when_it_is_asked_for(counts: Counts) -> None:
    assert length_interval(counts) == length_interval(counts)


def test_the_interval_shrinks_with_requests_and_covers() -> None:
    truth = 1 + 0.6 + 0.36 + 0.216
    intervals = [length_interval(arm(0.6, seed=seed)) for seed in range(200)]
    covered = sum(i is not None and i.low <= truth <= i.high for i in intervals)
    assert 170 <= covered <= 200  # nominal 190
    few, many = length_interval(arm(0.6, requests=8)), length_interval(arm(0.6, requests=128))
    assert few is not None and many is not None and many.half < few.half / 2


def test_requests_not_drafts_are_resampled() -> None:
    """Two kinds of requests, each constant: resampling drafts would give a far narrower interval."""
    split = Counts((0,) * 8 + (90,) * 8, (30,) * 16, K)
    interval = length_interval(split)
    assert interval is not None and interval.half > 0.5


def test_a_single_request_decides_nothing() -> None:
    interval = length_interval(Counts((30,), (10,), K))
    assert interval is not None and (interval.low, interval.high) == (1, K + 1)


@given(arms())
def test_an_arm_loses_nothing_against_itself(counts: Counts) -> None:
    loss = relative_loss(counts, counts)
    if loss is not None:
        assert loss.value == loss.interval.low == loss.interval.high == 0


@given(st.lists(st.integers(0, K), max_size=60))
def test_marginal_rates_never_rise_and_conditional_rates_multiply_to_them(accepted: list[int]) -> None:
    per_pos = [sum(a > i for a in accepted) for i in range(K)]
    marginal, conditional = marginal_rates(per_pos, len(accepted)), conditional_rates(per_pos, len(accepted))
    assert all(a >= b for a, b in pairwise(marginal))
    assert np.allclose(np.cumprod(conditional), marginal)
    assert sum(marginal) == pytest.approx(sum(accepted) / len(accepted) if accepted else 0)


def test_verdicts_of_clear_cases() -> None:
    assert verdict(arm(0.2), arm(0.8)).name == "collapsed"
    assert verdict(arm(0.8, seed=1), arm(0.8, seed=2)).name == "healthy"
    assert verdict(arm(0.8), arm(0.4)).name == "suspicious_high"
    assert verdict(arm(0.2), arm(0.8), identical=False).name == "corrupted"
    assert verdict(arm(0.8), arm(0.8), reference=False).name == "inconclusive"


def test_a_reference_that_accepts_nothing_decides_nothing() -> None:
    nothing = Counts((1,) * 16, (30,) * 16, K)
    assert nothing.length is not None and nothing.length < FLOOR
    assert verdict(arm(0.8), nothing).name == "inconclusive"
    undrafted = Counts((0,) * 4, (0,) * 4, K)
    assert verdict(undrafted, undrafted).name == "inconclusive"


def test_an_open_case_names_the_prompts_that_would_decide() -> None:
    ours, theirs = arm(0.50, requests=6, drafts=6, seed=3), arm(0.58, requests=6, drafts=6, seed=4)
    open_case = verdict(ours, theirs)
    assert open_case.name == "inconclusive"
    assert open_case.try_next is not None and int(open_case.try_next.removeprefix("workload.num_prompts=")) > 6
    assert "would decide (now 6)" in open_case.reason


def test_few_requests_never_decide() -> None:
    assert verdict(arm(0.2, requests=3), arm(0.8, requests=3)).name == "inconclusive"


@given(arms(), arms(), st.booleans(), st.booleans())
def test_the_verdict_follows_its_rules(ours: Counts, theirs: Counts, identical: bool, reference: bool) -> None:
    assume(len(ours.drafts) == len(theirs.drafts))
    result = judge(ours, theirs, identical, reference)
    assert result.name in VERDICTS
    assert (result.name == "corrupted") == (not identical)
    loss = relative_loss(ours, theirs)
    if result.name == "collapsed":
        assert loss is not None and loss.value > THRESHOLD
    if result.name == "healthy":
        assert loss is not None and loss.interval.high < THRESHOLD
    if result.name == "suspicious_high":
        assert loss is not None and loss.value < -THRESHOLD
    assert result.try_next is None or result.name == "inconclusive"


@settings(max_examples=30)
@given(st.floats(0.3, 0.9), st.integers(0, 100))
def test_swapping_the_arms_never_keeps_a_collapse(rate: float, seed: int) -> None:
    low, high = arm(rate / 3, seed=seed), arm(rate, seed=seed + 1)
    assert "collapsed" not in {verdict(high, low).name, verdict(high, high).name}


def outcome(output: list[int], margins: list[float] | None = None, gaps: list[float] | None = None) -> RequestOutcome:
    return RequestOutcome(0, 5, tuple(output), 1, 3, 1, (1, 0, 0), tuple(margins or []), tuple(gaps or []))


PLAIN = outcome([1, 2, 3], [1.0, 5e-4, 1.0], [math.inf, 1.0, 1.0])


@pytest.mark.parametrize(
    ("other", "exact", "identical", "excused"),
    [
        ([1, 2, 3], False, True, 0),
        ([1, 9, 9], False, True, 1),  # plain decoding was undecided at token 1
        ([1, 9, 9], True, False, 0),  # float64 excuses nothing
        ([9, 2, 3], False, False, 0),
        ([1, 2, 9], False, False, 0),
        ([1, 2], False, False, 0),
        ([1, 2, 3, 4], False, False, 0),
        ([], False, False, 0),
    ],
)
def test_the_identity_gate(other: list[int], exact: bool, identical: bool, excused: int) -> None:
    result = check_identity([PLAIN], [outcome(other)], exact)
    assert (result.identical, result.excused) == (identical, excused)


def test_a_tied_selection_before_the_divergence_excuses_it() -> None:
    plain = outcome([1, 2, 3], [1.0, 1.0, 1.0], [1.0, 1e-7, 1.0])
    assert check_identity([plain], [outcome([1, 2, 9])], exact=False).identical
    assert not check_identity([plain], [outcome([9, 2, 3])], exact=False).identical


def test_a_missing_request_is_a_divergence() -> None:
    assert not check_identity([PLAIN], [], exact=False).identical


def step(number: int, accepted: int = 2) -> StepRecord:
    request = RequestStep(0, 3, accepted, accepted + 1, 40)
    stale = InputRecord("draft.1", "x", 1, number - 1, BENIGN, 2.0, 1, 1, (0,))
    found = RowRecord("mtp.0", 1, 16, 5, 2, HARMFUL, (0,))
    return StepRecord(number, "FULL", "FULL", 4, 4, 1, (request,), 0, 0, 1, 0, 5, (stale,), (found,), 0.01)


def test_steps_of_an_interrupted_arm_are_kept_and_not_counted_twice(tmp_path: Path) -> None:
    with StepWriter(tmp_path, "requested") as writer:
        for number in range(3):
            writer.write(step(number, accepted=0))
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"arm": "requested", "att')  # what a SIGKILL in the middle of a write leaves
    assert len(list(read_lines(tmp_path))) == 3
    with StepWriter(tmp_path, "requested") as writer:
        assert writer.attempt == 2
        for number in range(2):
            writer.write(step(number))
    assert len(list(read_lines(tmp_path))) == 5
    steps = read_steps(tmp_path)
    assert list(steps["accept_length"]) == [3.0, 3.0]
    assert list(steps["decode_step"]) == [0, 1]
    assert (steps["accepted_at_1"].sum(), steps["accepted_at_2"].sum()) == (2, 0)
    assert list(steps["stale_draft.x"]) == [1, 1]


def test_the_audits_records_become_a_tidy_frame(tmp_path: Path) -> None:
    with StepWriter(tmp_path, "requested") as writer:
        writer.write(step(0))
    frame = read_staleness(tmp_path).set_index("line")
    assert list(frame.index) == ["draft.1.x", "host_rows mtp.0: pages wrong", "host_rows mtp.0: reads wrong"]
    assert list(frame["kind"]) == ["benign", "benign", "harmful"]
    assert list(frame["count"]) == [1, 1, 5]
    assert list(frame["age"]) == [1, 2, 2]


def test_a_step_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with StepWriter(tmp_path, "plain") as writer:
        writer.write(step(0))
        assert json.loads((tmp_path / "steps.jsonl").read_text())["step"] == 0


def test_an_arm_survives_its_file(tmp_path: Path) -> None:
    cfg = mtplab.compose("graph=full", "sparse=hisparse", "workload.max_new_tokens=20")
    result = FakeEngine()(cfg, [[1, 2, 3]] * 4, lambda _: None, record_margins=True)
    save_arm(RunDirectory(tmp_path, resumed=False), "plain", result)
    assert load_arm(tmp_path, "plain") == result
    assert load_arm(tmp_path, "requested") is None
    assert "Infinity" not in (tmp_path / "arm_plain.json").read_text()


@pytest.mark.parametrize(
    ("overrides", "name", "culprits", "change"),
    [
        (["graph=full", "sparse=hisparse"], "collapsed", (HOST_ROWS,), "sync=mirror_next_step"),
        (["graph=full"], "healthy", (), "sparse=hisparse"),
        (["sparse=hisparse"], "healthy", (), "graph=full"),
        (["graph=full", "sparse=hisparse", "memory=roomy"], "healthy", (), "memory=pressure"),
        (["graph=full", "sparse=hisparse", "spec.k=8"], "healthy", (), "seed=1"),
        (["graph=full", "sparse=hisparse", "sync=mirror_next_step"], "collapsed", (HOST_ROWS,), "seed=1"),
        (["graph=full"], "suspicious_high", (), "graph=none"),
    ],
)
def test_the_next_command_changes_one_thing(overrides: list[str], name: str, culprits: tuple, change: str) -> None:
    cfg = mtplab.compose(*overrides)
    command = next_command(cfg, overrides, Verdict(name, ""), culprits).split()
    assert command[:2] == ["python", "scripts/run.py"]
    assert command[-1] == change
    assert len({part.split("=")[0] for part in command}) == len(command)


def test_an_open_verdict_asks_for_more_prompts() -> None:
    open_case = Verdict("inconclusive", "", None, "workload.num_prompts=40")
    assert next_command(mtplab.compose(), [], open_case, ()).endswith("workload.num_prompts=40")


def test_a_new_option_drops_the_values_of_the_old() -> None:
    useless = Verdict("inconclusive", "", None, "workload=edit")
    line = next_command(mtplab.compose(), ["graph=full", "workload=file", "workload.path=x"], useless, ())
    assert line == "python scripts/run.py graph=full workload=edit"


def test_the_table_is_markdown() -> None:
    assert markdown(("a", "bb"), [("1", "2")]) == "| a | bb |\n| - | -- |\n| 1 | 2  |"
