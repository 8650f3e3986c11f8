"""Arms of a study: built once, run on the locked trajectory as often as there are interventions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from omegaconf import DictConfig

from mtplab.attribution.effects import Drafted, counts
from mtplab.attribution.steering import ROWS, Steering
from mtplab.attribution.trajectory import Judged, LockedDrafting, LockedTarget, RecordingDrafting, Trajectory
from mtplab.build import build_arm
from mtplab.config.instantiate import instantiate
from mtplab.engine.engine import Engine, EngineParts
from mtplab.engine.inputs import StaticInputs
from mtplab.faults.fault import Fault
from mtplab.heads.head import Head

Prompts = Sequence[Sequence[int]]


def record(cfg: DictConfig, prompts: Prompts) -> tuple[Trajectory, Drafted]:
    """The reference's trajectory, and its own drafts judged the way every arm's are."""
    arm = build_arm(cfg)
    drafting = arm.engine.parts.drafting
    assert drafting is not None, "a study needs a drafter"
    trajectory = Trajectory(cfg.spec.k)
    recording = replace(arm.engine.parts, drafting=RecordingDrafting(drafting, trajectory))
    for request in Engine(recording).run(prompts, cfg.workload.max_new_tokens, lambda step: None):
        trajectory.tokens[request.id] = list(request.tokens)
    return trajectory, LockedArm(cfg, prompts, trajectory).run()


class LockedArm:
    """One configuration, captured once. `run` drafts along the trajectory, with suspects refreshed or frozen."""

    def __init__(self, cfg: DictConfig, prompts: Prompts, trajectory: Trajectory) -> None:
        self._prompts = prompts
        self._new_tokens = cfg.workload.max_new_tokens
        self._trajectory = trajectory
        self._steering: Steering | None = None
        self._arm = build_arm(cfg, around=self._around)
        head: Head = instantiate(cfg.spec, tuple(cfg.allow_targets))
        parts = self._arm.engine.parts
        names = [*(f"target.{i}" for i in parts.mirror.target_layers), *head.layer_names]
        self._layers = {f"{ROWS} {name}": layer for layer, name in enumerate(names)} if parts.mirror.active else {}

    @property
    def suspects(self) -> list[str]:
        """Every static input a replay reads, then the host rows of every layer."""
        named = _static_inputs(self._arm.engine.parts)
        return [f"{runner}.{field}" for runner, static in named for field in static.buffers] + list(self._layers)

    def run(self, refreshed: Iterable[str] = (), frozen: Iterable[str] = ()) -> Drafted:
        """Accepted drafts of every judged step."""
        parts = self._arm.engine.parts
        assert self._steering is not None and parts.drafting is not None
        _clear(parts)
        self._steering.steer(frozenset(refreshed), frozenset(frozen), self._layers)
        judged = Judged()
        locked = replace(
            parts,
            target=LockedTarget(parts.target, self._trajectory, parts.scheduler),
            drafting=LockedDrafting(parts.drafting, self._trajectory, judged),
        )
        Engine(locked).run(self._prompts, self._new_tokens, lambda step: None)
        return counts(judged.accepted, range(len(self._prompts)), self._trajectory.k)

    def _around(self, fault: Fault) -> Fault:
        self._steering = Steering(fault)
        return self._steering


def _static_inputs(parts: EngineParts) -> list[tuple[str, StaticInputs]]:
    assert parts.drafting is not None
    runners = parts.drafting.runners
    named = [("target", parts.target), ("draft", runners.prefill), ("draft_decode", runners.decode)]
    return [(name, runner.static) for name, runner in named if runner.static is not None]


def _clear(parts: EngineParts) -> None:
    """As if nothing had ever run: the run before must not show in what unread or stale memory holds."""
    memory = parts.memory
    hosts = memory.host.layers if memory.host is not None else []
    for pool in [*memory.pool.layers, *memory.keys.layers, *hosts]:
        pool.zero_()
    if memory.hot is not None:
        for tags, lru in zip(memory.hot.tags, memory.hot.lru, strict=True):
            tags.fill_(-1)
            lru.copy_(torch.arange(lru.shape[1], dtype=lru.dtype, device=lru.device).expand_as(lru))
    for _, static in _static_inputs(parts):
        static.clear()
