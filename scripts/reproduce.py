"""Check every claim of README on the shipped model and write the measured table into it.

python scripts/reproduce.py               # seeds 0, 1, 2; about ten minutes on two cores
python scripts/reproduce.py --seeds 0     # one seed
python scripts/reproduce.py engine.dtype=float64 --seeds 0   # the identity gate without tolerance
python scripts/reproduce.py --write       # also replace README's table, example and first figure

Exit code 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

FIGURE = Path(__file__).resolve().parent.parent / "notebooks" / "figures" / "collapse.png"
QUIET = ("track=jsonl", "run.experiment=reproduce")
SHOWN = {
    "eager": ("graph=none",),
    "FULL graphs": (),
    "FULL graphs + sync=mirror_next_step": ("sync=mirror_next_step",),
}
HEADER = (
    "| seed | main command and | verdict | AL | reference AL | lost | host rows / draft | pages wrong "
    "| first culprit | output identical |\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true", help="replace table, example and first figure of README.md")
    parser.add_argument("overrides", nargs="*", help="added to every run, e.g. engine.dtype=float64")
    options = parser.parse_args()
    import mtplab
    from mtplab.results.claims import CLAIMS, reads_per_draft, refute

    lines, failed, shown = [], 0, {}
    for seed in options.seeds:
        faulty = None
        for claim in CLAIMS:
            result = mtplab.run(*claim.command, f"seed={seed}", *QUIET, *options.overrides)
            if not claim.overrides:
                faulty = reads_per_draft(result.arm())
            shown.setdefault(claim.overrides, result)
            wrong = refute(claim, result.summary, faulty)
            failed += bool(wrong)
            lines.append(row(seed, claim.overrides, result.summary))
            print(lines[-1], *(f"  DOES NOT HOLD: {problem}" for problem in wrong), sep="\n", flush=True)
    print(f"{len(lines) - failed} of {len(lines)} claims hold")
    if options.write:
        from mtplab.config.locate import assets_directory
        from mtplab.results.card import card_table
        from mtplab.results.readme import replace_section
        from mtplab.results.table import incident_table

        example = shown[()]
        card = json.loads((assets_directory() / "tiny" / "quality_card.json").read_text(encoding="utf-8"))
        replace_section("card", card_table(card))
        replace_section("claims", "\n".join([HEADER, *lines]))
        replace_section("example", f"{incident_table(example.summary)}\n\n{verdict_lines(example.summary)}")
        draw({label: shown[overrides] for label, overrides in SHOWN.items()})
    return int(failed > 0)


def verdict_lines(summary: dict) -> str:
    culprit = summary["culprits"][0]
    return "\n".join(
        [
            f"**verdict** `{summary['verdict']}`",
            f"**culprit** {culprit['state']} of {culprit['layer']}: {culprit['evidence']}",
            f"**next** `{summary['next'].replace(' '.join(['', *QUIET]), '')}`",
        ]
    ).replace("\n", "  \n")


def draw(results: dict) -> None:
    """README's first figure: accepted length over steps of three arms, first seed."""
    from mtplab.plots.compare import compare_length
    from mtplab.plots.style import page

    FIGURE.parent.mkdir(exist_ok=True)
    with page(FIGURE, 9, 4.6) as axes:
        compare_length(results, axes)
        axes.set_title("Same prompts, same text: MTP acceptance under HiSparse", loc="left")


def row(seed: int, overrides: tuple[str, ...], summary: dict) -> str:
    arm, reference = (next(a for a in summary["arms"] if a["role"] == role) for role in ("requested", "reference"))
    ours, theirs = arm["mean_acceptance_length"], reference["mean_acceptance_length"]
    culprit = summary["culprits"][0] if summary["culprits"] else None
    name = "" if culprit is None else " ".join(part for part in (culprit["state"], culprit["layer"]) if part)
    cells = [
        seed,
        f"`{' '.join(overrides)}`" if overrides else "(nothing)",
        summary["verdict"],
        f"{ours:.2f}",
        f"{theirs:.2f}",
        f"{(theirs - ours) / (theirs - 1):.0%}",
        f"{arm['memory']['rows_read_from_host'] / max(arm['num_drafts'], 1):.0f}",
        f"{arm['memory']['pages_wrong']} of {arm['memory']['pages_audited']}",
        name or "none",
        "yes" if arm["output_identical"] else "no",
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
