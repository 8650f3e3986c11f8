"""Types of the configuration.

`Schema` is the root that Hydra merges `conf/config.yaml` into. `run`, `engine` and `memory` are closed: Hydra itself
refuses an unknown key or a wrong type in them. Groups whose options name a class (`_target_`) are open, so that a new
option may bring its own hyper-parameters; the fields they share are typed in `OPEN_GROUPS`, checked by `check_types`.
No defaults here: values live in `conf/` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mtplab.errors import ConfigError


@dataclass
class RunSchema:
    dir: str = MISSING
    experiment: str = MISSING


@dataclass
class EngineSchema:
    max_requests: int = MISSING
    capture_requests: list[int] | None = MISSING
    context: int = MISSING
    prefill_chunk: int = MISSING
    dtype: str = MISSING
    device: str = MISSING
    threads: int = MISSING
    audit: bool = MISSING


@dataclass
class MemorySchema:
    name: str = MISSING
    tier: str = MISSING
    page_size: int = MISSING
    resident_pages: int | None = MISSING
    pool_pages: int | None = MISSING
    hot_size: int | None = MISSING


@dataclass
class Schema:
    """The root. `Any` dictionaries are the open groups."""

    seed: int = MISSING
    resume: str | None = MISSING
    fail_on: list[str] = MISSING
    allow_targets: list[str] = MISSING
    run: RunSchema = field(default_factory=RunSchema)
    engine: EngineSchema = field(default_factory=EngineSchema)
    memory: MemorySchema = field(default_factory=MemorySchema)
    model: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    verify: dict[str, Any] = field(default_factory=dict)
    sparse: dict[str, Any] = field(default_factory=dict)
    graph: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, Any] = field(default_factory=dict)
    fault: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    track: dict[str, Any] = field(default_factory=dict)


@dataclass
class NamedFields:
    name: str = MISSING


@dataclass
class ModelFields(NamedFields):
    path: str | None = MISSING


@dataclass
class TargetFields(NamedFields):
    _target_: str = MISSING


@dataclass
class SpecFields(TargetFields):
    k: int = MISSING


@dataclass
class SparseFields(NamedFields):
    tier: str = MISSING
    top_k: int | None = MISSING
    selector: dict[str, Any] = MISSING


@dataclass
class SyncFields(NamedFields):
    mirror: dict[str, Any] = MISSING
    inputs: dict[str, Any] = MISSING


@dataclass
class FaultFields(TargetFields):
    card: dict[str, Any] | None = MISSING


@dataclass
class WorkloadFields(TargetFields):
    num_prompts: int = MISSING
    max_new_tokens: int = MISSING


OPEN_GROUPS: dict[str, type[NamedFields]] = {
    "model": ModelFields,
    "spec": SpecFields,
    "verify": TargetFields,
    "sparse": SparseFields,
    "graph": TargetFields,
    "sync": SyncFields,
    "fault": FaultFields,
    "workload": WorkloadFields,
    "track": TargetFields,
}


def register_schema() -> None:
    """Make the root schema known to Hydra; `conf/config.yaml` names it first in its defaults."""
    ConfigStore.instance().store(name="schema", node=Schema)


def check_types(cfg: DictConfig) -> None:
    """Refuse a missing value anywhere, an unknown key in a closed node, a wrong type in a shared field of a group."""
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(key, "has no value", f"add {key}=... to the command")
    closed = {"": Schema, "run.": RunSchema, "engine.": EngineSchema, "memory.": MemorySchema}
    for prefix, schema in closed.items():
        node = cfg[prefix[:-1]] if prefix else cfg
        names = {f.name for f in fields(schema)}
        for key in (str(k) for k in node if k not in names):
            raise ConfigError(prefix + key, "no such key", f"valid: {', '.join(sorted(names))}")
    for group, schema in OPEN_GROUPS.items():
        _check_group(cfg, group, schema)


def _check_group(cfg: DictConfig, group: str, schema: type[NamedFields]) -> None:
    given = OmegaConf.to_container(cfg[group], resolve=True) if isinstance(cfg[group], DictConfig) else None
    if not isinstance(given, dict) or "name" not in given:
        raise ConfigError(group, "is not one of its options", f"name an option: {group}=...")
    for name in (f.name for f in fields(schema)):
        if name not in given:
            raise ConfigError(f"{group}.{name}", "is missing", f"add it to conf/{group}/{given['name']}.yaml")
        try:
            typed = getattr(OmegaConf.merge(OmegaConf.structured(schema), {name: given[name]}), name)
        except OmegaConfBaseException as error:
            problem = str(error).splitlines()[0]
            raise ConfigError(f"{group}.{name}", problem, "give a value of that type") from error
        if typed != given[name] or type(typed) is not type(cfg[group][name]):
            cfg[group][name] = typed  # "3" for an int, 3 for a text
