"""Audits of a model that reads images: every question is answered or says why not, and pages show the images."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, nn
from transformers import PreTrainedModel

import heedful
from heedful.attributions import LeaveOneOut, Lime, RawAttention
from heedful.audits.analysis import image_pixels
from heedful.audits.audit_result import Audit
from heedful.audits.schedule import AuditOptions
from heedful.data.images import Digits
from heedful.data.patches import Patches, PatchTokenizer
from heedful.models.small_transformers import SmallViT, build_network
from heedful.models.tiny_networks import tiny_config
from heedful.models.transformer import TransformerModel
from heedful.report.charts import png_base64, png_pixels
from heedful.report.text_table import decode_head_maps
from heedful.results import Verdict
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification
from heedful.types import Example, UserError

TEXTS = 2
METHODS = (RawAttention(), LeaveOneOut(), Lime(n_samples=20))


def vision_model() -> tuple[TransformerModel, PatchTokenizer]:
    """A small ViT with random weights that reads the digits."""
    architecture = SmallViT((1, 8, 8), patch_size=2, layers=2, heads=2, width=8, initializer_range=0.5)
    model = architecture.build(MulticlassClassification(10), None, Generator().manual_seed(0))
    return model, Patches(2).fit(Digits().read(Path()).test[:1])


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    folder = tmp_path_factory.mktemp("images")
    options = AuditOptions(methods=METHODS, texts=TEXTS, workers=1, only_methods=True)
    result = heedful.audit(
        vision_model(), Digits(), workspace=Workspace(folder / "work"), options=options, out=folder / "out"
    )
    return result, folder / "out"


def test_stability_rests_on_other_seeds_where_there_is_no_edit(audited: tuple[Audit, Path]) -> None:
    result, _ = audited
    assert (result.data.noun, result.data.texts) == ("images", TEXTS)
    stable = {each.name: each.answer("stable") for each in result.methods}
    asked = {name for name, answer in stable.items() if answer.verdict is not Verdict.NOT_TESTED}
    assert asked == {name for name in stable if name.startswith(("lime", "random", "permuted"))}
    assert all(answer.reason for answer in stable.values())
    assert {each.answer("faithful").statistic.n for each in result.methods} == {TEXTS}
    assert all(each.answer("model-dependent").verdict is not Verdict.NOT_TESTED for each in result.methods)
    ways = {row.subset for method in result.methods for row in method.answer("faithful").evidence} - {""}
    assert ways == {"pad", "zero"}


def test_the_page_of_images_has_their_pixels_and_the_scores_of_their_patches(audited: tuple[Audit, Path]) -> None:
    _, folder = audited
    document = (folder / "texts" / "texts.html").read_text(encoding="utf-8")
    data = json.loads(re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', document, re.S)[0])
    assert (data["patches"], data["heads"], len(data["texts"])) == ([4, 4], [2, 2], TEXTS)
    examples = {example.uid: example for example in Digits().read(Path()).test}
    model, tokenizer = vision_model()
    place = [row["name"] for row in data["rows"]].index("raw-attention")
    for text in data["texts"]:
        image = examples[text["uid"]].parts[0]
        assert isinstance(image, torch.Tensor)
        shown = np.asarray(png_pixels(text["image"]).rows)
        assert shown[..., 0] == pytest.approx(image[0].numpy(), abs=1 / 255)
        with torch.no_grad():
            attention = model(tokenizer([examples[text["uid"]]])).attention[0].mean(2)[..., 1:]
        maps = decode_head_maps(text["maps"], (2, 2))
        assert maps == pytest.approx(attention.numpy(), abs=4e-3)
        assert text["rows"][place]["weights"] == pytest.approx(attention.mean((0, 1)).tolist(), rel=1e-3)
    # the image, the first two methods and the mean of all heads
    assert document.split("<noscript>")[1].count("<image ") == 4 * TEXTS


def test_failures_of_images_are_drawn(audited: tuple[Audit, Path]) -> None:
    result, folder = audited
    failures = [each.failure for each in result.methods if each.failure is not None]
    assert failures
    for failure in failures:
        assert base64.b64decode(failure.image).startswith(b"\x89PNG")
        assert failure.words[:5] == ("0,0", "0,1", "0,2", "0,3", "1,0")
    assert (folder / "index.html").read_text(encoding="utf-8").count("<image ") >= 2 * len(failures)


def test_large_images_are_made_smaller_and_grey_ones_have_three_channels() -> None:
    pixels = image_pixels(torch.linspace(0, 1, 200 * 400).reshape(1, 200, 400))
    assert pixels.shape == (48, 96, 3)
    assert pixels[..., 0].tolist() == pixels[..., 2].tolist()
    image = torch.tensor([[[0.0, 1.0]], [[0.5, 2.0]], [[-1.0, 0.2]]])
    assert image_pixels(image).tolist() == [[[0, 128, 0], [255, 255, 51]]]
    assert np.asarray(png_pixels(png_base64(image_pixels(image))).rows)[0, 1] == pytest.approx([1, 1, 0.2])


def test_a_vision_model_in_a_folder_is_read_with_its_own_preprocessing(tmp_path: Path) -> None:
    model, tokenizer = vision_model()
    model.network.save_pretrained(tmp_path / "vit")
    with pytest.raises(UserError, match=r"preprocessor_config\.json"):
        heedful.load(tmp_path / "vit")
    settings = {"do_resize": True, "do_normalize": True, "image_mean": [0.5], "image_std": [0.25]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    loaded = heedful.load(tmp_path / "vit")
    assert isinstance(loaded.tokenizer, PatchTokenizer)
    assert loaded.tokenizer.tokenization == Patches(2, 8, (0.5,), (0.25,))
    recipe = loaded.recipe(Digits())
    assert recipe.tokenization == loaded.tokenizer.tokenization
    example = Digits().read(Path()).test[:1]
    expected = model(tokenizer([example[0]]))
    found = loaded.model(tokenizer([example[0]]))
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    with pytest.raises(UserError, match="images"):
        loaded.explain("a text")
    with pytest.raises(UserError, match="patches"):
        heedful.load((model, object()))


def save_network(folder: Path, kind: str, **changes: int) -> PreTrainedModel:
    """A tiny image classifier of a kind with its preprocessing."""
    config = tiny_config(kind, labels=10)
    for name, value in changes.items():
        setattr(config, name, value)
    network = build_network(config, Generator().manual_seed(0))
    nn.Module.train(network, mode=False)
    network.save_pretrained(folder)
    settings = {"do_resize": True, "do_normalize": False}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return network


@pytest.mark.parametrize(("kind", "special"), [("dinov2_with_registers", 5), ("clip", 1), ("siglip", 0)])
def test_a_loaded_network_has_its_special_tokens_before_the_patches(tmp_path: Path, kind: str, special: int) -> None:
    network = save_network(tmp_path, kind)
    loaded = heedful.load(tmp_path)
    image = torch.rand(3, 16, 16, generator=Generator().manual_seed(1))
    batch = loaded.tokenizer([Example("image", (image,))])
    assert batch.words[0].tolist() == [-1] * special + list(range(16))
    assert len(set(loaded.tokenizer.unit_texts(batch)[0])) == 16 + min(special, 2)
    with torch.no_grad():
        expected = network(pixel_values=image.unsqueeze(0)).logits
        assert torch.allclose(loaded.model(batch).logits, expected, atol=1e-5)


def test_a_convolutional_network_is_audited_by_its_outputs_and_pixels(tmp_path: Path) -> None:
    save_network(tmp_path / "resnet", "resnet", num_channels=1, image_size=8)
    options = AuditOptions(
        methods=("raw-attention", "leave-one-out", "input-x-gradient"), texts=TEXTS, workers=1, only_methods=True
    )
    result = heedful.audit(
        tmp_path / "resnet", Digits(), workspace=Workspace(tmp_path / "work"), options=options, out=tmp_path / "out"
    )
    assert {each.name for each in result.methods} == {"leave-one-out", "input-x-gradient", "random"}
    assert {each.answer("faithful").statistic.n for each in result.methods} == {TEXTS}
    ways = {row.subset for method in result.methods for row in method.answer("faithful").evidence} - {""}
    assert ways == {"pad"}  # a patch of zeros is a patch without embedding
    refusal = heedful.load(tmp_path / "resnet").model.attention_refusal or ""
    refused = {name for name, why in result.untested.items() if refusal in why}
    assert refused == {"raw-attention", "permuted-attention", "attention", "attention is necessary"}
