"""Where the configuration tree and the shipped assets lie: in a clone, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

PACKAGE = Path(__file__).resolve().parent.parent


def config_directory() -> Path:
    """`conf/` of the clone this package runs from, else the copy inside the wheel."""
    clone = PACKAGE.parent
    if (clone / "pyproject.toml").is_file() and (clone / "conf" / "config.yaml").is_file():
        return clone / "conf"
    return PACKAGE / "conf"


def assets_directory() -> Path:
    """Shipped weights and prompts."""
    return PACKAGE / "assets"


def model_directory(cfg: DictConfig) -> Path:
    """The checkpoint directory: `model.path`, or the shipped weights of that name."""
    return Path(str(cfg.model.path)).expanduser() if cfg.model.path else assets_directory() / cfg.model.name


def options(group: str) -> list[str]:
    """Names of a group's options. The directory is the registry."""
    return sorted(path.stem for path in (config_directory() / group).glob("*.yaml"))


def default_options() -> dict[str, str]:
    """Every group of a run -> its default option, as listed in `conf/config.yaml`."""
    entries = OmegaConf.load(config_directory() / "config.yaml").defaults
    picks = [entry for entry in entries if isinstance(entry, DictConfig)]
    return {str(group): str(name) for entry in picks for group, name in entry.items() if "/" not in str(group)}


def display_path(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
