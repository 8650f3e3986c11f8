"""Run one arm: progress bar, `steps.jsonl` as it goes, `arm_<role>.json` when it is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from omegaconf import DictConfig
from tqdm import tqdm

from mtplab.config.compose import compose_unchecked
from mtplab.config.overrides import derive
from mtplab.engine.records import ArmOutcome, StepRecord
from mtplab.results.arms import load_arm, save_arm
from mtplab.results.directory import RunDirectory
from mtplab.results.steps import StepWriter

PLAIN, REFERENCE, REQUESTED = "plain", "reference", "requested"


class RunArm(Protocol):
    """`mtplab.build.run_arm`, or a stand-in of a test."""

    def __call__(
        self,
        cfg: DictConfig,
        prompts: Sequence[Sequence[int]],
        on_step: Callable[[StepRecord], None],
        record_margins: bool = False,
    ) -> ArmOutcome: ...


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """An arm to run. The plain arm records logit margins for the identity gate."""

    role: str
    cfg: DictConfig

    @property
    def record_margins(self) -> bool:
        return self.role == PLAIN


def plan_arms(cfg: DictConfig) -> tuple[ArmPlan, ...]:
    """Plain greedy decoding (the identity gate), the reference arm, the requested arm.

    The reference is eager with everything resident on the device and no fault; plain decoding drafts nothing either.
    """
    neutral = compose_unchecked("spec=none", "graph=none", "fault=none")
    device = {"sparse.tier": "device", "memory.tier": "device"}
    return (
        ArmPlan(PLAIN, derive(cfg, neutral, ("spec", "graph", "fault"), device)),
        ArmPlan(REFERENCE, derive(cfg, neutral, ("graph", "fault"), device)),
        ArmPlan(REQUESTED, cfg),
    )


def run_planned(
    plan: ArmPlan, prompts: Sequence[Sequence[int]], directory: RunDirectory, run_arm: RunArm
) -> ArmOutcome:
    """The outcome of an arm; one that an earlier command finished is read, not repeated."""
    finished = load_arm(directory.path, plan.role)
    if finished is not None:
        return finished
    total = len(prompts) * plan.cfg.workload.max_new_tokens
    pause = 0.1 if sys.stderr.isatty() else 5.0  # seconds between updates: a log needs fewer
    bar = tqdm(total=total, desc=f"{plan.role:<9}", unit="tok", mininterval=pause)
    with StepWriter(directory.path, plan.role) as writer, bar:
        bar.set_postfix_str("loading" if plan.cfg.graph.name == "none" else "loading, capturing graphs")
        accepted = drafts = 0

        def on_step(record: StepRecord) -> None:
            nonlocal accepted, drafts
            writer.write(record)
            accepted += sum(r.accepted for r in record.requests if r.drafted)
            drafts += sum(r.drafted > 0 for r in record.requests)
            bar.set_postfix_str(f"AL {1 + accepted / drafts:.2f}" if drafts else "", refresh=False)
            bar.update(sum(r.emitted for r in record.requests))

        outcome = run_arm(plan.cfg, prompts, on_step, record_margins=plan.record_margins)
        bar.total = bar.n  # a request may end early
        bar.refresh()
    save_arm(directory, plan.role, outcome)
    return outcome
