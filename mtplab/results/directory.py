"""A run directory: made once per command, continued only by `resume=`, every file in it written whole or appended."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mtplab.config.compose import compose_unchecked
from mtplab.config.overrides import BOOKKEEPING, command, describe, home_to_tilde, without_bookkeeping
from mtplab.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """`resumed` is true where an earlier command made it."""

    path: Path
    resumed: bool

    @property
    def run_id(self) -> str:
        return self.path.name

    def write_json(self, name: str, value: Any) -> None:
        write_atomically(self.path / name, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """The old content or the new, never a part: a file beside it, renamed over it."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def create_run(cfg: DictConfig) -> RunDirectory:
    """A new directory `run.dir/run.experiment/<time>-<hash of the configuration>` that holds `config.yaml`."""
    parent = Path(cfg.run.dir).expanduser() / cfg.run.experiment
    text = OmegaConf.to_yaml(home_to_tilde(OmegaConf.to_container(cfg, resolve=True)))
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = _new_folder(parent, stamp)
        write_atomically(path / "config.yaml", text)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError("run.dir", f"cannot write to {parent} ({reason})", "choose a writable folder") from error
    return RunDirectory(path, resumed=False)


def _new_folder(parent: Path, name: str) -> Path:
    """`name`, or `name-2`, `name-3`, ... where the same command ran in the same second."""
    for candidate in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))):
        try:
            (parent / candidate).mkdir()
            return parent / candidate
        except FileExistsError:
            continue
    raise AssertionError("itertools.count ends")


def resume_run(cfg: DictConfig) -> tuple[RunDirectory, DictConfig]:
    """The directory of run `cfg.resume` and its saved configuration; other overrides must not contradict that."""
    root = Path(cfg.run.dir).expanduser()
    found = sorted(root.glob(f"*/{cfg.resume}/config.yaml")) if "/" not in cfg.resume else []
    if not found:
        latest = [p.parent.name for p in sorted(root.glob("*/*/config.yaml"), key=lambda p: p.parent.name)[-3:]]
        remedy = f"latest: {', '.join(latest)}" if latest else "set run.dir to the folder that holds it"
        raise ConfigError("resume", f"no run {cfg.resume!r} below {root}", remedy)
    path = found[-1].parent
    saved = OmegaConf.load(found[-1])
    assert isinstance(saved, DictConfig)
    wanted = without_bookkeeping(describe(saved))
    given = set(without_bookkeeping(describe(cfg))) - set(describe(compose_unchecked()))
    if contradicting := sorted(given - set(wanted)):
        problem = f"{cfg.resume} was run without {' '.join(contradicting)}"
        raise ConfigError("resume", problem, f"leave it out, the run was: {command(wanted)}")
    for key in BOOKKEEPING:
        saved[key] = cfg[key]
    saved.run.experiment = path.parent.name
    OmegaConf.set_struct(saved, True)
    return RunDirectory(path, resumed=True), saved
