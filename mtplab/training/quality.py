"""The quality card: whether the shipped model is fit for the question mtplab asks.

Stale rows cost acceptance only if the drafter looks back. So beside bits per byte the card says how well target and
drafter copy over a distance, how well the indexers find the rows attention wants, and what acceptance is with all rows
at hand and with far draft rows wrong.
"""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from mtplab.config.locate import assets_directory
from mtplab.model.config import read_model_config
from mtplab.training.corpus import SEP, SPECIAL_TOKENS, Corpus
from mtplab.training.evaluation import SHOWN, accepted
from mtplab.training.log import rounded
from mtplab.training.mixture import token_stream
from mtplab.training.network import EMBEDDINGS, Mode, TrainingNetwork
from mtplab.training.selection import causal_mask, top_mask
from mtplab.workloads.reader import read_jsonl
from mtplab.workloads.workload import load_tokenizer, pick

DEPTHS = 3
WINDOW = 352
DISTANCES = (32, 64, 96, 128, 192, 253)  # the last is the longest that fits the 512 positions
CARD_NAME = "quality_card.json"

# What the drafter finds when it looks further back than the resident window. Under HiSparse the draft layer's far rows
# come from the host; with the default sync policy a FULL graph mirrors them before the drafter has written them, so the
# host page still holds what was there before: another request's rows, or nothing.
RESIDENT = ("graph=none", "sparse=dsa")
FOREIGN = ("graph=full", "sparse=hisparse", "memory=pressure", "sync=mirror_after_target")


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under test in training form, its tokenizer, and held-out tokens [N]."""

    network: TrainingNetwork
    tokenizer: Tokenizer
    stream: np.ndarray

    def pieces(self, rng: np.random.Generator, count: int, length: int) -> Tensor:
        """[count, length] held-out tokens from random places."""
        starts = rng.integers(0, len(self.stream) - length, count)
        return torch.from_numpy(np.stack([self.stream[start : start + length] for start in starts]))


def write_card(assets: Path, corpus: Corpus, seed: int, num_prompts: int, threads: int) -> dict[str, Any]:
    """Measure `assets/tiny` and write its card beside it."""
    directory = assets / "tiny"
    weights = load_file(directory / "model.safetensors")
    tied = torch.equal(*(weights[name] for name in EMBEDDINGS))  # then they count once
    network = TrainingNetwork(read_model_config(directory), tied).eval()
    network.load_state_dict(weights)
    tokenizer = load_tokenizer(directory)
    subject = Subject(network, tokenizer, token_stream(corpus.held_out, tokenizer))
    with torch.no_grad():
        card: dict[str, Any] = {
            "model": {
                "parameters": sum(p.numel() for p in network.parameters()),
                "index_topk": network.config.index_topk,
            },
            "held_out": {
                "files": len(corpus.held_out),
                "tokens": len(subject.stream),
                "python": platform.python_version(),
            },
            "bits_per_byte": {mode.value: bits_per_byte(subject, mode) for mode in (Mode.DENSE, Mode.SPARSE)},
            "copy_by_distance": [copy_figures(subject, distance, seed) for distance in DISTANCES],
            "indexers": index_figures(subject, seed),
        }
    card["acceptance"] = acceptance(assets, tokenizer, seed, num_prompts, threads)
    card = rounded(card)
    (directory / CARD_NAME).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    return card


def bits_per_byte(subject: Subject, mode: Mode, windows: int = 64) -> float:
    """Of held-out text in windows of 352 tokens, evenly spread; the first token of a window is given."""
    places = np.linspace(0, len(subject.stream) - WINDOW - 2, windows).astype(int)
    tokens = torch.from_numpy(np.stack([subject.stream[place : place + WINDOW + 2] for place in places]))
    nats = [subject.network(part, 1, mode).losses(part)[0].item() for part in tokens.split(8)]
    target = tokens[:, 1 : WINDOW + 1]
    return float(np.mean(nats)) * target.numel() / math.log(2) / int(_byte_lengths(subject.tokenizer)[target].sum())


def copy_figures(subject: Subject, distance: int, seed: int, count: int = 24) -> dict[str, Any]:
    """Chunk, separator, the same chunk: each token's source lies `distance` back. Fed with the right tokens throughout.

    Counts rows of the second chunk after its first 12 tokens: `target` is the share where the trunk's choice is right,
    `accepted_length` what k=3 drafts are worth there.
    """
    rng = np.random.default_rng([seed, distance])
    chunk = subject.pieces(rng, count, distance - 1)
    after = subject.pieces(rng, count, DEPTHS + 2)
    tokens = torch.cat([chunk, torch.full((count, 1), SEP), chunk, after], 1)
    prediction = subject.network(tokens, DEPTHS, Mode.SPARSE)
    first, last = distance + min(SHOWN, distance // 2), 2 * distance - 1 - DEPTHS
    choices = prediction.logits.argmax(-1)[:, first:last]
    rates = [flag[:, first:last].float().mean().item() for flag in accepted(prediction)]
    right = (choices == tokens[:, first + 1 : last + 1]).float().mean().item()
    return {"distance": distance, "target": right, "accepted_by_depth": rates, "accepted_length": 1 + sum(rates)}


def index_figures(subject: Subject, seed: int, count: int = 16) -> dict[str, Any]:
    """How well the indexers imitate full attention (mean over heads), for rows with at least twice the budget to
    choose from: recall of attention's own top k, the attention captured, and what the best choice would capture.
    """
    rng = np.random.default_rng([seed, 0x1D])
    chunk = subject.pieces(rng, count, 150)
    copies = torch.cat([chunk, torch.full((count, 1), SEP), chunk, subject.pieces(rng, count, 53)], 1)
    budget, layers = subject.network.config.index_topk, {}

    def observe(layer: int, attention: Tensor, scores: Tensor) -> None:
        causal = causal_mask(scores.shape[1])
        chosen, best = top_mask(scores, causal, budget), top_mask(attention, causal, budget)
        figures = {
            "recall": (chosen & best).sum(-1) / budget,
            "mass_captured": (attention * chosen).sum(-1),
            "mass_of_best": (attention * best).sum(-1),
        }
        for name, rows in figures.items():
            layers.setdefault(layer, {}).setdefault(name, []).append(rows[:, 2 * budget :].float().mean().item())

    for text in (copies, subject.pieces(rng, count, 354)):
        for part in text.split(4):
            subject.network(part, 1, Mode.IMITATE, observer=observe)
    last = subject.network.config.num_hidden_layers
    groups = {"target": range(last), "mtp": range(last, last + 1)}
    return {
        group: {name: float(np.mean([layers[layer][name] for layer in members])) for name in layers[last]}
        for group, members in groups.items()
    }


def acceptance(assets: Path, tokenizer: Tokenizer, seed: int, num_prompts: int, threads: int) -> dict[str, Any]:
    """Acceptance length at k=3 in the engine: RESIDENT (all rows at hand) and FOREIGN (see above)."""
    import mtplab
    from mtplab.build import run_arm

    figures: dict[str, Any] = {"k": DEPTHS, "num_prompts": num_prompts, "seed": seed}
    own = assets / "prompts"
    directory = own if own.is_dir() else assets_directory() / "prompts"  # a model trained elsewhere, same prompts
    for workload in ("edit", "code"):
        rows = pick(read_jsonl(directory / f"{workload}.jsonl", "assets"), num_prompts, seed)
        prompts = [tokenizer.encode(row["prompt"]).ids for row in rows]
        figures[workload] = {}
        for name, options in (("resident", RESIDENT), ("far_draft_rows_foreign", FOREIGN)):
            common = (f"workload={workload}", f"spec.k={DEPTHS}", f"engine.threads={threads}")
            cfg = mtplab.compose(*common, *options)
            cfg.model.path = str(assets / "tiny")
            requests = run_arm(cfg, prompts, lambda _: None).requests
            drafts = sum(r.num_drafts for r in requests)
            per_position = [sum(r.per_pos[i] for r in requests) / drafts for i in range(DEPTHS)]
            figures[workload][name] = {"accepted_length": 1 + sum(per_position), "accepted_by_depth": per_position}
    return figures


def _byte_lengths(tokenizer: Tokenizer) -> Tensor:
    """Bytes each id stands for: byte-level BPE writes a byte as one character; special tokens are no text."""
    lengths = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.long)
    for token, number in tokenizer.get_vocab().items():
        lengths[number] = 0 if token in SPECIAL_TOKENS else len(token)
    return lengths
