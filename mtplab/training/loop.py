"""The training loop. A step is a function of settings, stage, step number and weights, so a resumed run continues
identically; a stage starts from the finished stage before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from tqdm import tqdm

from mtplab.errors import ConfigError
from mtplab.training.checkpoint import load, restore, save
from mtplab.training.evaluation import HeldOut, evaluate
from mtplab.training.log import TrainingLog
from mtplab.training.mixture import Mixture
from mtplab.training.network import Mode, Prediction, TrainingNetwork, initialise
from mtplab.training.optimizers import build_optimizers, set_rates
from mtplab.training.settings import STAGES, Settings, StageSettings

CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Material:
    """What every stage trains and is measured on."""

    mixture: Mixture
    held_out: HeldOut


def checkpoint_path(settings: Settings, stage: str) -> Path:
    return settings.directory / f"stage{stage}.safetensors"


def run_stage(number: str, network: TrainingNetwork, settings: Settings, material: Material, log: TrainingLog) -> None:
    """Train stage `number`, from its own checkpoint if there is one, else from the stage before it."""
    stage = settings.stages[number]
    optimizers = build_optimizers(network, stage)
    first = _begin(number, network, optimizers, settings)
    if first == stage.steps:
        return
    log.forget(number, first)
    path, started = checkpoint_path(settings, number), time.monotonic()
    tokens_seen = 0
    with tqdm(total=stage.steps, initial=first, desc=f"stage {number}", unit="step", mininterval=1.0) as bar:
        for step in range(first, stage.steps):
            tokens = draw(settings.seed, number, step, stage, material.mixture)
            loss = train_step(network, optimizers, stage, step, tokens)
            done = step + 1
            tokens_seen += tokens.numel()
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if done % settings.evaluate_every == 0 or done == stage.steps:
                elapsed = time.monotonic() - started
                record = {
                    "stage": number,
                    "step": done,
                    "minutes": elapsed / 60,
                    "tokens_per_second": tokens_seen / elapsed,
                }
                log.write(record | {"train_loss": loss} | evaluate(network, material.held_out, measured(stage)))
            if done % settings.save_every == 0 or done == stage.steps:
                save(path, network, optimizers, done, settings.deciding(number))


def measured(stage: StageSettings) -> Mode:
    """Imitating indexers are measured by what attention over their choice would give."""
    return Mode.DENSE if Mode(stage.mode) is Mode.DENSE else Mode.SPARSE


def draw(seed: int, number: str, step: int, stage: StageSettings, mixture: Mixture) -> Tensor:
    """The batch of a step, [sequences, length + depths + 1]."""
    phase = stage.phase(step)
    size = phase.batches[step % len(phase.batches)]
    rng = np.random.default_rng([seed, int(number), step])
    return mixture.batch(rng, size.sequences, size.length + phase.depths + 1, phase.shares)


def train_step(
    network: TrainingNetwork, optimizers: dict[str, Optimizer], stage: StageSettings, step: int, tokens: Tensor
) -> float:
    """One update on `tokens`; returns the loss before it."""
    prediction = network(tokens, stage.phase(step).depths, Mode(stage.mode), halve=True)
    loss = objective(prediction, tokens, stage)
    network.zero_grad(set_to_none=True)
    loss.backward()
    # the indexers' gradients have a scale of their own and must not shrink the others'
    clipped = [p for name, p in network.named_parameters() if ".indexer." not in name and p.grad is not None]
    if clipped:
        torch.nn.utils.clip_grad_norm_(clipped, CLIP)
    set_rates(optimizers, stage, step)
    for optimizer in optimizers.values():
        optimizer.step()
    return loss.item()


def objective(prediction: Prediction, tokens: Tensor, stage: StageSettings) -> Tensor:
    """DeepSeek-V3's loss (2412.19437: main + lambda * MTP) with FastMTP's falling weights by depth, plus the indexers'
    KL. Terms of weight zero are left out, so that they cost nothing.
    """
    loss = stage.index_weight * prediction.index_loss
    if stage.main_weight:
        main, depths = prediction.losses(tokens)
        weighted = [weight * depth for weight, depth in zip(stage.depth_weights, depths, strict=False)]
        loss = loss + stage.main_weight * (main + stage.mtp_weight * torch.stack(weighted).sum())
    return loss


def _begin(number: str, network: TrainingNetwork, optimizers: dict[str, Optimizer], settings: Settings) -> int:
    """Put weights and optimizers where this stage continues; returns the steps already done."""
    own = checkpoint_path(settings, number)
    if own.is_file():
        saved = load(own)
        if saved.settings != settings.deciding(number):
            problem = f"{own.name} there was made with other settings"
            raise ConfigError("dir", problem, "use another dir, or delete that file to start the stage anew")
        restore(saved, network, optimizers)
        return saved.step
    place = STAGES.index(number)
    if place == 0:
        initialise(network, settings.seed)
        return 0
    before = load(checkpoint_path(settings, STAGES[place - 1]))
    if before.step < settings.stages[STAGES[place - 1]].steps:
        problem = f"stage {STAGES[place - 1]} stopped at step {before.step}"
        raise ConfigError("stage", problem, f"finish it first: stage={STAGES[place - 1]}")
    network.load_state_dict(before.weights())
    return 0
