"""Explanations: words and tokens, targets and contrasts, models of every source, and results that can be shown."""

from __future__ import annotations

import inspect
import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import ClassVar, Literal, cast

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

import heedful
from heedful import cli
from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import Gradient, InputXGradient
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.method import NO_SIGN, SAME_FOR_EVERY_CLASS, tags_of
from heedful.attributions.registry import METHODS, catalogue_name, find_method, method_for_words
from heedful.attributions.shapley import KernelShap
from heedful.data.subwords import SubwordTokenizer
from heedful.data.words import Words
from heedful.explainer import ExplainedFeature, Explainer, load, word_scores
from heedful.figures import Heatmap, Series
from heedful.models.contrast import contrast_model
from heedful.models.transformer import TransformerModel
from heedful.recommendation import find_recommendation
from heedful.report.explanation_page import explanation_page
from heedful.store.model_folder import hash_model_folder
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.terminal import print_heatmap
from heedful.training.attribution_tables import AttributionTable
from heedful.training.checkpoint import Checkpoint, ModelInMemory
from heedful.types import Attribution, Batch, Corpus, Example, Model, Splits, UserError
from tests.networks import network
from tests.subword_tokenizers import bert
from tests.tiny import Sentences, subject

NOWHERE = Path()
CLASSES = ("awful", "middling", "splendid")
TEXT = "the unforget film is dull ,"
HOSTILE = "</span><script>alert(1)</script> \x1b[2J & <img/src=x/onerror=alert(2)> \"' the"


def tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece with the word "unforget" in three pieces."""
    words = bert()
    words.padding_side = "right"
    return words


def classifier(labels: int = 3, **changes: int | str | float | None) -> PreTrainedModel:
    """A tiny BERT with random weights and a text limit of 24 tokens."""
    bert_network = network("bert", vocab_size=13, max_position_embeddings=24, num_labels=labels, **changes)
    if labels == 3:
        bert_network.config.id2label = dict(enumerate(CLASSES))
    return bert_network


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return load((classifier(), tokenizer()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    classifier().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


# Words


def test_contributions_of_tokens_are_added_and_weights_averaged() -> None:
    words = torch.tensor([[-1, 0, 0, 1, -1]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    batch = Batch(("a",), torch.zeros(1, 5, dtype=torch.long), mask, torch.zeros_like(words), words)
    attribution = Attribution(torch.tensor([[9.0, 0.5, -0.1, 0.3, 9.0]]), batch.content_mask)
    torch.testing.assert_close(word_scores(Lime(), attribution, batch).scores, torch.tensor([[0.4, 0.3]]))
    torch.testing.assert_close(word_scores(RawAttention(), attribution, batch).scores, torch.tensor([[0.2, 0.3]]))


def test_every_method_of_the_catalogue_is_found_by_its_name_and_named_by_it() -> None:
    for name in METHODS:
        assert catalogue_name(find_method(name)) == catalogue_name(method_for_words(name)) == name
    with pytest.raises(UserError, match="did you mean integrated-gradients") as complaint:
        find_method("Integrated-Gradient")
    assert "\n" not in str(complaint.value)
    with pytest.raises(UserError, match="heedful list"):
        find_method("qqqq")


def test_options_are_given_in_brackets_also_as_reports_show_them() -> None:
    assert find_method("lime(error=0.05, n_samples=60)") == Lime(60, error=0.05)
    assert find_method("kernel-shap(feature=word,special_tokens=true)") == KernelShap(
        feature="word", special_tokens=True
    )
    assert method_for_words("kernel-shap(error=0.1)") == KernelShap(feature="word", error=0.1)
    named = catalogue_name(method_for_words("lime(error=0.05)"))
    assert method_for_words(named) == Lime(feature="word", error=0.05)
    for wrong in (
        "lime(errors=0.05)",
        "lime(error=much)",
        "lime(special_tokens=2)",
        "random(a=b)",
        "lime(error=0.1,seed)",
    ):
        with pytest.raises(UserError, match="option"):
            find_method(wrong)
    with pytest.raises(UserError, match="error=3"):
        find_method("lime(error=3)")


COUNTS = {
    "kernel-shap": "n_samples",
    "kernel-shap(error=0.1)": "n_samples",
    "lime": "n_samples",
    "lime(error=0.1)": "n_samples",
    "gradient-shap": "n_samples",
    "integrated-gradients": "n_steps",
    "layer-mix": "n_steps",
    "deep-shap": "n_baselines",
}


def with_option(name: str, option: str) -> str:
    return f"{name[:-1]}, {option})" if name.endswith(")") else f"{name}({option})"


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_cannot_be_computed_is_refused_in_one_line(name: str, folder: Path) -> None:
    shown = command(folder, TEXT, "--method", with_option(name, f"{COUNTS[name]}=99999999999"))
    assert shown.exit_code == 2
    assert "Traceback" not in shown.output
    assert f"{COUNTS[name]}=99999999999" in " ".join(shown.output.split())
    for count in ("2.5", "-3", "1e30", "nan", "9" * 5000):
        with pytest.raises(UserError) as complaint:
            find_method(with_option(name, f"{COUNTS[name]}={count}"))
        assert len(str(complaint.value)) < 400
        assert "\n" not in str(complaint.value)


def test_every_option_that_counts_has_a_limit(explainer: Explainer) -> None:
    counted = {
        (name, field.name)
        for name, make in METHODS.items()
        if is_dataclass(method := make())
        for field in fields(method)  # type: ignore[arg-type]
        if isinstance(field.default, int) and not isinstance(field.default, bool)
    }
    # A window is as wide as the text at most, and a seed any number.
    unlimited = {entry for entry in counted if entry[1] in ("seed", "window")}
    chosen = {entry for entry in counted if entry[1] in ("order", "layer")}
    assert counted - unlimited - chosen == {(name, option) for name, option in COUNTS.items() if "(" not in name}
    for name, option in unlimited:
        assert explainer.explain(TEXT, methods=f"{name}({option}=99999999999)").rows
    for name, option in chosen:
        with pytest.raises(UserError, match="99999999999"):
            explainer.explain(TEXT, methods=f"{name}({option}=99999999999)")


@pytest.mark.parametrize("wrong", [2.5, "7", None, True, [3], math.inf])
def test_a_count_is_a_whole_number(wrong: object) -> None:
    for make, option in ((KernelShap, "n_samples"), (IntegratedGradients, "n_steps"), (Lime, "seed")):
        with pytest.raises(UserError, match=option):
            make(**{option: wrong})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ridge"):
        Lime(ridge=math.nan)
    assert Lime(n_samples=np.int64(7), ridge=1).n_samples == 7  # type: ignore[arg-type]


def test_an_explanation_says_how_much_was_sampled(explainer: Explainer) -> None:
    (found,) = explainer.explain(TEXT, methods="kernel-shap(error=0.1)").rows
    assert 2 <= int(str(found.options["samples used"])) <= 1002
    assert 0 <= float(str(found.options["largest posterior error"])) < 1


@pytest.mark.parametrize("name", ["integrated-gradients", "lime", "raw-attention", "leave-one-out"])
def test_an_explanation_is_what_the_method_gives(explainer: Explainer, name: str) -> None:
    method = method_for_words(name)
    shown = explainer.explain(TEXT, methods=method, target="middling")
    model = TransformerModel.wrap(classifier()).eval()
    uid = "text-" + heedful.store.recipe.json_digest([TEXT])[:16]
    batch = SubwordTokenizer(tokenizer(), 24)([Example(uid, (TEXT,))])
    expected = method(model, batch, torch.tensor([1]))
    row = shown.rows[0]
    assert row.method == name
    assert torch.equal(torch.tensor(row.token_scores, dtype=torch.float64)[1:-1], expected.scores[0, 1:-1].double())
    assert math.isnan(row.token_scores[0])
    by_word = word_scores(method, expected, batch)
    assert row.word_scores == tuple(by_word.scores[0].double().tolist())
    pieces = expected.scores[0, 2:5].double()
    pooled = pieces.mean() if name == "raw-attention" else pieces.sum()
    assert row.word_scores[1] == pytest.approx(float(pooled), abs=1e-7)
    with torch.no_grad():
        probabilities = model(batch).logits.double().softmax(-1)[0]
    assert shown.probability == pytest.approx(float(probabilities[1]))
    assert shown.predicted == CLASSES[int(probabilities.argmax())]
    assert shown.words == tuple(TEXT.split())
    assert shown.tokens[:5] == ("<cls>", "the", "un", "##for", "##get")


SENTENCES = "the film is dull . un film ? it is a film"


@pytest.mark.parametrize("name", ["integrated-gradients", "leave-one-out", "raw-attention", "random"])
def test_sentences_are_explained_in_place_of_words(explainer: Explainer, name: str) -> None:
    shown, words = (explainer.explain(SENTENCES, methods=name, feature=feature) for feature in ("sentence", "word"))
    assert shown.words == ("the film is dull .", "un film ?", "it is a film")
    assert (shown.word_parts, shown.feature, shown.rows[0].method) == ((0, 0, 0), "sentence", name)
    if name == "leave-one-out":
        for place, score in enumerate(shown.rows[0].word_scores):
            rest = " ".join(words for other, words in enumerate(shown.words) if other != place)
            without = explainer.explain(rest, methods="random", target=shown.target)
            assert score == pytest.approx(shown.probability - without.probability, abs=1e-6)
    else:
        by_sentence: dict[int, list[float]] = {0: [], 1: [], 2: []}
        for score, owner in zip(shown.rows[0].token_scores, shown.token_words, strict=True):
            if owner >= 0:
                by_sentence[owner].append(score)
        pool = math.fsum if shown.rows[0].pooling == "sum" else fmean
        assert shown.rows[0].word_scores == pytest.approx([pool(scores) for scores in by_sentence.values()], abs=1e-6)
        assert shown.rows[0].token_scores == words.rows[0].token_scores
    assert shown.to_frame()["sentence"].tolist() == [*shown.words]
    assert "un film ?" in shown.to_html()


def test_options_for_words_are_not_those_for_tokens() -> None:
    for name in METHODS:
        assert method_for_words(name, "unit") == find_method(name)
    assert method_for_words("lime", "segment") == Lime(100, feature="segment", paired=True)


def test_segments_of_a_short_text_are_its_words_and_of_a_long_one_twenty(explainer: Explainer) -> None:
    methods = ("lime", "kernel-shap", "integrated-gradients")
    words, segments, default = (
        explainer.explain(SENTENCES, methods=methods, feature=feature) for feature in ("word", "segment", None)
    )
    assert [row.word_scores for row in segments.rows] == [row.word_scores for row in words.rows]
    assert default == words
    pair = explainer.explain("one. two.", "three.", methods="random", feature="sentence")
    assert (pair.words, pair.word_parts) == (("one.", "two.", "three."), (0, 0, 1))
    tokens = explainer.explain(SENTENCES, methods="leave-one-out", feature="token")
    assert tokens.rows[0].options["feature"] == "unit"
    assert tokens.words == words.words
    with pytest.raises(UserError, match="paragraph"):
        explainer.explain(SENTENCES, feature=cast(ExplainedFeature, "paragraph"))


def test_company_and_order_change_no_score(explainer: Explainer) -> None:
    texts = [TEXT, "film dull", "is the film dull ? un"]
    methods = ("lime", "random", "kernel-shap", "integrated-gradients")
    together = explainer.explain(texts, methods=methods)
    for text, shown in zip(reversed(texts), reversed(together), strict=True):
        assert explainer.explain(text, methods=methods) == shown


def test_kernel_shap_by_name_does_for_a_text_of_any_length(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelShap, "word_options", {"n_samples": 8})
    row = explainer.explain(TEXT, methods="kernel-shap").rows[0]
    assert row.method == "kernel-shap"
    assert row.word_scores == explainer.explain(TEXT, methods=KernelShap(n_samples=12)).rows[0].word_scores


@dataclass(frozen=True)
class Returns:
    """A method of a user that returns anything."""

    result: object

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        return self.result(batch) if callable(self.result) else self.result  # type: ignore[return-value]


@pytest.mark.parametrize(
    "result",
    [
        None,
        7,
        "scores",
        [0.1, 0.2],
        (torch.zeros(1, 8), torch.ones(1, 8)),
        torch.zeros(1, 8),
        lambda batch: batch.mask.float(),
        lambda batch: Attribution(torch.zeros(1, 2), torch.ones(1, 2).bool()),
        lambda batch: Attribution(batch.mask.float()[0], batch.mask[0]),
        lambda batch: Attribution(batch.mask.float(), batch.mask.float()),
        lambda batch: Attribution(batch.mask * 1j, batch.mask),
        lambda batch: Attribution(np.zeros((1, 2)), np.ones((1, 2))),  # type: ignore[arg-type]
    ],
)
def test_a_method_of_a_user_that_returns_no_scores_is_refused_by_name(explainer: Explainer, result: object) -> None:
    with pytest.raises(UserError, match=r"returns.*Attribution") as complaint:
        explainer.explain(TEXT, methods=Returns(result))
    assert "\n" not in str(complaint.value)


def test_a_method_of_a_user_may_have_fields_of_any_type(explainer: Explainer) -> None:
    method = Returns(lambda batch: Attribution(batch.mask.long(), batch.mask))
    shown = explainer.explain(TEXT, methods=method)
    assert shown.rows[0].token_scores[1] == 1
    assert shown.rows[0].options["result"] == "<function>"
    assert json.loads(shown.to_json())["rows"][0]["options"] == shown.rows[0].options


@pytest.mark.parametrize("methods", [5, 1.5, b"lime", {"lime": 1}, object(), [5], [None], ["lime", 2.0], Lime, [Lime]])
def test_methods_of_another_type_are_refused(explainer: Explainer, methods: object) -> None:
    with pytest.raises(UserError, match="method"):
        explainer.explain(TEXT, methods=methods)  # type: ignore[call-overload]


@pytest.mark.parametrize("role", ["target", "contrast"])
@pytest.mark.parametrize(
    "wrong", [1.5, 1.0, math.nan, True, (1,), [0], {"a": 1}, b"neutral", torch.tensor(1), object(), -1, 3, 10**30, "²"]
)
def test_a_class_of_another_type_is_refused(explainer: Explainer, role: str, wrong: object) -> None:
    with pytest.raises(UserError, match=role) as complaint:
        explainer.explain(TEXT, methods="gradient", **{role: wrong})  # type: ignore[call-overload]
    assert CLASSES[0] in str(complaint.value)
    assert explainer.explain(TEXT, methods="gradient", target=np.int64(1)).target_index == 1  # type: ignore[call-overload]


def test_long_words_and_names_are_shortened_in_notes_and_errors(explainer: Explainer) -> None:
    word = "☃" + "q" * 3000
    (note,) = [note for note in explainer.explain(f"the film {word} dull", methods="gradient").notes if "☃" in note]
    assert len(note) < 200
    assert note.count("q") > 5
    for options in ({"methods": "q" * 3000}, {"methods": f"lime({word}=1)"}, {"target": word}, {"contrast": word}):
        with pytest.raises(UserError) as complaint:
            explainer.explain(TEXT, **options)  # type: ignore[call-overload]
        assert len(str(complaint.value)) < 400
    many = load((classifier(labels=200), tokenizer()))
    with pytest.raises(UserError) as complaint:
        many.explain(TEXT, target="no such class")
    assert len(str(complaint.value)) < 600


def count_calls(work: Callable[[], None]) -> int:
    """Calls of Python and C functions."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("color", [None, "standard"])
