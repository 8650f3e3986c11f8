"""Contract of a workload, and the tokenizer that turns its text into ids."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tokenizers import Tokenizer

from mtplab.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its text, its token ids and where it comes from (file name, or file name and line)."""

    text: str
    tokens: tuple[int, ...]
    source: str


class Workload(Protocol):
    """`load` returns the prompts of a seed, in their order: the same seed gives the same prompts."""

    def load(self, tokenizer: Tokenizer, seed: int) -> list[Prompt]: ...


Item = TypeVar("Item")


def pick(items: list[Item], count: int, seed: int) -> list[Item]:
    """`count` of the items in an order that depends on the seed only; all of them if there are fewer."""
    return random.Random(seed).sample(items, min(count, len(items)))


def load_tokenizer(model_directory: Path) -> Tokenizer:
    """`tokenizer.json` of a checkpoint directory."""
    path = model_directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError("model.path", "no tokenizer.json in the directory", "point it at a checkpoint directory")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(
            "model.path", f"tokenizer.json is corrupt ({error})", "restore the checkpoint's file"
        ) from error
