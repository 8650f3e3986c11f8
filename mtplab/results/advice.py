"""The next command to try: the one change that would tell most after this verdict."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from mtplab.config.overrides import command, replaced
from mtplab.engine.records import Culprit
from mtplab.results.verdict import Verdict


def next_command(cfg: DictConfig, overrides: Sequence[str], verdict: Verdict, culprits: Sequence[Culprit]) -> str:
    """The requested command with the deciding change; where that is already made, the same with other prompts."""
    kept = [o for o in overrides if not o.startswith("resume=")]
    changed = replaced(kept, *_change(cfg, verdict, culprits))
    return command(changed if set(changed) != set(kept) else replaced(kept, f"seed={cfg.seed + 1}"))


def _change(cfg: DictConfig, verdict: Verdict, culprits: Sequence[Culprit]) -> list[str]:
    if verdict.try_next is not None:
        return [verdict.try_next]
    if verdict.name == "healthy":
        return _towards_trouble(cfg)
    if verdict.name in ("collapsed", "corrupted") and culprits:
        return ["sync=mirror_next_step" if culprits[0].state == "host_rows" else "sync=mirror_after_draft"]
    return ["graph=none"] if cfg.graph.name != "none" else ["engine.dtype=float64"]


def _towards_trouble(cfg: DictConfig) -> list[str]:
    """What a healthy run lacks of the conditions under which acceptance collapses in the field; else more depth."""
    if cfg.graph.name != "full":
        return ["graph=full"]
    if cfg.sparse.tier != "hisparse":
        return ["sparse=hisparse"]
    if cfg.memory.resident_pages is None:
        return ["memory=pressure"]
    return [f"spec.k={min(cfg.spec.k + 2, 8)}"] if cfg.spec.k < 8 else [f"seed={cfg.seed + 1}"]
