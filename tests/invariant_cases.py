"""Random runs: what to run, the script that decides how many drafts are accepted, the oracle that knows the truth."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from invariant_oracle import Oracle
from omegaconf import DictConfig
from random_model import write_random_model
from torch import Tensor

import mtplab
from mtplab.engine.drafting import Drafting, DraftRunners
from mtplab.engine.request import Verified

CONTEXT = 64
DTYPE = torch.float64


@dataclass(frozen=True)
class Case:
    """One random run. `prompts` are lengths; `seed` draws tokens, accept pattern, batch order, evictions.

    `sparse` other than hisparse keeps every row on the device.
    `reorder` shuffles the batch before every step, `evict` drops further evictable pages in random order, `poison`
    fills before every step whatever nobody may read, `tight` leaves a pool that holds little more than one request.
    """

    page_size: int = 4
    k: int = 2
    max_requests: int = 2
    prompts: tuple[int, ...] = (17, 5, 22)
    new_tokens: int = 14
    resident_pages: int = 2
    top_k: int = 6
    hot_extra: int = 0
    chunk: int = 6
    seed: int = 0
    reorder: bool = True
    evict: bool = True
    poison: bool = False
    tight: bool = False
    sparse: str = "hisparse"

    @property
    def budget(self) -> int | None:
        return None if self.sparse == "dense" else self.top_k

    def tokens(self) -> list[list[int]]:
        draw = random.Random(f"prompts {self.seed}")
        return [[draw.randrange(96) for _ in range(length)] for length in self.prompts]


@functools.cache
def model_directory() -> Path:
    directory = tempfile.mkdtemp(prefix="mtplab-invariants-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_random_model(Path(directory))


@functools.cache
def oracle(top_k: int | None) -> Oracle:
    """`top_k` None attends to everything."""
    return Oracle(model_directory(), top_k, DTYPE)


@functools.cache
def _composed(graph: str, sync: str, sparse: str) -> DictConfig:
    return mtplab.compose(f"graph={graph}", f"sync={sync}", "spec=mtp", f"sparse={sparse}", "memory=pressure")


def config(case: Case, graph: str, sync: str) -> DictConfig:
    cfg = _composed(graph, sync, case.sparse).copy()
    cfg.model.path = str(model_directory())
    cfg.spec.k = case.k
    cfg.sparse.top_k = case.budget
    cfg.engine.update(context=CONTEXT, max_requests=case.max_requests, prefill_chunk=case.chunk)
    cfg.engine.update(dtype="float64", device="cpu")
    cfg.memory.update(page_size=case.page_size, resident_pages=case.resident_pages)
    if case.sparse == "hisparse":
        cfg.memory.hot_size = (case.k + 1) * case.top_k + case.hot_extra
    cfg.workload.max_new_tokens = case.new_tokens
    if case.tight:
        rows = max(case.prompts) + case.new_tokens + 2 * case.k
        cfg.memory.pool_pages = -(-rows // case.page_size) + 3
    return cfg


class ScriptedDrafting:
    """The real drafter runs; its proposals are then replaced, so that 0..k of them agree with greedy decoding.

    How many is drawn from the request and its length alone, so every arm sees the same prefixes. Every fourth time
    the real drafts stay. `proposed` keeps the real ones by (request, length), `accepted` how many were accepted.
    """

    def __init__(self, inner: Drafting, case: Case, truth: dict[int, list[int]]) -> None:
        self._inner = inner
        self._case = case
        self._truth = truth
        self.proposed: dict[tuple[int, int], list[int]] = {}
        self.accepted: list[int] = []

    @property
    def runners(self) -> DraftRunners:
        return self._inner.runners

    @property
    def mode(self) -> str:
        return self._inner.mode

    def draft(
        self, verified: Sequence[Verified], hidden: Tensor, hook: Callable[[int], None], step: int
    ) -> list[list[int]]:
        drafts = self._inner.draft(verified, hidden, hook, step)
        return [self._script(item, own) for item, own in zip(verified, drafts, strict=True)]

    def _script(self, item: Verified, own: list[int]) -> list[int]:
        request = item.scheduled.request
        length = len(request.tokens) + len(item.new)
        if not item.scheduled.final:
            return own
        if item.scheduled.drafted:
            self.accepted.append(item.accepted)
        self.proposed[request.id, length] = own
        draw = random.Random(f"accept {self._case.seed} {request.id} {length}")
        right = draw.randrange(self._case.k + 1)
        if draw.randrange(4) == 0:
            return own
        following = self._truth[request.id][length : length + self._case.k]
        return [token if i < right else (token + 1) % 96 for i, token in enumerate(following)]
