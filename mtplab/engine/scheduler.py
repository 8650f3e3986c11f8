"""Step 1, schedule: finish, admit, allocate tail pages, evict under pressure, decide what each request runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mtplab.engine.request import Request, Scheduled
from mtplab.errors import ConfigError
from mtplab.memory.layout import MemoryLayout
from mtplab.memory.pages import PageBook


class Scheduler:
    """`running` is the batch order; the last takes a finished one's place and keeps its state row (condense)."""

    def __init__(self, layout: MemoryLayout, book: PageBook, k: int, prefill_chunk: int) -> None:
        self._layout = layout
        self._book = book
        self._k = k
        self._chunk = prefill_chunk
        self._free_states = list(range(layout.max_requests - 1, -1, -1))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, prompt: Sequence[int], request_id: int, max_new_tokens: int) -> Request:
        """Queue a prompt. Raises `ConfigError` if it can never fit the context or the device pool."""
        if not prompt:
            raise ConfigError("workload", f"prompt {request_id} is empty", "remove it")
        request = Request(request_id, len(prompt), list(prompt), max_new_tokens, per_pos=[0] * self._k)
        rows = self._rows_at_end(request)
        if rows > self._layout.context:
            raise ConfigError(
                "engine.context",
                f"prompt {request_id} has {len(prompt)} tokens and needs {rows} rows with {max_new_tokens} new tokens "
                f"and {2 * self._k} draft rows, the context holds {self._layout.context}",
                "shorten the prompt or lower workload.max_new_tokens",
            )
        need = self._pages_needed(request)
        if need > self._layout.pool_pages - 1:
            raise ConfigError(
                "memory.pool_pages",
                f"prompt {request_id} needs {need} pages of {self._layout.page_size} rows, the pool has "
                f"{self._layout.pool_pages - 1}",
                f"set memory.pool_pages={need + 1} or more",
            )
        self.waiting.append(request)
        return request

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def finish(self, request: Request, hold: bool) -> int:
        """Take a finished request out of the batch; returns its freed state row."""
        place = self.running.index(request)
        last = self.running.pop()
        if last is not request:
            self.running[place] = last
        self._book.release(request.state, hold)
        self._free_states.append(request.state)
        return request.state

    def schedule(self) -> list[Scheduled]:
        """Admit what fits and give every running request its rows. Empty only while pages are held for a mirror."""
        self._admit()
        self._evict()
        batch = []
        budget = self._chunk
        for request in self.running:
            if not request.prefilling:
                tokens = (request.tokens[-1], *request.drafts)
                batch.append(Scheduled(request, request.num_computed, tokens, len(request.drafts)))
            elif budget > 0:
                end = min(request.num_computed + budget, request.prompt_tokens)
                tokens = tuple(request.tokens[request.num_computed : end])
                budget -= len(tokens)
                batch.append(Scheduled(request, request.num_computed, tokens, 0))
        for item in batch:
            self._book.extend(item.request.state, item.start + item.rows + self._k)
        return batch

    def _admit(self) -> None:
        if not self.waiting or not self._free_states:
            return
        reserved = sum(self._still_needed(request) for request in self.running)
        while self.waiting and self._free_states:
            need = self._pages_needed(self.waiting[0])
            if reserved + need > self._book.free_pages:
                return
            reserved += need
            request = self.waiting.popleft()
            request.state = self._free_states.pop()
            self.running.append(request)

    def _evict(self) -> None:
        keep = self._layout.resident_pages
        if keep is None or not self._layout.on_host:
            return
        for request in self.running:
            if not request.prefilling:
                self._book.evict(request.state, request.num_computed, keep)

    def _rows_at_end(self, request: Request) -> int:
        return request.prompt_tokens + request.max_new_tokens + 2 * self._k

    def _pages_needed(self, request: Request) -> int:
        """Device pages a request may hold at once: all, or under eviction its prompt and a moving tail."""
        size = self._layout.page_size
        everything = -(-self._rows_at_end(request) // size)
        keep = self._layout.resident_pages
        if keep is None or not self._layout.on_host:
            return everything
        tail = -(-(3 * self._k + 1) // size) + 3
        return min(everything, max(-(-request.prompt_tokens // size), keep) + tail)

    def _still_needed(self, request: Request) -> int:
        held = int((self._book.resident_table[request.state] > 0).sum())
        return max(self._pages_needed(request) - held, 0)
