"""Checkpoints: their own head and order of outputs, weights left in place, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

from heedful.attributions.attention import RawAttention
from heedful.data.label_match import MATCH_NAMES, match_classes
from heedful.data.subwords import Subwords, SubwordTokenizer
from heedful.data.words import Words
from heedful.models.model_files import OutputLabels, read_output_labels
from heedful.models.transformer import Transformer
from heedful.results import value_of
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
from heedful.training.attribution_tables import AttributionTable
from heedful.training.checkpoint import Checkpoint, LabelAlignedCorpus, checkpoint
from heedful.training.trained_model import OnOtherData, TrainedModel
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.seed_variance import SeedVariance
from heedful.types import SPLITS, Corpus, Example, Splits, UserError
from tests.networks import TinyTransformer, network
from tests.tiny import WORDS, Sentences

NOWHERE = Path("nowhere")
wrapped: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast


def tokenizer() -> PreTrainedTokenizerFast:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    own = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return wrapped(tokenizer_object=own, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def fine_tuned(folder: Path, labels: int = 2, names: tuple[str, ...] = ()) -> Path:
    """A little BERT in the library's own format; output 0 means that a text is good, output 1 that it is bad."""
    own = network("bert", vocab_size=16, max_position_embeddings=24, num_labels=labels, hidden_dropout_prob=0.0)
    if names:
        own.config.id2label = dict(enumerate(names))
    if labels == 2:
        batch = SubwordTokenizer(tokenizer())(Sentences(80).read(NOWHERE).train)
        assert batch.labels is not None
        optimiser = torch.optim.AdamW(own.parameters(), lr=5e-3)
        for _ in range(25):
            logits = own(input_ids=batch.inputs, attention_mask=batch.mask.long()).logits
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits, 1 - batch.labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    own.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fine_tuned(tmp_path_factory.mktemp("checkpoint"), names=("POSITIVE", "NEGATIVE"))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@dataclass(frozen=True)
class Three(Corpus):
    """Three classes with candidates, made up."""

    name: ClassVar[str] = "three"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        rows = tuple(
            Example(str(n), (f"film {n}",), n % 3, candidates=(0, 2), ground_truth=(1.0, 0.5), rationale=(True, False))
            for n in range(6)
        )
        return Splits(
            MulticlassClassification(3), ("contradiction", "entailment", "neutral"), rows[:2], rows[2:4], rows[4:]
        )

    def digest(self, data: Path) -> str:
        return "made up"


@dataclass(frozen=True)
class Marks(Three):
    """The same with a number for a label."""

    def read(self, data: Path) -> Splits:
        whole = Three().read(data)
        parts = {s: tuple(replace(e, label=float(n), candidates=None) for n, e in enumerate(whole[s])) for s in SPLITS}
        return Splits(Regression(), (), parts["train"], parts["dev"], parts["test"])


def test_classes_are_matched_by_name_whatever_the_case_and_order() -> None:
    whole, aligned = Three().read(NOWHERE), LabelAlignedCorpus(Three(), ("Neutral", "ENTAILMENT", "opposition"))
    with pytest.raises(UserError, match="Neutral, ENTAILMENT, opposition"):
        aligned.read(NOWHERE)
    moved = LabelAlignedCorpus(Three(), ("Neutral", "ENTAILMENT", "contra_diction")).read(NOWHERE)
    assert moved.task == MulticlassClassification(3)
    assert moved.class_names == ("neutral", "entailment", "contradiction")
    for split in SPLITS:
        for old, new in zip(whole[split], moved[split], strict=True):
            assert moved.class_names[int(new.label or 0)] == whole.class_names[int(old.label or 0)]
            assert new.candidates == (0, 2)
            assert (new.uid, new.parts, new.rationale) == (old.uid, old.parts, old.rationale)
    turned = LabelAlignedCorpus(Three(), ("entailment", "neutral", "contradiction")).read(NOWHERE)
    assert turned.train[0].candidates == (1, 2)
    assert turned.train[0].ground_truth is None, "what a word adds to another class is not known"


