"""One run, from configuration to verdict: `scripts/run.py`, `mtplab.run(...)` and the tests all come through here.

Plain greedy decoding, the reference arm and the requested arm decode the same prompts; then the identity gate, the
statistics, the verdict, the figures, the summary.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from mtplab.config.instantiate import instantiate
from mtplab.config.locate import default_options, model_directory
from mtplab.config.overrides import command, describe, home_to_tilde, without_bookkeeping
from mtplab.config.preflight import check_prompts, check_weights
from mtplab.config.rules import validate
from mtplab.errors import ConfigError
from mtplab.results.advice import next_command
from mtplab.results.directory import RunDirectory, create_run, resume_run
from mtplab.results.execution import PLAIN, REFERENCE, REQUESTED, RunArm, plan_arms, run_planned
from mtplab.results.figures import draw_figures
from mtplab.results.identity import check_identity
from mtplab.results.provenance import provenance
from mtplab.results.report import print_report
from mtplab.results.steps import read_steps
from mtplab.results.summary import ArmResult, summarise
from mtplab.results.table import HEADER, incident_rows, incident_table
from mtplab.results.verdict import Verdict, judge
from mtplab.track.tracker import GuardedTracker, Outcome, TrackedRun
from mtplab.workloads.workload import Prompt, Workload, load_tokenizer

NAMED = ("graph", "spec", "sparse", "sync", "fault", "memory", "verify")  # groups that tell arms apart


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves in the hands of a notebook. `steps` is the tidy frame of `mtplab.results.steps.read_steps`."""

    summary: dict[str, Any]
    steps: pd.DataFrame
    directory: Path
    verdict: Verdict
    exit_code: int

    def arm(self, role: str = REQUESTED) -> dict[str, Any]:
        """One entry of `summary["arms"]`."""
        return next(arm for arm in self.summary["arms"] if arm["role"] == role)

    def __repr__(self) -> str:
        return f"{self.verdict.name}: {self.verdict.reason}\n{incident_table(self.summary)}"

    def _repr_markdown_(self) -> str:
        return f"{incident_table(self.summary)}\n\n**{self.verdict.name}**: {self.verdict.reason}"


def execute(cfg: DictConfig, run_arm: RunArm | None = None, report: bool = False) -> RunResult:
    """Run `cfg`. Raises `ConfigError` before anything is written; `report` prints what the command line prints."""
    started, clock = datetime.now().astimezone().isoformat(timespec="seconds"), time.perf_counter()
    directory = None
    if cfg.resume:
        directory, cfg = resume_run(cfg)
    validate(cfg)
    check_weights(cfg)
    prompts = _prompts(cfg)
    tracker = GuardedTracker(instantiate(cfg.track, cfg.allow_targets))
    console = Console(quiet=not report, force_jupyter=False)
    overrides = describe(cfg)
    directory = directory or create_run(cfg)
    exit_code = 1
    try:
        facts = provenance(cfg, overrides)
        _announce(cfg, directory, facts, console)
        tracker.start(_tracked(cfg, directory, facts))
        arms = _run_arms(cfg, prompts, directory, run_arm or _engine(), tracker)
        reference, arm = arms
        verdict = judge(arm.counts, reference.counts, arm.identity.identical, reference.identity.identical)
        following = next_command(cfg, overrides, verdict, arm.outcome.culprits)
        seconds = time.perf_counter() - clock
        summary = summarise(directory.run_id, cfg.run.experiment, started, seconds, verdict, following, arms)
        steps = read_steps(directory.path)
        figures = draw_figures(cfg, summary, steps, directory.path)
        tracker.log_outcome(Outcome(summary, (HEADER, incident_rows(summary)), figures))
        directory.write_json("summary.json", summary)
        exit_code = int(verdict.name in cfg.fail_on)
    except ConfigError:
        exit_code = 2
        raise
    except KeyboardInterrupt:
        resume = command([*overrides, f"resume={directory.run_id}"])
        console.print(f"interrupted; to continue: {resume}", soft_wrap=True, markup=False)
        raise
    finally:
        tracker.finish(exit_code)
        if exit_code == 2 and not directory.resumed:
            with suppress(OSError):
                shutil.rmtree(directory.path)  # made by this command, which was refused
    print_report(console, summary, verdict, arms, directory.path, tracker.how_to_look())
    if exit_code:
        console.print(f"exit 1   fail_on={list(cfg.fail_on)} matches the verdict", soft_wrap=True, markup=False)
    return RunResult(summary, steps, directory.path, verdict, exit_code)


def _engine() -> RunArm:
    from mtplab.build import run_arm

    return run_arm


def _prompts(cfg: DictConfig) -> list[Prompt]:
    workload: Workload = instantiate(cfg.workload, cfg.allow_targets)
    prompts = workload.load(load_tokenizer(model_directory(cfg)), cfg.seed)
    check_prompts(cfg, [len(p.tokens) for p in prompts], [p.source for p in prompts])
    return prompts


def _announce(cfg: DictConfig, directory: RunDirectory, facts: dict[str, Any], console: Console) -> None:
    """Write `provenance.json`; say what has no effect and what is continued."""
    if not directory.resumed:
        directory.write_json("provenance.json", facts)
    else:
        console.print(f"resume   {directory.run_id}: finished arms are not repeated", soft_wrap=True)
    if cfg.sparse.tier == "device" and cfg.memory.resident_pages is not None:
        text = f"note     memory={cfg.memory.name} has no effect: sparse.tier=device keeps every row on the device"
        console.print(text, soft_wrap=True, markup=False)


def _tracked(cfg: DictConfig, directory: RunDirectory, facts: dict[str, Any]) -> TrackedRun:
    config = home_to_tilde(OmegaConf.to_container(cfg, resolve=True))
    config["provenance"] = facts
    tags = tuple(f"{group}={cfg[group].name}" for group in default_options() if group != "track")
    return TrackedRun(directory.path, directory.run_id, cfg.run.experiment, "reproduce", tags, config)


def _run_arms(
    cfg: DictConfig, prompts: Sequence[Prompt], directory: RunDirectory, run_arm: RunArm, tracker: GuardedTracker
) -> tuple[ArmResult, ArmResult]:
    """Reference and requested arm, each gated by the plain arm."""
    ids = [list(prompt.tokens) for prompt in prompts]
    outcomes = {}
    plans = {plan.role: plan for plan in plan_arms(cfg)}
    for role, plan in plans.items():
        outcomes[role] = run_planned(plan, ids, directory, run_arm)
        if role != PLAIN:
            tracker.log_steps(role, read_steps(directory.path).query("arm == @role"))
    exact = cfg.engine.dtype == "float64"
    results = []
    for role in (REFERENCE, REQUESTED):
        identity = check_identity(outcomes[PLAIN].requests, outcomes[role].requests, exact)
        overrides = tuple(without_bookkeeping(describe(plans[role].cfg)))
        name = " ".join(o for o in overrides if o.partition("=")[0].partition(".")[0] in NAMED)
        results.append(ArmResult(role, name, overrides, plans[role].cfg.spec.k, outcomes[role], identity))
    return results[0], results[1]
