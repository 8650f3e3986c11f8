"""A run from end to end: the run directory, resume, SIGKILL, bad input, exit codes, the command line."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from omegaconf import DictConfig, OmegaConf

from mtplab import cli
from mtplab.errors import ConfigError
from mtplab.results.steps import read_lines, read_steps
from mtplab.runner import execute

ROOT = Path(__file__).parent.parent
FAULTY = ("graph=full", "sparse=hisparse")
Make = Callable[..., DictConfig]


def folders(cfg: DictConfig) -> list[Path]:
    return sorted((Path(cfg.run.dir) / cfg.run.experiment).glob("*"))


def test_a_faulty_run_collapses_and_leaves_its_directory(small_config: Make) -> None:
    cfg = small_config(*FAULTY)
    result = execute(cfg, FakeEngine())
    assert (result.verdict.name, result.exit_code) == ("collapsed", 0)
    assert {path.name for path in result.directory.iterdir()} == {
        "config.yaml", "provenance.json", "steps.jsonl", "summary.json", "figures",
        "arm_plain.json", "arm_reference.json", "arm_requested.json",
    }  # fmt: skip
    for name in ("per_position.png", "al_over_steps.png"):
        assert (result.directory / "figures" / name).read_bytes().startswith(b"\x89PNG")
    assert OmegaConf.load(result.directory / "config.yaml").graph.name == "full"
    assert json.loads((result.directory / "summary.json").read_text()) == result.summary


def test_the_summary_is_schema_1(small_config: Make) -> None:
    summary = execute(small_config(*FAULTY), FakeEngine()).summary
    assert list(summary) == [
        "schema", "run_id", "experiment", "started", "seconds", "verdict", "culprits", "next", "arms",
    ]  # fmt: skip
    assert summary["schema"] == 1
    assert list(summary["culprits"][0]) == ["state", "layer", "first_step", "rows_wrong", "reads_wrong", "evidence"]
    assert summary["next"].endswith("sync=mirror_next_step")
    assert [arm["role"] for arm in summary["arms"]] == ["reference", "requested"]
    for arm in summary["arms"]:
        assert list(arm) == [
            "name", "role", "overrides", "num_requests", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
            "num_accepted_tokens_per_pos", "mean_acceptance_length", "mean_acceptance_length_interval",
            "draft_acceptance_rate", "acceptance_per_pos", "acceptance_per_pos_conditional", "output_identical",
            "tokens_per_second", "graph", "memory", "staleness",
        ]  # fmt: skip
        assert arm["mean_acceptance_length"] == 1 + arm["num_accepted_tokens"] / arm["num_drafts"]
        assert sum(arm["num_accepted_tokens_per_pos"]) == arm["num_accepted_tokens"]
        assert set(arm["memory"]) == {
            "pages_evicted", "rows_read_from_host", "hot_hits", "hot_misses", "pages_audited", "pages_wrong",
        }  # fmt: skip


def test_the_arms_are_plain_reference_and_requested(small_config: Make) -> None:
    engine = FakeEngine()
    execute(small_config(*FAULTY, "sync=mirror_never"), engine)
    plain, reference, requested = engine.arms
    assert (plain.spec.name, plain.graph.name, plain.sparse.tier, plain.memory.tier) == (
        "none",
        "none",
        "device",
        "device",
    )
    assert (reference.spec.name, reference.graph.name, reference.sparse.tier) == ("mtp", "none", "device")
    assert (requested.graph.name, requested.sparse.tier, requested.sync.name) == ("full", "hisparse", "mirror_never")
    assert plain.sparse.top_k == reference.sparse.top_k == requested.sparse.top_k == 32


def test_a_healthy_run(small_config: Make) -> None:
    result = execute(small_config(*FAULTY, "sync=mirror_next_step"), FakeEngine())
    assert result.verdict.name == "healthy"
    assert result.arm()["mean_acceptance_length"] == result.arm("reference")["mean_acceptance_length"]


def test_a_wrong_output_is_corrupted(small_config: Make) -> None:
    result = execute(small_config(*FAULTY), FakeEngine(corrupt=True))
    assert result.verdict.name == "corrupted"
    assert (result.arm()["output_identical"], result.arm("reference")["output_identical"]) == (False, True)


def test_without_drafts_there_is_no_verdict(small_config: Make) -> None:
    result = execute(small_config("spec=none"), FakeEngine())
    assert result.verdict.name == "inconclusive"
    assert result.arm()["mean_acceptance_length"] is None
    assert result.summary["next"].endswith("spec=mtp")


def test_a_repeated_command_makes_a_new_directory_with_the_same_counts(small_config: Make) -> None:
    cfg = small_config(*FAULTY)
    first, second = execute(cfg, FakeEngine()), execute(cfg, FakeEngine())
    assert first.directory != second.directory
    assert first.arm()["num_accepted_tokens_per_pos"] == second.arm()["num_accepted_tokens_per_pos"]


def test_provenance_names_versions_and_weights_but_no_person(
    small_config: Make, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    monkeypatch.setattr(Path, "home", lambda: checkpoint.parent)
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    directory = execute(small_config(*FAULTY), FakeEngine()).directory
    facts = json.loads((directory / "provenance.json").read_text())
    assert facts["versions"]["torch"] and len(facts["weights_sha256"]) == 64
    assert f"model.path='~/{checkpoint.name}'" in facts["argv"]
    assert OmegaConf.load(directory / "config.yaml").model.path == f"~/{checkpoint.name}"
    for path in directory.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes()


def test_a_run_of_a_checkpoint_below_the_home_folder_can_be_resumed(
    small_config: Make, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    cfg = small_config(*FAULTY)
    first = execute(cfg, FakeEngine())
    again = execute(small_config(*FAULTY, f"resume={first.directory.name}"), FakeEngine())
    assert again.directory == first.directory


def test_resume_repeats_no_finished_arm(small_config: Make) -> None:
    cfg = small_config(*FAULTY)
    with pytest.raises(KeyboardInterrupt):
        execute(cfg, FakeEngine(die_at_step=3))
    [folder] = folders(cfg)
    assert not (folder / "summary.json").exists()
    before = list(read_lines(folder))
    engine = FakeEngine()
    result = execute(small_config(*FAULTY, f"resume={folder.name}"), engine)
    assert [arm.graph.name for arm in engine.arms] == ["full"]
    assert result.directory == folder
    after = list(read_lines(folder))
    assert after[: len(before)] == before
    steps = read_steps(folder)
    assert list(steps.query("arm == 'requested'")["attempt"].unique()) == [2]
    assert steps.query("arm == 'requested'")["accepted"].sum() == result.arm()["num_accepted_tokens"]
    uninterrupted = execute(cfg, FakeEngine())
    assert uninterrupted.arm()["num_accepted_tokens"] == result.arm()["num_accepted_tokens"]


def test_resume_alone_repeats_the_command(small_config: Make, tmp_path: Path) -> None:
    import mtplab

    first = execute(small_config(*FAULTY), FakeEngine())
    engine = FakeEngine()
    cfg = mtplab.compose(f"resume={first.directory.name}", f"run.dir={tmp_path / 'runs'}", "track=jsonl")
    again = execute(cfg, engine)
    assert engine.arms == []
    assert (again.verdict, again.directory) == (first.verdict, first.directory)


def test_resume_with_another_command_is_refused(small_config: Make) -> None:
    first = execute(small_config(*FAULTY), FakeEngine())
    before = (first.directory / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"resume: .* was run without spec\.k=5"):
        execute(small_config(*FAULTY, "spec.k=5", f"resume={first.directory.name}"), FakeEngine())
    assert (first.directory / "summary.json").read_bytes() == before


def test_resume_of_an_unknown_run_names_the_latest(small_config: Make) -> None:
    first = execute(small_config(*FAULTY), FakeEngine())
    with pytest.raises(ConfigError, match=f"latest: {first.directory.name}"):
        execute(small_config("resume=nothing"), FakeEngine())


def test_a_killed_run_leaves_readable_steps_and_can_be_resumed(small_config: Make, small_overrides: list[str]) -> None:
    """SIGKILL in the middle of the requested arm, from outside."""
    script = f"""
        import sys, time
        sys.path.insert(0, {str(ROOT / "tests")!r})
        import mtplab
        from fake_engine import FakeEngine
        from mtplab.runner import execute

        class Slow(FakeEngine):
            def __call__(self, cfg, prompts, on_step, record_margins=False):
                def slowly(record):
                    on_step(record)
                    if cfg.graph.name == "full" and record.step == 5:
                        print("now", flush=True)
                        time.sleep(60)
                return super().__call__(cfg, prompts, slowly, record_margins)

        execute(mtplab.compose(*{[*small_overrides, *FAULTY]!r}), Slow())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"now\n"
        os.kill(process.pid, signal.SIGKILL)
    cfg = small_config(*FAULTY)
    [folder] = folders(cfg)
    killed = [line for line in read_lines(folder) if line["arm"] == "requested"]
    assert [line["step"] for line in killed] == list(range(6))
    engine = FakeEngine()
    result = execute(small_config(*FAULTY, f"resume={folder.name}"), engine)
    assert len(engine.arms) == 1 and result.verdict.name == "collapsed"