def test_the_work_of_showing_a_text_grows_with_its_words(color: Literal["standard"] | None) -> None:
    def show(words: int) -> int:
        row = Series("lime", tuple(math.sin(word) for word in range(words)))
        text = Heatmap("good", tuple(f" w{word}" for word in range(words)), (row,))
        return count_calls(lambda: print_heatmap(text, Console(file=io.StringIO(), width=80, color_system=color)))

    assert show(2000) < 5 * show(500)


# Contrasts


def pairwise(bert_network: PreTrainedModel, target: int, contrast: int) -> TransformerModel:
    """A network with one output: the weights of the target's output minus those of the contrast's."""
    other = classifier(1)
    weights = bert_network.state_dict()
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][target : target + 1] - weights[name][contrast : contrast + 1]
    other.load_state_dict(weights)
    return TransformerModel.wrap(other, BinaryClassification()).eval()


@pytest.mark.parametrize("name", [name for name in METHODS if name != "randomized"])
def test_a_contrast_explains_the_difference_of_two_logits(explainer: Explainer, name: str) -> None:
    twin = load((pairwise(classifier(), 2, 0), explainer.tokenizer))
    shown = explainer.explain(TEXT, methods=name, target="splendid", contrast="awful")
    method, row = method_for_words(name), shown.rows[0]
    on_logit = replace(method, output="logit") if "output" in row.options else method  # type: ignore[type-var]
    expected = twin.explain(TEXT, methods=on_logit, target=1).rows[0]
    assert row.word_scores == pytest.approx(expected.word_scores, abs=1e-6)
    assert shown.contrast == "awful"
    for limit, is_stated in ((SAME_FOR_EVERY_CLASS, not tags_of(method).target_specific), (NO_SIGN, not row.is_signed)):
        assert any(name in note and limit in note for note in shown.notes) == is_stated


