"""Attribute lost acceptance to single static inputs and host rows: refresh one, freeze one, on locked trajectories.

python scripts/attribute.py graph=full spec=mtp sparse=hisparse                            # about two minutes
python scripts/attribute.py graph=full spec=mtp sparse=hisparse workload.num_prompts=8 workload.max_new_tokens=48

Writes attribution.json and two figures into a run directory, prints the suspects that do anything.
"""

from __future__ import annotations

import sys


def main() -> int:
    overrides = sys.argv[1:]
    if not overrides or {"-h", "--help"} & set(overrides):
        print(__doc__)
        return 0 if overrides else 2
    import mtplab
    from mtplab.attribution.study import study
    from mtplab.config.locate import display_path
    from mtplab.errors import ConfigError
    from mtplab.plots.attribution import acceptance_waterfall, attribution_bars
    from mtplab.plots.style import page
    from mtplab.results.directory import create_run

    try:
        cfg = mtplab.compose(*overrides)
        found = study(cfg)
        directory = create_run(cfg)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    directory.write_json("attribution.json", found.record())
    with page(directory.path / "attribution.png", 9, 6) as axes:
        attribution_bars(found, axes)
    with page(directory.path / "waterfall.png", 9, 4.6) as axes:
        acceptance_waterfall(found, axes)
    print(f"{found.table()}\n")
    levels = ", ".join(f"{s['step']} {s['length']:.2f}" for s in found.waterfall.to_dict("records"))
    print(f"AL      {levels}")
    print(f"lost    {found.lost:.2f}; what single refreshes do not add up to: {found.remainder:+.2f}")
    print(f"files   {display_path(directory.path)}/: attribution.json, attribution.png, waterfall.png, config.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
