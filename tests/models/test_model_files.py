"""Hostile and damaged model folders: each ends in one line and exit code 2; nothing is unpickled and no code runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Generator
from transformers import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    DistilBertForMultipleChoice,
    LlamaForTokenClassification,
    ModernBertForTokenClassification,
    PreTrainedModel,
    T5ForConditionalGeneration,
)
from typer.testing import CliRunner, Result

import heedful
from heedful import cli
from heedful.models.model_files import check_model_source, load_network
from heedful.models.tiny_networks import tiny_config
from heedful.models.transformer import Transformer, TransformerModel
from heedful.seeding import temporary_seed
from heedful.tasks import MulticlassClassification
from heedful.types import Example, UserError
from tests.language_models import gpt2
from tests.networks import network
from tests.tiny import Sentences
from tests.training.test_checkpoint import fine_tuned, tokenizer

NOWHERE = Path("nowhere")
WITNESS = "witness"
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model `teacher` that loads, and a file of texts."""
    here = tmp_path_factory.mktemp("sources")
    fine_tuned(here / "teacher", labels=3)
    texts = [str(example.parts[0]) for example in Sentences(40).read(NOWHERE).train]
    (here / "texts.csv").write_text("\n".join(["text", *texts]) + "\n", encoding="utf-8")
    return here


def learn(here: Path) -> Result:
    """`heedful learn` with the model in this folder."""
    words = ("--teacher", here / "teacher", "--data", here / "texts.csv", "-w", here / "work", "--where", "here")
    return CliRunner().invoke(
        cli.app,
        ["learn", *map(str, words), "--quick", "--seeds", "1", "--audit-minutes", "0", "--out", str(here / "out")],
    )


def settings(file: str = "config.json", **changes: object) -> Damage:
    """Other values in a file of settings."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(config | changes))

    return damage


def content(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def without(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def index(shard: object) -> Damage:
    """An index in place of the weights, which stand beside it and where it points to."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        shutil.copy(folder / "part.safetensors", folder.parent / "outside.safetensors")
        names = dict.fromkeys(load_file(folder / "part.safetensors"), shard)
        torch.save({}, folder / "evil.bin")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))

    return damage


def folder_of_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def dangling_link(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "nothing")


def truncated(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 2000)


def spoilt_weight(value: float) -> Damage:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["bert.encoder.layer.1.attention.output.dense.weight"][3, 2] = value
        weights["classifier.bias"][0] = value
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return damage


def weights(**changes: torch.Tensor | None) -> Damage:
    """Other weights beside those of the model; None takes one away."""

    def damage(folder: Path) -> None:
        stored: dict[str, torch.Tensor | None] = {**load_file(folder / "model.safetensors"), **changes}
        kept = {name: weight for name, weight in stored.items() if weight is not None}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    return damage


def own_code(name: str, **changes: object) -> Damage:
    """A Python file beside the model, named in one of its settings, which writes a file when it is run."""

    def damage(folder: Path) -> None:
        kinds = ("AutoConfig", "AutoModelForSequenceClassification", "AutoTokenizer")
        (folder / "own.py").write_text(f"open({str(folder.parent / WITNESS)!r}, 'w').close()\nOwn = object")
        config = json.loads((folder / name).read_text())
        names = {kind: ["own.Own", "own.Own"] if kind == "AutoTokenizer" else "own.Own" for kind in kinds}
        (folder / name).write_text(json.dumps(config | {"auto_map": names} | changes))

    return damage


