"""Language models from folders: merged adapters, missing heads, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import heedful
from heedful.models.label_words import LabelWords
from heedful.models.language_model import LanguageModel
from heedful.seeding import temporary_seed
from heedful.store.model_folder import hash_model_folder
from heedful.types import Example, UserError
from tests.language_models import LABELS, PROMPT, gpt2, gpt2_tokenizer, masked_bert, save
from tests.networks import network

TEXT = "the film is very fine"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 in `base`, and an adapter of it with weights that change its logits in `adapter`."""
    root = tmp_path_factory.mktemp("adapters")
    save(root / "base", gpt2(), gpt2_tokenizer())
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(root / "base")
    with temporary_seed(1):
        adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False))
    adapted.save_pretrained(str(root / "adapter"))
    return root


def copy_of(folders: Path, place: Path) -> Path:
    shutil.copytree(folders / "adapter", place)
    return place


def logits(source: str) -> Tensor:
    opened = heedful.load(source, prompt=PROMPT, labels=LABELS)
    with torch.no_grad():
        return opened.model(opened.tokenizer([Example("0", (TEXT,))])).logits[0]


def test_an_adapter_is_merged_into_its_model(folders: Path) -> None:
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folders / "base")
    adapted = PeftModel.from_pretrained(base, folders / "adapter").eval()
    tokenizer = gpt2_tokenizer()
    with torch.no_grad():
        scores = adapted(**tokenizer(PROMPT.replace("{text}", TEXT), return_tensors="pt")).logits[0, -1].log_softmax(-1)
    expected = scores[tokenizer.convert_tokens_to_ids(["Ġbad", "Ġgood"])]
    torch.testing.assert_close(logits(str(folders / "adapter")), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(str(folders / "base")), expected, atol=1e-2)


def test_the_digest_of_an_adapter_depends_on_its_model(folders: Path, tmp_path: Path) -> None:
    place = copy_of(folders, tmp_path / "adapter")
    before = hash_model_folder(place, with_weights=True)
    base = shutil.copytree(folders / "base", tmp_path / "base")
    settings = json.loads((place / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": str(base)}))
    own = hash_model_folder(place, with_weights=True)
    (base / "generation_config.json").write_text("{}")
    assert len({before, own, hash_model_folder(place, with_weights=True)}) == 3


def test_adapters_that_cannot_be_merged_are_one_line(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a file was unpickled"))
    pickled, empty, foreign = (copy_of(folders, tmp_path / name) for name in ("pickled", "empty", "foreign"))
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    (empty / "adapter_model.safetensors").unlink()
    settings = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": ["no_such_layer"]}))
    for place in (pickled, empty, foreign):
        with pytest.raises(UserError) as refused:
            logits(str(place))
        assert "\n" not in str(refused.value)
    monkeypatch.setattr(
        "heedful.models.model_files.find_spec", lambda name: None if name == "peft" else find_spec(name)
    )
    with pytest.raises(UserError, match="pip install peft"):
        logits(str(folders / "adapter"))


def save_adapter(folders: Path, place: Path, config: LoraConfig) -> Path:
    """An adapter of the base with random weights."""
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folders / "base")
    with temporary_seed(1):
        get_peft_model(base, config).save_pretrained(str(place))
    return place


def drop_weights(adapter: Path, part: str) -> str:
    """The first name with this part, after all such weights of the adapter are gone."""
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {name: weight for name, weight in weights.items() if part not in name}, adapter / "adapter_model.safetensors"
    )
    return min(name for name in weights if part in name)


@pytest.mark.parametrize("part", ["h.1.", "lora_B", "magnitude", "ln_f.bias"])
def test_an_adapter_that_lacks_weights_is_refused_by_name(part: str, folders: Path, tmp_path: Path) -> None:
    config = LoraConfig(
        r=2, target_modules=["c_attn"], init_lora_weights=False, use_dora=True, modules_to_save=["ln_f"]
    )
    place = save_adapter(folders, tmp_path / "adapter", config)
    assert logits(str(place)).isfinite().all()
    with pytest.raises(UserError, match=re.escape(drop_weights(place, part))):
        logits(str(place))


def test_weights_without_a_place_and_repeated_layers_of_an_adapter_are_refused(folders: Path, tmp_path: Path) -> None:
    place = copy_of(folders, tmp_path / "adapter")
    weights = load_file(place / "adapter_model.safetensors")
    name = next(name for name in weights if "h.1." in name)
    save_file({**weights, name.replace("h.1.", "h.7."): weights[name].clone()}, place / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"h\.7\."):
        logits(str(place))
    repeated = copy_of(folders, tmp_path / "repeated")
    settings = json.loads((repeated / "adapter_config.json").read_text())
    (repeated / "adapter_config.json").write_text(json.dumps({**settings, "layer_replication": [[0, 2], [1, 2]]}))
    with pytest.raises(UserError, match="layer_replication"):
        logits(str(repeated))


def test_a_model_without_a_language_head_is_refused(tmp_path: Path) -> None:
    network("bert").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="language-model head"):
        LanguageModel(str(tmp_path), ("a", "b"), LabelWords(((7,), (8,)), mask_id=5)).build(
            LabelWords(((7,), (8,))).task, None, Generator()
        )


def test_a_label_word_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    masked_bert().save_pretrained(tmp_path)
    words = LabelWords(((7,), (5000,)), mask_id=5)
    with pytest.raises(UserError):
        LanguageModel(str(tmp_path), ("a", "b"), words).build(words.task, None, Generator())
