"""Trackers: offline without a key, offline when the server is away, harmless when they break, readable afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_engine import FakeEngine
from omegaconf import DictConfig

from mtplab.runner import execute
from mtplab.track.metrics import step_metrics
from mtplab.track.null_tracker import NullTracker
from mtplab.track.tracker import GuardedTracker, TrackedRun
from mtplab.track.wandb_tracker import WandbTracker, has_key

KEY = "0123456789" * 4
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # wandb's temporary folders


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun(tmp_path, "20260101-000000-abcdef", "default", "reproduce", ("graph=full",), {"seed": 0})


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """wandb reads its environment once per process."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


def inspect(directory: Path) -> dict[str, Any]:
    """What `wandb leet` shows of the one run below `directory`."""
    [file] = directory.rglob("*.wandb")
    line = [sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json", str(file)]
    return json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


class Broken(NullTracker):
    def log_steps(self, role: str, steps: pd.DataFrame) -> None:
        raise OSError("disk full")

    def finish(self, exit_code: int) -> None:
        raise AssertionError("a replaced tracker is not called again")


def test_a_broken_tracker_is_one_warning() -> None:
    tracker = GuardedTracker(Broken())
    with pytest.warns(RuntimeWarning, match="disk full") as caught:
        tracker.log_steps("requested", pd.DataFrame())
    assert len(caught) == 1
    tracker.log_steps("requested", pd.DataFrame())
    tracker.finish(0)


def test_metrics_have_their_public_names() -> None:
    row = {
        "decode_step": 0, "accept_length": 3.0, "accepted": 4, "drafts": 2, "seconds": 0.002, "pages_evicted": 0,
        "rows_read_from_host": 5, "reads_wrong": 1, "accepted_at_0": 2, "accepted_at_1": 1, "stale_draft.ids": 3,
    }  # fmt: skip
    frame = pd.DataFrame([row, {**row, "decode_step": -1}])
    [metrics] = step_metrics("requested", frame)
    assert metrics == {
        "decode_step": 0, "accept/length": 3.0, "accept/pos0": 1.0, "accept/pos1": 0.5, "cost/ms_per_step": 2.0,
        "memory/pages_evicted": 0.0, "memory/rows_read_from_host": 5.0, "memory/reads_wrong": 1.0,
        "stale/draft.ids": 3.0,
    }  # fmt: skip
    [metrics] = step_metrics("reference", frame)
    assert metrics["reference/accept/length"] == 3.0


def test_without_a_key_the_run_is_offline_and_silent(
    small_config: Callable[..., DictConfig], fresh_wandb: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        result = execute(small_config("track=wandb", "graph=full", "sparse=hisparse"), FakeEngine(), report=True)
    assert not [w for w in caught if w.category is RuntimeWarning]
    seen = inspect(result.directory)
    assert seen["run_id"] == result.directory.name
    text = json.dumps(seen)
    assert '"accept/length"' in text and '"reference/accept/pos0"' in text and "collapsed" in text
    output = capfd.readouterr().out
    overview = result.directory.parent / "wandb"
    assert f"wandb leet {overview}" in output and "wandb sync " in output
    assert [link.resolve().parent.parent for link in overview.iterdir()] == [result.directory]
    assert str(Path.home()) not in text.replace(str(result.directory), "")


def test_an_unreachable_server_means_offline_with_one_warning(
    run: TrackedRun, fresh_wandb: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tracker = WandbTracker("mtplab", online=True, timeout_s=1)
    with pytest.warns(RuntimeWarning, match="W&B stays offline") as caught:
        tracker.start(run)
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    tracker.finish(0)
    assert inspect(run.directory)["run_id"].startswith(run.run_id)
    assert not any(KEY in file.read_text(errors="replace") for file in run.directory.rglob("*") if file.is_file())


def test_wandb_mode_wins(run: TrackedRun, fresh_wandb: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker = WandbTracker("mtplab", online=True, timeout_s=1)
    tracker.start(run)
    assert tracker.how_to_look() == []
    tracker.finish(0)
    assert not list(run.directory.rglob("*.wandb"))


def test_a_key_is_found_where_wandb_would_find_it(
    fresh_wandb: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import wandb

    assert not has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text(f"machine wandb.example.org login user password {KEY}\n")
    (tmp_path / "netrc").chmod(0o600)
    wandb.teardown()
    assert has_key()
    monkeypatch.delenv("NETRC")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb.teardown()
    assert has_key()
