"""Types of `conf/train.yaml`, checked when it is composed. Values live there only.

The classes are OmegaConf schemas as well, which is why they are not frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mtplab.config.locate import assets_directory, config_directory
from mtplab.errors import ConfigError

STAGES = ("1", "2", "3")
TASKS = ("all", *STAGES, "prompts", "card", "export")
MODES = ("dense", "imitate", "sparse")
RULES = ("muon", "adamw")
PARTS = ("matrices", "embeddings", "vectors", "indexers")


@dataclass(slots=True)
class Shares:
    """Relative weights of the kinds of sequence, see `mixture.Mixture`."""

    plain: float
    repeat: float
    copy: float
    recall: float
    short: float


@dataclass(slots=True)
class OptimizerSettings:
    """`rule` muon (matrices only) or adamw for some of PARTS; `lr` is the highest learning rate."""

    rule: str
    parts: list[str]
    lr: float
    weight_decay: float


@dataclass(slots=True)
class BatchSettings:
    """`length` rows; the batch has depths + 1 tokens more, as targets."""

    sequences: int
    length: int


@dataclass(slots=True)
class PhaseSettings:
    """`steps` steps that take `batches` in turn, with `depths` recurrent MTP depths."""

    steps: int
    depths: int
    batches: list[BatchSettings]
    shares: Shares


@dataclass(slots=True)
class StageSettings:
    """loss = main_weight * (trunk + mtp_weight * sum of depth_weights * depths) + index_weight * KL."""

    mode: str
    main_weight: float
    mtp_weight: float
    depth_weights: list[float]
    index_weight: float
    warmup: int
    final_rate: float
    optimizers: list[OptimizerSettings]
    phases: list[PhaseSettings]

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase(self, step: int) -> PhaseSettings:
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        return self.phases[-1]

    def rate(self, step: int) -> float:
        """Share of the highest learning rate: linear warm-up, then a cosine down to `final_rate`."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return min(1.0, (step + 1) / self.warmup) * (cosine * (1 - self.final_rate) + self.final_rate)


@dataclass(slots=True)
class Settings:
    stage: str
    seed: int
    threads: int
    dir: str
    model_dir: str | None
    assets: str | None
    tokenizer: str | None
    tied: bool
    pairs: int
    evaluate_every: int
    save_every: int
    wandb: bool
    stages: dict[str, StageSettings]

    @property
    def directory(self) -> Path:
        """Checkpoints, tokenizer and log of this training."""
        return Path(self.dir).expanduser()

    @property
    def assets_directory(self) -> Path:
        """Where `tiny/` and `prompts/` lie."""
        return Path(self.assets).expanduser() if self.assets else assets_directory()

    @property
    def model_directory(self) -> Path:
        """Where the `config.json` of the model lies."""
        return Path(self.model_dir).expanduser() if self.model_dir else assets_directory() / "tiny"

    def deciding(self, stage: str) -> dict[str, object]:
        """What decides a stage's weights; a checkpoint made with other settings is not continued."""
        plain = OmegaConf.to_container(OmegaConf.structured(self))
        assert isinstance(plain, dict)
        stages = {number: plain["stages"][number] for number in STAGES if number <= stage}
        return {"seed": self.seed, "pairs": self.pairs, "tied": self.tied, "stages": stages}


def compose_settings(*overrides: str) -> DictConfig:
    """Compose `conf/train.yaml`. Raises `ConfigError`."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_directory()), job_name="train", version_base="1.3"):
            return compose("train", overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        key = next((o.split("=")[0].lstrip("+~") for o in overrides if o.split("=")[0] in str(error)), "overrides")
        problem = str(error.__cause__ or error).splitlines()[0].rstrip(".")
        raise ConfigError(key, problem, "see conf/train.yaml for the keys") from error
    finally:
        GlobalHydra.instance().hydra = outer


def read_settings(cfg: DictConfig) -> Settings:
    """Typed settings of a composed configuration. Raises `ConfigError` for an unknown key or an unusable value."""
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), cfg))
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or "conf/train.yaml")
        raise ConfigError(key, str(error).splitlines()[0].rstrip("."), "compare conf/train.yaml") from error
    assert isinstance(settings, Settings)
    _one_of("stage", [settings.stage], TASKS)
    for key, low in (("threads", 1), ("pairs", 1000), ("evaluate_every", 1), ("save_every", 1), ("seed", 0)):
        if getattr(settings, key) < low:
            raise ConfigError(key, f"{getattr(settings, key)} is below {low}", f"use {key}={low} or more")
    if tuple(sorted(settings.stages)) != STAGES:
        raise ConfigError("stages", f"{', '.join(settings.stages)} are given", f"give {', '.join(STAGES)}")
    for number, stage in settings.stages.items():
        _check_stage(f"stages.{number}", stage)
    return settings


def _check_stage(key: str, stage: StageSettings) -> None:
    _one_of(f"{key}.mode", [stage.mode], MODES)
    if stage.warmup < 1 or stage.steps < 1:
        raise ConfigError(key, "warmup or the phases' steps are below 1", "raise them")
    for phase in stage.phases:
        if not 1 <= phase.depths <= len(stage.depth_weights):
            problem = f"{phase.depths} depths, {len(stage.depth_weights)} depth_weights"
            raise ConfigError(f"{key}.phases", problem, "give a weight for each depth")
        if not phase.batches:
            raise ConfigError(f"{key}.phases", "a phase has no batches", "give at least one")
    for optimizer in stage.optimizers:
        _one_of(f"{key}.optimizers.rule", [optimizer.rule], RULES)
        _one_of(f"{key}.optimizers.parts", optimizer.parts, PARTS)
        if optimizer.rule == "muon" and optimizer.parts != ["matrices"]:
            raise ConfigError(f"{key}.optimizers", "muon trains matrices only", "use adamw for the other parts")


def _one_of(key: str, values: Iterable[str], valid: tuple[str, ...]) -> None:
    for value in values:
        if value not in valid:
            raise ConfigError(key, f"{value!r} is not one of {', '.join(valid)}", f"use one of them, e.g. {valid[0]}")
