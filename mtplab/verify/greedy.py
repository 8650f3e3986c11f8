"""`verify=greedy`: accept while the draft is the target's argmax, then emit the argmax."""

from __future__ import annotations

from collections.abc import Sequence

from mtplab.verify.verifier import Accepted


class GreedyVerifier:
    def verify(self, drafted: Sequence[int], target: Sequence[int]) -> Accepted:
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == target[accepted]:
            accepted += 1
        return Accepted(accepted, target[accepted])
