"""Which parameters a stage trains, and by which rule: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mtplab.training.network import EMBEDDINGS
from mtplab.training.settings import OptimizerSettings, StageSettings


def part_of(name: str, parameter: Tensor) -> str:
    """One of `settings.PARTS`."""
    if ".indexer." in name:
        return "indexers"
    if name in EMBEDDINGS:
        return "embeddings"
    return "matrices" if parameter.ndim == 2 else "vectors"


def build_optimizers(network: nn.Module, stage: StageSettings) -> dict[str, Optimizer]:
    """Optimizers of a stage by a label that names rule and parts; parameters of no optimizer are frozen."""
    members: dict[str, list[nn.Parameter]] = {}
    trained = {part for settings in stage.optimizers for part in settings.parts}
    for name, parameter in network.named_parameters():
        part = part_of(name, parameter)
        parameter.requires_grad_(part in trained)
        members.setdefault(part, []).append(parameter)
    return {
        "+".join([settings.rule, *settings.parts]): _build(
            settings, [p for part in settings.parts for p in members[part]]
        )
        for settings in stage.optimizers
    }


def _build(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> Optimizer:
    if settings.rule == "muon":
        # orthogonalised momentum, scaled to AdamW's usual update size so that one learning rate fits all shapes
        return torch.optim.Muon(
            parameters,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        )
    return torch.optim.AdamW(
        parameters, lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
    )


def set_rates(optimizers: dict[str, Optimizer], stage: StageSettings, step: int) -> None:
    """Learning rates of this step, a function of the step alone."""
    for optimizer, settings in zip(optimizers.values(), stage.optimizers, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * stage.rate(step)