@dataclass(frozen=True)
class Weighed(Sentences):
    """The sentences with what each word adds to class 1."""

    def read(self, data: Path) -> Splits:
        whole = Sentences(self.count).read(data)
        values = {"good": 2.0, "bad": -1.0}
        parts = {
            split: tuple(
                replace(e, ground_truth=tuple(values.get(w, 0.0) for w in str(e.parts[0]).split()))
                for e in whole[split]
            )
            for split in SPLITS
        }
        return replace(whole, train=parts["train"], dev=parts["dev"], test=parts["test"])


def test_two_classes_get_a_logit_each_and_the_truth_follows_class_one() -> None:
    whole = Weighed(4).read(NOWHERE)
    straight = LabelAlignedCorpus(Weighed(4), ("negative", "positive")).read(NOWHERE)
    crossed = LabelAlignedCorpus(Weighed(4), ("positive", "negative")).read(NOWHERE)
    assert straight.task == crossed.task == MulticlassClassification(2)
    assert straight.train == whole.train
    for old, new in zip(whole.train, crossed.train, strict=True):
        assert new.label == 1 - int(old.label or 0)
        assert old.ground_truth is not None
        assert new.ground_truth == tuple(-value for value in old.ground_truth)


def test_placeholder_names_keep_the_order_with_a_note() -> None:
    splits = LabelAlignedCorpus(Sentences(4), ("LABEL_0", "LABEL_1")).read(NOWHERE)
    assert splits.train == Sentences(4).read(NOWHERE).train
    assert MATCH_NAMES["order"] in str(splits.notes["outputs of the model"])
    by_name = LabelAlignedCorpus(Sentences(4), ("Positive", "negative")).read(NOWHERE)
    assert MATCH_NAMES["name"] in str(by_name.notes["outputs of the model"])
    assert [example.label for example in by_name.train] != [example.label for example in splits.train]


@pytest.mark.parametrize(
    ("classes", "outputs", "expected"),
    [
        (("pos", "neg"), ("LABEL_0", "LABEL_1"), ("order", (0, 1))),
        (("0", "1"), ("bad", "good"), ("index", (0, 1))),
        (("1", "2"), ("bad", "good"), ("order", (0, 1))),
        (("neg", "pos"), ("POSITIVE", "NEGATIVE"), ("beginning", (1, 0))),
        (("toxic", "fine"), ("not toxic", "toxic"), ("name", (1, 0))),
        (("fine", "toxic"), ("not toxic", "toxic"), ("order", (0, 1))),
        (("no", "yes"), ("not toxic", "toxic"), ("order", (0, 1))),
        (("a-b", "ab"), ("a-b", "ab"), ("name", (0, 1))),
        (("A", "a"), ("a", "b"), None),
        (("hatespeech", "offensive"), ("normal", "abusive"), None),
        (("cat", "dog"), ("bad", "good"), None),
    ],
)
def test_each_class_has_an_output_of_its_own(
    classes: tuple[str, ...], outputs: tuple[str, ...], expected: tuple[str, tuple[int, ...]] | None
) -> None:
    match = match_classes(classes, outputs)
    indices = () if match is None else tuple(index for _, index in match[1])
    assert (None if match is None else (str(match[0]), indices)) == expected


def test_a_wrong_number_of_outputs_is_refused_in_one_line() -> None:
    for corpus, found in ((Sentences(4), "2 classes \\(negative, positive\\)"), (Marks(), "a number for each example")):
        with pytest.raises(UserError, match=f"has {found}.*, but the model has 3 outputs") as complaint:
            LabelAlignedCorpus(corpus, ("a", "b", "c")).read(NOWHERE)
        assert "\n" not in str(complaint.value)
    with pytest.raises(UserError, match="at least two"):
        LabelAlignedCorpus(Sentences(4), ("a",))


def test_a_label_aligned_corpus_keeps_its_name_and_content_but_is_another_recipe(folder: Path) -> None:
    corpus = LabelAlignedCorpus(Sentences(4), ("negative", "positive"))
    assert (corpus.name, corpus.digest(NOWHERE), corpus.tokenization) == ("sentences", "generated", Words())
    assert Workspace(NOWHERE).artefact_name(checkpoint(str(folder), Sentences(4))) != Workspace(NOWHERE).artefact_name(
        checkpoint(str(folder), Sentences(4), class_names=("negative", "positive"))
    )


