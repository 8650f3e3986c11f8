"""Attribution on the shipped model: the right suspect, it alone, on a trajectory that every arm shares."""

from __future__ import annotations

import pytest
import torch

import mtplab
from mtplab.attribution import attribute
from mtplab.attribution.arms import LockedArm, record
from mtplab.attribution.effects import Drafted, effect, mcnemar
from mtplab.attribution.study import Attribution
from mtplab.config.instantiate import instantiate
from mtplab.config.locate import model_directory
from mtplab.errors import ConfigError
from mtplab.workloads.workload import load_tokenizer

MAIN = ("graph=full", "spec=mtp", "sparse=hisparse", "workload.num_prompts=6", "workload.max_new_tokens=40")
ROWS = "host_rows mtp.0"


@pytest.fixture(scope="module")
def found() -> Attribution:
    return attribute(*MAIN, quiet=True)


def test_refreshing_the_draft_layers_host_rows_recovers_what_was_lost(found: Attribution) -> None:
    suspects = found.suspects.set_index("suspect")
    assert found.lost > 0.5
    assert suspects.gain_share[ROWS] >= 0.95
    assert suspects.gain_low[ROWS] > 0


def test_refreshing_anything_else_gains_nothing(found: Attribution) -> None:
    others = found.suspects[found.suspects.suspect != ROWS]
    assert len(others) == 37
    assert ((others.gain_low <= 0) & (others.gain_high >= 0)).all()


def test_freezing_them_in_a_healthy_run_loses_as_much(found: Attribution) -> None:
    suspects = found.suspects.set_index("suspect")
    assert suspects.loss_share[ROWS] >= 0.95
    assert suspects.loss_high[ROWS] < 0


def test_the_waterfall_ends_at_the_arm(found: Attribution) -> None:
    levels = found.waterfall.length.tolist()
    assert levels[0] == 4
    assert levels[-2] - levels[-1] == pytest.approx(found.lost)
    assert levels[1] == levels[2] == levels[3]  # the tier and the replays cost nothing when everything is fresh
    assert (found.positions.p_value < 0.01).all()
    assert "host_rows mtp.0" in found.table().splitlines()[2]


def test_an_arm_can_be_run_again() -> None:
    """What a run leaves in memory, buffers and policies does not show in the next one; corrupted arms stay locked."""
    cfg = mtplab.compose(*MAIN, "workload.num_prompts=4", "sync=inputs_before_accept", "engine.audit=false")
    workload = instantiate(cfg.workload)
    prompts = [p.tokens for p in workload.load(load_tokenizer(model_directory(cfg)), 0)]
    eager = mtplab.compose(*MAIN, "workload.num_prompts=4", "graph=none", "sparse.tier=device", "engine.audit=false")
    with torch.inference_mode():
        trajectory, reference = record(eager, prompts)
        arm = LockedArm(cfg, prompts, trajectory)
        first = arm.run()
        arm.run(refreshed=["draft.hidden_states"])
        spoiled = arm.run(frozen=["target.slot_mapping"])
        assert arm.run() == first
    drafts = [list(map(len, d.accepted)) for d in (reference, first, spoiled)]
    assert drafts[0] == drafts[1] == drafts[2]
    assert first.length < reference.length


def test_plain_decoding_has_nothing_to_attribute() -> None:
    with pytest.raises(ConfigError, match="spec"):
        attribute("spec=none")


def test_effects() -> None:
    base, better = Drafted(2, ((0, 1), (2, 0))), Drafted(2, ((1, 1), (2, 2)))
    assert effect(base, base, 1.0).is_zero
    gained = effect(better, base, 1.5)
    assert gained.value == pytest.approx(0.75)
    assert gained.share == pytest.approx(0.5)
    assert mcnemar(better, base) == [(0, 2, 0.5), (0, 1, 1.0)]
    assert mcnemar(base, better)[0][:2] == (2, 0)
