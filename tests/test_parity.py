"""Our forward against transformers' DeepSeek-V3.2, strategies against each other, Triton's gather against indexing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from random_model import write_random_model
from torch import Tensor

import mtplab
from mtplab.bench.hf import load_reference
from mtplab.bench.parity import LOGIT_TOLERANCE, compare_drafts, compared, decode
from mtplab.build import build_arm
from mtplab.config.locate import assets_directory
from mtplab.engine.drafting import DraftRunners
from mtplab.engine.engine import Engine
from mtplab.graphs.runner import CaptureSizes, Runner
from mtplab.memory.context import RowContext
from mtplab.memory.memory import Memory
from mtplab.model.config import read_model_config
from mtplab.model.layers import Projected
from mtplab.model.network import DraftOutput, TargetOutput
from mtplab.sizes import capture_sizes
from mtplab.sparse.dsa import DsaSelector
from mtplab.workloads.shipped import ShippedPrompts
from mtplab.workloads.workload import load_tokenizer

GAP_TOLERANCE = 1e-5  # relative distance of the k-th and (k+1)-th index score below which a row's selection is open


@pytest.fixture(scope="module", params=["random", "shipped"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every parity holds for a random checkpoint and for the shipped one."""
    if request.param == "random":
        return write_random_model(tmp_path_factory.mktemp("model"))
    return shipped_directory()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads are slower on rows this small, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shipped_directory() -> Path:
    return assets_directory() / "tiny"


def sample_prompts(directory: Path, lengths: Sequence[int] = (45, 7, 70, 24, 1)) -> list[list[int]]:
    """Prompts of the given lengths: what the shipped model was made for, random tokens for the random one."""
    if directory == shipped_directory():
        texts = ShippedPrompts("edit", len(lengths), 0).load(load_tokenizer(directory), seed=0)
        return [list(prompt.tokens[-length:]) for prompt, length in zip(texts, lengths, strict=True)]
    vocab = read_model_config(directory).vocab_size
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


def config(directory: Path, *overrides: str) -> DictConfig:
    """A small engine: three requests at a time, prompts cut into chunks of 20 rows, so most forwards are mixed."""
    sizes = ["engine.context=128", "engine.max_requests=3", "engine.prefill_chunk=20", "engine.device=cpu"]
    return mtplab.compose(f"model.path={directory}", *sizes, *overrides)


@pytest.mark.parametrize(("graph", "requests"), [("none", 3), ("none", 1), ("piecewise", 3), ("full", 3), ("full", 1)])
def test_dense_logits(directory: Path, graph: str, requests: int) -> None:
    reference = load_reference(directory, index_topk=128)
    overrides = ["sparse=dense", "spec.k=3", f"graph={graph}", f"engine.max_requests={requests}"]
    with torch.inference_mode():
        engine, runner = compared(build_arm(config(directory, *overrides)), reference)
        decode(engine, sample_prompts(directory), max_new_tokens=12)
    print(f"graph={graph}, {requests} at a time: {runner.rows} rows of logits, largest difference {runner.worst:.1e}")
    assert runner.rows > 200
    assert runner.worst < LOGIT_TOLERANCE


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_dense_drafts(directory: Path, k: int) -> None:
    reference = load_reference(directory, index_topk=128)
    with torch.inference_mode():
        arm = build_arm(config(directory, "sparse=dense", f"spec.k={k}"))
        drafted = decode(arm.engine, sample_prompts(directory), max_new_tokens=24)
    found = compare_drafts(drafted, reference)
    print(
        f"k={k}: {found.compared} draft tokens equal, {found.near_ties} after a near-tie, {found.different} different"
    )
    assert found.different == 0
    assert found.compared >= 20 * k
    assert found.near_ties <= 0.02 * found.compared


@dataclass
class InjectedSelector:
    """Attends to what transformers selects in the target's layers and notes what DSA would have selected.

    `mismatched` and `exempt` count rows; a row is exempt if its last selected and first unselected score nearly tie.
    """

    inner: DsaSelector
    target_layers: int
    selected: list[Tensor] = field(default_factory=list)
    rows: int = 0
    exempt: int = 0
    mismatched: int = 0
    needs_index: bool = True

    def select(self, projected: Projected, memory: Memory, layer: int, context: RowContext) -> Tensor:
        own = self.inner.select(projected, memory, layer, context)
        if layer >= self.target_layers:
            return own
        theirs = torch.full_like(own, -1)
        theirs[:, : self.selected[layer].shape[1]] = self.selected[layer]
        near = near_tie(self.inner.score(projected, memory, layer, context), context, self.inner.top_k)
        differs = (own.sort(1).values != theirs.sort(1).values).any(1)
        self.rows += int(context.valid.sum())
        self.exempt += int(near.sum())
        self.mismatched += int((differs & ~near).sum())
        return theirs


