"""A tiny network of every kind of classifier and causal language model that the installed transformers knows.

Each is built from its own configuration. Sizes are set by the names that configurations give them; a kind whose sizes
depend on each other has settings of its own. Weights are random and large enough for attention that is not uniform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

import torch
from torch import Generator, nn

from heedful.seeding import temporary_seed
from heedful.types import UserError

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network

Units = Literal["text", "image", "causal"]
"""What a classifier reads, or that a network is a causal language model."""


@runtime_checkable
class _SpeaksLanguages(Protocol):
    """A network that must be told the language of its texts (X-MOD)."""

    def set_default_language(self, language: str) -> None: ...


Setting = int | float | str | None | list["Setting"] | Mapping[str, "Setting"]

WIDTH, HEADS, LAYERS, POSITIONS, VOCABULARY = 32, 4, 2, 64, 99


def _same(names: str, value: Setting) -> dict[str, Setting]:
    return dict.fromkeys(names.split(), value)


SIZES: Mapping[str, Setting] = {
    **_same("hidden_size d_model n_embd dim emb_dim embedding_size attention_hidden_size pooler_hidden_size", WIDTH),
    **_same("word_embed_proj_dim input_embedding_size output_embedding_size prediction_head_size", WIDTH),
    **_same("projection_dim projection_size pooler_output_size entity_emb_size out_hidden_size d_latents", WIDTH),
    **_same("intermediate_size encoder_ffn_dim decoder_ffn_dim d_ff d_inner dff ffn_dim ffn_hidden_size", 2 * WIDTH),
    **_same("hidden_dim moe_intermediate_size shared_expert_intermediate_size feed_forward_size n_inner", 2 * WIDTH),
    **_same("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads", HEADS),
    **_same("num_self_attention_heads num_cross_attention_heads", HEADS),
    **_same("num_key_value_heads num_kv_heads", HEADS // 2),
    **_same("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers", LAYERS),
    **_same("head_dim d_kv d_head attention_head_size kv_channels attention_head_dim", WIDTH // HEADS),
    **_same("max_position_embeddings n_positions max_seq_len", POSITIONS),
    **_same("max_2d_position_embeddings", POSITIONS),
    **_same("num_local_experts num_experts n_routed_experts", 4),
    **_same("n_group topk_group n_shared_experts first_k_dense_replace", 1),
    **_same("kv_lora_rank q_lora_rank", WIDTH // 2),
    **_same("qk_rope_head_dim qk_nope_head_dim rotary_dim", 4),
    **_same("qk_head_dim v_head_dim index_head_dim linear_key_head_dim linear_value_head_dim", 8),
    **_same("linear_num_key_heads num_experts_per_tok index_n_heads", 2),
    **_same("sliding_window local_attention attention_window window_size", 4),
    **_same("initializer_range init_std", 0.2),
    "linear_num_value_heads": 4,
    "query_pre_attn_scalar": 8,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 3,
    "cls_token_id": 4,
    "mask_token_id": 5,
    "image_size": 16,
    "patch_size": 4,
    "encoder_stride": 4,
    "depth": LAYERS,
}
"""The size of every setting of this name, wherever a configuration has it."""

_MLA: Mapping[str, Setting] = {"head_dim": 4, "num_key_value_heads": HEADS}
_SWIN: Mapping[str, Setting] = {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2], "window_size": 2}
_STAGES: Mapping[str, Setting] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 16], "image_size": 64}
_DEFAULT_ROPE: Mapping[str, Setting] = {"rope_type": "default", "rope_theta": 10000.0}
_ROPE: Mapping[str, Setting] = {"sliding_attention": _DEFAULT_ROPE, "full_attention": _DEFAULT_ROPE}
_ZAMBA: Mapping[str, Setting] = {
    "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
    "num_hidden_layers": 3,
    "attention_hidden_size": 64,
    "num_key_value_heads": HEADS,
}
KIND_SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "axk1": _MLA,
    "axk2": {**_MLA, "layer_types": ["indexed_attention", "indexed_attention"]},
    "bit": {**_STAGES, "embedding_size": 8, "hidden_sizes": [16, 16, 16, 16], "num_groups": 4},
    "canine": {"num_hash_buckets": 64, "local_transformer_stride": 8, "num_hash_functions": 4},
    "convnext": _STAGES,
    "convnextv2": _STAGES,
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": _ROPE},
    "cvt": {"embed_dim": [8, 16, 16], "depth": [1, 2, 3], "num_heads": [1, 2, 2], "image_size": 64},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": WIDTH, "ffn_hidden_size": 64},
    },
    "deepseek_v2": {**_MLA, "num_experts_per_tok": 2},
    "deepseek_v3": _MLA,
    "deepseek_v32": _MLA,
    "donut-swin": _SWIN,
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "efficientnet": {"width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 256, "image_size": 64},
    "esm": {"pad_token_id": 0, "vocab_size": VOCABULARY, "mask_token_id": 5},
    "esmc": {"num_key_value_heads": HEADS},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8},
    "focalnet": {"embed_dim": 8, "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3]},
    "funnel": {"block_sizes": [1, 1]},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "activation_sparsity_pattern": [0.5, 0.0],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "glm4_moe_lite": _MLA,
    "glm_moe_dsa": _MLA,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "shared_intermediate_size": 64,
    },
    "hgnet_v2": {
        "image_size": 64,
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 8, 8, 8],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [8, 8, 8, 8],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [1, 1, 1, 1],
        "hidden_sizes": [8, 8, 8, 8],
    },
    "hiera": {
        "embed_dim": 8,
        "image_size": [32, 32],
        "depths": [1, 1],
        "num_heads": [1, 2],
        "num_query_pool": 1,
        "masked_unit_size": [4, 4],
        "masked_unit_attention": [True, False],
        "patch_size": [7, 7],
    },
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8, "input_size": 16},
    "levit": {
        "hidden_sizes": [16, 16, 16],
        "num_attention_heads": [2, 2, 2],
        "depths": [1, 1, 1],
        "image_size": 64,
        "patch_size": 16,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 24, "num_attention_heads": 3},
    "longcat_flash": {**_MLA, "moe_topk": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 64},
    "luke": {"entity_vocab_size": 20},
    "markuplm": {
        "max_xpath_tag_unit_embeddings": 20,
        "max_xpath_subs_unit_embeddings": 20,
        "tag_pad_id": 1,
        "subs_pad_id": 1,
        "max_depth": 4,
        "xpath_unit_hidden_size": 4,
    },
    "minicpm3": _MLA,
    "ministral": {"head_dim": 8},
    "mistral4": _MLA,
    "mobilebert": {"true_hidden_size": 16, "intra_bottleneck_size": 16},
    "mobilenet_v1": {"depth_multiplier": 0.1, "image_size": 64},
    "mobilenet_v2": {"depth_multiplier": 0.1, "image_size": 64},
    "mobilevit": {
        "hidden_sizes": [8, 8, 8],
        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 8],
        "image_size": 64,
        "patch_size": 2,
    },
    "mobilevitv2": {"base_attn_unit_dims": [8, 8, 8], "width_multiplier": 0.25, "image_size": 64, "patch_size": 2},
    "nemotron": {"num_key_value_heads": HEADS // 2, "head_dim": 8},
    "perceiver": {"num_latents": 8, "num_self_attends_per_block": 1, "vocab_size": 262},
    "poolformer": _STAGES,
    "pp_lcnet": {"image_size": 64, "scale": 0.25},
    "pvt": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
    "pvt_v2": {**_STAGES, "num_attention_heads": [1, 2, 2, 2]},
    "reformer": {
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 16],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "regnet": {**_STAGES, "embedding_size": 8, "groups_width": 8},
    "resnet": {**_STAGES, "embedding_size": 8},
    "roc_bert": {
        "pronunciation_vocab_size": 20,
        "shape_vocab_size": 20,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "segformer": {**_STAGES, "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": 16},
    "shieldgemma2": {"yes_token_index": 6, "no_token_index": 7},
    "siglip2": {},
    "siglip2_vision_model": {"num_patches": 16},
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 16], "image_size": 64},
    "swin": _SWIN,
    "swinv2": {**_SWIN, "pretrained_window_sizes": [0, 0]},
    "t5": {"decoder_start_token_id": 0},
    "tapas": {"type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4]},
    "textnet": {"image_size": 64},
    "youtu": _MLA,
    "zamba": {**_ZAMBA, "attention_head_dim": 16},
    "zamba2": {**_ZAMBA, "mamba_headdim": 8, "mamba_d_state": 8, "num_mem_blocks": 1, "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16, "layer_types": ["hybrid", "hybrid"]},
}


def language_model_kinds() -> tuple[tuple[Units, str], ...]:
    """Every kind of causal language model."""
    from transformers.models.auto import modeling_auto

    return tuple(("causal", kind) for kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def network_kinds() -> tuple[tuple[Units, str], ...]:
    """Every kind of sequence classifier and image classifier, by what it reads and its name."""
    from transformers.models.auto import modeling_auto

    texts, images = (
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )
    return (*(("text", kind) for kind in texts), *(("image", kind) for kind in images))


def tiny_network_class(units: Units, kind: str) -> type[Network]:
    """The class of a kind of classifier or language model."""
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    )

    mappings = {
        "text": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        "image": MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        "causal": MODEL_FOR_CAUSAL_LM_MAPPING,
    }
    network_class: object = mappings[units][CONFIG_MAPPING[kind]]
    return cast("type[Network]", network_class[0] if isinstance(network_class, tuple) else network_class)


def tiny_config(kind: str, labels: int = 3) -> NetworkConfig:
    """The configuration of a kind with small sizes."""
    from transformers import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind]
    return made.from_dict({**_small_settings(made()), "num_labels": labels})


def _small_settings(default: NetworkConfig) -> dict[str, Setting]:
    from transformers import PreTrainedConfig

    settings: dict[str, Setting] = {}
    for name, value in default.to_dict().items():
        nested = vars(default).get(name)
        if isinstance(nested, PreTrainedConfig):
            settings[name] = {**_small_settings(nested), "model_type": nested.model_type}
        elif name in SIZES and isinstance(value, int | float) and not isinstance(value, bool):
            settings[name] = SIZES[name]
        elif name == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            settings[name] = [kinds[number % len(kinds)] for number in range(LAYERS)]
    return {**settings, **KIND_SETTINGS.get(default.model_type, {})}


def build_tiny_network(units: Units, kind: str, generator: Generator, labels: int = 3) -> Network:
    """A classifier of a kind with random weights, in eval mode; `UserError` where the library cannot build it."""
    try:
        with temporary_seed(int(torch.randint(2**62, (), generator=generator))):
            network_kind, config = tiny_network_class(units, kind), tiny_config(kind, labels)
            text_config = config.get_text_config()
            network = network_kind(text_config if network_kind.config_class is type(text_config) else config)
    except Exception as error:  # each kind checks its settings in its own way
        line = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"transformers cannot build a tiny {kind} ({type(error).__name__}: {line})") from error
    if isinstance(network, _SpeaksLanguages):
        network.set_default_language("en_XX")
    nn.Module.train(network, mode=False)
    return network
