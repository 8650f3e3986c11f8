"""The resolver's rule in plain Python, one request at a time: what `mtplab.memory.resolver` is tested against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class NaiveHotRows:
    """Hot rows of one request: `tags[slot]` is the host row held (None = empty), `order` lists the slots oldest first.

    `first_row` is the device row of slot 0; `data[slot]` holds whatever was loaded there. `counts` are rows read from
    the host tier, hot hits, hot misses.
    """

    def __init__(self, size: int, first_row: int) -> None:
        self.first_row = first_row
        self.tags: list[int | None] = [None] * size
        self.order = list(range(size))
        self.data: dict[int, object] = {}
        self.counts = [0, 0, 0]

    def clear(self) -> None:
        """The request has finished. Slots keep their order and their bytes, as on the device."""
        self.tags = [None] * len(self.tags)

    def invalidate(self, written: set[int]) -> None:
        """Drop every tag that names a host row written now (I6)."""
        self.tags = [None if tag in written else tag for tag in self.tags]

    def resolve(
        self,
        rows: Sequence[Sequence[int]],
        resident: Mapping[int, int],
        host: Mapping[int, int],
        host_data: Sequence[object],
    ) -> list[list[int | None]]:
        """Device row of each position in `rows` (-1 = unused); None where there is nothing to read.

        `resident` and `host` map a logical position to its device row and its host row. All rows of the request are
        resolved together: positions that no hot row holds are loaded in ascending order.
        """
        wanted = sorted({p for row in rows for p in row if p >= 0 and p not in resident and p in host})
        held = {tag: slot for slot, tag in enumerate(self.tags) if tag is not None}
        hits = {p: held[host[p]] for p in wanted if host[p] in held}
        used = set(hits.values())
        evictable = [slot for slot in self.order if slot not in used]
        missing = [p for p in wanted if p not in hits]
        loads = dict(zip(missing, evictable, strict=False))  # more misses than slots: the rest is not served
        for position, slot in loads.items():
            self.tags[slot] = host[position]
            self.data[slot] = host_data[host[position]]
        reads = sum(p >= 0 and p not in resident for row in rows for p in row)
        self.counts = [a + b for a, b in zip(self.counts, (reads, len(hits), len(loads)), strict=True)]
        loaded = set(loads.values())
        kept = [slot for slot in self.order if slot not in used | loaded]
        fresh = [slot for slot in self.order if slot in loaded]
        self.order = kept + fresh + [slot for slot in self.order if slot in used]
        hot = {p: self.first_row + slot for p, slot in (hits | loads).items()}
        return [[None if p < 0 else resident.get(p, hot.get(p)) for p in row] for row in rows]
