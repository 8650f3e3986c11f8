"""transformers' DeepSeek-V3.2 as the reference: our checkpoint, loaded with what transformers 5.24 lacks filled in.

Two gaps are filled here and nowhere else, on the loaded objects, never on the classes: the checkpoint keys of the MTP
module (registered for the released model's layer 61 alone), and the mask helper of `MtpModel`, which does not know the
layer type `indexed_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV32ForCausalLM, modeling_layers
from transformers.cache_utils import MtpCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import MtpModel
from transformers.utils import logging

from mtplab.model.config import read_model_config


@dataclass(frozen=True, slots=True)
class Reference:
    """transformers' target and its MTP module on one checkpoint, float32."""

    target: DeepseekV32ForCausalLM
    mtp: MtpModel

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Target logits [T, V] of one sequence in one forward."""
        return self.target(torch.tensor([tokens])).logits[0]

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], following: int, k: int) -> tuple[list[int], list[float]]:
        """k draft tokens after `tokens`, whose next token is `following`, and the logit margin of each.

        The module runs on the prefix, then on its own output row by row with the same cache (recurrent reuse).
        """
        hidden = self.target(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1]
        cache = MtpCache(config=self.target.config.get_mtp_config())
        ids = torch.tensor([[*tokens[1:], following]])
        positions = torch.arange(1, len(tokens) + 1).unsqueeze(0)  # shifted by one against ours: only differences count
        drafts, margins = [], []
        for _ in range(k):
            hidden = self.mtp.forward_layer(0, hidden, positions, cache, input_ids=ids)[:, -1:]
            best = self.mtp.shared_head(hidden)[0, -1].topk(2)
            drafts.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            ids, positions = best.indices[:1].view(1, 1), positions[:, -1:] + 1
        return drafts, margins

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """Greedy tokens of `generate(use_mtp=True)`: batch 1, one draft per step for each MTP layer."""
        with _loaded(self.mtp):
            target: Any = self.target  # transformers' own annotations do not fit each other
            out = target.generate(torch.tensor([prompt]), use_mtp=True, do_sample=False, max_new_tokens=new_tokens)
        return out[0, len(prompt) :].tolist()


def load_reference(directory: Path, index_topk: int | None = None, attention: str = "sdpa") -> Reference:
    """Load a checkpoint directory in float32; `index_topk` replaces the config's budget (>= context: dense)."""
    overrides: dict[str, Any] = {} if index_topk is None else {"index_topk": index_topk}
    config = read_model_config(directory)
    first = config.num_hidden_layers
    with _quiet():
        target = DeepseekV32ForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation=attention, **overrides
        ).eval()
        layers = range(first, first + config.num_mtp_layers)
        target._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\." for layer in layers]
        mtp = MtpModel.from_pretrained(target, device_map={"": target.device}).eval()
    mtp.create_masks_for_mtp_layer = MethodType(_causal_masks, mtp)
    generation: Any = target.generation_config
    generation.eos_token_id = None  # a fixed number of new tokens
    generation.pad_token_id = 0  # never used at batch 1, but asked for
    return Reference(target, mtp)


def _causal_masks(
    self: MtpModel, layer_idx: int, inputs_embeds: Tensor, mtp_cache: MtpCache, position_ids: Tensor
) -> dict[str, Tensor]:
    """`MtpModel.create_masks_for_mtp_layer` for layers of type `indexed_attention`, as the main model masks them."""
    mask: Any = create_causal_mask(
        config=self.config,
        inputs_embeds=inputs_embeds,
        attention_mask=None,
        cache=mtp_cache,
        position_ids=position_ids,
        layer_idx=layer_idx,
        allow_is_causal_skip=False,
    )
    return {"attention_mask": mask}


@contextmanager
def _loaded(mtp: MtpModel) -> Iterator[None]:
    """`generate` reads the MTP weights from disk in every call; give it the loaded one: only decoding counts."""

    class Loaded:
        @staticmethod
        def from_pretrained(main_model: object, device_map: object = None) -> MtpModel:
            return mtp

    namespace: Any = modeling_layers
    namespace.MtpModel = Loaded
    try:
        yield
    finally:
        namespace.MtpModel = MtpModel


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no report about the MTP keys that the main model leaves to `MtpModel`."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
