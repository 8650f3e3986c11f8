"""The bench on a random model, as small as it gets: it measures every arm, refuses on red parity, writes JSON lines."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mtplab.bench import suite
from mtplab.bench.hf import Reference
from mtplab.bench.parity import DraftParity, ParityReport
from mtplab.bench.speed import tape_cost


@pytest.fixture
def bench(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`scripts/bench.py` with two short prompts of the default workload and few capture sizes."""
    path = Path(__file__).parent.parent / "scripts" / "bench.py"
    spec = importlib.util.spec_from_file_location("bench_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = ["--prompts", "2", "--new-tokens", "6", "--rounds", "1", "--model", str(checkpoint)]
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    inputs, init = module.inputs, suite.Suite.__init__
    monkeypatch.setattr(suite.Suite, "__init__", lambda *args: init(*args, "engine.prefill_chunk=4"))
    monkeypatch.setattr(module, "inputs", lambda options: (checkpoint, [p[:20] for p in inputs(options)[1]]))
    return module


def test_reports_every_arm(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--json", str(tmp_path / "runs" / "bench.jsonl")])
    assert bench.main() == 0
    printed = capsys.readouterr().out
    torch.set_num_threads(threads)
    rows = [json.loads(line) for line in (tmp_path / "runs" / "bench.jsonl").read_text().splitlines()]
    assert [(row["batch"], row["arm"]) for row in rows] == [
        (1, "transformers use_mtp (dense)"),
        (1, "graph=full sparse=dense"),
        (1, "graph=none sparse=dense"),
        (1, "graph=full sparse=dsa"),
        (1, "graph=full sparse=hisparse"),
        (1, "graph=full sparse=hisparse, audited"),
        (8, "graph=full sparse=dense"),
    ]
    assert all(row["tokens_per_second"] > 0 and row["threads"] == 1 for row in rows)
    assert printed.startswith("Parity is green: ")
    assert all(f"| {row['arm']} |" in printed for row in rows)


def test_red_parity_reports_no_speed(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for the logits, once for the outputs."""
    threads = torch.get_num_threads()
    real = Reference.generate
    monkeypatch.setattr(Reference, "generate", lambda *args: [(token + 1) % 256 for token in real(*args)])
    assert bench.main() == 1
    outputs = capsys.readouterr()
    monkeypatch.setattr(suite, "check_parity", lambda *_: ParityReport(9, 1.0, DraftParity(9, 0, 0)))
    assert bench.main() == 1
    logits = capsys.readouterr()
    torch.set_num_threads(threads)
    assert "parity is red" in outputs.err and "outputs part at token 0" in outputs.err
    assert "parity is red" in logits.err and "largest difference 1.0e+00" in logits.err
    assert "tokens/s" not in outputs.out + logits.out


def test_tape_cost_is_measured() -> None:
    """Issue: at most 3 microseconds per operator; a busy machine may need several times that."""
    assert 0 < min(tape_cost(repeats=20) for _ in range(5)) < 15
