"""From a configuration to a running arm: every part is built here and passed in, nothing builds its own neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from mtplab.audit.audit import Audit, FullAudit, NullAudit
from mtplab.config.instantiate import instantiate
from mtplab.config.locate import model_directory
from mtplab.engine.drafting import Drafting, DraftRunners
from mtplab.engine.engine import Engine, EngineParts
from mtplab.engine.margins import GapSelector, MarginProbe
from mtplab.engine.prepare import InputBuilder
from mtplab.engine.records import ArmOutcome, GraphCounts, StepRecord
from mtplab.engine.request import Request, Verified
from mtplab.engine.scheduler import Scheduler
from mtplab.errors import ConfigError
from mtplab.faults.fault import Fault, Site
from mtplab.graphs.graph import Graph
from mtplab.graphs.runner import Runner
from mtplab.heads.head import Head, HeadParts
from mtplab.memory.memory import Memory
from mtplab.memory.mirror import Mirror
from mtplab.memory.pages import PageBook
from mtplab.model.checkpoint import Checkpoint, load_checkpoint
from mtplab.model.layers import rope_table
from mtplab.model.network import Network, TargetNetwork
from mtplab.sizes import capture_batches, capture_sizes, memory_layout
from mtplab.sparse.selector import Selector
from mtplab.sync.policy import Sync


@dataclass(frozen=True, slots=True)
class Arm:
    """A built arm. `capture_seconds` went into graph capture, before the first step."""

    engine: Engine
    audit: Audit
    capture_seconds: float

    def outcome(self, requests: Sequence[Request], seconds: float) -> ArmOutcome:
        parts = self.engine.parts
        runners = [parts.target]
        if parts.drafting is not None:
            runners += [parts.drafting.runners.prefill, parts.drafting.runners.decode]
        counts = GraphCounts(
            dict(self.engine.mode_steps), sum(r.captures for r in runners), sum(r.replays for r in runners)
        )
        return ArmOutcome(
            requests=tuple(request.outcome() for request in requests),
            seconds=seconds,
            capture_seconds=self.capture_seconds,
            steps=self.engine.steps,
            graph=counts,
            memory=self.audit.memory_counts(parts.book.evicted),
            staleness=self.audit.staleness(),
            culprits=self.audit.culprits(),
        )


def run_arm(
    cfg: DictConfig,
    prompts: Sequence[Sequence[int]],
    on_step: Callable[[StepRecord], None],
    record_margins: bool = False,
) -> ArmOutcome:
    """Decode `prompts` under `cfg`. Raises `ConfigError` for anything the user can mend."""
    torch.set_num_threads(cfg.engine.threads)
    with torch.inference_mode():
        arm = build_arm(cfg, record_margins)
        started = time.perf_counter()
        requests = arm.engine.run(prompts, cfg.workload.max_new_tokens, on_step)
        return arm.outcome(requests, time.perf_counter() - started)


def build_arm(cfg: DictConfig, record_margins: bool = False, around: Callable[[Fault], Fault] | None = None) -> Arm:
    """Load the model, lay out the memory, capture the graphs. Call it under `torch.inference_mode()`.

    `around` may put something around the configured fault: the interventions of an attribution.
    """
    allow = tuple(cfg.allow_targets)
    dtype, device = getattr(torch, cfg.engine.dtype), pick_device(cfg.engine.device)
    head: Head = instantiate(cfg.spec, allow)
    selector = _selector(cfg, allow, record_margins)
    checkpoint = load_checkpoint(model_directory(cfg), dtype, device, selector.needs_index)
    layout = memory_layout(cfg, checkpoint.config, head, dtype, device)
    book = PageBook(layout)
    scheduler = Scheduler(layout, book, head.k, cfg.engine.prefill_chunk)
    layers = tuple(range(layout.layers))
    depth = checkpoint.config.num_hidden_layers
    target_layers, draft_layers = layers[:depth], layers[depth:]
    fault: Fault = instantiate(cfg.fault, allow)
    if around is not None:
        fault = around(fault)
    fault.bind(Site(head.k, layout, target_layers, draft_layers))
    memory = fault.memory(Memory(layout))
    names = [*(f"target.{i}" for i in target_layers), *head.layer_names]
    audit = FullAudit(memory, target_layers, draft_layers, names) if cfg.engine.audit else NullAudit()

    def hand_over() -> None:
        for request in scheduler.running:
            audit.on_clean(book.hand_over(request.state, request.num_computed))

    mirror = fault.mirror(Mirror(memory, target_layers, draft_layers, hand_over, audit.on_copy))
    inputs = fault.inputs(instantiate(cfg.sync.inputs, allow))
    sync = Sync(cfg.sync.name, instantiate(cfg.sync.mirror, allow), inputs)
    sync.mirror.bind(mirror)
    builder = InputBuilder(layout, book)
    started = time.perf_counter()
    broken = fault.selector(selector)
    target, drafting = _runners(cfg, allow, head, checkpoint, memory, broken, builder, sync, audit, fault)
    parts = EngineParts(
        target=target,
        drafting=drafting,
        verifier=instantiate(cfg.verify, allow),
        memory=memory,
        book=book,
        scheduler=scheduler,
        builder=builder,
        mirror=mirror,
        sync=sync,
        audit=audit,
        probe=MarginProbe(selector) if record_margins else None,
        eos_token_id=checkpoint.config.eos_token_id,
    )
    return Arm(Engine(fault.engine(parts)), audit, time.perf_counter() - started)


def pick_device(name: str) -> torch.device:
    """`auto` takes CUDA where it is present."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device", "this machine has no CUDA device", "use engine.device=cpu")
    return torch.device(name)


