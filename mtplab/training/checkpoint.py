"""Training checkpoints and the final export. safetensors only: loading one can run no code.

One file per stage, replaced at once, holds everything: `model/<name>` weights with Hugging Face names,
`optimizer/<optimizer>/<parameter>/<slot>`, and in its JSON header the steps done and the settings they were done with.
Batches are a function of seed, stage and step, so no generator state is needed to continue identically.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from mtplab.errors import ConfigError

MODEL, OPTIMIZER = "model/", "optimizer/"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint read back: `settings` are those of the run that wrote it."""

    step: int
    settings: dict[str, Any]
    tensors: dict[str, Tensor]

    def weights(self) -> dict[str, Tensor]:
        return {name.removeprefix(MODEL): t for name, t in self.tensors.items() if name.startswith(MODEL)}


def export(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a state dict with Hugging Face names as a float32 `model.safetensors`."""
    _replace({name: tensor.float() for name, tensor in weights.items()}, path, {"format": "pt"})


def save(
    path: Path, network: nn.Module, optimizers: Mapping[str, Optimizer], step: int, settings: dict[str, Any]
) -> None:
    tensors = {MODEL + name: tensor for name, tensor in network.state_dict().items()}
    for label, optimizer in optimizers.items():
        tensors |= {f"{OPTIMIZER}{label}/{name}": t for name, t in _slots(network, optimizer).items()}
    _replace(tensors, path, {"format": "pt", "step": str(step), "settings": json.dumps(settings, sort_keys=True)})


def load(path: Path) -> Saved:
    """Raises `ConfigError` for a file that is missing, cut off or not ours."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return Saved(int(header["step"]), json.loads(header["settings"]), tensors)
    except FileNotFoundError as error:
        raise ConfigError("dir", f"no {path.name} there", "run the stage before this one first") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(
            "dir", f"{path.name} is not a checkpoint ({error})", "delete it to start that stage anew"
        ) from error


def restore(saved: Saved, network: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Put weights and optimizer slots back."""
    network.load_state_dict(saved.weights())
    parameters = dict(network.named_parameters())
    for label, optimizer in optimizers.items():
        prefix = f"{OPTIMIZER}{label}/"
        names = {id(parameter): name for name, parameter in parameters.items()}
        held = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        slots: dict[int, dict[str, Tensor]] = {}
        for key, tensor in saved.tensors.items():
            if key.startswith(prefix):
                name, slot = key.removeprefix(prefix).split("/")
                slots.setdefault(held.index(name), {})[slot] = tensor
        optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def _slots(network: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """`<parameter>/<slot>` -> tensor. Every slot of Muon and AdamW is a tensor, the step count too."""
    state = {name: optimizer.state.get(parameter, {}) for name, parameter in network.named_parameters()}
    return {f"{name}/{slot}": torch.as_tensor(value) for name, held in state.items() for slot, value in held.items()}


def _replace(tensors: Mapping[str, Tensor], path: Path, header: dict[str, str]) -> None:
    """Write beside the file, then rename: a kill leaves the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}  # shared by none
    save_file(own, temporary, metadata=header)
    temporary.chmod(0o644)  # safetensors creates private files
    temporary.replace(path)
