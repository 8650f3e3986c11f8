"""README's form of the quality card."""

from __future__ import annotations

from typing import Any


def card_table(card: dict[str, Any]) -> str:
    """Markdown of `quality_card.json`, in the order METHODS asks for it."""
    bits, indexers, acceptance = card["bits_per_byte"], card["indexers"], card["acceptance"]
    copies = ", ".join(f"{c['target']:.2f} at {c['distance']}" for c in card["copy_by_distance"])
    drafts = ", ".join(f"{c['accepted_length']:.2f} at {c['distance']}" for c in card["copy_by_distance"])
    rows = [
        (
            "parameters",
            f"{card['model']['parameters'] / 1e6:.2f} million, top {card['model']['index_topk']} rows attended",
        ),
        ("bits per byte, held-out code", f"{bits['dense']:.3f} dense, {bits['sparse']:.3f} sparse"),
        ("target copies right, by distance in tokens", copies),
        ("AL (k=3) while copying, by distance", drafts),
    ]
    for name in ("target", "mtp"):
        found = indexers[name]
        rows.append(
            (
                f"indexer of {name}: recall of the true top rows",
                (
                    f"{found['recall']:.2f}; attention captured {found['mass_captured']:.3f}, best possible "
                    f"{found['mass_of_best']:.3f}"
                ),
            )
        )
    for workload in ("edit", "code"):
        found = acceptance[workload]
        rows.append(
            (
                f"AL (k={acceptance['k']}), workload={workload}",
                (
                    f"{found['resident']['accepted_length']:.2f} with all rows resident, "
                    f"{found['far_draft_rows_foreign']['accepted_length']:.2f} with far draft rows another request's"
                ),
            )
        )
    return "\n".join(["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
