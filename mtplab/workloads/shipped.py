"""`workload=edit|code`: prompts shipped with mtplab, so that figures do not depend on the Python version."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from mtplab.config.locate import assets_directory
from mtplab.errors import ConfigError
from mtplab.workloads.reader import read_jsonl
from mtplab.workloads.workload import Prompt, pick


@dataclass(frozen=True, slots=True)
class ShippedPrompts:
    """`num_prompts` prompts of `assets/prompts/<kind>.jsonl`; `max_new_tokens` is the engine's."""

    kind: str
    num_prompts: int
    max_new_tokens: int

    def load(self, tokenizer: Tokenizer, seed: int) -> list[Prompt]:
        rows = read_jsonl(assets_directory() / "prompts" / f"{self.kind}.jsonl", "workload.kind")
        if self.num_prompts > len(rows):
            problem = f"{self.num_prompts} asked for, {len(rows)} are shipped"
            raise ConfigError("workload.num_prompts", problem, f"use {len(rows)} or less, or workload=file")
        chosen = pick(rows, self.num_prompts, seed)
        return [Prompt(r["prompt"], tuple(tokenizer.encode(r["prompt"]).ids), r["source"]) for r in chosen]