def near_tie(scores: Tensor, context: RowContext, top_k: int) -> Tensor:
    """Rows [T] whose k-th and (k+1)-th visible score differ by at most `GAP_TOLERANCE` of the larger magnitude."""
    best = scores.masked_fill(context.visible < 0, -torch.inf).topk(top_k + 1, dim=1).values
    last, following = best[:, top_k - 1], best[:, top_k]
    gap = last - following
    return torch.isfinite(following) & (gap <= GAP_TOLERANCE * torch.maximum(last.abs(), following.abs()))


@pytest.mark.parametrize("requests", [3, 1])
def test_sparse_selection(directory: Path, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model_config(directory)
    reference = load_reference(directory)
    selector = InjectedSelector(DsaSelector(model.index_topk), model.num_hidden_layers)
    monkeypatch.setattr("mtplab.build._selector", lambda cfg, allow, record_gaps: selector)
    with torch.inference_mode():
        overrides = ["sparse=dsa", f"sparse.top_k={model.index_topk}", "spec.k=3", f"engine.max_requests={requests}"]
        arm = build_arm(config(directory, *overrides))
        engine, runner = compared(arm, reference)
        selector.selected = runner.selected
        decode(engine, sample_prompts(directory), max_new_tokens=12)
    print(
        f"{selector.rows} selected sets, {selector.exempt} exempt (near-ties), {selector.mismatched} different; "
        f"{runner.rows} rows of logits, largest difference {runner.worst:.1e}"
    )
    assert selector.mismatched == 0
    assert selector.exempt < 0.5 * selector.rows
    assert runner.worst < LOGIT_TOLERANCE


class PaddedTo:
    """An eager runner that pads to the capture sizes of a graph strategy and keeps what every forward returned."""

    def __init__(self, inner: Runner, sizes: Sequence[int]) -> None:
        self._inner = inner
        self._sizes = CaptureSizes(tuple(sizes))
        self.outputs: list[Tensor] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def bucket(self, rows: int) -> int:
        return self._sizes.bucket(rows)

    def run(self, live, hook) -> object:
        output = self._inner.run(live, hook)
        assert isinstance(output, TargetOutput | DraftOutput)
        self.outputs.append((output.logits if isinstance(output, TargetOutput) else output.hidden).clone())
        return output


def every_output(cfg: DictConfig, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits and draft states of every forward of a run, all padded to the same sizes."""
    parts = build_arm(cfg).engine.parts
    requests = cfg.engine.max_requests
    sizes = capture_sizes(cfg.spec.k, range(1, requests + 1), cfg.engine.prefill_chunk)
    assert parts.drafting is not None
    target = PaddedTo(parts.target, sizes)
    prefill = PaddedTo(parts.drafting.runners.prefill, sizes)
    passes = PaddedTo(parts.drafting.runners.decode, range(1, requests + 1))
    parts.drafting.runners = DraftRunners(prefill, passes)
    Engine(replace(parts, target=target)).run(prompts, 12, lambda record: None)
    return [*target.outputs, *prefill.outputs, *passes.outputs]


@pytest.mark.parametrize("sparse", ["dense", "dsa", "hisparse"])
@torch.inference_mode()
def test_strategies_agree_to_the_bit(directory: Path, sparse: str) -> None:
    """Eager, PIECEWISE and FULL on the same padded inputs, healthy sync."""
    prompts = sample_prompts(directory)
    overrides = [f"sparse={sparse}", "sync=mirror_after_draft", "memory.resident_pages=2"]
    eager, piecewise, full = (
        every_output(config(directory, *overrides, f"graph={graph}"), prompts)
        for graph in ("none", "piecewise", "full")
    )
    assert len(eager) == len(piecewise) == len(full) > 30
    for own, others in zip(eager, zip(piecewise, full, strict=True), strict=True):
        assert all(torch.equal(own, other) for other in others)


GATHER = """
import torch
from mtplab.memory.gather_triton import gather_rows_triton

generator = torch.Generator().manual_seed(3)
for width, dtype in ((1, torch.float32), (24, torch.float32), (80, torch.float64), (64, torch.int32)):
    pool = (torch.randn(37, width, generator=generator) * 100).to(dtype)
    rows = torch.randint(37, (29,), generator=generator)
    assert torch.equal(gather_rows_triton(pool, rows), pool.index_select(0, rows)), (width, dtype)
print("equal")
"""


def test_triton_gather_in_the_interpreter() -> None:
    """The kernel on the CPU; Triton reads the variable when it is imported, hence a process of its own."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", GATHER], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_triton_gather_on_the_gpu() -> None:
    """Device pool and pinned host pool give what indexing gives."""
    from mtplab.memory.gather import gather_rows

    rows = torch.randint(512, (96,), device="cuda")
    for pool in (torch.randn(512, 80, device="cuda"), torch.randn(512, 80).pin_memory()):
        assert torch.equal(gather_rows(pool, rows), pool.to("cuda").index_select(0, rows))
