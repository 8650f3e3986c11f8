"""Training sequences: a mixture that makes the draft head use its far context.

A head trained on plain text hardly looks back, so stale rows would cost it nothing. Random strings repeated, chunks
copied or edited, and keys recalled make the next tokens depend on rows tens to hundreds of positions back.
"""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from mtplab.training.corpus import EOS, IDENTIFIER, SEP, SPECIAL_TOKENS, Corpus, SourceFile
from mtplab.training.settings import Shares

Ids = np.ndarray
FIRST_ORDINARY = len(SPECIAL_TOKENS)
CHUNK_LINES = (3, 16)
CHUNK_CHARACTERS = range(61, 700)
SHORTEST_CHUNK, LONGEST_CHUNK = 24, 160
LONGEST_SOURCE = 170


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of a chunk and of the same chunk with one identifier renamed (equal if none occurs twice)."""

    chunk: Ids
    edited: Ids


class Mixture:
    """Draws batches. The generator is the caller's, so a batch is a function of its seed and resuming repeats none."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, pairs: int, seed: int) -> None:
        self._stream = token_stream(corpus.training, tokenizer)
        self._pairs = make_pairs(corpus, tokenizer, pairs, random.Random(seed))
        self._vocab_size = tokenizer.get_vocab_size()

    def batch(self, rng: np.random.Generator, sequences: int, length: int, shares: Shares) -> Tensor:
        """[sequences, length] int64."""
        kinds = (self._plain, self._repeat, self._copy, self._recall, self._short)  # the order of the shares
        weights = np.array(astuple(shares))
        chosen = rng.choice(len(kinds), sequences, p=weights / weights.sum())
        return torch.from_numpy(np.stack([kinds[kind](rng, length) for kind in chosen]))

    def _plain(self, rng: np.random.Generator, length: int) -> Ids:
        """A stretch of code."""
        start = rng.integers(0, len(self._stream) - length)
        return self._stream[start : start + length]

    def _repeat(self, rng: np.random.Generator, length: int) -> Ids:
        """A string of random tokens and the separator, over and over: nothing but looking back predicts it."""
        unit = np.append(self._noise(rng, int(rng.integers(16, LONGEST_SOURCE))), SEP)
        return np.resize(unit, length)

    def _copy(self, rng: np.random.Generator, length: int) -> Ids:
        """Source, separator, copy or edit; now and then with other code in between, for longer distances."""
        parts: list[Ids] = []
        while sum(map(len, parts)) < length:
            source, target = self._source(rng)
            between = np.array([SEP])
            if rng.random() < 0.15:
                between = np.concatenate([[EOS], self._plain(rng, int(rng.integers(10, 120))), [SEP]])
            parts += [source, between, target, np.array([EOS])]
        return np.concatenate(parts)[:length]

    def _source(self, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """What is shown and what is to follow it: noise or code, as it is or renamed, often with a second chunk."""
        pair = self._pairs[rng.integers(len(self._pairs))]
        source, target = pair.chunk, pair.edited
        if rng.random() < 0.25:
            source = target = self._noise(rng, len(source))
        elif rng.random() < 0.6:
            target = source
        if rng.random() < 0.5:
            more = self._pairs[rng.integers(len(self._pairs))].chunk
            source = np.concatenate([source, more])[:LONGEST_SOURCE]
            target = np.concatenate([target, more])[:LONGEST_SOURCE]
        return source, target

    def _recall(self, rng: np.random.Generator, length: int) -> Ids:
        """Random keys with three values each, then the same entries in another order."""
        parts: list[Ids] = []
        while sum(map(len, parts)) < length:
            count = int(rng.integers(4, 24))
            keys = rng.choice(self._vocab_size - FIRST_ORDINARY, count, replace=False) + FIRST_ORDINARY
            entries = np.column_stack([keys, rng.integers(FIRST_ORDINARY, self._vocab_size, (count, 3))])
            shuffled = entries[rng.permutation(count)]
            parts += [entries.ravel(), np.array([SEP]), shuffled.ravel(), np.array([EOS])]
        return np.concatenate(parts)[:length]

    def _short(self, rng: np.random.Generator, length: int) -> Ids:
        """A string of at most 49 tokens, in half of them code, then stretches of it. Copying is learned here first:
        stretches rather than wholes, so that no fixed distance gives the next token away.
        """
        size = int(rng.integers(6, 50))
        whole = self._noise(rng, size) if rng.random() < 0.5 else self._plain(rng, size)
        parts = [whole]
        while sum(map(len, parts)) < length:
            start = int(rng.integers(0, size - 3))
            parts.append(whole[start : int(rng.integers(start + 3, size + 1))])
            if rng.random() < 0.1:
                parts.append(np.array([SEP]))
        return np.concatenate(parts)[:length]

    def _noise(self, rng: np.random.Generator, length: int) -> Ids:
        return rng.integers(FIRST_ORDINARY, self._vocab_size, length)


def token_stream(files: Sequence[SourceFile], tokenizer: Tokenizer) -> Ids:
    """Ids of all files, each ended by the end token, int64."""
    encoded = tokenizer.encode_batch([file.text for file in files])
    return np.concatenate([np.array([*one.ids, EOS], np.int64) for one in encoded])


def make_pairs(corpus: Corpus, tokenizer: Tokenizer, count: int, rng: random.Random) -> list[Pair]:
    """`count` chunks at random lines of the training files, less those that turn out too short in tokens."""
    names = corpus.identifiers()
    files = [file.text.splitlines(keepends=True) for file in corpus.training]
    chunks: list[str] = []
    while len(chunks) < count:
        lines = rng.choice(files)
        start = rng.randrange(len(lines))
        text = "".join(lines[start : start + rng.randint(*CHUNK_LINES)])
        if len(text) in CHUNK_CHARACTERS:
            chunks.append(text)
    edited = [rename(text, names, rng) for text in chunks]
    pairs = zip(tokenizer.encode_batch(chunks), tokenizer.encode_batch(edited), strict=True)
    return [
        Pair(np.array(a.ids[:LONGEST_CHUNK], np.int64), np.array(b.ids[:LONGEST_CHUNK], np.int64))
        for a, b in pairs
        if len(a.ids) >= SHORTEST_CHUNK
    ]


def rename(text: str, names: Sequence[str], rng: random.Random) -> str:
    """`text` with one word that occurs at least twice consistently renamed; unchanged if there is none."""
    words = [word for word in IDENTIFIER.findall(text) if not keyword.iskeyword(word)]
    repeated = sorted({word for word in words if words.count(word) >= 2})
    if not repeated:
        return text
    old, new = rng.choice(repeated), rng.choice(names)
    return re.sub(rf"\b{re.escape(old)}\b", new, text)
