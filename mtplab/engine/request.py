"""One request's state in the engine, and its share of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from mtplab.engine.records import RequestOutcome


@dataclass(slots=True)
class Request:
    """`tokens` is prompt then output; rows [0, num_computed) are in the caches and committed."""

    id: int
    prompt_tokens: int
    tokens: list[int]
    max_new_tokens: int
    state: int = -1
    num_computed: int = 0
    drafts: list[int] = field(default_factory=list)
    finished: bool = False
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    per_pos: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    select_gaps: list[float] = field(default_factory=list)

    @property
    def prefilling(self) -> bool:
        return self.num_computed < self.prompt_tokens

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    def count(self, drafted: int, accepted: int) -> None:
        """Accepted drafts are counted before truncation by EOS or max_new_tokens; steps without drafts do not count."""
        if not drafted:
            return
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted += accepted
        for position in range(accepted):
            self.per_pos[position] += 1

    def emit(self, new: list[int], eos: int | None) -> None:
        """Append new tokens up to EOS or the budget."""
        if not new:
            return
        room = self.max_new_tokens - len(self.output)
        kept = new[:room]
        if eos is not None and eos in kept:
            kept = kept[: kept.index(eos) + 1]
            self.finished = True
        self.tokens.extend(kept)
        self.finished = self.finished or len(kept) == room

    def outcome(self) -> RequestOutcome:
        return RequestOutcome(
            request=self.id,
            prompt_tokens=self.prompt_tokens,
            output=tuple(self.output),
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted,
            per_pos=tuple(self.per_pos),
            margins=tuple(self.margins[: len(self.output)]),
            select_gaps=tuple(self.select_gaps[: len(self.output)]),
        )


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Rows `tokens` of `request` at positions start, start+1, ...; the last `drafted` of them are drafts."""

    request: Request
    start: int
    tokens: tuple[int, ...]
    drafted: int

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def final(self) -> bool:
        """This step yields a new token: a decode step, or the last chunk of a prompt."""
        return self.start + self.rows - self.drafted >= self.request.prompt_tokens


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of accept for one scheduled request: `new` are the accepted drafts and the token after them."""

    scheduled: Scheduled
    accepted: int
    new: tuple[int, ...]

    @property
    def committed(self) -> int:
        """Rows of this step that stay in the caches."""
        if not self.scheduled.final:
            return self.scheduled.rows
        return self.scheduled.rows - self.scheduled.drafted + self.accepted
