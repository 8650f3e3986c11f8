"""Contract of a verification rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Accepted:
    """`accepted` drafts are kept, then `token` follows (the correction, or the bonus token when all are kept)."""

    accepted: int
    token: int


class Verifier(Protocol):
    def verify(self, drafted: Sequence[int], target: Sequence[int]) -> Accepted:
        """`drafted` [k] ids; `target` [k+1] the target's own choice after each verified row."""
        ...
