"""Speed beside transformers' generate(use_mtp=True): same weights, same prompts, one run. Parity first.

python scripts/bench.py              # about three minutes
python scripts/bench.py --write      # also replace the table in README.md

Exit code 1 if outputs differ: no speed is reported then.
"""

from __future__ import annotations

import argparse
import sys

ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="for both sides; on a small model one often beats two")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--write", action="store_true", help="replace the table in README.md")
    options = parser.parse_args()
    import torch

    from mtplab.bench.speed import tape_cost

    torch.set_num_threads(options.threads)
    transformers, single, batched = candidates(options)
    if not same_outputs(transformers, single):
        return 1
    text = "\n".join(report(transformers, single, batched, options.threads, tape_cost()))
    print(text)
    if options.write:
        from mtplab.results.readme import replace_section

        replace_section("bench", text)
    return 0


def candidates(options: argparse.Namespace):
    """Measure transformers, our single-request arms and our batched arm on the same prompts."""
    from pathlib import Path

    import mtplab
    from mtplab.bench.hf import load_reference
    from mtplab.bench.speed import measure, ours, theirs
    from mtplab.config.instantiate import instantiate
    from mtplab.config.locate import model_directory
    from mtplab.workloads.workload import load_tokenizer

    cfg = mtplab.compose(f"workload.num_prompts={options.prompts}")
    directory = Path(model_directory(cfg))
    prompts = [p.tokens for p in instantiate(cfg.workload).load(load_tokenizer(directory), cfg.seed)]
    new = options.new_tokens
    # transformers' cache grows with the text; ours is captured for a context, so it gets the one these prompts need
    context = -(-(max(map(len, prompts)) + new + 2) // 16) * 16
    sized = ("spec.k=1", f"engine.context={context}")
    one = (*sized, "engine.max_requests=1", "engine.audit=false")
    healed = ("graph=full", "sparse=hisparse", "sync=mirror_next_step")
    single = [
        ours("graph=full sparse=dense", prompts, new, "graph=full", "sparse=dense", *one),
        ours("graph=none sparse=dense", prompts, new, "graph=none", "sparse=dense", *one),
        ours("graph=full sparse=dsa", prompts, new, "graph=full", "sparse=dsa", *one),
        ours("graph=full sparse=hisparse", prompts, new, *healed, *one),
        ours("graph=full sparse=hisparse, audited", prompts, new, *healed, *one[:-1]),
    ]
    eight = (*sized, "engine.max_requests=8", "engine.audit=false")
    batched = ours("graph=full sparse=dense, batch 8", prompts, new, "graph=full", "sparse=dense", *eight)
    transformers = theirs(load_reference(directory, index_topk=cfg.engine.context), prompts, new)
    measure([transformers, *single, batched], ROUNDS)
    return transformers, single, batched


def same_outputs(transformers, single) -> bool:
    """Both dense arms must emit transformers' tokens."""
    for arm in single[:2]:
        wrong = [i for i, (a, b) in enumerate(zip(arm.outputs, transformers.outputs, strict=True)) if a != b]
        if wrong:
            print(f"parity is red: {arm.name} differs from transformers on prompts {wrong}; no speed is reported")
            return False
    return True


def report(transformers, single, batched, threads: int, tape_us: float) -> list[str]:
    base = transformers.tokens_per_second
    lines = [
        (
            f"Parity is green. {threads} thread(s) on both sides, k=1, median of {ROUNDS} rounds, interleaved; "
            "prefill is included, capture is not."
        ),
        "",
        "| batch | arm | tokens/s | x transformers | step ms | capture s |",
        "|---|---|---|---|---|---|",
        f"| 1 | {transformers.name} (dense) | {base:.0f} | 1.0 | | |",
    ]
    for batch, arm in [*((1, arm) for arm in single), (8, batched)]:
        speed = arm.tokens_per_second
        cells = (
            batch,
            arm.name,
            f"{speed:.0f}",
            f"{speed / base:.1f}",
            f"{arm.step_ms:.2f}",
            f"{arm.capture_seconds:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    ratio = single[0].step_ms / single[1].step_ms
    lines += ["", f"Step time of `graph=full` / `graph=none` (dense, batch 1): {ratio:.2f}. "]
    lines[-1] += f"Replay of a tape of 300 one-element adds: {tape_us:.2f} microseconds per operator."
    return lines


if __name__ == "__main__":
    sys.exit(main())
