"""Try a fault under its trigger and away from it, and hold what happened against its card."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import OmegaConf

from mtplab.config.compose import compose_config
from mtplab.config.locate import options
from mtplab.config.overrides import replaced
from mtplab.faults.card import AWAY, FaultCard, Observed, refute
from mtplab.results.execution import RunArm
from mtplab.runner import RunResult, execute

# small enough for a test, large enough for every trigger: twice as many prompts as requests at a time
BASE = ("sync=mirror_after_draft", "workload.num_prompts=8", "workload.max_new_tokens=48", "track=jsonl")


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a fault. `wrong` lists what the card claims and the run did not show."""

    fault: str
    away: bool
    command: tuple[str, ...]
    result: RunResult
    seen: Observed
    wrong: tuple[str, ...]


def fault_names() -> tuple[str, ...]:
    return tuple(name for name in options("fault") if name != "none")


def read_card(fault: str) -> FaultCard:
    card = OmegaConf.to_container(compose_config(f"fault={fault}").fault.card, resolve=True)
    assert isinstance(card, dict)
    return FaultCard.read({str(key): value for key, value in card.items()})


def run_trial(fault: str, away: bool, run_arm: RunArm | None = None, *overrides: str) -> Trial:
    """Run the fault's command, with its `away` change or without. `run_arm` as in `mtplab.runner.execute`."""
    card = read_card(fault)
    command = replaced(replaced(BASE, *card.command(fault, away)), *overrides)
    result = execute(compose_config(*command), run_arm)
    reference, requested = result.arms
    seen = Observed.of(reference, requested)
    claim = AWAY if away else card.signature
    return Trial(fault, away, tuple(command), result, seen, tuple(refute(claim, seen)))