def test_outputs_are_read_from_the_configuration_alone(folder: Path, tmp_path: Path) -> None:
    assert read_output_labels(str(folder)) == OutputLabels(("POSITIVE", "NEGATIVE"))
    for config, expected in (
        ({}, OutputLabels(("LABEL_0", "LABEL_1"))),
        ({"num_labels": 3}, OutputLabels(("LABEL_0", "LABEL_1", "LABEL_2"))),
        ({"id2label": {"1": "b", "0": "a", "10": "k"}}, OutputLabels(("a", "b", "k"))),
        ({"id2label": {"0": "LABEL_0"}}, OutputLabels(("LABEL_0",), is_regression=True)),
        ({"id2label": {"0": "x"}, "problem_type": "multi_label_classification"}, OutputLabels(("x",))),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert read_output_labels(str(tmp_path)) == expected
    with pytest.raises(UserError, match="no model could be loaded") as complaint:
        read_output_labels(str(tmp_path / "nothing" / "there"))
    assert "\n" not in str(complaint.value)


@pytest.mark.parametrize(
    ("count", "kind"),
    [(3, "multi_label_classification"), (3, "regression"), (1, "single_label_classification"), (2, "ranking")],
)
def test_unsupported_problem_types_are_refused_in_one_line(count: int, kind: str, tmp_path: Path) -> None:
    config = {"id2label": {str(place): f"x{place}" for place in range(count)}, "problem_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"problem_type '{kind}' with {count} output") as complaint:
        checkpoint(str(tmp_path), Sentences())
    assert "\n" not in str(complaint.value)


def test_a_checkpoint_is_scored_in_its_own_order_and_its_weights_are_not_copied(
    folder: Path, workspace: Workspace
) -> None:
    subject = checkpoint(str(folder), Sentences())
    artefact = workspace.get(subject)
    scores = artefact.notes["scores"]
    assert isinstance(scores, dict)
    for split in ("dev", "test"):
        part = scores[split]
        assert isinstance(part, dict)
        assert float(str(part["accuracy"])) > 0.95, "read in the wrong order it would be below 0.05"
    assert artefact.notes["classes"] == ["positive", "negative"]
    assert artefact.tensors == {}
    assert artefact.notes["weights"] == {
        "source": str(folder),
        "digest": Transformer(str(folder)).digest(NOWHERE),
    }
    kept = sum(file.stat().st_size for file in (workspace.root / workspace.artefact_name(subject)).rglob("*"))
    assert kept < (folder / "model.safetensors").stat().st_size / 2


def test_the_restored_model_gives_the_librarys_own_logits(folder: Path, workspace: Workspace) -> None:
    trained = checkpoint(str(folder), Sentences()).restore(workspace)
    batch = trained.batch("test")
    library = nn.Module.eval(BertForSequenceClassification.from_pretrained(folder))
    with torch.no_grad():
        expected = library(input_ids=batch.inputs, attention_mask=batch.mask.long()).logits
        found = trained.model(batch).logits
    torch.testing.assert_close(found, expected)
    assert trained.splits.class_names == ("positive", "negative")
    assert not any(module.training for module in trained.model.modules())


def test_methods_and_trials_examine_a_checkpoint_like_any_model(folder: Path, workspace: Workspace) -> None:
    subject = checkpoint(str(folder), Sentences(12))
    assert subject.about == {"corpus": "sentences", "encoder": folder.name, "attention": "self"}
    table = workspace.get(AttributionTable(subject, RawAttention())).table
    assert len(table) == 12
    assert table["units"][0][0] == "<cls>"
    assert value_of(workspace.get(Performance(subject)).summary, "accuracy") > 0.95
    assert len(workspace.get(Permutation(subject, permutations=4)).table) == 12


def test_no_option_of_a_training_is_a_fact_of_a_given_model(folder: Path, workspace: Workspace) -> None:
    given = checkpoint(str(folder), Sentences(12))
    trained = TrainedModel(Sentences(12), Subwords(str(folder)), Transformer(str(folder)))
    for subject in (given, OnOtherData(given, given.corpus)):
        facts = {name for name, value in subject.describe().items() if value is not None}
        assert facts == {"corpus", "encoder", "attention", "quick", "training"}
        assert subject.seed is None
    assert trained.describe()["embeddings"] is None, "a pretrained network has its own vectors"
    notes = workspace.get(given).notes
    assert not {"best_epoch", "selected_on"} & notes.keys()
    assert notes["vocabulary"] is None, "that of the tokenizer is not counted"


def test_trials_that_train_variants_refuse_a_checkpoint_in_one_line(folder: Path) -> None:
    subject = checkpoint(str(folder), Sentences())
    with pytest.raises(UserError, match="not trained here") as complaint:
        SeedVariance(subject, (1, 2))  # type: ignore[arg-type]
    assert "\n" not in str(complaint.value)
    with pytest.raises(UserError, match="not trained here"):
        UniformBaseline(subject, (1, 2))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no trained weights"):
        Checkpoint(Sentences(), Words(), TinyTransformer())  # type: ignore[arg-type]


def test_other_weights_have_another_digest(folder: Path, tmp_path: Path) -> None:
    other = fine_tuned(tmp_path / "other", labels=3)
    assert Transformer(str(other)).digest(NOWHERE) != Transformer(str(folder)).digest(NOWHERE)


def test_a_head_that_is_missing_or_of_another_size_is_refused_in_one_line(
    folder: Path, workspace: Workspace, tmp_path: Path
) -> None:
    three = fine_tuned(tmp_path / "three", labels=3)
    with pytest.raises(UserError, match=r"has 2 classes .*but the model has 3 outputs"):
        workspace.get(checkpoint(str(three), Sentences()))
    with pytest.raises(UserError, match="2 class names are given"):
        checkpoint(str(three), Sentences(), class_names=("negative", "positive"))
    plain = Checkpoint(Sentences(), Subwords(str(folder)), Transformer(str(folder)))
    with pytest.raises(UserError, match=r"needs a model with 1 outputs .* has 2 outputs") as complaint:
        workspace.get(plain)
    assert "\n" not in str(complaint.value)
    with pytest.raises(UserError, match="needs a model with a number"):
        workspace.get(replace(plain, corpus=Marks()))
    with pytest.raises(UserError, match="Subwords"):
        replace(plain, tokenization=Words())
    trunk = tmp_path / "trunk"
    BertForSequenceClassification.from_pretrained(folder).bert.save_pretrained(trunk)
    tokenizer().save_pretrained(trunk)
    with pytest.raises(UserError, match="no trained head"):
        workspace.get(checkpoint(str(trunk), Sentences()))


def test_a_regressor_fits_a_corpus_of_numbers(workspace: Workspace, tmp_path: Path) -> None:
    folder = fine_tuned(tmp_path / "marks", labels=1)
    subject = checkpoint(str(folder), Marks())
    assert subject.corpus == Marks()
    scores = workspace.get(subject).notes["scores"]
    assert isinstance(scores, dict)
    assert set(scores["test"] or ()) == {"pearson", "mean_squared_error"}  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"one output.*a number, but sentences has classes.*multi_label_classification"):
        workspace.get(checkpoint(str(folder), Sentences()))


def test_one_logit_of_a_class_examines_a_corpus_of_two_classes(workspace: Workspace, tmp_path: Path) -> None:
    folder = fine_tuned(tmp_path / "logit", labels=1)
    config = json.loads((folder / "config.json").read_text())
    for kind, remedy in (
        ("single_label_classification", "'multi_label_classification' if"),
        (None, "set problem_type"),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"problem_type": kind}))
        with pytest.raises(UserError) as complaint:
            workspace.get(checkpoint(str(folder), Sentences()))
        assert remedy in str(complaint.value)
        assert "one output per class" not in str(complaint.value)
        assert "to 'single_label_classification'" not in str(complaint.value), "it has that already"
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "multi_label_classification"}))
    assert workspace.get(checkpoint(str(folder), Sentences())).notes["classes"] == ["negative", "positive"]
    named = config | {"problem_type": "multi_label_classification", "id2label": {"0": "Negative"}}
    (folder / "config.json").write_text(json.dumps(named))
    with pytest.raises(UserError, match="logit of Negative, but sentences has the classes negative, positive"):
        workspace.get(checkpoint(str(folder), Sentences()))