HOSTILE: dict[str, tuple[Damage, str]] = {
    "a list as configuration": (content("config.json", "[1, 2]"), "holds no JSON object"),
    "text as configuration": (content("config.json", "model"), "cannot be read as JSON"),
    "a configuration that is not UTF-8": (lambda f: (f / "config.json").write_bytes(b'{"a": "\xff"}'), "as JSON"),
    "deep nesting": (content("config.json", "[" * 100_000), "cannot be read as JSON"),
    "no configuration": (without("config.json"), "no model could be loaded"),
    "an empty configuration": (content("config.json", "{}"), "no model could be loaded"),
    "a family that does not exist": (settings(model_type="nosuch"), "no model could be loaded"),
    "a family of code": (settings(model_type="../../own"), "no model could be loaded"),
    "labels as a list": (settings(id2label=["a", "b", "c"]), "id2label"),
    "labels by name": (settings(id2label={"a": "b"}), "id2label"),
    "labels as a text": (settings(id2label="abc"), "id2label"),
    "a million million labels": (settings(id2label=None, num_labels=10**12), "num_labels"),
    "labels counted in words": (settings(id2label=None, num_labels="two"), "num_labels"),
    "a problem type of its own": (settings(problem_type=[1]), "problem_type"),
    "no heads": (settings(num_attention_heads=0), "num_attention_heads"),
    "negative heads": (settings(num_attention_heads=-2), "num_attention_heads"),
    "heads that do not divide": (settings(num_attention_heads=3), "no model could be loaded"),
    "heads in words": (settings(num_attention_heads="two"), "no model could be loaded"),
    "no layers": (settings(num_hidden_layers=0), "num_hidden_layers"),
    "a million million layers": (settings(num_hidden_layers=10**12), "do not belong together"),
    "no width": (settings(hidden_size=0), "hidden_size"),
    "a large vocabulary": (settings(vocab_size=10**9), "do not belong together"),
    "an endless vocabulary": (settings(vocab_size=10**30), "no model could be loaded"),
    "a negative vocabulary": (settings(vocab_size=-1), "no model could be loaded"),
    "a large width": (settings(hidden_size=2 * 10**6), "do not belong together"),
    "large layers": (settings(intermediate_size=10**9), "do not belong together"),
    "many positions": (settings(max_position_embeddings=10**10), "do not belong together"),
    "an unknown activation": (settings(hidden_act="nosuch"), "no model could be loaded"),
    "an activation that is a number": (settings(hidden_act=3), "no model could be loaded"),
    "an unknown precision": (settings(dtype="nosuch"), "no model could be loaded"),
    "other weights by name": (settings(transformers_weights="../outside.safetensors"), "names a file of weights"),
    "a pickle by name": (settings(transformers_weights="evil.bin"), "names a file of weights"),
    "an index of a pickle": (index("evil.bin"), "never read here"),
    "an index of a path outside": (index("../outside.safetensors"), "in the folder itself"),
    "an index of an absolute path": (index("/etc/passwd.safetensors"), "in the folder itself"),
    "an index of another kind": (index("evil.txt"), "in the folder itself"),
    "an index of numbers": (index(7), "no weight_map"),
    "an index of what is missing": (index("nothing.safetensors"), "is not a file"),
    "an index that is a list": (content("model.safetensors.index.json", "[]"), "holds no JSON object"),
    "an index without a map": (content("model.safetensors.index.json", "{}"), "no weight_map"),
    "weights that are a folder": (folder_of_weights, "is not a file"),
    "weights that link to nothing": (dangling_link, "is not a file"),
    "weights that end early": (truncated, "no model could be loaded"),
    "weights that are text": (content("model.safetensors", "not a tensor in sight"), "no model could be loaded"),
    "weights with an endless header": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}"), "no model could be loaded"
    ),
    "no weights": (without("model.safetensors"), "no model could be loaded"),
    "NaN weights": (spoilt_weight(torch.nan), "bert.encoder.layer.1.attention.output.dense.weight"),
    "infinite weights": (spoilt_weight(-torch.inf), "bert.encoder.layer.1.attention.output.dense.weight"),
    "fewer layers than weights": (settings(num_hidden_layers=1), "bert.encoder.layer.1."),
    "weights of another network": (weights(**{"attention_pool.weight": torch.ones(3)}), "attention_pool.weight"),
    "weights of another layer": (weights(**{"bert.adapter.weight": torch.ones(3)}), "bert.adapter.weight"),
    "a layer without a weight": (
        weights(**{"bert.encoder.layer.1.output.dense.bias": None}), "bert.encoder.layer.1.output.dense.bias"
    ),
    "an adapter": (content("adapter_config.json", "{}"), "the adapter belongs"),
    "code of a new family": (own_code("config.json", model_type="own"), "code of its own"),
    "code of a known family": (own_code("config.json"), "code of its own"),
    "code of a tokenizer": (own_code("tokenizer_config.json", tokenizer_class="Own"), "code of its own"),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer"),
    "a tokenizer that is a list": (content("tokenizer.json", "[]"), "no tokenizer could be read"),
    "a tokenizer without a model": (content("tokenizer.json", "{}"), "no tokenizer could be read"),
    "classes of one name": (settings(id2label={0: "a", 1: "b", 2: "a"}), "'a'"),
    "a length in words": (settings("tokenizer_config.json", model_max_length="a"), "model_max_length"),
    "a length in a list": (settings("tokenizer_config.json", model_max_length=[512]), "model_max_length"),
    "half a token": (settings("tokenizer_config.json", model_max_length=20.5), "model_max_length"),
    "inputs that are a number": (settings("tokenizer_config.json", model_input_names=5), "tokenizer_config.json"),
    "an unknown token without letters": (settings("tokenizer_config.json", unk_token=""), "tokenizer_config.json"),
    "a tokenizer configuration that is a list": (content("tokenizer_config.json", "[]"), "holds no JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_folder_is_one_line_and_exit_code_2(
    case: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a file was unpickled"))
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    damage, complaint = HOSTILE[case]
    damage(tmp_path / "teacher")
    result = learn(tmp_path)
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert complaint in result.stderr
    assert result.stderr.startswith("heedful: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / WITNESS).exists()


def test_the_folder_before_the_damage_loads(sound: Path) -> None:
    assert check_model_source(str(sound / "teacher")).model_type == "bert"
    assert Transformer(str(sound / "teacher")).build(MulticlassClassification(3), None, Generator())


def layers(folder: Path, count: int) -> str:
    """The folder with another number of layers in its configuration."""
    settings(num_hidden_layers=count, n_layer=count)(folder)
    return str(folder)


def test_a_trunk_with_fewer_layers_than_its_weights_gets_no_new_head(tmp_path: Path) -> None:
    cast("PreTrainedModel", network(num_labels=3).base_model).save_pretrained(tmp_path)
    assert Transformer(str(tmp_path)).build(MulticlassClassification(3), None, Generator())
    with pytest.raises(UserError, match=r"encoder\.layer\.1\."):
        Transformer(layers(tmp_path, 1)).build(MulticlassClassification(3), None, Generator())


def test_a_language_model_with_fewer_layers_than_its_weights_is_refused(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"transformer\.h\.1\."):
        load_network(layers(tmp_path, 1), None, "causal")


def test_heads_for_other_tasks_and_poolers_may_stand_beside_the_weights(tmp_path: Path) -> None:
    config = network(num_labels=3).config
    pretrained, classifier = BertForPreTraining(config), network(num_labels=3)  # type: ignore[no-untyped-call]
    pretrained.save_pretrained(tmp_path / "pretrained")
    loaded = load_network(str(tmp_path / "pretrained"), None, "masked")
    for name, weight in loaded.network.named_parameters():
        assert torch.equal(weight, pretrained.get_parameter(name))
    assert any("bert.pooler.dense.bias" in note for note in loaded.notes)
    # Under a new head, the old one may be of any kind.
    weights(**{"own_head.weight": torch.ones(3)})(tmp_path / "pretrained")
    assert load_network(str(tmp_path / "pretrained"), 3, "classifier")
    classifier.save_pretrained(tmp_path / "both")
    heads = {name: weight for name, weight in pretrained.state_dict().items() if name.startswith("cls.predictions.t")}
    weights(**heads, **{"bert.embeddings.position_ids": torch.arange(4)})(tmp_path / "both")
    loaded = load_network(str(tmp_path / "both"), 3, "classifier")
    for name, weight in loaded.network.named_parameters():
        assert torch.equal(weight, classifier.get_parameter(name))
    assert any(sorted(heads)[0] in note for note in loaded.notes)


TASKS: dict[str, tuple[type[PreTrainedModel], str]] = {
    "modernbert": (ModernBertForTokenClassification, "token classification"),
    "llama": (LlamaForTokenClassification, "token classification"),
    "bert": (BertForQuestionAnswering, "question answering"),
    "distilbert": (DistilBertForMultipleChoice, "multiple choice"),
    "t5": (T5ForConditionalGeneration, "conditional generation"),
}


@pytest.mark.parametrize("kind", TASKS)
def test_networks_for_other_tasks_are_refused_by_the_name_of_their_task(kind: str, tmp_path: Path) -> None:
    maker, task = TASKS[kind]
    own = maker(tiny_config(kind))
    own.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    for source in (str(tmp_path), (own, tokenizer())):
        with pytest.raises(UserError) as refused:
            heedful.load(source)
        assert task in str(refused.value)
        assert "\n" not in str(refused.value)
    result = CliRunner().invoke(cli.app, ["explain", str(tmp_path), "a good film"])
    assert result.exit_code == 2
    assert task in result.stderr


def test_a_class_name_that_transformers_does_not_know_is_left_to_the_weights(tmp_path: Path) -> None:
    fine_tuned(tmp_path, labels=3)
    expected = heedful.load(str(tmp_path)).explain("good")
    for name in ("BertForSentimentClassification", "OwnClassifier", "BertForMultiLabelSequenceClassification"):
        settings(architectures=[name])(tmp_path)
        assert heedful.load(str(tmp_path)).explain("good").probability == expected.probability


def test_the_task_of_an_adapter_decides_on_the_head(tmp_path: Path) -> None:
    fine_tuned(tmp_path / "base", labels=2)
    # The base of a published adapter is most often a masked language model with a pooler.
    BertForPreTraining.from_pretrained(tmp_path / "base").save_pretrained(tmp_path / "base")
    settings(architectures=["BertForMaskedLM"])(tmp_path / "base")
    with temporary_seed(1):
        base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
        adapted = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, init_lora_weights=False)).eval()
    adapted.save_pretrained(str(tmp_path / "adapter"))
    opened = heedful.load(str(tmp_path / "adapter"))
    batch = opened.tokenizer([Example("0", ("a good film",))])
    with torch.no_grad():
        torch.testing.assert_close(opened.model(batch).logits, adapted(input_ids=batch.inputs).logits)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**config, "task_type": "TOKEN_CLS"}))
    with pytest.raises(UserError, match="token classification"):
        heedful.load(str(tmp_path / "adapter"))


