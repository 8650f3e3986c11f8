"""Training text: the running Python's standard library, split by file name into training and held-out files."""

from __future__ import annotations

import hashlib
import keyword
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, BOS, EOS, SEP = range(4)
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|sep|>")
SEPARATOR = SPECIAL_TOKENS[SEP]
IDENTIFIER = re.compile(r"\b[A-Za-z_][A-Za-z_0-9]{2,}\b")
HELD_OUT_SHARE = 20  # one file in twenty

# not the library itself, tests of it, tables rather than code, or files that differ between machines
EXCLUDED = (
    "site-packages/",
    "test/",
    "tests/",
    "lib2to3/tests",
    "idlelib",
    "turtledemo",
    "encodings/",
    "pydoc_data",
    "__phello__",
    "config-",
)
SHORTEST_FILE = 800  # characters; below lie mostly re-exports


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`name` is relative to the standard library's directory."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Corpus:
    training: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]

    def identifiers(self, least_files: int = 1) -> list[str]:
        """Names of at most 13 characters in the training files, sorted; material for renaming."""
        files = Counter(name for file in self.training for name in set(IDENTIFIER.findall(file.text)))
        short = (name for name, count in files.items() if count >= least_files and len(name) < 14)
        return sorted(name for name in short if not keyword.iskeyword(name))


def read_corpus() -> Corpus:
    """The split depends on file names only, so that it is the same on every machine and Python version."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for path in sorted(root.rglob("*.py")) if (file := _read(path, root)) is not None]
    training = tuple(file for file in files if not is_held_out(file.name))
    return Corpus(training, tuple(file for file in files if is_held_out(file.name)))


def is_held_out(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0


def train_tokenizer(files: Iterable[SourceFile], vocab_size: int) -> Tokenizer:
    """Byte-level BPE (no unknown token, every text round-trips) with the special tokens as ids 0..3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((file.text for file in files), trainer)
    return tokenizer


def _read(path: Path, root: Path) -> SourceFile | None:
    name = path.relative_to(root).as_posix()
    if any(part in name for part in EXCLUDED):
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # a few library files declare other encodings
        return None
    return SourceFile(name, text) if len(text) > SHORTEST_FILE else None
