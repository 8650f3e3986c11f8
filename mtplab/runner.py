"""One run, from configuration to verdict: `scripts/run.py`, `mtplab.run(...)` and the tests all come through here.

Plain greedy decoding, the reference arm and the requested arm decode the same prompts; then the identity gate, the
statistics, the verdict, the figures, the summary.
"""

from __future__ import annotations

import shutil
import time
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
    """What a run leaves in the hands of a notebook.

    `steps` is the tidy frame of `mtplab.results.steps.read_steps`; `arms` are the reference and the requested arm with
    every request's tokens and counts.
    """

    summary: dict[str, Any]
    steps: pd.DataFrame
    directory: Path
    verdict: Verdict
    arms: tuple[ArmResult, ArmResult]
    exit_code: int

    def arm(self, role: str = REQUESTED) -> dict[str, Any]:
        """One entry of `summary["arms"]`."""
        return next(arm for arm in self.summary["arms"] if arm["role"] == role)

    def __repr__(self) -> str:
        return f"{self.verdict.name}: {self.verdict.reason}\n{incident_table(self.summary)}"

    def _repr_markdown_(self) -> str:
        return f"{incident_table(self.summary)}\n\n**{self.verdict.name}**: {self.verdict.reason}"


@dataclass(frozen=True, slots=True)
class Job:
    """A run that passed every check of its input. `overrides` are the command that makes `cfg`."""

    cfg: DictConfig
    overrides: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    directory: RunDirectory
    tracker: GuardedTracker
    console: Console


def execute(cfg: DictConfig, run_arm: RunArm | None = None, report: bool = False) -> RunResult:
    """Run `cfg`. Raises `ConfigError` before anything is written; `report` prints what the command line prints."""
    job = _prepare(cfg, Console(quiet=not report, force_jupyter=False))
    exit_code = 1
    try:
        result = _conduct(job, run_arm or _engine())
        exit_code = result.exit_code
    except ConfigError:
        exit_code = 2
        raise
    except KeyboardInterrupt:
        _say(job.console, f"interrupted; to continue: {command([*job.overrides, f'resume={job.directory.run_id}'])}")
        raise
    finally:
        job.tracker.finish(exit_code)
        if exit_code == 2 and not job.directory.resumed:
            shutil.rmtree(job.directory.path, ignore_errors=True)  # made by this command, which was refused
    print_report(job.console, result.summary, result.verdict, result.arms, result.directory, job.tracker.how_to_look())
    if exit_code:
        _say(job.console, f"exit 1  fail_on={list(job.cfg.fail_on)} matches the verdict")
    return result


def _prepare(cfg: DictConfig, console: Console) -> Job:
    """Check everything that can be checked, then make or find the run directory."""
    directory = None
    if cfg.resume:
        directory, cfg = resume_run(cfg)
    validate(cfg)
    check_weights(cfg)
    workload: Workload = instantiate(cfg.workload, cfg.allow_targets)
    prompts = tuple(workload.load(load_tokenizer(model_directory(cfg)), cfg.seed))
    check_prompts(cfg, [len(p.tokens) for p in prompts], [p.source for p in prompts])
    tracker = GuardedTracker(instantiate(cfg.track, cfg.allow_targets))
    return Job(cfg, tuple(describe(cfg)), prompts, directory or create_run(cfg), tracker, console)


def _conduct(job: Job, run_arm: RunArm) -> RunResult:
    """All arms, the verdict, and every file of the run directory."""
    started, clock = datetime.now().astimezone().isoformat(timespec="seconds"), time.perf_counter()
    cfg, directory = job.cfg, job.directory
    _announce(job)
    reference, requested = arms = _run_arms(job, run_arm)
    verdict = judge(requested.counts, reference.counts, requested.identity.identical, reference.identity.identical)
    following = next_command(cfg, job.overrides, verdict, requested.outcome.culprits)
    seconds = time.perf_counter() - clock
    summary = summarise(directory.run_id, cfg.run.experiment, started, seconds, verdict, following, arms)
    steps = read_steps(directory.path)
    figures = draw_figures(cfg, summary, steps, directory.path)
    directory.write_json("summary.json", summary)
    job.tracker.log_outcome(Outcome(summary, (HEADER, incident_rows(summary)), figures))
    return RunResult(summary, steps, directory.path, verdict, arms, int(verdict.name in cfg.fail_on))


def _announce(job: Job) -> None:
    """Write `provenance.json`, start the tracker; say what has no effect and what is continued."""
    cfg, directory = job.cfg, job.directory
    facts = provenance(cfg, job.overrides)
    if directory.resumed:
        _say(job.console, f"resume  {directory.run_id}: finished arms are not repeated")
    else:
        directory.write_json("provenance.json", facts)
    if cfg.sparse.tier == "device" and cfg.memory.resident_pages is not None:
        text = f"memory={cfg.memory.name} has no effect: sparse.tier=device keeps every row on the device"
        _say(job.console, f"note    {text}")
    config = home_to_tilde(OmegaConf.to_container(cfg, resolve=True)) | {"provenance": facts}
    tags = tuple(f"{group}={cfg[group].name}" for group in default_options() if group != "track")
    job.tracker.start(TrackedRun(directory.path, directory.run_id, cfg.run.experiment, "reproduce", tags, config))


def _run_arms(job: Job, run_arm: RunArm) -> tuple[ArmResult, ArmResult]:
    """Reference and requested arm, each gated by the plain arm."""
    ids = [list(prompt.tokens) for prompt in job.prompts]
    plans = {plan.role: plan for plan in plan_arms(job.cfg)}
    outcomes = {}
    for role, plan in plans.items():
        outcomes[role] = run_planned(plan, ids, job.directory, run_arm)
        if role != PLAIN:
            job.tracker.log_steps(role, read_steps(job.directory.path).query("arm == @role"))
    overrides = {REFERENCE: describe(plans[REFERENCE].cfg), REQUESTED: list(job.overrides)}
    exact = job.cfg.engine.dtype == "float64"

    def result(role: str) -> ArmResult:
        identity = check_identity(outcomes[PLAIN].requests, outcomes[role].requests, exact)
        given = tuple(without_bookkeeping(overrides[role]))
        name = " ".join(o for o in given if o.partition("=")[0].partition(".")[0] in NAMED)
        return ArmResult(role, name, given, job.cfg.spec.k, outcomes[role], identity)

    return result(REFERENCE), result(REQUESTED)


def _engine() -> RunArm:
    """Imported late: it brings torch."""
    from mtplab.build import run_arm

    return run_arm


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)
