"""Held-out figures while training runs: copying, what the drafts would be worth, plain code.

Acceptance is read off one teacher-forced pass: with greedy verification a draft counts only if all drafts before it
were the target's own choice, and where the target copies correctly its choices are the tokens that were fed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from mtplab.training.corpus import SEP, Corpus
from mtplab.training.mixture import token_stream
from mtplab.training.network import Mode, Prediction, TrainingNetwork
from mtplab.training.selection import causal_mask, top_mask

DEPTHS = 3
SHOWN = 12  # first tokens of the second copy, before which chunk is meant is open
CHUNK = 150


@dataclass(frozen=True, slots=True)
class HeldOut:
    """copies [N, T + DEPTHS + 1]: chunk, separator, the chunk, other code; plain [M, the same]: held-out code.

    `scored` [T] is True at the rows inside the second chunk whose DEPTHS + 1 next tokens lie in it too.
    """

    copies: Tensor
    scored: Tensor
    plain: Tensor


def held_out_set(corpus: Corpus, tokenizer: Tokenizer, rows: int = 352, seed: int = 0) -> HeldOut:
    """The same set for the same corpus, tokenizer and seed."""
    rng = np.random.default_rng([seed, 0x48])  # its own stream of numbers, apart from the batches'
    stream, width = token_stream(corpus.held_out, tokenizer), rows + DEPTHS + 1

    def pieces(count: int, length: int) -> np.ndarray:
        starts = rng.integers(0, len(stream) - length, count)
        return np.stack([stream[start : start + length] for start in starts])

    chunk = pieces(12, min(CHUNK, (rows - DEPTHS) // 2))
    size = chunk.shape[1]
    tail = pieces(12, width - 2 * size - 1)
    copies = np.concatenate([chunk, np.full((12, 1), SEP), chunk, tail], 1)
    scored = torch.zeros(rows, dtype=torch.bool)
    scored[size + SHOWN : 2 * size - DEPTHS] = True
    return HeldOut(torch.from_numpy(copies), scored, torch.from_numpy(pieces(6, width)))


def accepted(prediction: Prediction) -> list[Tensor]:
    """For each depth d: [B, T - DEPTHS] True where the drafts 1..d of a row all are the trunk's own choices."""
    choices = prediction.logits.argmax(-1)
    rows = choices.shape[1] - len(prediction.depths)
    so_far = torch.ones_like(choices[:, :rows], dtype=torch.bool)
    flags = []
    for depth, logits in enumerate(prediction.depths, start=1):
        so_far = so_far & (logits.argmax(-1)[:, :rows] == choices[:, depth : rows + depth])
        flags.append(so_far)
    return flags


@torch.no_grad()
def evaluate(network: TrainingNetwork, held_out: HeldOut, mode: Mode) -> dict[str, object]:
    """Losses in nats, `accepted_by_depth` (cumulative), `accepted_length` = 1 + their sum, and with indexers their KL
    and the share of attention their choice captures, by layer.
    """
    network.eval()
    copying = network(held_out.copies, DEPTHS, mode)
    copy_loss, depth_losses = copying.losses(held_out.copies)
    plain_loss, _ = network(held_out.plain, 1, mode).losses(held_out.plain)
    flags = accepted(copying)
    rates = [flag[:, held_out.scored[: flag.shape[1]]].float().mean().item() for flag in flags]
    figures: dict[str, object] = {
        "copy_loss": copy_loss.item(),
        "copy_loss_by_depth": [loss.item() for loss in depth_losses],
        "plain_loss": plain_loss.item(),
        "accepted_by_depth": rates,
        "accepted_length": 1 + sum(rates),
    }
    if mode is not Mode.DENSE:
        figures["index_loss"] = copying.index_loss.item()
        figures["mass_captured"] = captured(network, held_out.copies)
    network.train()
    return figures


@torch.no_grad()
def captured(network: TrainingNetwork, tokens: Tensor) -> list[float]:
    """Share of full attention on the indexer's choice, by layer (the last is the MTP's), over rows that drop any."""
    budget, shares = network.config.index_topk, []

    def observe(layer: int, attention: Tensor, scores: Tensor) -> None:
        chosen = top_mask(scores, causal_mask(scores.shape[1]), budget)
        shares.append((attention * chosen).sum(-1)[:, budget:].mean().item())

    network(tokens, 1, Mode.IMITATE, observer=observe)
    return shares
