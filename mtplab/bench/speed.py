"""Side by side in one run: every candidate decodes the same prompts in each round, and rounds are interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

import mtplab
from mtplab.bench.hf import Reference
from mtplab.build import Arm, build_arm
from mtplab.engine.records import StepRecord
from mtplab.graphs.tape import TapeGraph

Prompts = Sequence[Sequence[int]]


@dataclass(slots=True)
class Measured:
    """One candidate: `outputs` of its last round, seconds of each round, decode step times (ours only), in seconds."""

    name: str
    run: Callable[[], list[list[int]]]
    capture_seconds: float = 0.0
    steps: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Median over rounds; prefill is in the time, graph capture and loading are not."""
        return sum(map(len, self.outputs)) / statistics.median(self.rounds)

    @property
    def step_ms(self) -> float:
        return statistics.median(self.steps) * 1e3


def ours(name: str, prompts: Prompts, new_tokens: int, *overrides: str) -> Measured:
    """The engine under `overrides`, built and captured once."""
    cfg = mtplab.compose(*overrides, f"workload.max_new_tokens={new_tokens}")
    with torch.inference_mode():
        arm = build_arm(cfg)
    arm.engine.parts = replace(arm.engine.parts, eos_token_id=None)  # a fixed number of tokens, as on the other side
    measured = Measured(name, lambda: decode(arm, prompts, new_tokens, measured.steps), arm.capture_seconds)
    return measured


def decode(arm: Arm, prompts: Prompts, new_tokens: int, step_seconds: list[float]) -> list[list[int]]:
    """Outputs of `prompts`; appends the time of every step in which all requests decode."""

    def note(record: StepRecord) -> None:
        if all(request.drafted for request in record.requests):
            step_seconds.append(record.seconds)

    with torch.inference_mode():
        return [request.output for request in arm.engine.run(prompts, new_tokens, note)]


def theirs(reference: Reference, prompts: Prompts, new_tokens: int) -> Measured:
    """transformers' `generate(use_mtp=True)`, prompt after prompt: it cannot batch MTP."""
    return Measured("transformers use_mtp", lambda: [reference.generate(prompt, new_tokens) for prompt in prompts])


def measure(candidates: Sequence[Measured], rounds: int) -> None:
    """One warm-up, then `rounds` rounds; in each, every candidate once."""
    for number in range(rounds + 1):
        for candidate in candidates:
            started = time.perf_counter()
            candidate.outputs = candidate.run()
            if number:
                candidate.rounds.append(time.perf_counter() - started)
            else:
                candidate.steps.clear()


def tape_cost(operators: int = 300, repeats: int = 200) -> float:
    """Microseconds per operator of a replayed tape of one-element adds, median over replays."""
    x, one = torch.zeros(1), torch.ones(1)

    def adds() -> torch.Tensor:
        total = x
        for _ in range(operators):
            total = total + one
        return total

    graph = TapeGraph("adds")
    graph.capture(adds)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        graph.replay()
        times.append(time.perf_counter() - started)
    return statistics.median(times) / operators * 1e6
