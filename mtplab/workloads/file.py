"""`workload=file workload.path=...`: the user's own text or JSONL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from mtplab.errors import ConfigError
from mtplab.workloads.reader import read_jsonl, read_text
from mtplab.workloads.workload import Prompt, pick


@dataclass(frozen=True, slots=True)
class FilePrompts:
    """A `.jsonl` file gives one prompt a line; any other is text, cut into prompts of `prompt_tokens` tokens.

    The seed picks `num_prompts` of them; a file with fewer gives all it has.
    """

    path: str
    prompt_tokens: int
    num_prompts: int
    max_new_tokens: int

    def load(self, tokenizer: Tokenizer, seed: int) -> list[Prompt]:
        path = Path(self.path).expanduser()
        prompts = self._lines(path, tokenizer) if path.suffix == ".jsonl" else self._pieces(path, tokenizer)
        return pick(prompts, self.num_prompts, seed)

    def _lines(self, path: Path, tokenizer: Tokenizer) -> list[Prompt]:
        rows = read_jsonl(path, "workload.path")
        return [Prompt(r["prompt"], tuple(tokenizer.encode(r["prompt"]).ids), r["source"]) for r in rows]

    def _pieces(self, path: Path, tokenizer: Tokenizer) -> list[Prompt]:
        if self.prompt_tokens < 1:
            raise ConfigError("workload.prompt_tokens", f"{self.prompt_tokens} is below 1", "use 1 or more")
        text = read_text(path, "workload.path")
        encoding = tokenizer.encode(text)
        ids, offsets, size = encoding.ids, encoding.offsets, self.prompt_tokens
        starts = range(0, max(len(ids) - size, 0) + 1, size)  # whole pieces only; a short text is one piece
        prompts = []
        for start in starts:
            stop = min(start + size, len(ids))
            begin, end = offsets[start][0], offsets[stop - 1][1]
            prompts.append(
                Prompt(text[begin:end], tuple(ids[start:stop]), f"{path.name}:{text.count(chr(10), 0, begin) + 1}")
            )
        return prompts
