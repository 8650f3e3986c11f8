"""Speed beside transformers' generate(use_mtp=True): same weights, same prompts, one run. Parity first.

python scripts/bench.py                             # one to two minutes
python scripts/bench.py --json runs/bench.jsonl     # also append the figures as JSON lines
python scripts/bench.py --write                     # also replace the table in README.md

Exit code 1 where parity fails: no speed is reported then.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtplab.bench.suite import Suite

ROUNDS = 5


def main() -> int:
    options = arguments()
    import torch

    from mtplab.bench.suite import Suite

    torch.set_num_threads(options.threads)
    suite = Suite(*inputs(options), options.new_tokens)
    parity = suite.parity()
    if not parity.green:
        return refuse(str(parity))
    print(f"Parity is green: {parity}.", flush=True)
    suite.run(options.rounds)
    wrong = suite.wrong_outputs()
    if wrong:
        return refuse("; ".join(wrong))
    text = "\n".join(report(suite, options))
    print(text)
    if options.json:
        append(suite, options)
    if options.write:
        from mtplab.results.readme import replace_section

        replace_section("bench", text)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="for both sides; on a small model one often beats two")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--model", type=Path, help="a checkpoint directory with a tokenizer; default: the shipped one")
    parser.add_argument("--json", type=Path, help="append one JSON line per arm to this file")
    parser.add_argument("--write", action="store_true", help="replace the table in README.md")
    return parser.parse_args()


def inputs(options: argparse.Namespace) -> tuple[Path, list[tuple[int, ...]]]:
    """Checkpoint directory and prompts of the default workload."""
    import mtplab
    from mtplab.config.instantiate import instantiate
    from mtplab.config.locate import model_directory
    from mtplab.workloads.workload import load_tokenizer

    cfg = mtplab.compose(f"workload.num_prompts={options.prompts}")
    directory = options.model or Path(model_directory(cfg))
    return directory, [p.tokens for p in instantiate(cfg.workload).load(load_tokenizer(directory), cfg.seed)]


def refuse(reason: str) -> int:
    print(f"parity is red, no speed is reported: {reason}", file=sys.stderr)
    return 1


def report(suite: Suite, options: argparse.Namespace) -> list[str]:
    from mtplab.bench.speed import tape_cost
    from mtplab.bench.suite import markdown

    conditions = (
        f"Parity is green. {options.threads} thread(s) on both sides, k=1, {options.new_tokens} tokens for each of "
        f"{options.prompts} prompts, context {suite.context}, median of {options.rounds} interleaved rounds; prefill "
        "is included, capture is not."
    )
    notes = [
        f"Step time of `graph=full` / `graph=none` (dense, batch 1): {suite.full.step_ms / suite.eager.step_ms:.2f}",
        f"the audit adds {suite.audited.step_ms / suite.hisparse.step_ms - 1:.0%} to a step",
        f"replay of a tape of 300 one-element adds: {tape_cost():.2f} microseconds per operator",
        suite.by_threads((1, 2)),
    ]
    return [conditions, "", *markdown(suite.rows()), "", f"{'; '.join(notes)}."]


def append(suite: Suite, options: argparse.Namespace) -> None:
    from dataclasses import asdict

    options.json.parent.mkdir(parents=True, exist_ok=True)
    common = {"threads": options.threads, "new_tokens": options.new_tokens, "context": suite.context}
    with options.json.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(row) | common) + "\n" for row in suite.rows())


if __name__ == "__main__":
    sys.exit(main())
