"""The command line: compose first, so that bad input ends in one clear line; then hand over to Hydra.

Exit code 0 for every verdict, 1 where `fail_on` names it, 2 for bad input.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence

import hydra
from omegaconf import DictConfig, OmegaConf

from mtplab.config.compose import compose_config, compose_unchecked
from mtplab.config.locate import config_directory, default_options, options
from mtplab.config.rules import validate
from mtplab.config.schema import register_schema
from mtplab.errors import ConfigError

MULTIRUN = frozenset({"-m", "--multirun"})
HELP = frozenset({"-h", "--help"})
USAGE = """\
mtplab: which piece of state went stale when acceptance fell?

  python scripts/run.py [group=option ...] [key=value ...]

  python scripts/run.py graph=full spec=mtp sparse=hisparse                        # acceptance collapses
  python scripts/run.py graph=full spec=mtp sparse=hisparse sync=mirror_next_step  # and is healed
  python scripts/run.py ... --cfg job                                              # print the configuration only
  python scripts/run.py -m graph=none,piecewise,full ...                           # run every combination
  python scripts/run.py resume=RUN_ID                                              # continue an interrupted run

Groups and their options
{groups}

Configuration with these options (change any key with key=value)
{config}"""


def main() -> int:
    """Entry point of `scripts/run.py` and `mtplab-run`."""
    arguments = sys.argv[1:]
    flags = {argument for argument in arguments if argument.startswith("-")}
    try:
        if flags and flags <= HELP:
            print(_help([a for a in arguments if a not in flags]))
            return 0
        if flags <= MULTIRUN:
            for overrides in _cells([a for a in arguments if a not in flags], sweep=bool(flags)):
                cfg = compose_config(*overrides)
                if not cfg.resume:
                    validate(cfg)
    except ConfigError as error:
        return _refuse(error)
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    # argparse, which Hydra uses, wants flags together
    sys.argv[1:] = sorted(arguments, key=lambda argument: argument in MULTIRUN)
    return _hand_over()


def _hand_over() -> int:
    """Run under Hydra: its flags (--help, --cfg, -m) and its sweeps work; the worst exit code of all jobs counts."""
    codes = [0]

    def task(cfg: DictConfig) -> None:
        from mtplab.runner import execute

        try:
            codes.append(execute(cfg, report=True).exit_code)
        except ConfigError as error:
            codes.append(_refuse(error))
        except KeyboardInterrupt:
            sys.exit(130)

    register_schema()
    hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="config")(task)()
    return max(codes)


def _help(overrides: Sequence[str]) -> str:
    """Own text: Hydra's lists its groups in about a second."""
    lines = [f"  {group:<10}{', '.join(options(group))}" for group in default_options()]
    return USAGE.format(groups="\n".join(lines), config=OmegaConf.to_yaml(compose_unchecked(*overrides)))


def _refuse(error: ConfigError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


def _cells(overrides: Sequence[str], sweep: bool) -> Iterator[Sequence[str]]:
    """Every combination that a multirun would start; the overrides themselves without one."""
    if not sweep:
        yield overrides
        return
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        raise ConfigError("overrides", str(error).splitlines()[0], "write key=value,value") from error
    choices = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()] if o.is_sweep_override() else [text]
        for o, text in zip(parsed, overrides, strict=True)
    ]
    yield from itertools.product(*choices)