def _selector(cfg: DictConfig, allow: tuple[str, ...], record_gaps: bool) -> Selector:
    budget = {} if cfg.sparse.top_k is None else {"top_k": cfg.sparse.top_k}
    selector = instantiate(cfg.sparse.selector, allow, **budget)
    return GapSelector(selector) if record_gaps and selector.needs_index else selector


def _graph_factory(device: torch.device) -> Callable[[], Graph]:
    if device.type == "cuda":
        from mtplab.graphs.cuda import CudaGraph

        return CudaGraph
    from mtplab.graphs.tape import TapeGraph

    return TapeGraph


def _runners(
    cfg: DictConfig,
    allow: tuple[str, ...],
    head: Head,
    checkpoint: Checkpoint,
    memory: Memory,
    selector: Selector,
    builder: InputBuilder,
    sync: Sync,
    audit: Audit,
    fault: Fault,
) -> tuple[Runner, Drafting | None]:
    layout = memory.layout
    rope = rope_table(checkpoint.config, layout.context, layout.dtype, layout.device)
    layers = tuple(range(checkpoint.config.num_hidden_layers))
    network: Network = TargetNetwork("target", layers, checkpoint.layers, checkpoint, rope, memory, selector)
    strategy = instantiate(cfg.graph, allow)
    factory = fault.graphs(_graph_factory(layout.device))
    batches = capture_batches(cfg.engine.capture_requests, layout.max_requests)
    sizes = capture_sizes(head.k, batches, cfg.engine.prefill_chunk)
    target = strategy.wrap(network, builder.target([], sizes[0]), sizes, factory)
    draft = head.network(fault.head(HeadParts(checkpoint, rope, memory, selector, len(layers))))
    if draft is None:
        return target, None
    hidden = torch.zeros(sizes[0], checkpoint.config.hidden_size, dtype=layout.dtype, device=layout.device)
    nobody: list[Verified] = []
    example = builder.draft_prefill(nobody, sizes[0], hidden)
    prefill = strategy.wrap(draft, example, sizes, factory)
    decode = strategy.wrap(draft, example, batches, factory)
    return target, Drafting(head.k, DraftRunners(prefill, decode), builder, sync.inputs, audit)
