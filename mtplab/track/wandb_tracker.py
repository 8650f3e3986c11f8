"""`track=wandb|offline`: one W&B run inside the run directory.

Online only if a key exists and the server answers within `timeout_s`; else offline. WANDB_MODE wins over both.
"""

from __future__ import annotations

import netrc
import os
import shutil
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pandas as pd

from mtplab.config.locate import display_path
from mtplab.track.metrics import STEP_METRIC, step_metrics
from mtplab.track.tracker import Outcome, TrackedRun


class WandbTracker:
    """Metrics are logged arm by arm, in bulk, so that tracking costs no time inside a step."""

    def __init__(self, project: str, online: bool, timeout_s: float) -> None:
        self._project = project
        self._online = online
        self._timeout_s = timeout_s
        self._run: Any = None
        self._overview: Path | None = None

    def start(self, run: TrackedRun) -> None:
        import wandb

        forced = os.environ.get("WANDB_MODE")
        if forced == "offline" or (not forced and not (self._online and has_key())):
            self._run = self._init(run, run.run_id, "offline")
        else:
            try:
                self._run = self._init(run, run.run_id, forced or "online")
            except wandb.Error as error:
                reason = str(error).splitlines()[0]
                warnings.warn(f"W&B stays offline ({reason})", RuntimeWarning, stacklevel=2)
                for remains in (run.directory / "wandb").glob(f"run-*-{run.run_id}"):
                    shutil.rmtree(remains, ignore_errors=True)  # else `wandb leet` lists an empty run
                # the service keeps the id of a failed init in use
                self._run = self._init(run, f"{run.run_id}-offline", "offline")
        self._run.define_metric(STEP_METRIC, hidden=True)
        self._run.define_metric("*", step_metric=STEP_METRIC)
        self._overview = run.directory.parent / "wandb"

    def log_steps(self, role: str, steps: pd.DataFrame) -> None:
        for metrics in step_metrics(role, steps):
            self._run.log(metrics)

    def log_outcome(self, outcome: Outcome) -> None:
        import wandb

        header, rows = outcome.table
        table = wandb.Table(columns=list(header), data=[list(row) for row in rows])
        images = {f"figures/{path.stem}": wandb.Image(str(path)) for path in outcome.figures}
        self._run.log({"incident": table, **images})
        summary = outcome.summary
        self._run.summary.update(
            {"verdict": summary["verdict"], "next": summary["next"], "seconds": summary["seconds"]}
        )
        for arm in summary["arms"]:
            kept = ("mean_acceptance_length", "draft_acceptance_rate", "tokens_per_second", "output_identical")
            self._run.summary.update({f"{arm['role']}/{name}": arm[name] for name in kept})
        self._list_in_overview()

    def finish(self, exit_code: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=exit_code)

    def how_to_look(self) -> list[str]:
        """`wandb leet` on the overview shows all runs of the experiment side by side."""
        if self._run is None or self._run.disabled:
            return []
        folder = display_path(Path(self._run.settings.sync_dir))
        online = f"wandb sync {folder}" if self._run.offline else str(self._run.url)
        return [f"wandb leet {display_path(self._overview or Path())}", online]

    def _init(self, run: TrackedRun, run_id: str, mode: str) -> Any:
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            init_timeout=self._timeout_s,
            x_disable_stats=True,
            x_save_requirements=False,
            x_disable_meta=True,  # host name, user, command line and folders stay here
        )
        return wandb.init(
            project=self._project,
            dir=run.directory,
            id=run_id,
            name=run.run_id,
            group=run.experiment,
            job_type=run.job_type,
            tags=run.tags,
            config=run.config,
            mode=mode,  # pyright: ignore[reportArgumentType]
            reinit="create_new",
            settings=settings,
        )

    def _list_in_overview(self) -> None:
        """A link beside the run directories, because `wandb leet` compares only the runs of one folder."""
        if self._run.disabled or self._overview is None:
            return
        folder = Path(self._run.settings.sync_dir).resolve()
        self._overview.mkdir(exist_ok=True)
        link = self._overview / folder.name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(folder, self._overview.resolve()))


def has_key() -> bool:
    """Whether W&B could log in: an environment variable, its own settings, or netrc. The key itself is not kept."""
    import wandb

    settings = wandb.setup().settings
    if settings.api_key or settings.identity_token_file:
        return True
    host = urlparse(settings.base_url).hostname or ""
    for path in filter(None, (os.environ.get("NETRC"), "~/.netrc", "~/_netrc")):
        try:
            if netrc.netrc(Path(path).expanduser()).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
