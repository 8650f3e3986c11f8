"""What README claims of the main command and its variations: each claim can fail, and says what it saw when it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BASE = ("graph=full", "spec=mtp", "sparse=hisparse")
LOST_AT_LEAST = 0.5  # of the reference's AL - 1
REFERENCE_AT_LEAST = 2.8
EQUAL_WITHIN = 0.02
HOST_READS_AT_LEAST = 0.5  # of the faulty arm's, per draft


@dataclass(frozen=True, slots=True)
class Claim:
    """`overrides` change the main command. `host` says whether host rows are read: True, False, or None = not claimed.
    `culprit` is what the first culprit's state must begin with; `identical` what the output must be.
    """

    overrides: tuple[str, ...]
    verdict: str
    host: bool | None = None
    culprit: str | None = None
    identical: bool = True
    equal_length: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The main command with this claim's groups in place of its own."""
        changed = {o.split("=")[0] for o in self.overrides}
        return (*(o for o in BASE if o.split("=")[0] not in changed), *self.overrides)


CLAIMS = (
    Claim((), "collapsed", host=True, culprit="host_rows"),
    Claim(("sync=mirror_next_step",), "healthy", host=True, equal_length=True),
    Claim(("sync=mirror_after_draft",), "healthy", host=True, equal_length=True),
    Claim(("graph=none",), "healthy", host=True),
    Claim(("graph=piecewise",), "healthy", host=True),
    Claim(("memory=roomy",), "healthy", host=False),
    Claim(("sparse=dsa",), "healthy", host=False),
    Claim(("sync=mirror_never",), "corrupted", culprit="host_rows", identical=False),
    Claim(("sync=inputs_before_accept",), "collapsed", culprit="draft"),
    Claim(("sync=inputs_before_accept", "sparse=dense"), "collapsed", culprit="draft"),
    Claim(("sync=inputs_before_accept", "sparse=dsa"), "collapsed", culprit="draft"),
    Claim(("sync=inputs_before_accept", "graph=none"), "healthy"),
)


def refute(claim: Claim, summary: dict[str, Any], faulty_reads_per_draft: float | None) -> list[str]:
    """What of `claim` does not hold in this `summary.json`; empty = it holds.

    `faulty_reads_per_draft` is `reads_per_draft` of the main command with the same seed, for the healed arms.
    """
    arm, reference = (next(a for a in summary["arms"] if a["role"] == role) for role in ("requested", "reference"))
    memory, culprits = arm["memory"], summary["culprits"]
    ours, theirs = arm["mean_acceptance_length"], reference["mean_acceptance_length"]
    wrong = []
    if summary["verdict"] != claim.verdict:
        wrong.append(f"verdict {summary['verdict']}, claimed {claim.verdict}")
    if arm["output_identical"] is not claim.identical:
        wrong.append(f"output identical {arm['output_identical']}, claimed {claim.identical}")
    if claim.host is not None and claim.host != (memory["rows_read_from_host"] > 0):
        wrong.append(f"{memory['rows_read_from_host']} rows read from host")
    if claim.host and claim.verdict == "healthy" and memory["pages_wrong"]:
        wrong.append(f"{memory['pages_wrong']} pages wrong")
    if claim.culprit and not (culprits and culprits[0]["state"].startswith(claim.culprit)):
        wrong.append(f"first culprit {culprits[0]['state'] if culprits else 'none'}, claimed {claim.culprit}")
    if not claim.overrides:
        wrong += _refute_collapse(ours, theirs, culprits)
    if claim.equal_length:
        if abs(ours / theirs - 1) > EQUAL_WITHIN:
            wrong.append(f"AL {ours:.3f} against {theirs:.3f}")
        if faulty_reads_per_draft is not None and reads_per_draft(arm) < HOST_READS_AT_LEAST * faulty_reads_per_draft:
            wrong.append(
                f"{reads_per_draft(arm):.1f} host rows a draft, the faulty arm reads {faulty_reads_per_draft:.1f}"
            )
    return wrong


def reads_per_draft(arm: dict[str, Any]) -> float:
    return arm["memory"]["rows_read_from_host"] / max(arm["num_drafts"], 1)


def _refute_collapse(ours: float, theirs: float, culprits: list[dict[str, Any]]) -> list[str]:
    wrong = []
    if theirs < REFERENCE_AT_LEAST:
        wrong.append(f"reference AL {theirs:.2f} is below {REFERENCE_AT_LEAST}")
    lost = (theirs - ours) / (theirs - 1)
    if lost < LOST_AT_LEAST:
        wrong.append(f"the arm loses {lost:.0%} of the reference's AL-1")
    if culprits and culprits[0]["layer"] != "mtp.0":
        wrong.append(f"the first culprit is layer {culprits[0]['layer']}")
    return wrong
