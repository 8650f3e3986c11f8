"""Load a checkpoint directory in Hugging Face layout (safetensors only) into the engine's fused weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mtplab.errors import ConfigError
from mtplab.model.config import ModelConfig, read_model_config


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Projections that read the same input are stacked, so that one matmul serves them all.

    in_proj [q_lora + kv_lora + rope (+ index_dim + index_heads), D]; q_proj [H*(nope+rope) (+ index_heads*index_dim),
    q_lora]; up_k [H, nope, kv_lora] and up_v [H, kv_lora, v] are the two halves of `kv_b_proj` (absorbed decode).
    Rope rows are stored half-split (HF's MLA layout interleaves them; the permutation is applied once at load).
    """

    input_norm: Tensor
    in_proj: Tensor
    q_norm: Tensor
    kv_norm: Tensor
    q_proj: Tensor
    up_k: Tensor
    up_v: Tensor
    o_proj: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    index_norm_weight: Tensor
    index_norm_bias: Tensor


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The MTP module: u = eh_proj [enorm(e(token i+1)) ; hnorm(h_i)], one block, its own output norm."""

    enorm: Tensor
    hnorm: Tensor
    eh_proj: Tensor
    block: LayerWeights
    out_norm: Tensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weights and shape of a target and its MTP modules. `embed` and `lm_head` are shared by both."""

    config: ModelConfig
    embed: Tensor
    lm_head: Tensor
    norm: Tensor
    layers: tuple[LayerWeights, ...]
    mtp: tuple[MtpWeights, ...]


def shipped_directory() -> Path:
    """Directory of the shipped `model=tiny` checkpoint."""
    return Path(str(resources.files("mtplab") / "assets" / "tiny"))


def load_checkpoint(directory: Path, dtype: torch.dtype, device: torch.device, with_index: bool) -> Checkpoint:
    """Load `directory`; `with_index=False` leaves the indexer projections out (selectors that do not score)."""
    config = read_model_config(directory)
    tensors = _read_tensors(directory / "model.safetensors")

    def take(name: str) -> Tensor:
        if name not in tensors:
            raise ConfigError("model.path", f"model.safetensors lacks {name}", "rebuild it with scripts/train.py")
        return tensors[name].to(device=device, dtype=dtype).contiguous()

    def layer(index: int) -> LayerWeights:
        return _layer(config, index, take, with_index)

    first_mtp = config.num_hidden_layers
    mtp = tuple(_mtp(first_mtp + i, take, layer) for i in range(config.num_mtp_layers))
    return Checkpoint(
        config,
        embed=take("model.embed_tokens.weight"),
        lm_head=take("lm_head.weight"),
        norm=take("model.norm.weight"),
        layers=tuple(layer(i) for i in range(config.num_hidden_layers)),
        mtp=mtp,
    )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise ConfigError(
            "model.path", f"no {path.name} in the directory", "rebuild it with scripts/train.py"
        ) from error
    except (OSError, SafetensorError) as error:
        raise ConfigError("model.path", f"{path.name} is corrupt ({error})", "restore it or retrain") from error


def _mtp(index: int, take: Callable[[str], Tensor], layer: Callable[[int], LayerWeights]) -> MtpWeights:
    prefix = f"model.layers.{index}."
    return MtpWeights(
        enorm=take(prefix + "enorm.weight"),
        hnorm=take(prefix + "hnorm.weight"),
        eh_proj=take(prefix + "eh_proj.weight"),
        block=layer(index),
        out_norm=take(prefix + "shared_head.norm.weight"),
    )


def _half_split(weight: Tensor, rope: int) -> Tensor:
    """Reorder the last `rope` output rows of each head from interleaved pairs to two halves."""
    pairs = torch.arange(rope, device=weight.device).view(-1, 2)
    order = torch.cat([pairs[:, 0], pairs[:, 1]])
    keep = weight.shape[-2] - rope
    return torch.cat([weight[..., :keep, :], weight[..., keep:, :][..., order, :]], dim=-2)


def _layer(c: ModelConfig, index: int, take: Callable[[str], Tensor], with_index: bool) -> LayerWeights:
    prefix = f"model.layers.{index}."
    attn = prefix + "self_attn."
    kv_b = take(attn + "kv_b_proj.weight").view(c.num_attention_heads, -1, c.kv_lora_rank)
    q_b = take(attn + "q_b_proj.weight").view(c.num_attention_heads, c.qk_head_dim, c.q_lora_rank)
    in_parts = [
        take(attn + "q_a_proj.weight"),
        _half_split(take(attn + "kv_a_proj_with_mqa.weight"), c.qk_rope_head_dim),
    ]
    q_parts = [_half_split(q_b, c.qk_rope_head_dim).flatten(0, 1)]
    if with_index:
        in_parts += [take(attn + "indexer.wk.weight"), take(attn + "indexer.weights_proj.weight")]
        q_parts.append(take(attn + "indexer.wq_b.weight"))
    return LayerWeights(
        input_norm=take(prefix + "input_layernorm.weight"),
        in_proj=torch.cat(in_parts),
        q_norm=take(attn + "q_a_layernorm.weight"),
        kv_norm=take(attn + "kv_a_layernorm.weight"),
        q_proj=torch.cat(q_parts),
        up_k=kv_b[:, : c.qk_nope_head_dim].contiguous(),
        up_v=kv_b[:, c.qk_nope_head_dim :].transpose(1, 2).contiguous(),
        o_proj=take(attn + "o_proj.weight"),
        post_norm=take(prefix + "post_attention_layernorm.weight"),
        gate_up=torch.cat([take(prefix + "mlp.gate_proj.weight"), take(prefix + "mlp.up_proj.weight")]),
        down=take(prefix + "mlp.down_proj.weight"),
        index_norm_weight=take(attn + "indexer.k_norm.weight"),
        index_norm_bias=take(attn + "indexer.k_norm.bias"),
    )
