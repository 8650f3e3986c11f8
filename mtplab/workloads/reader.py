"""Read user text: every way a file can be unreadable ends in one clear line."""

from __future__ import annotations

import json
from pathlib import Path

from mtplab.errors import ConfigError


def read_text(path: Path, key: str) -> str:
    """UTF-8 text of a file that is neither missing, empty nor binary."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(key, f"cannot read {path.name} ({reason})", "give a readable file") from error
    if not data.strip():
        raise ConfigError(key, f"{path.name} is empty", "give a file with text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(key, f"{path.name} is not UTF-8 text (line {line})", "convert it to UTF-8") from error
    if "\0" in text:
        raise ConfigError(key, f"{path.name} is binary (it holds NUL bytes)", "give UTF-8 text or JSONL")
    return text


def read_jsonl(path: Path, key: str) -> list[dict[str, str]]:
    """Objects with a non-empty string `prompt`, one a line; blank lines are skipped."""
    rows: list[dict[str, str]] = []
    for number, line in enumerate(read_text(path, key).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(key, f"{where} is not JSON ({error})", "write one JSON object a line") from error
        prompt = row.get("prompt") if isinstance(row, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(key, f"{where} has no text in `prompt`", 'write {"prompt": "..."}')
        rows.append({**row, "source": str(row.get("source", where))})
    return rows
