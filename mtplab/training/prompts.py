"""Evaluation prompts from held-out files, shipped as JSONL so that figures do not depend on the Python version.

edit: a code chunk, the separator, the chunk's first tokens again. Kind `copy` repeats them as they are; in kind
      `rename` one identifier, seen among them and at least twice later, has another name from there on.
code: the beginning of a code chunk, cut in mid-line (kind `continue`).
"""

from __future__ import annotations

import bisect
import io
import itertools
import json
import keyword
import random
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from mtplab.training.corpus import IDENTIFIER, SEPARATOR, Corpus, SourceFile

COUNT = 64
CHUNK_TOKENS = range(115, 151)
START_TOKENS = range(8, 15)
CODE_TOKENS = range(140, 161)
LONGEST_PROMPT = 189
LATER_OCCURRENCES = 2
RARE = 40  # a new name occurs in at least one of so many training files
NEW_NAME_TOKENS = 2  # a new name of more tokens would test spelling rather than looking back


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One line of the file; `source` is the name of the standard library file."""

    prompt: str
    source: str
    kind: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a file; `names` are its identifiers in code, comments and strings left out."""

    source: str
    text: str
    names: tuple[str, ...]


Maker = Callable[[Chunk, random.Random], PromptRow | None]


def write_prompts(directory: Path, corpus: Corpus, tokenizer: Tokenizer, seed: int) -> None:
    """Write `edit.jsonl` and `code.jsonl`. The same corpus, tokenizer and seed give the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = {"edit": edit_prompts(corpus, tokenizer, seed), "code": code_prompts(corpus, tokenizer, seed)}
    for name, prompts in rows.items():
        lines = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in prompts)
        (directory / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def edit_prompts(corpus: Corpus, tokenizer: Tokenizer, seed: int, count: int = COUNT) -> list[PromptRow]:
    """Half `rename`, half `copy`, in turn."""
    names = [
        n
        for n in corpus.identifiers(least_files=len(corpus.training) // RARE)
        if len(tokenizer.encode(" " + n).ids) <= NEW_NAME_TOKENS
    ]
    rng = random.Random(f"{seed} edit")
    chunks = list(_spread([_chunks(file, tokenizer, CHUNK_TOKENS) for file in corpus.held_out], rng))
    renamed, rest = _take(chunks, count // 2, rng, lambda chunk, rng: _rename(chunk, tokenizer, names, rng))
    copied, _ = _take(rest, count - len(renamed), rng, lambda chunk, rng: _copy(chunk, tokenizer, rng))
    return [row for pair in zip(renamed, copied, strict=True) for row in pair]


def code_prompts(corpus: Corpus, tokenizer: Tokenizer, seed: int, count: int = COUNT) -> list[PromptRow]:
    rng = random.Random(f"{seed} code")
    lengths = range(CODE_TOKENS.stop, 2 * CODE_TOKENS.stop)
    chunks = list(_spread([_chunks(file, tokenizer, lengths) for file in corpus.held_out], rng))
    return _take(chunks, count, rng, lambda chunk, rng: _continue(chunk, tokenizer, rng))[0]


def _take(chunks: Sequence[Chunk], count: int, rng: random.Random, make: Maker) -> tuple[list[PromptRow], list[Chunk]]:
    """The first `count` prompts that can be made, and the chunks left over."""
    rows: list[PromptRow] = []
    rest: list[Chunk] = []
    for chunk in chunks:
        row = make(chunk, rng) if len(rows) < count else None
        if row is None:
            rest.append(chunk)
        else:
            rows.append(row)
    if len(rows) < count:
        raise RuntimeError(f"the held-out files give only {len(rows)} of {count} prompts")
    return rows, rest


def _spread(per_file: list[list[Chunk]], rng: random.Random) -> Iterator[Chunk]:
    """One chunk of each file in turn, in random order, so that no large file dominates."""
    for chunks in per_file:
        rng.shuffle(chunks)
    rng.shuffle(per_file)
    for index in range(max(map(len, per_file), default=0)):
        yield from (chunks[index] for chunks in per_file if index < len(chunks))


def _chunks(file: SourceFile, tokenizer: Tokenizer, lengths: range) -> list[Chunk]:
    """Consecutive stretches of whole lines whose token count lies in `lengths`; they do not overlap."""
    lines = list(io.StringIO(file.text))  # as `tokenize` counts lines
    ends = list(itertools.accumulate(map(len, lines)))
    names = _names_by_line(file.text, len(lines))
    tokens = Counter(bisect.bisect_right(ends, start) for start, _ in tokenizer.encode(file.text).offsets)
    chunks, start, size = [], 0, 0
    for line in range(len(lines)):
        size += tokens[line]
        if size < lengths.start and lines[start].strip():
            continue
        text = "".join(lines[start : line + 1])
        # the file's tokens may straddle lines, so the count so far is a guess
        if lines[start].strip() and len(tokenizer.encode(text).ids) in lengths:
            chunks.append(Chunk(file.name, text, tuple(itertools.chain(*names[start : line + 1]))))
        start, size = line + 1, 0
    return chunks


def _names_by_line(text: str, lines: int) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(lines)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and IDENTIFIER.fullmatch(token.string) and not keyword.iskeyword(token.string):
            found[token.start[0] - 1].append(token.string)
    return found


def _copy(chunk: Chunk, tokenizer: Tokenizer, rng: random.Random) -> PromptRow | None:
    start = _prefix(chunk.text, tokenizer, _shuffled(START_TOKENS, rng), 0)
    return None if start is None else PromptRow(chunk.text + SEPARATOR + start, chunk.source, "copy")


def _rename(chunk: Chunk, tokenizer: Tokenizer, names: Sequence[str], rng: random.Random) -> PromptRow | None:
    often = {name for name, count in Counter(chunk.names).items() if count > LATER_OCCURRENCES}
    for old in sorted(often, key=chunk.text.find):
        new = rng.choice(names)
        if new in chunk.text:
            continue
        edited = re.sub(rf"\b{re.escape(old)}\b", new, chunk.text)
        start = _prefix(edited, tokenizer, _shuffled(START_TOKENS, rng), edited.find(new) + len(new))
        if start is None or edited.count(new) - start.count(new) < LATER_OCCURRENCES:
            continue
        prompt = chunk.text + SEPARATOR + start
        if len(tokenizer.encode(prompt).ids) <= LONGEST_PROMPT:
            return PromptRow(prompt, chunk.source, "rename")
    return None


def _continue(chunk: Chunk, tokenizer: Tokenizer, rng: random.Random) -> PromptRow | None:
    start = _prefix(chunk.text, tokenizer, _shuffled(CODE_TOKENS, rng), 0)
    return None if start is None else PromptRow(start, chunk.source, "continue")


def _shuffled(lengths: range, rng: random.Random) -> list[int]:
    return rng.sample(lengths, len(lengths))


def _prefix(text: str, tokenizer: Tokenizer, lengths: Sequence[int], at_least: int) -> str | None:
    """The first tokens of `text`: the first of `lengths` that covers `at_least` characters, None if none does.

    A cut must encode to the very tokens it was cut from, and end in a visible character: after white space the next
    token would depend on where the prompt ends.
    """
    encoding = tokenizer.encode(text)
    for count in lengths:
        if count > len(encoding.ids):
            continue
        prefix = text[: encoding.offsets[count - 1][1]]
        if len(prefix) < at_least or prefix != prefix.rstrip():
            continue
        if tokenizer.encode(prefix).ids == encoding.ids[:count]:
            return prefix
    return None