def refuse(cfg: DictConfig, run_arm: FakeEngine | None = None) -> ConfigError:
    """The refusal of `cfg`, which must leave nothing behind."""
    engine = run_arm or FakeEngine()
    with pytest.raises(ConfigError) as caught:
        execute(cfg, engine)
    assert not folders(cfg)
    return caught.value


def test_missing_and_corrupt_weights(small_config: Make, checkpoint: Path, tmp_path: Path) -> None:
    assert "config.json" in str(refuse(small_config(f"model.path={tmp_path / 'nowhere'}")))
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    weights = broken / "model.safetensors"
    for content in (b"", b"not weights", weights.read_bytes()[:-100]):
        weights.write_bytes(content)
        error = refuse(small_config(f"model.path={broken}"))
        assert error.key == "model.path" and "corrupt" in error.problem
    weights.unlink()
    assert "no model.safetensors" in str(refuse(small_config(f"model.path={broken}")))


def test_prompts_that_do_not_fit(small_config: Make, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "x" * 500}) + "\n")
    error = refuse(small_config(f"workload.path={long}"))
    assert "500 tokens" in error.problem and "engine.context=512" in error.problem
    assert "workload.max_new_tokens=12" in error.remedy
    error = refuse(small_config(f"workload.path={long}", "workload.max_new_tokens=8", "memory.pool_pages=20"))
    assert error.key == "memory.pool_pages" and "320 rows" in error.problem and "use 33 or more" in error.remedy