@pytest.mark.parametrize("kind", [Gradient, InputXGradient, IntegratedGradients])
def test_a_contrast_of_gradients_is_the_difference_of_two_explanations(
    explainer: Explainer, kind: type[Gradient | InputXGradient | IntegratedGradients]
) -> None:
    both = [explainer.explain(TEXT, methods=kind(output="logit"), target=target).rows[0] for target in (2, 0)]
    shown = explainer.explain(TEXT, methods=kind(), target=2, contrast=0).rows[0]
    difference = [first - second for first, second in zip(both[0].word_scores, both[1].word_scores, strict=True)]
    assert shown.word_scores == pytest.approx(difference, abs=1e-6)


def test_the_contrast_of_a_binary_model_is_its_logit(tmp_path: Path) -> None:
    model = subject().restore(Workspace(tmp_path)).model
    batch = Batch(
        ("a",),
        torch.tensor([[2, 5, 6, 3]]),
        torch.ones(1, 4).bool(),
        torch.zeros(1, 4).long(),
        torch.tensor([[-1, 0, 1, -1]]),
    )
    with torch.no_grad():
        logit = model(batch).logits
        assert torch.equal(contrast_model(model, 1, 0)(batch).logits, logit)
        assert torch.equal(contrast_model(model, 0, 1)(batch).logits, -logit)
    with pytest.raises(UserError, match="two of 2"):
        contrast_model(model, 1, 1)


# What stays as it was


def fingerprint(bert_network: PreTrainedModel, tokens: PreTrainedTokenizerFast) -> tuple[object, ...]:
    """Everything about a user's objects, and the global state of torch, that an explanation could change."""
    return (
        [
            (part.training, len(part._forward_hooks), len(part._forward_pre_hooks), sorted(vars(part)))
            for part in bert_network.modules()
        ],
        [
            (name, weight.requires_grad, weight.grad is None, weight._version)
            for name, weight in bert_network.named_parameters()
        ],
        bert_network.config._attn_implementation,
        bert_network.config.to_json_string(),
        tokens.backend_tokenizer.to_str(),
        torch.random.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )


@dataclass(frozen=True)
class Broken:
    """A method that fails in the middle of its work."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        model(batch)
        raise ZeroDivisionError


@pytest.mark.parametrize("training", [False, True])
def test_the_users_model_is_left_as_it_was(training: bool) -> None:  # noqa: FBT001
    bert_network, tokens = nn.Module.train(classifier(), training), tokenizer()
    bert_network.get_submodule("bert.encoder").register_forward_hook(lambda *_: None)
    before = fingerprint(bert_network, tokens)
    opened = load((bert_network, tokens))
    opened.explain(TEXT, methods=["integrated-gradients", "relevance", "lime", "deep-lift"], contrast=0, target=1)
    with pytest.raises(ZeroDivisionError):
        opened.explain(TEXT, methods=Broken())
    with pytest.raises(UserError, match="target"):
        opened.explain(TEXT, target="nobody")
    assert fingerprint(bert_network, tokens) == before


def test_a_model_of_heedful_keeps_its_mode_and_dropout_explains_nothing(tmp_path: Path) -> None:
    loaded = subject().restore(Workspace(tmp_path))
    calm = load(loaded).explain("good film", methods="gradient")
    opened = load((loaded.model.train(), loaded.tokenizer), class_names=("negative", "positive"))
    assert opened.explain("good film", methods="gradient").rows == calm.rows
    assert loaded.model.training
    assert not any(part.training for part in opened.model.modules())


def test_gradients_are_had_in_inference_mode(explainer: Explainer) -> None:
    expected = explainer.explain(TEXT, methods="integrated-gradients")
    with torch.inference_mode():
        assert explainer.explain(TEXT, methods="integrated-gradients").rows == expected.rows


# Sources


def test_a_folder_and_the_objects_in_it_explain_alike(folder: Path, explainer: Explainer) -> None:
    opened = load(folder)
    assert opened.class_names == explainer.class_names == CLASSES
    assert opened.digest == hash_model_folder(folder, with_weights=True)
    assert opened.explain(TEXT).rows == explainer.explain(TEXT).rows
    assert heedful.explain(folder, TEXT, target="awful").target == "awful"
    assert load(opened) is opened
    assert load(opened, class_names=["a", "b", "c"]).class_names == ("a", "b", "c")


def test_the_digest_of_a_model_in_memory_tells_models_apart(explainer: Explainer) -> None:
    assert load((classifier(), tokenizer())).digest == explainer.digest
    other_words = tokenizer()
    other_words.backend_tokenizer.add_tokens(["plot"])
    changed = classifier()
    opened = load((changed, tokenizer()))
    assert opened.digest == explainer.digest
    with torch.no_grad():
        changed.get_parameter("classifier.bias").add_(1)
    digests = {
        explainer.digest,
        opened.digest,
        load((classifier(num_attention_heads=4), tokenizer())).digest,
        load((classifier(), other_words)).digest,
    }
    assert len(digests) == 4


class Tempered(BertForSequenceClassification):  # type: ignore[no-untyped-call]
    """A network of the user's own, with a number that is neither weight nor configuration."""

    temperature = 1.0

    def forward(  # type: ignore[no-untyped-def]
        self, input_ids=None, attention_mask=None, token_type_ids=None, inputs_embeds=None, **options
    ):
        found = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **options,
        )
        found.logits = found.logits / self.temperature
        return found


