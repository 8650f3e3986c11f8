"""The study: what each suspect costs, alone and in an otherwise healthy run, and where the acceptance went in all.

Refresh-one: in the faulty arm one suspect is always right; gained AL. Freeze-one: in the healthy arm one suspect lags;
lost AL. What single refreshes do not add up to is the interaction remainder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from omegaconf import DictConfig
from tqdm import tqdm

from mtplab.attribution.arms import LockedArm, record
from mtplab.attribution.effects import Drafted, Effect, effect, mcnemar
from mtplab.config.compose import compose_unchecked
from mtplab.config.instantiate import instantiate
from mtplab.config.locate import model_directory
from mtplab.config.overrides import derive
from mtplab.config.preflight import check_prompts, check_weights
from mtplab.config.rules import validate
from mtplab.errors import ConfigError
from mtplab.workloads.workload import Workload, load_tokenizer

HEALED = ("sync=mirror_next_step", "fault=none")


@dataclass(frozen=True, slots=True)
class Attribution:
    """`suspects`: one row each with gained and lost AL, intervals, shares of the loss. `waterfall`: from k+1 down to
    the arm's AL. `positions`: exact McNemar test of the arm against the healthy one. All on the reference's trajectory.
    """

    suspects: pd.DataFrame
    waterfall: pd.DataFrame
    positions: pd.DataFrame
    lost: float
    remainder: float
    requests: int
    drafts: int

    def record(self) -> dict[str, object]:
        """Everything, for a JSON file."""
        frames = {name: getattr(self, name).to_dict("records") for name in ("suspects", "waterfall", "positions")}
        return frames | {name: getattr(self, name) for name in ("lost", "remainder", "requests", "drafts")}

    def table(self) -> str:
        """Markdown of the suspects that do anything, largest gain first."""
        shown = self.suspects.query("gain != 0 or loss != 0")
        lines = ["| suspect | AL when it alone is refreshed | AL when it alone is frozen |", "|---|---|---|"]
        for row in sorted(shown.to_dict("records"), key=lambda row: (-row["gain"], row["loss"])):
            gain, loss = (
                f"{row[k]:+.2f} [{row[f'{k}_low']:+.2f}, {row[f'{k}_high']:+.2f}] {row[f'{k}_share']:.0%}"
                for k in ("gain", "loss")
            )
            lines.append(f"| {row['suspect']} | {gain} | {loss} |")
        quiet = len(self.suspects) - len(shown)
        return "\n".join([*lines, f"| {quiet} others | 0 | 0 |"] if quiet else lines)


def study(cfg: DictConfig, quiet: bool = False) -> Attribution:
    """Attribute the AL that `cfg` loses against its healed form. Raises `ConfigError` for what the user can mend."""
    validate(cfg)
    check_weights(cfg)
    if cfg.spec.name == "none":
        raise ConfigError("spec", "nothing is drafted, so no acceptance can be lost", "use spec=mtp")
    workload: Workload = instantiate(cfg.workload, cfg.allow_targets)
    prompts = workload.load(load_tokenizer(model_directory(cfg)), cfg.seed)
    check_prompts(cfg, [len(p.tokens) for p in prompts], [p.source for p in prompts])
    torch.set_num_threads(cfg.engine.threads)
    with torch.inference_mode():
        return _Study(cfg, [p.tokens for p in prompts], quiet).run()


class _Study:
    def __init__(self, cfg: DictConfig, prompts: list[tuple[int, ...]], quiet: bool) -> None:
        unaudited = derive(cfg, cfg, (), {"engine.audit": False})
        neutral = compose_unchecked("graph=none", *HEALED)
        device = {"sparse.tier": "device", "memory.tier": "device"}
        self._reference_cfg = derive(unaudited, neutral, ("graph", "sync", "fault"), device)
        self._eager_cfg = derive(unaudited, neutral, ("graph", "sync", "fault"), {})
        self._healthy_cfg = derive(unaudited, neutral, ("sync", "fault"), {})
        self._cfg = unaudited
        self._prompts = prompts
        self._quiet = quiet

    def run(self) -> Attribution:
        trajectory, reference = record(self._reference_cfg, self._prompts)

        def locked(cfg: DictConfig) -> LockedArm:
            return LockedArm(cfg, self._prompts, trajectory)

        eager = locked(self._eager_cfg).run()
        healthy_arm, faulty_arm = locked(self._healthy_cfg), locked(self._cfg)
        healthy, faulty = healthy_arm.run(), faulty_arm.run()
        whole = healthy.length - faulty.length
        names = faulty_arm.suspects
        gains = self._each("refresh", names, lambda name: effect(faulty_arm.run(refreshed=[name]), faulty, whole))
        losses = self._each("freeze", names, lambda name: effect(healthy_arm.run(frozen=[name]), healthy, -whole))
        return Attribution(
            suspects=_frame(names, gains, losses),
            waterfall=_waterfall(trajectory.k, reference, eager, healthy, faulty),
            positions=pd.DataFrame(mcnemar(faulty, healthy), columns=["lost", "won", "p_value"]),
            lost=whole,
            remainder=whole - sum(gain.value for gain in gains),
            requests=len(faulty.accepted),
            drafts=sum(map(len, faulty.accepted)),
        )

    def _each(self, what: str, names: list[str], measure: Callable[[str], Effect]) -> list[Effect]:
        return [measure(name) for name in tqdm(names, desc=what, disable=self._quiet, unit="arm")]


def _frame(names: list[str], gains: list[Effect], losses: list[Effect]) -> pd.DataFrame:
    rows = [
        {
            "suspect": name,
            **{f"gain{part}": value for part, value in _columns(gain).items()},
            **{f"loss{part}": value for part, value in _columns(loss).items()},
        }
        for name, gain, loss in zip(names, gains, losses, strict=True)
    ]
    return pd.DataFrame(rows)


def _columns(found: Effect) -> dict[str, float]:
    return {"": found.value, "_low": found.interval.low, "_high": found.interval.high, "_share": found.share}


def _waterfall(k: int, reference: Drafted, eager: Drafted, healthy: Drafted, faulty: Drafted) -> pd.DataFrame:
    """Each step is the AL after it; `change` is what the step took. The names are METHODS' and STYLE_AND_UX's."""
    levels = [
        ("perfect drafter", "every draft accepted", float(k + 1)),
        ("head quality", "eager, all rows on the device", reference.length),
        ("numerics", "eager, rows where the configuration puts them", eager.length),
        ("graph", "replays, everything fresh", healthy.length),
        ("sync and fault", "as configured", faulty.length),
    ]
    frame = pd.DataFrame(levels, columns=["step", "arm", "length"])
    frame["change"] = frame["length"].diff().fillna(0.0)
    return frame