def test_a_refusal_by_the_engine_leaves_nothing(small_config: Make) -> None:
    class Refusing(FakeEngine):
        def __call__(self, *_: object, **__: object):
            raise ConfigError("engine.device", "no CUDA device", "use engine.device=cpu")

    assert refuse(small_config(), Refusing()).key == "engine.device"


def test_an_unwritable_folder(small_config: Make, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("mine")
    with pytest.raises(ConfigError, match=r"run\.dir: cannot write to"):
        execute(small_config(f"run.dir={occupied}"), FakeEngine())
    assert occupied.read_text() == "mine"


def test_fail_on_turns_a_verdict_into_exit_code_1(small_config: Make) -> None:
    assert execute(small_config(*FAULTY, "fail_on=[collapsed]"), FakeEngine()).exit_code == 1
    assert execute(small_config(*FAULTY, "fail_on=[corrupted]"), FakeEngine()).exit_code == 0


def report(small_config: Make, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    execute(small_config(*overrides), FakeEngine(), report=True)
    return capsys.readouterr().out


def test_the_report_says_everything_on_unwrapped_lines(small_config: Make, capsys: pytest.CaptureFixture[str]) -> None:
    text = report(small_config, capsys, *FAULTY, "fail_on=[collapsed]")
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4 and len({line.count("|") for line in rows}) == 1
    assert "reference: graph=none" in rows[2] and "requested: graph=full" in rows[3]
    assert any(line.startswith("verdict collapsed: the arm loses") for line in lines)
    assert any(line.startswith("culprit host_rows of layer mtp.0: 480 rows") for line in lines)
    assert any(line.startswith("next    python scripts/run.py graph=full") for line in lines)
    assert any("summary.json" in line for line in lines)
    assert "fail_on=['collapsed'] matches the verdict" in lines[-1]


def test_pressure_on_the_device_tier_is_announced_once(small_config: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(small_config, capsys, "graph=full").count("memory=pressure has no effect") == 1
    assert "no effect" not in report(small_config, capsys, "graph=full", "sparse=hisparse")
    assert "no effect" not in report(small_config, capsys, "graph=full", "memory=roomy")


def test_a_notebook_result_tells_everything(small_config: Make, capsys: pytest.CaptureFixture[str]) -> None:
    result = execute(small_config(*FAULTY), FakeEngine())
    assert capsys.readouterr().out == ""
    assert repr(result).startswith("collapsed: the arm loses") and "| requested: graph=full" in repr(result)
    assert "**collapsed**" in result._repr_markdown_()
    assert set(result.steps["arm"]) == {"plain", "reference", "requested"}
    assert result.steps.query("decode_step >= 0")["accept_length"].between(1, 4).all()


def command_line(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    return cli.main()


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr("mtplab.runner._engine", lambda: engine)
    return engine


def test_the_command_line_runs_under_hydra_and_leaves_no_litter(
    small_overrides: list[str], fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert command_line([*small_overrides, *FAULTY], monkeypatch) == 0
    assert command_line([*small_overrides, *FAULTY, "fail_on=[collapsed]"], monkeypatch) == 1
    assert list(here.iterdir()) == []


def test_a_multirun_runs_every_cell_and_returns_the_worst_code(
    small_overrides: list[str], fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*small_overrides, "-m", "sparse=hisparse", "graph=full,none", "fail_on=[collapsed]"]
    assert command_line(arguments, monkeypatch) == 1
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "default").glob("*/summary.json")]
    assert sorted(summary["verdict"] for summary in summaries) == ["collapsed", "healthy"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["graph=fulll"], "error: graph: no option 'fulll'; did you mean full?"),
        (["-m", "graph=none,fulll"], "error: graph: no option 'fulll'; did you mean full?"),
        (["spec.k=9"], "error: spec.k: 9 is outside 1..8; use spec.k=8"),
        (["spec.kk=9"], "error: spec.kk: no such key; did you mean spec.k"),
        (["workload=file"], "error: workload.path: has no value; add workload.path=... to the command"),
        (["resume=20200101-000000-abcdef"], "error: resume: no run '20200101-000000-abcdef'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line(arguments, monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(line) and captured.err.count("\n") == 1
    assert "Traceback" not in captured.err + captured.out
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_group_and_answers_fast() -> None:
    def processor_seconds() -> float:  # of finished children: a busy machine does not count
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = processor_seconds()
    line = [sys.executable, str(ROOT / "scripts" / "run.py"), "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert processor_seconds() - before < 2
    assert "hisparse" in done.stdout and "mirror_next_step" in done.stdout and "resident_pages: 4" in done.stdout


def test_hydras_own_flags_still_work() -> None:
    line = [sys.executable, str(ROOT / "scripts" / "run.py"), "graph=full", "--cfg", "job"]
    assert "mtplab.graphs.full.FullStrategy" in subprocess.run(line, capture_output=True, text=True, check=True).stdout


def test_importing_mtplab_is_light() -> None:
    heavy = ("torch", "pandas", "wandb", "hydra", "matplotlib")
    code = f"import sys, mtplab; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    [line] = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "-m pytest" in line][:1]
    assert line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
