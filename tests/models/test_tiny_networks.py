"""The trial of every kind of network against the library: logits, attention and embeddings out and back, no trace left.

A spread of kinds is tried in every run, all that transformers knows by `make sweep`.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import Generator, Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import __version__ as library_version

from heedful.attributions.deeplift import DeepLift
from heedful.attributions.method import baseline_vectors, target_output
from heedful.models.attention_hooks import set_attention_implementation
from heedful.models.label_words import ClassifierHead, LabelWords
from heedful.models.network_anatomy import AttentionPath, image_grid, reads_images, vision_config
from heedful.models.tiny_networks import Units, build_tiny_network, language_model_kinds, network_kinds
from heedful.models.transformer import TransformerModel
from heedful.types import Batch, UserError

IS_OLDER = Version(library_version) < Version("5.22")
"""Of a few kinds an older library has another implementation, which may be reached in another way or be refused."""
SPREAD: Mapping[tuple[Units, str], AttentionPath | None] = {
    ("text", "albert"): "interface",  # shared layers
    ("text", "bart"): "interface",  # an encoder and a decoder
    ("text", "bert"): "interface",
    ("text", "bloom"): "softmax",  # biases by distance, no positions
    ("text", "convbert"): "softmax",  # convolutions beside attention
    ("text", "deberta"): "softmax",
    ("text", "deberta-v2"): "softmax",
    ("text", "deepseek_v3"): "interface",  # values narrower than keys
    ("text", "distilbert"): "interface",
    ("text", "electra"): "interface",
    ("text", "eurobert"): "interface",
    ("text", "fnet"): None,
    ("text", "funnel"): None,
    ("text", "gemma2"): "interface",  # capped scores
    ("text", "gpt2"): "interface",  # causal
    ("text", "gpt_oss"): "interface",  # attention sinks
    ("text", "llama"): "interface",  # grouped queries, rotary positions
    ("text", "mistral"): "interface",  # sliding window
    ("text", "modernbert"): "interface",  # pre-norm, local and global layers
    ("text", "mpnet"): "softmax",
    ("text", "opt"): "interface",
    ("text", "qwen3"): "interface",
    ("text", "roberta"): "interface",
    ("text", "t5"): "interface",  # biases by distance
    ("text", "xlnet"): "softmax",  # states [unit batch width]
    ("text", "zamba"): "interface",  # recurrences between attention
    ("causal", "gpt2"): "interface",
    ("causal", "qwen3_moe"): "interface",
    ("causal", "rwkv"): None,  # rewrites its weights
    ("image", "deit"): "interface",  # two special tokens
    ("image", "donut-swin"): "softmax",  # windows
    ("image", "dinov2_with_registers"): "interface",
    ("image", "resnet"): None,
    ("image", "segformer"): None,  # keys of fewer units than queries
    ("image", "siglip"): "interface",  # no class token
    ("image", "swin"): "interface",  # windows
    ("image", "swinv2"): "softmax",
    ("image", "vit"): "interface",
}
"""How the attention of each kind is reached."""
KINDS = (*network_kinds(), *language_model_kinds()) if os.environ.get("HEEDFUL_SWEEP") else tuple(SPREAD)
WORDS = LabelWords(((6,), (7,)))
LENGTHS = (9, 6, 4)


def random_batch(network: PreTrainedModel, prefix: int) -> Batch:
    """Texts of several lengths, or images, with other ids and pixels than the trial on wrapping has."""
    draw = Generator().manual_seed(5)
    if reads_images(network):
        config = vision_config(network)
        rows, columns, tall, wide = image_grid(config)
        numbers = getattr(config, "num_channels", 3) * tall * wide
        inputs = torch.rand(2, prefix + rows * columns, numbers, generator=draw)
        mask = torch.ones(inputs.shape[:2], dtype=torch.bool)
    else:
        config = network.config.get_text_config()
        mask = torch.arange(LENGTHS[0]) < torch.tensor([[length] for length in LENGTHS])
        inputs = torch.randint(10, 60, mask.shape, generator=draw)
        end = getattr(config, "eos_token_id", None)
        if isinstance(end, int):  # heads of encoders with decoders look for it
            inputs[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] = end
        inputs = inputs.masked_fill(~mask, 0)
    empty = torch.zeros_like(mask).long()
    return Batch(tuple(map(str, range(len(mask)))), inputs, mask, empty, empty)


def library_logits(network: PreTrainedModel, model: TransformerModel, batch: Batch) -> Tensor:
    """The logits of each example alone, in the library's own eager attention."""
    plain = copy.deepcopy(network)  # RWKV rewrites its weights
    set_attention_implementation(plain, "eager")
    found = []
    for row in range(len(batch)):
        own = batch.rows(torch.tensor([row]))
        if own.inputs.dim() == 2 and "position_ids" not in model.stack.inputs.arguments(model.network, own):
            inputs = {"input_ids": own.inputs}
        else:
            inputs = model.stack.inputs.arguments(plain, own)
        with torch.no_grad(), torch.random.fork_rng():  # BigBird makes new modules for a short text
            logits = plain(**inputs).logits
        found.append(logits if isinstance(model.readout, ClassifierHead) else logits[:, -1].log_softmax(-1)[:, [6, 7]])
    return torch.cat(found)


def opened(units: Units, network: PreTrainedModel) -> TransformerModel:
    if units == "causal":
        return TransformerModel.wrap_language_model(network, WORDS)
    return TransformerModel.wrap(network)


