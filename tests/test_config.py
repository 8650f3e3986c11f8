"""The configuration tree is the registry: every option composes, every mistake ends in one clear line."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

import mtplab
from mtplab.config import locate
from mtplab.config.compose import compose_unchecked
from mtplab.config.instantiate import instantiate
from mtplab.config.overrides import command, derive, describe, home_to_tilde, literal, replaced
from mtplab.config.rules import validate
from mtplab.config.schema import OPEN_GROUPS, Schema
from mtplab.errors import ConfigError

OPTIONS = [(group, option) for group in locate.default_options() for option in locate.options(group)]


def raw(group: str, option: str) -> DictConfig:
    node = OmegaConf.load(locate.config_directory() / group / f"{option}.yaml")
    assert isinstance(node, DictConfig)
    return node


def targets(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["_target_"]] if "_target_" in node else []
        return own + [target for value in node.values() for target in targets(value)]
    return []


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_under_its_own_name(group: str, option: str) -> None:
    assert compose_unchecked(f"{group}={option}")[group].name == option


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_target_is_a_class_of_mtplab(group: str, option: str) -> None:
    for target in targets(OmegaConf.to_container(raw(group, option), resolve=False)):
        module, _, name = target.rpartition(".")
        assert module.startswith("mtplab.")
        assert isinstance(getattr(importlib.import_module(module), name), type)


def test_no_option_reads_hydras_own_configuration() -> None:
    for path in locate.config_directory().rglob("*.yaml"):
        assert "${hydra:" not in path.read_text(encoding="utf-8")


def test_the_schema_covers_every_group_of_a_run() -> None:
    groups = set(locate.default_options())
    assert groups == {*OPEN_GROUPS, "memory"}
    assert groups < set(Schema.__dataclass_fields__)


def test_defaults_are_those_of_the_architecture() -> None:
    cfg = mtplab.compose()
    names = {group: cfg[group].name for group in locate.default_options()}
    assert names == {
        "model": "tiny", "spec": "mtp", "verify": "greedy", "sparse": "dense", "graph": "none",
        "sync": "mirror_after_target", "fault": "none", "memory": "pressure", "workload": "edit", "track": "wandb",
    }  # fmt: skip
    assert (cfg.seed, cfg.spec.k, cfg.memory.page_size, cfg.memory.resident_pages) == (0, 3, 16, 4)
    assert (cfg.engine.context, cfg.engine.max_requests, cfg.engine.prefill_chunk) == (512, 4, 64)


def test_the_tier_of_memory_follows_the_selector() -> None:
    assert mtplab.compose("sparse=hisparse").memory.tier == "hisparse"
    assert mtplab.compose("sparse=dsa").memory.tier == "device"


def test_compose_can_be_repeated_and_leaves_no_global_state() -> None:
    assert mtplab.compose("graph=full") == mtplab.compose("graph=full")
    assert not GlobalHydra.instance().is_initialized()


BAD_OVERRIDES = [
    ("graph=fulll", "graph", "did you mean full"),
    ("grph=full", "grph", "did you mean graph"),
    ("spec.kk=3", "spec.kk", "did you mean spec.k"),
    ("engine.contxt=3", "engine.contxt", "did you mean engine.context"),
    ("sync.mirror.foo=2", "sync.mirror.foo", "did you mean"),
    ("engine.context=abc", "engine.context", "give a value of that type"),
    ("spec.k=abc", "spec.k", "give a value of that type"),
    ("seed=x", "seed", "give a value of that type"),
    ("sparse.top_k=1.5", "sparse.top_k", "give a value of that type"),
    ("workload=file", "workload.path", "add workload.path="),
    ("fail_on=collapsed", "fail_on", "write a list"),
    ("graph=none,full", "graph", "add -m"),
    ("graph", "graph", "write group=option"),
    ("+memory.foo=1", "memory.foo", "valid:"),
    ("~graph", "graph", "name an option"),
    ("engine=fast", "engine", "write group=option"),
    ("sync.mirror=null", "sync.mirror", "give a value"),
]


@pytest.mark.parametrize(("override", "key", "remedy"), BAD_OVERRIDES)
def test_a_mistake_names_its_key_and_its_remedy(override: str, key: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mtplab.compose(override)
    assert caught.value.key == key
    assert remedy in caught.value.remedy
    assert "\n" not in str(caught.value)


BROKEN_RULES = [
    (["spec.k=0"], "spec.k", "use spec.k=1"),
    (["spec.k=9"], "spec.k", "use spec.k=8"),
    (["spec=none", "spec.k=2"], "spec.k", "use spec.k=0"),
    (["sparse.tier=hisparse"], "sparse.tier", "use sparse=hisparse"),
    (["sparse.tier=disk"], "sparse.tier", "use"),
    (["sparse=dsa", "memory.tier=hisparse"], "memory.tier", "set sparse.tier=hisparse"),
    (["sparse=hisparse", "memory.hot_size=127"], "memory.hot_size", "use memory.hot_size=128"),
    (["sparse=dsa", "sparse.top_k=600"], "sparse.top_k", "use sparse.top_k=512"),
    (["sparse=dsa", "sparse.top_k=0"], "sparse.top_k", "use sparse.top_k=1"),
    (["memory.resident_pages=1"], "memory.resident_pages", "use memory.resident_pages=2"),
    (["memory.pool_pages=1"], "memory.pool_pages", "use memory.pool_pages=3"),
    (["fail_on=[collapse]"], "fail_on", "use collapsed"),
    (["engine.context=500"], "engine.context", "use engine.context=496"),
    (["engine.context=1024"], "engine.context", "use engine.context=512"),
    (["engine.dtype=fp32"], "engine.dtype", "use float32"),
    (["engine.device=gpu"], "engine.device", "use"),
    (["engine.prefill_chunk=3"], "engine.prefill_chunk", "use engine.prefill_chunk=4"),
    (["engine.threads=0"], "engine.threads", "use engine.threads=1"),
    (["workload.max_new_tokens=512"], "workload.max_new_tokens", "use 256"),
    (["workload.num_prompts=0"], "workload.num_prompts", "use workload.num_prompts=1"),
    (["run.experiment=a/b"], "run.experiment", "use a-b"),
    (["seed=-1"], "seed", "use seed=0"),
]


@pytest.mark.parametrize(("overrides", "key", "remedy"), BROKEN_RULES, ids=" ".join)
def test_a_broken_rule_names_the_nearest_valid_value(
    overrides: list[str], key: str, remedy: str, checkpoint: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(mtplab.compose(f"model.path={checkpoint}", *overrides))
    assert caught.value.key == key
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("sparse", ["dense", "dsa", "hisparse"])
def test_every_depth_and_selector_is_valid(sparse: str, checkpoint: Path) -> None:
    cfg = mtplab.compose(f"model.path={checkpoint}", f"sparse={sparse}")
    for k in range(1, 9):
        cfg.spec.k = k
        validate(cfg)


def test_a_number_written_as_text_becomes_a_number(checkpoint: Path) -> None:
    cfg = mtplab.compose(f"model.path={checkpoint}", "spec.k='4'")
    validate(cfg)
    assert cfg.spec.k == 4


def test_only_allowed_classes_are_built() -> None:
    node = OmegaConf.create({"part": {"_target_": "pathlib.PurePosixPath"}}).part
    with pytest.raises(ConfigError, match=r"part\._target_: pathlib\.PurePosixPath is not allowed"):
        instantiate(node)
    assert str(instantiate(node, ["pathlib"])) == "."


def test_a_forbidden_class_inside_an_argument_is_refused() -> None:
    node = OmegaConf.create({"_target_": "mtplab.results.stats.Interval", "low": {"_target_": "os.getcwd"}, "high": 1})
    with pytest.raises(ConfigError, match=r"os\.getcwd is not allowed"):
        instantiate(node)


def test_the_name_of_an_option_is_not_an_argument() -> None:
    node = OmegaConf.create({"name": "x", "_target_": "mtplab.results.stats.Interval", "low": 0, "high": 1})
    assert instantiate(node).high == 1


def test_an_unexpected_argument_is_one_clear_line() -> None:
    node = OmegaConf.create({"_target_": "mtplab.results.stats.Interval", "low": 0, "top": 1})
    with pytest.raises(ConfigError, match="cannot build"):
        instantiate(node)


def test_a_configuration_error_inside_a_class_is_passed_on() -> None:
    node = OmegaConf.create({"_target_": "mtplab.errors.ConfigError", "key": "a", "problem": "b"})
    with pytest.raises(ConfigError, match="remedy"):
        instantiate(node)


CHOICES = {
    "graph": st.sampled_from(locate.options("graph")),
    "sparse": st.sampled_from(locate.options("sparse")),
    "sync": st.sampled_from(locate.options("sync")),
    "memory": st.sampled_from(locate.options("memory")),
    "spec.k": st.integers(1, 8),
    "seed": st.integers(0, 5),
    "model.path": st.sampled_from(["null", "/tmp/x", "'a b'", r"'it\'s'"]),
    "fail_on": st.sampled_from(["[]", "[collapsed,corrupted]"]),
}


@settings(max_examples=8, deadline=None)
@given(st.fixed_dictionaries({}, optional=CHOICES))
def test_describe_is_the_inverse_of_compose(choice: dict[str, object]) -> None:
    cfg = mtplab.compose(*(f"{key}={value}" for key, value in choice.items()))
    assert mtplab.compose(*describe(cfg)) == cfg


def test_the_axes_of_the_question_are_always_named() -> None:
    assert describe(mtplab.compose()) == ["graph=none", "spec=mtp", "sparse=dense"]
    assert command(describe(mtplab.compose("sparse=hisparse"))).endswith("graph=none spec=mtp sparse=hisparse")


def test_derive_replaces_options_and_values_and_leaves_the_original() -> None:
    cfg = mtplab.compose("graph=full", "spec.k=5", "sparse=hisparse")
    derived = derive(cfg, mtplab.compose("graph=none", "spec.k=2"), ["graph"], {"sparse.tier": "device"})
    assert (derived.graph.name, derived.memory.tier, derived.spec.k) == ("none", "device", 5)
    assert (cfg.graph.name, cfg.memory.tier) == ("full", "hisparse")
    assert describe(derived) == ["graph=none", "spec=mtp", "sparse=hisparse", "spec.k=5", "sparse.tier=device"]


def test_replaced_overrides_take_the_place_of_the_old() -> None:
    assert replaced(["graph=full", "seed=1"], "seed=2", "sync=x") == ["graph=full", "seed=2", "sync=x"]


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "a b", "007", "~/x", "null", "", "it's", [1, "a,b"]])
def test_literals_read_back(value: object) -> None:
    assert compose_unchecked(f"+model.extra={literal(value)}").model.extra == value


def test_no_home_folder_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/someone"))
    given_value = {"a": ["/home/someone/x", "/home/someone-else"], "b": 3}
    assert home_to_tilde(given_value) == {"a": ["~/x", "/home/someone-else"], "b": 3}


def test_an_installed_wheel_finds_its_own_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate, "PACKAGE", tmp_path / "site-packages" / "mtplab")
    assert locate.config_directory() == tmp_path / "site-packages" / "mtplab" / "conf"
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"conf": "mtplab/conf"}
