"""Attention within windows as maps over all units: hand values, the library's own weights, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import pad
from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig, PreTrainedModel

from heedful.attributions.attention import Rollout
from heedful.models import network_anatomy
from heedful.models._attention_windows import WindowLayout, find_window_units
from heedful.models.attention_hooks import copy_sharing_weights, set_attention_implementation
from heedful.models.small_transformers import ScalarMix, TruncatedTransformer
from heedful.models.tiny_networks import build_tiny_network
from heedful.models.transformer import Transformer, TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.types import Batch, UserError
from tests.models.test_tiny_networks import random_batch

TWO_WINDOWS = WindowLayout((torch.tensor([[0, 2], [3, 1]]),))
"""Of four units: 0 and 2 in the first window, 3 and 1 in the second."""


def network(kind: str = "swin", **changes: int | float | list[int]) -> PreTrainedModel:
    settings: Mapping[str, int | float | list[int]] = {
        "image_size": 16,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [2, 1],
        "num_heads": [2, 4],
        "window_size": 2,
        "num_labels": 3,
        "initializer_range": 0.3,
    }
    config = AutoConfig.for_model(kind, **{**settings, **changes})
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(7)
        make = cast("Callable[[object], PreTrainedModel]", MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)])
        return nn.Module.eval(make(config).double())


def opened(kind: str = "swin", **changes: int | float | list[int]) -> tuple[TransformerModel, Batch]:
    model = TransformerModel.wrap(network(kind, **changes)).eval()
    return model, random_batch(model.network, model.stack.inputs.prefix)


def test_values_of_windows_become_values_of_units() -> None:
    windows = torch.tensor([[10.0, 12.0], [13.0, 11.0], [20.0, 22.0], [23.0, 21.0]])[:, None, :, None]
    whole = TWO_WINDOWS.merge(windows, 0)
    assert whole.flatten(1).tolist() == [[10, 11, 12, 13], [20, 21, 22, 23]]
    assert torch.equal(TWO_WINDOWS.split(whole, 0), windows)


def test_maps_of_windows_become_maps_of_units() -> None:
    maps = torch.tensor([[[0.1, 0.9], [0.2, 0.8]], [[0.3, 0.7], [0.4, 0.6]]]).unsqueeze(1)
    whole = TWO_WINDOWS.merge_maps(maps, 0, -1.0)
    expected = [[0.1, -1, 0.9, -1], [-1, 0.6, -1, 0.4], [0.2, -1, 0.8, -1], [-1, 0.7, -1, 0.3]]
    torch.testing.assert_close(whole[0, 0], torch.tensor(expected))
    assert torch.equal(TWO_WINDOWS.split_maps(whole, 0), maps)


def cut(grid: Tensor, size: int, shift: int) -> Tensor:
    """Windows `[batch x window position width]` of a grid `[batch row column width]`, cell by cell."""
    rows, columns = grid.shape[1:3]
    corners = product(range(0, rows, size), range(0, columns, size))
    windows = [
        torch.stack(
            [
                grid[:, (top + down + shift) % rows, (left + right + shift) % columns]
                for down, right in product(range(size), range(size))
            ],
            1,
        )
        for top, left in corners
    ]
    return torch.stack(windows, 1).flatten(0, 1)


def values_of(change: Callable[[Tensor], Tensor], size: int = 2, shift: int = 1) -> Callable[[Tensor], Tensor]:
    return lambda states: cut(change(states.reshape(len(states), 4, 6, -1)), size, shift).tanh()


def test_windows_are_found_by_probes() -> None:
    states = torch.rand(2, 24, 3, generator=Generator().manual_seed(1))
    found = find_window_units(values_of(lambda grid: grid), states)
    numbers = torch.arange(24).reshape(1, 4, 6, 1)
    assert torch.equal(found, cut(numbers, 2, 1).squeeze(-1))
    assert found[0].tolist() == [7, 8, 13, 14]
    assert found[-1].tolist() == [23, 18, 5, 0]


@pytest.mark.parametrize(
    ("change", "size", "words"),
    [
        (lambda grid: pad(grid, (0, 0, 0, 3, 0, 2)), 3, "none of its units"),
        (lambda grid: grid + 0.3 * grid.roll(1, 1), 2, "several units"),
        (lambda grid: torch.cat([grid[:, :2], grid[:, :2]], 1), 2, "each unit of an image once"),
        (lambda grid: grid.flip(0), 2, "each unit of an image once"),
    ],
    ids=["padding", "blur", "repetition", "other image"],
)
def test_windows_that_are_not_of_single_units_are_refused(
    change: Callable[[Tensor], Tensor], size: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        find_window_units(values_of(change, size), torch.rand(2, 24, 3))


@pytest.mark.parametrize("kind", ["swin", "donut-swin", "swinv2"])
def test_weights_are_those_that_the_library_shows(kind: str) -> None:
    """The library gives the weights of windows `[batch x window head position position]` of each layer."""
    model, batch = opened(kind)
    plain = copy_sharing_weights(model.network)
    set_attention_implementation(plain, "eager")
    weights: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: tuple[Tensor, ...]) -> None:
        weights.append(output[1])

    for block in range(2):
        name = next(
            name
            for name, _ in plain.named_modules()
            if name.endswith(f"layers.0.blocks.{block}.attention" + ("" if kind == "swin" else ".self"))
        )
        module = plain.get_submodule(name)
        if kind != "swin":  # asks for its weights
            module.register_forward_pre_hook(lambda _, inputs: (*inputs[:2], True))
        module.register_forward_hook(keep)
    with torch.no_grad():
        attention = model(batch).attention
        plain(**model.stack.inputs.arguments(plain, batch))
    assert model.maps is not None
    assert model.maps.windows is not None
    for layer, expected in enumerate(weights):
        found = model.maps.windows.split_maps(attention[:, layer], layer)
        # Swin normalises in float32; what a mask hides is e^-100 there and 0 here.
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if kind == "swin" else 1e-14)
    assert attention.shape == (2, 2, 2, 16, 16)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 2, 2, 16, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["swin", "donut-swin"])
def test_weights_between_windows_count_when_they_are_given(kind: str) -> None:
    """The states after the first stage under random weights between all units: a literal twin."""
    model, batch = opened(kind)
    draw = torch.rand(2, 2, 2, 16, 16, generator=Generator().manual_seed(2), dtype=torch.float64)
    given = draw / draw.sum(-1, keepdim=True)
    names = {
        "swin": ("attention.v_proj", "attention.o_proj", ("mlp",)),
        "donut-swin": ("attention.self.value", "attention.output.dense", ("intermediate", "output")),
    }
    value, projection, feed_forward = names[kind]
    with torch.no_grad():
        trace = model(batch, attention=given)
        states = trace.embeddings
        for layer, block in enumerate(model.layers):
            values = block.get_submodule(value)(block.get_submodule("layernorm_before")(states))
            heads = values.reshape(2, 16, 2, 4).transpose(1, 2)
            attended = (given[:, layer] @ heads).transpose(1, 2).flatten(2)
            states = states + block.get_submodule(projection)(attended)
            inner = block.get_submodule("layernorm_after")(states)
            for name in feed_forward:
                inner = block.get_submodule(name)(inner)
            states = states + inner
    torch.testing.assert_close(trace.hidden, states, rtol=0, atol=1e-12)


def test_a_network_of_one_stage_has_no_other_path() -> None:
    """All its attention is over units, so that layers may be multiplied: rollout follows by hand."""
    model, batch = opened(depths=[2], num_heads=[2])
    assert model.path_refusal is None
    assert not model.notes
    scores = Rollout()(model, batch, torch.zeros(2, dtype=torch.long)).scores
    with torch.no_grad():
        first, second = ((model(batch).attention.mean(2) + torch.eye(16)) / 2).unbind(1)
    torch.testing.assert_close(scores, (second @ first).mean(1))


def test_attention_that_is_not_shown_is_named() -> None:
    model, _ = opened(depths=[2, 3])
    assert len(model.notes) == 1
    assert "first stage (layers: 2)" in model.notes[0]
    assert "(maps: 3)" in model.notes[0]
    decoded = TransformerModel.wrap(build_tiny_network("text", "bart", Generator().manual_seed(1)))
    assert any("decoder" in note for note in decoded.notes)


def test_a_grid_that_windows_do_not_divide_is_refused_by_name() -> None:
    """Swin pads such a grid and attends to the padding, which is no unit."""
    model, batch = opened(image_size=20)
    assert model.attention_refusal is not None
    assert "9 windows have 4 queries and 4 positions each, which are not its 25 units" in model.attention_refusal
    assert model(batch).attention.shape == (2, 0, 0, 25, 25)


def test_maps_of_too_many_weights_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = 2 * 2 * 16**2
    monkeypatch.setattr(network_anatomy, "MAX_WEIGHTS", weights)
    assert opened()[0].attention_refusal is None
    monkeypatch.setattr(network_anatomy, "MAX_WEIGHTS", weights - 1)
    assert f"more than {weights - 1} weights" in str(opened()[0].attention_refusal)


def test_stages_are_neither_truncated_nor_mixed(tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    whole = Transformer(str(tmp_path))
    for architecture in (TruncatedTransformer(whole, 1), ScalarMix(whole)):
        with pytest.raises(UserError, match="has stages"):
            architecture.build(MulticlassClassification(3), None, Generator())
