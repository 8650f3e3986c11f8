"""Every fault in `conf/fault` shows the figures on its card under its trigger, and nothing away from it."""

from __future__ import annotations

from pathlib import Path

import pytest

import mtplab
from mtplab.build import run_arm
from mtplab.config.rules import validate
from mtplab.faults.card import AWAY, Observed, Range, Signature, refute
from mtplab.faults.trial import BASE, fault_names, read_card, run_trial
from mtplab.results.remember import RememberedArms


@pytest.fixture(scope="module")
def arms() -> RememberedArms:
    return RememberedArms(run_arm)


@pytest.mark.parametrize("fault", fault_names())
def test_card(fault: str) -> None:
    """Both commands compose and pass the rules, and differ."""
    card = read_card(fault)
    commands = [card.command(fault, away) for away in (False, True)]
    for command in commands:
        validate(mtplab.compose(*BASE, *command))
    assert commands[0] != commands[1]
    assert card.kind.startswith("C")
    assert card.reference


@pytest.mark.parametrize("away", [False, True], ids=["trigger", "away"])
@pytest.mark.parametrize("fault", fault_names())
def test_signature(fault: str, away: bool, arms: RememberedArms, tmp_path: Path) -> None:
    trial = run_trial(fault, away, arms, f"run.dir={tmp_path}")
    assert trial.wrong == ()


def test_a_signature_can_be_refuted() -> None:
    """Each field of a signature is looked at."""
    claim = Signature(True, Range(0.5, 1), (Range(0.9, 1), Range(0, 0.5)), Range(1, 1), "draft.positions")
    right = Observed(0.6, (0.95, 0.2), 1, ("draft.positions",), True)
    assert refute(claim, right) == []
    for broken in (
        Observed(0.4, (0.95, 0.2), 1, ("draft.positions",), True),
        Observed(0.6, (0.80, 0.2), 1, ("draft.positions",), True),
        Observed(0.6, (0.95, 0.6), 1, ("draft.positions",), True),
        Observed(0.6, (0.95, 0.2), 2, ("draft.positions",), True),
        Observed(0.6, (0.95, 0.2), 1, ("draft.seq_lens",), True),
        Observed(0.6, (0.95, 0.2), 1, ("draft.positions",), False),
    ):
        assert len(refute(claim, broken)) == 1
    assert refute(AWAY, right)
