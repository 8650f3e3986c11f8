"""Fixtures of runs without a trained model: a random checkpoint with a tokenizer, a prompt file, a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from omegaconf import DictConfig
from random_model import write_random_model
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

import mtplab

# the same examples everywhere, and no deadline: CI machines are slow and shared
settings.register_profile("mtplab", deadline=None, derandomize=True)
settings.load_profile("mtplab")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches a W&B account of the person who runs it."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model and a byte-level tokenizer in one directory."""
    directory = write_random_model(tmp_path_factory.mktemp("checkpoint"), vocab_size=256, max_position_embeddings=512)
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight prompts of 20 to 27 bytes."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"def f{n}(x): return x" + "+" * n}) + "\n" for n in range(8)))
    return path


@pytest.fixture
def small_overrides(checkpoint: Path, prompt_file: Path, tmp_path: Path) -> list[str]:
    """Overrides of a run that needs nothing shipped and keeps no W&B run."""
    return [
        f"model.path={checkpoint}",
        "workload=file",
        f"workload.path={prompt_file}",
        "workload.max_new_tokens=40",
        f"run.dir={tmp_path / 'runs'}",
        "track=jsonl",
    ]


@pytest.fixture
def small_config(small_overrides: list[str]) -> Callable[..., DictConfig]:
    """`small_config("graph=full")`: the configuration of such a run."""
    return lambda *overrides: mtplab.compose(*small_overrides, *overrides)
