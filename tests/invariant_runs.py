"""Run a case and collect the first violation of every invariant."""

from __future__ import annotations

import functools
from collections.abc import Callable

import invariant_checks as checks
import torch
from invariant_cases import Case
from invariant_lab import Lab, Run

AFTER_STEP: dict[str, Callable[[Lab], None]] = {
    "I1": checks.check_i1,
    "I2": checks.check_i2,
    "I3": checks.check_i3,
    "I12": checks.check_i12,
    "I13": checks.check_i13,
    "I12 target": checks.check_i12_target,
    "drafts": checks.check_drafts,
}
AFTER_RUN: dict[str, Callable[[Lab, Run], None]] = {
    "I4": checks.check_i4,
    "I5": checks.check_i5,
    "I6": checks.check_i6,
    "I7": checks.check_i7,
    "I8": checks.check_i8,
    "I9": checks.check_i9,
    "I10": checks.check_i10,
    "I11": checks.check_i11,
}
NAMES = tuple(f"I{n}" for n in range(1, 14))
ALL = (*NAMES, "I12 target", "drafts")


def examine(
    case: Case, graph: str, sync: str, names: tuple[str, ...] = ALL, target_only: bool = False
) -> dict[str, str]:
    """Run `case` to its end; the first violation of each invariant. Stops early when all of them are violated."""
    torch.set_num_threads(1)
    found: dict[str, str] = {}

    def note(name: str, check: Callable[[], None]) -> None:
        try:
            if name not in found:
                check()
        except AssertionError as violation:
            found[name] = f"step {lab.engine.steps}: {violation}"

    def after_run(run: Run) -> None:
        for name in (n for n in names if n in AFTER_RUN):
            note(name, functools.partial(AFTER_RUN[name], lab, run))

    with torch.inference_mode():
        lab = Lab(case, graph, sync, target_only)
        lab.on_run = after_run
        while lab.busy and len(found) < len(names):
            lab.step()
            for name in (n for n in names if n in AFTER_STEP):
                note(name, functools.partial(AFTER_STEP[name], lab))
    return found


examined = functools.cache(examine)