def test_weights_in_several_files_load(tmp_path: Path) -> None:
    own = network(num_labels=3)
    own.save_pretrained(tmp_path, max_shard_size="5KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    model = Transformer(str(tmp_path)).build(MulticlassClassification(3), None, Generator())
    for name, weight in own.named_parameters():
        assert torch.equal(model.network.get_parameter(name), weight)


def test_a_network_with_a_weight_that_is_not_a_number_is_refused_by_the_first_name() -> None:
    own = network(num_labels=3)
    with torch.no_grad():
        own.get_parameter("bert.encoder.layer.0.output.dense.bias")[2:4] = torch.inf
        own.get_parameter("classifier.weight")[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"2 of the 16 numbers in bert\.encoder\.layer\.0\.output\.dense\.bias of Bert"):
        TransformerModel.wrap(own)


def test_large_weights_whose_sum_overflows_are_finite() -> None:
    own = network(num_labels=3)
    with torch.no_grad():
        own.get_parameter("bert.embeddings.position_embeddings.weight")[10:] = 3e37
    assert TransformerModel.wrap(own)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_weights_that_may_not_be_read_are_one_line(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    (tmp_path / "teacher" / "model.safetensors").chmod(0)
    result = learn(tmp_path)
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


@pytest.mark.parametrize("name", ["preprocessor_config.json", "model.safetensors", "config.json", "part.safetensors"])
def test_the_digest_follows_every_file_that_may_be_read(name: str, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "teacher"
    before = Transformer(str(folder)).digest(tmp_path)
    (folder / "optimizer.pt").write_text("never read")
    assert Transformer(str(folder)).digest(tmp_path) == before
    (folder / name).write_text("{}")
    assert Transformer(str(folder)).digest(tmp_path) != before
