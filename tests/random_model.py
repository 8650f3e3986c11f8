"""A random checkpoint in Hugging Face layout: same code paths as the shipped model, no training needed."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_mtp_layers": 1,
    "num_attention_heads": 3,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}


def write_random_model(directory: Path, seed: int = 0, **overrides: int) -> Path:
    """Write config.json and model.safetensors with weights drawn from `seed`; returns `directory`."""
    sizes = SIZES | overrides
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * (1.5 / shape[-1] ** 0.5)

    def norm(width: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(width, generator=generator)

    width, vocab = sizes["hidden_size"], sizes["vocab_size"]
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab, width, generator=generator),
        "lm_head.weight": normal(vocab, width),
        "model.norm.weight": norm(width),
    }
    for layer in range(sizes["num_hidden_layers"] + sizes["num_mtp_layers"]):
        tensors |= _layer(f"model.layers.{layer}.", sizes, normal, norm)
    for layer in range(sizes["num_hidden_layers"], sizes["num_hidden_layers"] + sizes["num_mtp_layers"]):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "enorm.weight"] = norm(width)
        tensors[prefix + "hnorm.weight"] = norm(width)
        tensors[prefix + "eh_proj.weight"] = normal(width, 2 * width)
        tensors[prefix + "shared_head.norm.weight"] = norm(width)
    directory.mkdir(parents=True, exist_ok=True)
    config = sizes | {
        "model_type": "deepseek_v32",
        "architectures": ["DeepseekV32ForCausalLM"],
        "mlp_layer_types": ["dense"] * sizes["num_hidden_layers"],
        "mtp_layer_types": ["indexed_attention"],
        "mtp_mlp_layer_types": ["dense"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "num_key_value_heads": sizes["num_attention_heads"],
        "first_k_dense_replace": sizes["num_hidden_layers"],
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _layer(prefix, sizes, normal, norm) -> dict[str, torch.Tensor]:
    heads, width, rope = sizes["num_attention_heads"], sizes["hidden_size"], sizes["qk_rope_head_dim"]
    nope, q_rank, kv_rank = sizes["qk_nope_head_dim"], sizes["q_lora_rank"], sizes["kv_lora_rank"]
    index = sizes["index_head_dim"]
    attn = prefix + "self_attn."
    return {
        prefix + "input_layernorm.weight": norm(width),
        prefix + "post_attention_layernorm.weight": norm(width),
        prefix + "mlp.gate_proj.weight": normal(sizes["intermediate_size"], width),
        prefix + "mlp.up_proj.weight": normal(sizes["intermediate_size"], width),
        prefix + "mlp.down_proj.weight": normal(width, sizes["intermediate_size"]),
        attn + "q_a_proj.weight": normal(q_rank, width),
        attn + "q_a_layernorm.weight": norm(q_rank),
        attn + "q_b_proj.weight": normal(heads * (nope + rope), q_rank),
        attn + "kv_a_proj_with_mqa.weight": normal(kv_rank + rope, width),
        attn + "kv_a_layernorm.weight": norm(kv_rank),
        attn + "kv_b_proj.weight": normal(heads * (nope + sizes["v_head_dim"]), kv_rank),
        attn + "o_proj.weight": normal(width, heads * sizes["v_head_dim"]),
        attn + "indexer.wq_b.weight": normal(sizes["index_n_heads"] * index, q_rank),
        attn + "indexer.wk.weight": normal(index, width),
        attn + "indexer.k_norm.weight": norm(index),
        attn + "indexer.k_norm.bias": 0.1 * norm(index),
        attn + "indexer.weights_proj.weight": normal(sizes["index_n_heads"], width),
    }
