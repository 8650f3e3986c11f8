"""Shape of a DeepSeek-V3.2-style model, read from a Hugging Face `config.json` (`model_type: deepseek_v32`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mtplab.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Field names are those of transformers' `DeepseekV32Config`; sizes are in elements."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_mtp_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    eos_token_id: int | None

    @property
    def row_width(self) -> int:
        """Width of one KV row: latent plus rope part."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


def read_model_config(directory: Path) -> ModelConfig:
    """Read `config.json` of a checkpoint directory. Raises `ConfigError` (key `model.path`) if it is unusable."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "model.path", f"cannot read {path.name} ({error})", "point it at a checkpoint directory"
        ) from error
    if raw.get("model_type") != "deepseek_v32":
        raise ConfigError(
            "model.path", f"model_type is {raw.get('model_type')!r}", "use a deepseek_v32 checkpoint or model=tiny"
        )
    eos = raw.get("eos_token_id")
    own = {"num_mtp_layers", "rope_theta", "eos_token_id"}
    names = [name for name in ModelConfig.__slots__ if name not in own]
    missing = [name for name in names if name not in raw]
    if missing:
        raise ConfigError("model.path", f"config.json lacks {', '.join(missing)}", "restore the checkpoint's config")
    if any(kind != "dense" for kind in raw.get("mlp_layer_types", [])):
        raise ConfigError("model.path", "mixture-of-experts layers are not supported", "use dense MLP layers")
    return ModelConfig(
        **{name: raw[name] for name in names},
        num_mtp_layers=raw.get("num_mtp_layers", raw.get("num_nextn_predict_layers", 0)),
        rope_theta=float((raw.get("rope_parameters") or raw).get("rope_theta", 10000.0)),
        eos_token_id=eos[0] if isinstance(eos, list) else eos,
    )
