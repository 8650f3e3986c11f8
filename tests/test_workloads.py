"""Prompts: the same seed gives the same prompts, and every unreadable file ends in one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtplab.errors import ConfigError
from mtplab.workloads import shipped
from mtplab.workloads.file import FilePrompts
from mtplab.workloads.shipped import ShippedPrompts
from mtplab.workloads.workload import load_tokenizer


def prompts(path: Path, checkpoint: Path, seed: int = 0, prompt_tokens: int = 16, count: int = 4) -> list:
    return FilePrompts(str(path), prompt_tokens, count, 8).load(load_tokenizer(checkpoint), seed)


def refusal(path: Path, checkpoint: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        prompts(path, checkpoint)
    assert caught.value.key == "workload.path"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_text_is_cut_into_prompts_that_a_seed_picks(tmp_path: Path, checkpoint: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n:03}\n" for n in range(40)), encoding="utf-8")
    first = prompts(path, checkpoint)
    assert [len(p.tokens) for p in first] == [16] * 4
    assert first == prompts(path, checkpoint)
    assert first != prompts(path, checkpoint, seed=1)
    assert all(p.text in path.read_text(encoding="utf-8") for p in first)
    assert all(p.source.startswith("text.txt:") for p in first)


def test_a_short_text_is_one_prompt(tmp_path: Path, checkpoint: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("short", encoding="utf-8")
    assert [p.text for p in prompts(path, checkpoint)] == ["short"]


def test_jsonl_prompts_are_taken_whole(tmp_path: Path, checkpoint: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two", "source": "there.py"}\n', encoding="utf-8")
    found = {p.text: p.source for p in prompts(path, checkpoint)}
    assert found == {"one": "p.jsonl line 1", "two": "there.py"}


def test_a_missing_file_is_named(tmp_path: Path, checkpoint: Path) -> None:
    assert "cannot read nothing.txt" in refusal(tmp_path / "nothing.txt", checkpoint)
    assert "cannot read" in refusal(tmp_path, checkpoint)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b" \n\n", "a.txt is empty"),
        ("a.txt", b"ok\n\xff\xfe\x00", "not UTF-8 text (line 2)"),
        ("a.txt", b"ok\x00ok", "binary"),
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b"\x89PNG\r\n", "not UTF-8 text"),
        ("a.jsonl", b'{"prompt": "ok"}\n\n{"prompt": \n', "line 3 is not JSON"),
        ("a.jsonl", b'{"prompt": "ok"}\n["x"]\n', "line 2 has no text in `prompt`"),
        ("a.jsonl", b'{"text": "ok"}\n', "line 1 has no text in `prompt`"),
        ("a.jsonl", b'{"prompt": 3}\n', "line 1 has no text in `prompt`"),
        ("a.jsonl", b'{"prompt": "  "}\n', "line 1 has no text in `prompt`"),
    ],
)
def test_an_unreadable_file_says_why(tmp_path: Path, checkpoint: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert problem in refusal(tmp_path / name, checkpoint)


def test_shipped_prompts_are_picked_by_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path) -> None:
    monkeypatch.setattr(shipped, "assets_directory", lambda: tmp_path)
    (tmp_path / "prompts").mkdir()
    rows = [{"prompt": f"prompt {n}", "source": f"{n}.py", "kind": "edit"} for n in range(9)]
    (tmp_path / "prompts" / "edit.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    tokenizer = load_tokenizer(checkpoint)
    first = ShippedPrompts("edit", 4, 8).load(tokenizer, 0)
    assert first == ShippedPrompts("edit", 4, 8).load(tokenizer, 0) != ShippedPrompts("edit", 4, 8).load(tokenizer, 1)
    assert all(p.source == p.text.split()[1] + ".py" for p in first)
    with pytest.raises(ConfigError, match="9 are shipped; use 9 or less"):
        ShippedPrompts("edit", 10, 8).load(tokenizer, 0)


def test_a_corrupt_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is corrupt"):
        load_tokenizer(tmp_path)