def test_the_digest_of_a_users_own_network_includes_what_it_holds() -> None:
    digests, probabilities = [], []
    for temperature in (1.0, 1.0, 9.0):
        bert_network = Tempered(classifier().config)  # type: ignore[no-untyped-call]
        bert_network.load_state_dict(classifier().state_dict())
        bert_network.temperature = temperature
        opened = load((bert_network, tokenizer()))
        digests.append(opened.digest)
        probabilities.append(opened.explain(TEXT, methods="random").probability)
    assert probabilities[0] == probabilities[1] > probabilities[2]
    assert digests[0] == digests[1] != digests[2]


def test_the_outputs_of_one_logit_and_of_a_number() -> None:
    bert_network = classifier(1)
    bert_network.config.id2label = {0: "toxic"}
    binary = load((bert_network, tokenizer()), task=BinaryClassification())
    assert binary.class_names == ("not toxic", "toxic")
    against = binary.explain(TEXT, methods="input-x-gradient", target="not toxic")
    assert against.rows[0].word_scores == tuple(
        -score for score in binary.explain(TEXT, methods="input-x-gradient", target="toxic").rows[0].word_scores
    )
    number = load((bert_network, tokenizer()))
    assert (number.model.task, number.class_names) == (Regression(), ())
    shown = number.explain(TEXT)
    with torch.no_grad():
        logits = number.model(number.tokenizer([Example("a", (TEXT,))])).logits
    assert shown.probability == shown.predicted_probability == pytest.approx(float(logits))
    with pytest.raises(UserError, match="no classes"):
        number.explain(TEXT, target="toxic")


def test_a_recipe_of_a_word_model_shows_its_words(tmp_path: Path) -> None:
    opened = load((subject(), Workspace(tmp_path)))
    shown = opened.explain("good unheard film", methods="integrated-gradients")
    assert opened.class_names == ("negative", "positive")
    assert shown.words == shown.tokens[1:-1] == ("good", "unheard", "film")
    assert any("unheard" in note for note in shown.notes)
    assert opened.recipe(Sentences(4)).restore(Workspace(tmp_path)).splits.class_names == ("negative", "positive")


@pytest.mark.parametrize(
    "source",
    [3, None, (1, 2), (1, 2, 3), "/no/such/folder", ("a", "b"), (network("bert"), 3), (network("bert").bert, bert())],
)
def test_anything_else_is_refused_in_one_line(source: object) -> None:
    with pytest.raises(UserError) as complaint:
        load(source)  # type: ignore[arg-type]
    assert "\n" not in str(complaint.value)