def state(network: PreTrainedModel) -> dict[str, object]:
    """What a network of the user and the process must keep, in comparable form."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    configs = [config for each in network.modules() if isinstance(config := vars(each).get("config"), PreTrainedConfig)]
    generation = getattr(network, "generation_config", None)
    return {
        "weights": {name: (id(value), value._version) for name, value in network.state_dict(keep_vars=True).items()},
        "mode": [each.training for each in network.modules()],
        "attention implementation": [config._attn_implementation for config in configs],
        "configuration": [config.to_json_string() for config in configs],
        "hooks": [len(vars(each)[kind]) for each in network.modules() for kind in hooks],
        "attributes": [sorted(vars(each)) for each in network.modules()],
        "generation": None if generation is None else generation.to_json_string(),
        "gradients": [each.grad is not None for each in network.parameters()],
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": [np.asarray(part).tobytes() for part in np.random.get_state()],  # noqa: NPY002
    }


def changes(before: dict[str, object], network: PreTrainedModel) -> list[str]:
    after = state(network)
    return [name for name, value in before.items() if value != after[name]]


def fail_midway(*_: object) -> None:
    raise ZeroDivisionError


def last_module(model: TransformerModel, batch: Batch) -> nn.Module:
    """The part of the network that runs last."""
    called: list[nn.Module] = []
    parts = [part for part in model.network.modules() if part is not model.network]
    handles = [part.register_forward_hook(lambda part, *_: called.append(part)) for part in parts]
    model(batch)
    for handle in handles:
        handle.remove()
    return called[-1]


def check_outputs(network: PreTrainedModel, model: TransformerModel, batch: Batch) -> None:
    """Own logits; attention is distributions over what may be attended; attention and embeddings out and back."""
    with torch.no_grad():
        trace = model(batch)
        expected = library_logits(network, model, batch)
        torch.testing.assert_close(trace.logits, expected, rtol=1e-4, atol=1e-4)
        if model.attention_refusal is None:
            real = batch.mask[:, None, None]
            sums = trace.attention.sum(-1)
            assert bool((trace.attention >= 0).all())
            assert not bool((trace.attention * ~real[..., None, :]).any())
            is_whole = torch.isclose(sums, torch.ones_like(sums), atol=1e-5) | ~real
            has_sinks = any(name.endswith("sinks") for name, _ in network.named_parameters())
            assert bool(is_whole.all()) != has_sinks  # a part goes to the sink
            again = model(batch, attention=trace.attention)
            torch.testing.assert_close(again.logits, trace.logits, rtol=1e-5, atol=1e-5)
        if model.embedding_refusal is None:
            again = model(batch, embeddings=trace.embeddings)
            torch.testing.assert_close(again.logits, trace.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("units", "kind"), KINDS)
def test_a_network_computes_what_the_library_computes_and_stays_as_it_was(units: Units, kind: str) -> None:
    try:
        network = build_tiny_network(units, kind, Generator().manual_seed(1))
    except UserError as error:
        pytest.skip(str(error))
    network.train()
    before = state(network)
    try:
        model = opened(units, network)
    except UserError:
        assert (units, kind) not in SPREAD or IS_OLDER
        assert not changes(before, network)
        return
    assert not changes(before, network)
    assert (units, kind) not in SPREAD or SPREAD[units, kind] == model.path or IS_OLDER
    for each in (model, network):
        nn.Module.train(each, mode=False)
    before = state(network)
    batch = random_batch(network, model.stack.inputs.prefix)
    check_outputs(network, model, batch)
    assert not changes(before, network)
    logits = model(batch).logits
    handle = last_module(model, batch).register_forward_hook(fail_midway)
    with pytest.raises(ZeroDivisionError):
        model(batch)
    handle.remove()
    assert torch.equal(model(batch).logits, logits)
    # A network that fails while it is tried.
    handle = next(network.children()).register_forward_hook(fail_midway)
    before = state(network)
    with suppress(UserError, ZeroDivisionError):
        opened(units, network)
    assert not changes(before, network)
    handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize(("units", "kind"), KINDS)
def test_deeplift_sums_to_the_difference_of_the_outputs_or_is_refused(units: Units, kind: str) -> None:
    try:
        model = opened(units, build_tiny_network(units, kind, Generator().manual_seed(1)))
    except UserError as error:
        pytest.skip(str(error))
    if model.embedding_refusal is not None:
        pytest.skip(model.embedding_refusal)
    batch = random_batch(model.network, model.stack.inputs.prefix)
    content = replace(batch, words=torch.arange(batch.mask.shape[1]).expand_as(batch.mask).masked_fill(~batch.mask, -1))
    target = torch.zeros(len(batch), dtype=torch.int64)
    with torch.no_grad():
        blank = baseline_vectors(model, content, "pad", content.content_mask)
        ends = (model(content).logits, model(content, embeddings=blank).logits)
    given, reference = (target_output(model.task, logits, target, "probability") for logits in ends)
    try:
        scores = DeepLift()(model, content, target).scores
    except UserError:
        return
    missed = (scores.sum(1) - (given - reference)).abs()
    # 0.02 of the difference; where that is nearly 0, rounding of logits in single precision.
    assert bool((missed <= 0.02 * (given - reference).abs() + 1e-5).all())


def test_the_spread_has_kinds_of_every_way_in() -> None:
    assert len(SPREAD) >= 25
    assert set(SPREAD.values()) == {"interface", "softmax", None}
