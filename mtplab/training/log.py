"""Training log: JSON lines are the truth, flushed one by one; W&B mirrors them and never stops training."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

LOG_NAME = "training_log.jsonl"


class TrainingLog:
    """`write` appends one record. A resumed training appends to the same file, after the step it resumed from."""

    def __init__(self, directory: Path, config: dict[str, Any], wandb: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / LOG_NAME
        self._run = _start(directory, config) if wandb else None

    def write(self, record: dict[str, Any]) -> None:
        line = rounded(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._mirror(line)

    def forget(self, stage: str, step: int) -> None:
        """Drop records after `step` of `stage`: those steps are about to be done again."""
        if not self.path.is_file():
            return
        kept = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _is_kept(line, stage, step)]
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)

    def close(self, exit_code: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=exit_code)

    def _mirror(self, record: dict[str, Any]) -> None:
        if self._run is None:
            return
        numbers: dict[str, float] = {}
        for key, value in record.items():
            if isinstance(value, list):
                numbers |= {f"{key}/{place}": entry for place, entry in enumerate(value)}
            elif isinstance(value, int | float):
                numbers[key] = value
        try:
            self._run.log({f"stage{record['stage']}/{key}": value for key, value in numbers.items()})
        except Exception as error:  # whatever a third-party tracker raises, training goes on
            self._run = None
            warnings.warn(f"W&B stopped ({error}); {LOG_NAME} has everything", RuntimeWarning, stacklevel=2)


def _is_kept(line: str, stage: str, step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:  # the half line of a killed run
        return False
    return record["stage"] < stage or (record["stage"] == stage and record["step"] <= step)


def rounded(value: Any) -> Any:
    """The same value with every number in it cut to four decimals."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return round(value, 4) if isinstance(value, float) else value


def _start(directory: Path, config: dict[str, Any]) -> Any:
    """A W&B run inside `directory`, online only if a key exists; WANDB_MODE wins. None, with a warning, if it fails."""
    import wandb

    from mtplab.track.wandb_tracker import has_key

    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        init_timeout=10,
        x_disable_stats=True,
        x_save_requirements=False,
        x_disable_meta=True,  # host name, user, command line and folders stay here
    )
    try:
        return wandb.init(
            project="mtplab",
            dir=directory,
            group="training",
            job_type="train",
            config=config,
            mode=os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline"),  # pyright: ignore[reportArgumentType]
            reinit="create_new",
            settings=settings,
        )
    except Exception as error:  # whatever a third-party tracker raises, training goes on
        warnings.warn(f"no W&B run ({error}); {LOG_NAME} has everything", RuntimeWarning, stacklevel=2)
        return None