def test_class_names_and_tasks_that_do_not_fit_are_refused(explainer: Explainer, folder: Path) -> None:
    with pytest.raises(UserError, match="one name per class"):
        load(explainer, class_names=("a", "b"))
    for names in (["a", "b", "a"], [1, 2, 3], 3, "abc", {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(UserError):
            load(explainer, class_names=cast("list[str]", names))
    with pytest.raises(UserError, match="leave task out"):
        load(explainer, task=Regression())
    with pytest.raises(UserError, match="no trained head"):
        load(folder, task=MulticlassClassification(2))


# Recipes


@dataclass(frozen=True)
class Reviews(Corpus):
    """Four test texts with classes in another order than the model's, or without labels."""

    labelled: bool = True
    name: ClassVar[str] = "reviews"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        texts = ("the film", "dull film", "is dull", "unforget the film")
        labels = (0, 1, 2, 0) if self.labelled else (None,) * 4
        test = tuple(Example(str(n), (text,), label) for n, (text, label) in enumerate(zip(texts, labels, strict=True)))
        names = ("splendid", "awful", "middling") if self.labelled else ()
        return Splits(MulticlassClassification(3), names, (), (), test)

    def digest(self, data: Path) -> str:
        return "made up"


@pytest.mark.parametrize("labelled", [True, False])
def test_a_test_split_is_enough_for_a_folder_and_for_objects(
    labelled: bool,  # noqa: FBT001
    folder: Path,
    explainer: Explainer,
    tmp_path: Path,
) -> None:
    workspace, tables = Workspace(tmp_path), []
    for opened, kind in ((load(folder), Checkpoint), (explainer, ModelInMemory)):
        recipe = opened.recipe(Reviews(labelled))
        assert isinstance(recipe, Checkpoint | ModelInMemory)
        assert type(recipe) is kind
        notes = workspace.get(recipe).notes
        assert notes["classes"] == [*CLASSES]
        assert notes["scores"] == {}
        scored = workspace.get(replace(recipe, scored=True)).notes["scores"]
        assert (scored != {}) == labelled
        labels = [example.label for example in recipe.restore(workspace).examples("test")]
        assert labels == ([2, 0, 1, 2] if labelled else [None] * 4)
        tables.append(workspace.get(AttributionTable(recipe, InputXGradient())).table)
    assert tables[0]["scores"].tolist() == tables[1]["scores"].tolist()


def test_a_model_in_memory_is_not_found_elsewhere_or_after_a_change(tmp_path: Path) -> None:
    workspace, bert_network = Workspace(tmp_path), classifier()
    opened = load((bert_network, tokenizer()))
    recipe = opened.recipe(Reviews())
    assert isinstance(recipe, ModelInMemory)
    assert recipe.load_model(workspace).model is opened.model
    with pytest.raises(UserError, match="save it to a folder"):
        replace(recipe, digest="0" * 64).load_model(workspace)
    with torch.no_grad():
        bert_network.get_parameter("classifier.bias").add_(1)
    with pytest.raises(UserError, match="have changed"):
        recipe.load_model(workspace)
    assert opened.recipe(Reviews()) != recipe


# Choices


def stored_audit(
    folder: Path,
    digest: str,
    name: str,
    methods: Mapping[str, str],
    *,
    texts: int = 30,
    date: str,
    finished: bool = True,
    feature: str = "word",
) -> None:
    """The part of a stored audit that chooses a method: by name the verdict on it, "shown" or the reason against it."""
    content = {
        "methods": [
            {"name": each, "control": False, "reason": why, "answers": [{"verdict": "undecided"}]}
            for each, why in {**methods, "random": "a control"}.items()
        ],
        "recommended": [each for each, why in methods.items() if why == "shown"],
        "data": {"texts": texts, "feature": feature},
        "date": date,
        "finished": finished,
    }
    content["methods"][-1]["control"] = True  # type: ignore[index]
    (folder / ".audits").mkdir(exist_ok=True)
    (folder / ".audits" / f"{digest[:16]}-{name}.json").write_text(json.dumps(content))


def test_the_best_audit_chooses_the_method(explainer: Explainer, tmp_path: Path) -> None:
    digest, store = explainer.digest, partial(stored_audit, tmp_path, explainer.digest)
    shown = explainer.explain(TEXT, workspace=tmp_path)
    assert shown.rows[0].method == "integrated-gradients"
    assert tmp_path.name in shown.chosen_because
    (tmp_path / ".audits").mkdir()
    for number, content in enumerate(("{", "[]", '{"recommended": 3}', '{"recommended": ["lime"]}')):
        (tmp_path / ".audits" / f"{digest[:16]}-{number}.json").write_text(content)
    store("interrupted", {"lime": "shown"}, texts=200, date="2026-12-01", finished=False)
    stored_audit(tmp_path, "0" * 64, "other", {"lime": "shown"}, texts=200, date="2026-12-01")
    assert find_recommendation(explainer.identity, tmp_path) is None
    store("first", {"lime": "shown", "leave-one-out": "slow"}, date="2026-11-16")
    assert explainer.explain(TEXT, workspace=tmp_path).rows[0].method == "lime"
    # Fewer texts, fewer methods, or methods of other libraries only, later.
    store("short", {"leave-one-out": "shown", "lime": "no"}, texts=2, date="2026-11-17")
    store("one", {"leave-one-out": "shown"}, texts=59, date="2026-11-17")
    store("theirs", {"theirs": "shown", "other": "no", "third": "no"}, texts=99, date="2026-11-17")
    shown = explainer.explain(TEXT, workspace=tmp_path)
    assert shown.rows[0].method == "lime"
    assert "2026-11-16" in shown.chosen_because
    # As much, later.
    store("later", {"leave-one-out": "shown", "lime": "unstable"}, date="2026-11-18")
    shown = explainer.explain(TEXT, workspace=tmp_path)
    assert shown.rows[0].method == "leave-one-out"
    assert "2026-11-18" in shown.chosen_because
    assert not any("unstable" in note for note in shown.notes)


@pytest.mark.parametrize("methods", [None, "lime"])
def test_a_text_is_explained_by_what_the_audit_tested_and_a_note_says_so(
    methods: str | None, explainer: Explainer, tmp_path: Path
) -> None:
    stored_audit(tmp_path, explainer.digest, "a", {"lime": "shown"}, date="2026-11-16", feature="sentence")

    def notes(feature: ExplainedFeature | None, text: str) -> tuple[str, str]:
        shown = explainer.explain(text, methods=methods, feature=feature, workspace=tmp_path)
        assert shown.feature == (feature or "sentence")
        assert shown.rows[0].options["feature"] == {"token": "unit"}.get(shown.feature, shown.feature)
        said = [note for note in shown.notes if "2026-11-16" in note]
        return " ".join(shown.words), " ".join(said)

    by_default = explainer.explain(SENTENCES, methods=methods, workspace=tmp_path)
    assert by_default.words == ("the film is dull .", "un film ?", "it is a film")
    assert "sentences" in notes(None, SENTENCES)[1]
    others: tuple[ExplainedFeature, ...] = ("word", "token")
    for other in others:
        assert f"tested sentences, not {other}s" in notes(other, SENTENCES)[1]
    assert "tested sentences, not words" in notes("segment", SENTENCES)[1], "segments of a short text are words"
    stored_audit(tmp_path, explainer.digest, "a", {"lime": "shown"}, date="2026-11-16", feature="segment")
    short = explainer.explain(TEXT, methods=methods, workspace=tmp_path)
    assert short.words == tuple(TEXT.split())
    assert not any("2026-11-16" in note for note in short.notes), "the same words were tested"


def test_an_audit_that_recommends_nothing_is_told_and_its_verdict_is_a_warning(
    explainer: Explainer, tmp_path: Path
) -> None:
    store = partial(stored_audit, tmp_path, explainer.digest)
    store("theirs", {"theirs": "shown"}, date="2026-11-15")
    shown = explainer.explain(TEXT, workspace=tmp_path)
    assert (shown.rows[0].method, shown.notes) == ("integrated-gradients", explainer.explain(TEXT).notes)
    assert "2026-11-15" in shown.chosen_because
    store("own", {"integrated-gradients": "not faithful", "lime": "unstable"}, date="2026-11-16")
    shown = explainer.explain(TEXT, workspace=tmp_path)
    assert shown.rows[0].method == "integrated-gradients"
    assert "2026-11-16" in shown.chosen_because
    assert str(tmp_path) not in shown.chosen_because  # where no audit would be
    (warning,) = (note for note in shown.notes if "not faithful" in note)
    assert "integrated-gradients" in warning


def test_a_method_that_is_asked_for_and_did_not_pass_is_shown_with_a_warning(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_audit(tmp_path, explainer.digest, "a", {"lime": "shown", "raw-attention": "like random"}, date="2026-11-16")
    shown = explainer.explain(TEXT, methods=("lime", "raw-attention", "rollout", "random"), workspace=tmp_path)
    (warning,) = (note for note in shown.notes if "2026-11-16" in note)
    assert "raw-attention" in warning
    assert "like random" in warning
    # A workspace that cannot be reached is no reason not to explain.
    monkeypatch.setenv("HEEDFUL_WORKSPACE", "nowhere://x")
    assert explainer.explain(TEXT, methods="lime").rows[0].method == "lime"


@pytest.mark.parametrize("asked", ["Splendid", "splendid", 2, "2"])
def test_a_target_is_given_by_name_or_number(explainer: Explainer, asked: str | int) -> None:
    assert explainer.explain("film", methods="random", target=asked).target_index == 2


def test_texts_that_cannot_be_explained_are_refused_in_one_line(explainer: Explainer) -> None:
    for text, options in (
        ("", {}),
        (" \n", {}),
        ("half \ud800", {}),
        (3, {}),
        ("film", {"target": 3}),
        ("film", {"target": -1}),
        ("film", {"target": True}),
        ("film", {"target": "awful", "contrast": "awful"}),
        ("film", {"methods": ()}),
        ("film", {"methods": (3,)}),
        (["film"], {"second": "film"}),
        ("film " * 13, {"methods": "shapley"}),
    ):
        with pytest.raises(UserError) as complaint:
            explainer.explain(text, **options)  # type: ignore[arg-type]
        assert "\n" not in str(complaint.value)


def test_words_that_are_not_read_have_no_score_and_a_note(explainer: Explainer) -> None:
    shown = explainer.explain("film " * 30, methods="raw-attention")
    assert [math.isnan(score) for score in shown.rows[0].word_scores] == [False] * 22 + [True] * 8
    assert any("8 of 30 words" in note and "24 tokens" in note for note in shown.notes)
    pair = explainer.explain("the film", "is dull", methods="raw-attention")
    assert (pair.words, pair.word_parts) == (("the", "film", "is", "dull"), (0, 0, 1, 1))


# Showing


class Tags(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_words_are_text_on_the_page(explainer: Explainer) -> None:
    evil = load(explainer, class_names=("<b>x</b>", "y</style><script>", "z"))
    shown = evil.explain(HOSTILE, "</figure> film", methods=["integrated-gradients", "raw-attention"], target=0)
    for page in (shown.to_html(), shown._repr_html_()):
        parsed = Tags(page)
        assert not {"script", "img", "b"} & parsed.tags
        assert not {name for name in parsed.attributes if name.startswith("on")}
        assert "<script>alert(1)</script>" in parsed.text
        assert "for <b>x</b>" in parsed.text
        assert "against <b>x</b>" in parsed.text
        assert "\x1b" not in page
    assert "default-src 'none'" in shown.to_html()


def figure() -> Heatmap:
    rows = (Series("lime", (1.0, -0.5, 0.05, math.nan)), Series("attention", (0.2, 0.8, 0.4, 0.0), is_signed=False))
    return Heatmap("good", (" a", " b", " c", " d"), rows, "", (0, 0, 0, 1), ("for good", "against good"), ("cut",))


def test_shades_say_sign_and_size_with_and_without_colour() -> None:
    page = explanation_page([(figure(), {})], "title")
    for shade in ("p20", "n10", "w05", "w20", "w10", "u"):
        assert f'class="{shade}"' in page
    plain, coloured = io.StringIO(), io.StringIO()
    print_heatmap(figure(), Console(file=plain, width=80, color_system=None))
    assert "a+++ b-- c" in plain.getvalue()
    assert "a* b*** c**" in plain.getvalue()
    print_heatmap(figure(), Console(file=coloured, width=80, color_system="standard", force_terminal=True))
    assert "\x1b[1;30;101ma\x1b[0m \x1b[4;30;106mb\x1b[0m c" in coloured.getvalue(), "against is underlined"


def test_a_hostile_text_does_not_steer_a_terminal(explainer: Explainer, capsys: pytest.CaptureFixture[str]) -> None:
    explainer.explain(HOSTILE, methods="raw-attention").show()
    assert "\x1b" not in capsys.readouterr().out


def test_json_and_frame_have_the_exact_numbers(explainer: Explainer) -> None:
    shown = explainer.explain("film " * 23, methods=["lime", "raw-attention"], contrast="awful", target="middling")
    record = json.loads(shown.to_json())
    for row, stored in zip(shown.rows, record["rows"], strict=True):
        assert (
            tuple(math.nan if score is None else score for score in stored["word_scores"])[:22] == row.word_scores[:22]
        )
        assert stored["word_scores"][22] is None
        assert stored["method"] == row.method
    assert (record["target"], record["contrast"], record["model_digest"]) == ("middling", "awful", explainer.digest)
    assert record["rows"][0]["options"]["seed"] == shown.rows[0].seed == 0
    assert record["versions"].keys() == {"heedful", "torch", "transformers"}
    frame = shown.to_frame()
    assert frame["method"].tolist() == ["lime"] * 23 + ["raw-attention"] * 23
    assert frame["score"].tolist()[:22] == [*shown.rows[0].word_scores[:22]]
    assert len(shown.to_frame(pieces=True)) == 2 * 24


# The command


def command(*words: str | Path, given: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["explain", *map(str, words)], input=given)


def test_the_command_shows_words_and_writes_files(folder: Path, tmp_path: Path) -> None:
    page, record, table = (tmp_path / name for name in ("a.html", "a.json", "a.csv"))
    result = command(
        folder, TEXT, "is dull ?", "-m", "lime", "-m", "raw-attention", "--target", "awful", "--contrast", "middling",
        "--html", page, "--json", record, "--out", table, "-w", tmp_path,
    )  # fmt: skip
    assert (result.exit_code, result.output) == (0, "")
    expected = load(folder).explain(TEXT, "is dull ?", methods=["lime", "raw-attention"], target=0, contrast=1)
    assert json.loads(record.read_text()) == json.loads(expected.to_json())
    assert page.read_text() == expected.to_html()
    assert len(table.read_text().splitlines()) == 1 + 2 * 9
    shown = command(folder, TEXT, "-w", tmp_path)
    assert shown.output.startswith("Method: integrated-gradients (the default")
    assert "unforget" in shown.output
    assert "##get" in command(folder, TEXT, "--pieces", "-m", "random").output
    assert "##get" in command(folder, TEXT, "--feature", "token", "-m", "random").output
    sentences = command(folder, SENTENCES, "--feature", "sentence", "-m", "random", "--out", "-")
    assert [line.split(",")[3] for line in sentences.output.splitlines()] == [
        "sentence", "the film is dull .", "un film ?", "it is a film"
    ]  # fmt: skip
    assert command(folder, TEXT, "--feature", "page").exit_code == 2


def test_the_command_reads_lines_and_tables(folder: Path, tmp_path: Path) -> None:
    lines = command(folder, "-", "-m", "random", "--json", "-", given="the film\n\nis dull\n")
    assert [each["parts"] for each in json.loads(lines.output)] == [["the film"], ["is dull"]]
    path = tmp_path / "texts.csv"
    path.write_text("text,other\nthe film,dull\nis dull,un\n")
    table = pd.read_csv(io.StringIO(command(folder, path, "--second-column", "other", "-m", "lime").output))
    pairs = load(folder).explain(["the film", "is dull"], ["dull", "un"], methods="lime")
    assert table["row"].tolist() == [2, 2, 2, 3, 3, 3]
    assert table["word"].tolist() == ["the", "film", "dull", "is", "dull", "un"]
    assert table["score"].tolist() == pytest.approx([score for pair in pairs for score in pair.rows[0].word_scores])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("film", "-m", "limee"), "did you mean lime"),
        (("film", "--target", "nobody"), "awful, middling, splendid"),
        (("film", "--contrast", "nobody"), "awful, middling, splendid"),
        ((" ",), "empty"),
        (("film " * 13, "-m", "shapley"), "shapley: "),
        (("none.csv",), "no such file"),
        (("film", "--text-column", "x"), "--text-column"),
        (("-",), "standard input"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, words: tuple[str, ...], expected: str) -> None:
    result = command(folder, *words, given="")
    assert result.exit_code == 2
    assert expected in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.slow
def test_a_notebook_shows_the_heat_map(explainer: Explainer, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    (tmp_path / "shown.json").write_text(explainer.explain("the dull film", methods="raw-attention").to_json())
    cell = """
        import json
        from heedful.explanation import Explanation, KnownIdentity, MethodScores
        record = json.load(open("shown.json"))
        identity = KnownIdentity(record.pop("model_digest"))
        Explanation(**record | {"rows": [MethodScores(**row) for row in record["rows"]]}, identity=identity)
    """
    make = nbformat.v4
    notebook = make.new_notebook(cells=[make.new_code_cell(inspect.cleandoc(cell))])  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    (result,) = [output for output in notebook.cells[0].outputs if output.output_type == "execute_result"]
    assert "dull" in Tags(result.data["text/html"]).text
