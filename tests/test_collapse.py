"""README's claims on the shipped model, at a size that fits a test: half the prompts, half the tokens, seed 0.

`scripts/reproduce.py` checks the same claims in full size for three seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

import mtplab
from mtplab.build import run_arm
from mtplab.engine.records import ArmOutcome, StepRecord
from mtplab.results.claims import CLAIMS, Claim, reads_per_draft, refute
from mtplab.runner import execute

SMALL = ("workload.num_prompts=8", "workload.max_new_tokens=56", "track=jsonl", "seed=0")


class SharedArms:
    """`run_arm`, but eager arms on the device, which every claim needs, are run once per selector."""

    def __init__(self) -> None:
        self._done: dict[tuple[Any, ...], tuple[ArmOutcome, list[StepRecord]]] = {}

    def __call__(
        self,
        cfg: DictConfig,
        prompts: Sequence[Sequence[int]],
        on_step: Callable[[StepRecord], None],
        record_margins: bool = False,
    ) -> ArmOutcome:
        if cfg.graph.name != "none" or cfg.sparse.tier != "device":
            return run_arm(cfg, prompts, on_step, record_margins)
        key = (cfg.spec.name, cfg.sparse.selector["_target_"], record_margins)
        if key not in self._done:
            records: list[StepRecord] = []
            self._done[key] = run_arm(cfg, prompts, records.append, record_margins), records
        outcome, records = self._done[key]
        for record in records:
            on_step(record)
        return outcome


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Claim], dict[str, Any]]:
    arms, folder, done = SharedArms(), tmp_path_factory.mktemp("runs"), {}

    def run(claim: Claim) -> dict[str, Any]:
        if claim not in done:
            cfg = mtplab.compose(*claim.command, *SMALL, f"run.dir={folder}")
            done[claim] = execute(cfg, run_arm=arms).summary
        return done[claim]

    return run


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: " ".join(claim.overrides) or "main command")
def test_claim_holds(claim: Claim, summaries: Callable[[Claim], dict[str, Any]]) -> None:
    main = summaries(CLAIMS[0])["arms"]
    faulty = reads_per_draft(next(arm for arm in main if arm["role"] == "requested"))
    assert refute(claim, summaries(claim), faulty) == []


def test_same_seed_same_counts(summaries: Callable[[Claim], dict[str, Any]], tmp_path: Path) -> None:
    again = execute(mtplab.compose(*CLAIMS[0].command, *SMALL, f"run.dir={tmp_path}")).summary
    counts = ("num_drafts", "num_accepted_tokens_per_pos", "memory", "staleness", "graph")
    for ours, theirs in zip(again["arms"], summaries(CLAIMS[0])["arms"], strict=True):
        assert {key: ours[key] for key in counts} == {key: theirs[key] for key in counts}


@pytest.mark.parametrize("changes", [("graph=full",), ("graph=piecewise",), ("graph=full", "sync=mirror_next_step")])
def test_float64_output_is_plain_greedy_to_the_token(changes: tuple[str, ...], tmp_path: Path) -> None:
    cfg = mtplab.compose(
        "sparse=hisparse", *changes, "engine.dtype=float64", "workload.num_prompts=6", "workload.max_new_tokens=32",
        "track=jsonl", f"run.dir={tmp_path}",
    )  # fmt: skip
    result = execute(cfg)
    assert all(arm["output_identical"] for arm in result.summary["arms"])
