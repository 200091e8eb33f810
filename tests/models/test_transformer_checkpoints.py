"""Tasks from configurations, checkpoints from folders: what is drawn afresh is said, what is unsafe is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import cast

import huggingface_hub.constants
import pytest
import torch
from torch import Generator
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from heedful.models.transformer import TinyTransformer, Transformer, TransformerModel
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import Task, UserError
from tests.networks import network, texts

TASKS: list[tuple[int, str | None, Task]] = [
    (1, None, Regression()),
    (1, "regression", Regression()),
    (2, None, MulticlassClassification(2)),
    (5, "single_label_classification", MulticlassClassification(5)),
]


@pytest.mark.parametrize(("labels", "kind", "task"), TASKS)
def test_the_task_is_what_the_configuration_says(labels: int, kind: str | None, task: Task) -> None:
    assert TransformerModel.wrap(network(num_labels=labels, problem_type=kind)).task == task


@pytest.mark.parametrize(("labels", "kind"), [(1, "multi_label_classification"), (3, "multi_label_classification")])
def test_an_open_task_is_asked_for(labels: int, kind: str) -> None:
    with pytest.raises(UserError, match="pass task="):
        TransformerModel.wrap(network(num_labels=labels, problem_type=kind))


def test_one_sigmoid_logit_is_binary_on_request_and_a_wrong_size_is_refused() -> None:
    plain = network(num_labels=1)
    assert TransformerModel.wrap(plain, BinaryClassification()).task == BinaryClassification()
    with pytest.raises(UserError, match="has 1 outputs, but the task MulticlassClassification needs 3"):
        TransformerModel.wrap(plain, MulticlassClassification(3))


def saved(folder: Path, labels: int = 2) -> PreTrainedModel:
    plain = network(num_labels=labels)
    plain.save_pretrained(folder)
    return plain


def test_a_saved_classifier_comes_back_with_its_own_head(tmp_path: Path) -> None:
    plain = saved(tmp_path, labels=3)
    model = Transformer(str(tmp_path)).build(MulticlassClassification(3), None, Generator())
    batch = texts()
    expected = plain(input_ids=batch.inputs, attention_mask=batch.mask, token_type_ids=batch.segments).logits
    torch.testing.assert_close(model(batch).logits, expected, rtol=0, atol=1e-5)
    assert not model.training
    assert model.notes == (f"all weights are those of {tmp_path}, head included",)


def test_a_head_of_another_size_is_drawn_from_the_generator_and_said(tmp_path: Path) -> None:
    plain = saved(tmp_path, labels=3)
    before = torch.get_rng_state()
    first, second, third = (
        Transformer(str(tmp_path)).build(BinaryClassification(), None, Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    head = "network.classifier.weight"
    assert first.get_parameter(head).shape == (1, 16)
    assert torch.equal(first.get_parameter(head), second.get_parameter(head))
    assert not torch.equal(first.get_parameter(head), third.get_parameter(head))
    assert "classifier.bias, classifier.weight" in first.notes[0]
    layer = "bert.encoder.layer.1.output.dense.weight"
    assert torch.equal(first.get_parameter(f"network.{layer}"), plain.get_parameter(layer))


def test_a_checkpoint_without_a_head_gets_one(tmp_path: Path) -> None:
    cast("PreTrainedModel", network().base_model).save_pretrained(tmp_path)
    model = Transformer(str(tmp_path)).build(MulticlassClassification(4), None, Generator().manual_seed(1))
    assert model(texts()).logits.shape == (3, 4)
    assert "classifier.weight" in model.notes[0]


def test_pickled_weights_are_refused_with_the_remedy(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin are pickled.*save_pretrained"):
        Transformer(str(tmp_path)).build(MulticlassClassification(2), None, Generator())


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="lacks 16 weights of BertForSequenceClassification"):
        Transformer(str(tmp_path)).build(MulticlassClassification(2), None, Generator())


def test_damaged_empty_and_unreachable_sources_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    empty, damaged, adapter = tmp_path / "empty", tmp_path / "damaged", tmp_path / "adapter"
    empty.mkdir()
    saved(damaged)
    (damaged / "model.safetensors").write_bytes(b"not a tensor in sight")
    saved(adapter)
    (adapter / "adapter_config.json").write_text("{}")
    for source in (str(empty), str(damaged), "nobody/has-this-model", "a bad/name/of a model"):
        with pytest.raises(UserError, match=r"no model could be loaded from .*give a folder") as caught:
            Transformer(source).build(MulticlassClassification(2), None, Generator())
        assert source in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="holds an adapter: merge it"):
        Transformer(str(adapter)).build(MulticlassClassification(2), None, Generator())


def test_word_vectors_are_refused_unless_they_are_empty() -> None:
    plan = TinyTransformer()
    with pytest.raises(UserError, match="its own word vectors"):
        plan.build(MulticlassClassification(2), torch.zeros(50, 16), Generator())
    assert plan.build(MulticlassClassification(2), torch.zeros(0, 16), Generator()).task == MulticlassClassification(2)
    with pytest.raises(UserError, match="unknown family 'bort'"):
        TinyTransformer("bort").build(MulticlassClassification(2), None, Generator())


def test_the_digest_follows_the_content_of_a_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plain = saved(first)
    plain.save_pretrained(second)
    before = Transformer(str(first)).digest(tmp_path)
    assert Transformer(str(second)).digest(tmp_path) == before
    with torch.no_grad():
        plain.get_parameter("classifier.bias").add_(1)
    plain.save_pretrained(second)
    assert Transformer(str(second)).digest(tmp_path) != before
    assert Transformer("some/hub-id").digest(tmp_path) == "some/hub-id"


def test_loading_prints_nothing_and_restores_the_settings_of_transformers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, labels=3)
    before = (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())
    transformers_logging.set_verbosity(logging.WARNING)
    transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    capfd.readouterr()
    try:
        Transformer(str(tmp_path)).build(BinaryClassification(), None, Generator().manual_seed(1))
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", "")
        assert transformers_logging.get_verbosity() == logging.WARNING
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity(before[0])
        if not before[1]:
            transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
