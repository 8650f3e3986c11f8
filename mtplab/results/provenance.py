"""`provenance.json`: what a figure needs to be made again. No environment dump, no home folder, no secret."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mtplab.config.locate import PACKAGE, model_directory
from mtplab.results.stats import BOOTSTRAP_SEED, RESAMPLES

PACKAGES = ("mtplab", "torch", "triton", "transformers", "numpy", "hydra-core", "omegaconf", "wandb", "safetensors")


def provenance(cfg: DictConfig, argv: Sequence[str]) -> dict[str, Any]:
    """`argv` are the overrides of the command."""
    return {
        "argv": list(argv),
        "git": _git(),
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "threads": cfg.engine.threads,
        "seeds": {"prompts": cfg.seed, "bootstrap": BOOTSTRAP_SEED, "bootstrap_resamples": RESAMPLES},
        "weights_sha256": _sha256(model_directory(cfg) / "model.safetensors"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the clone this package runs from, and whether files differ from it; None outside a clone."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    git = ["git", "-C", str(PACKAGE.parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.stdout.strip(), "modified": bool(status.stdout.strip())}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
