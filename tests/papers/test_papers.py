"""Papers: the number and names of their recipes, the published numbers, and what is asked of the data folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from heedful import papers
from heedful.data.embeddings import FileEmbeddings, PackagedGloveEmbeddings, RandomEmbeddings
from heedful.data.splitting import SubsampledCorpus
from heedful.data.synthetic import MOCK_CORPORA
from heedful.data.tokenization import Words
from heedful.models.attentive import Attentive, Softmax
from heedful.models.encoders import Average, BiLSTM, Convolution
from heedful.models.input_forms import QuestionAnswering, SingleInput
from heedful.papers import attefa
from heedful.papers._options import PaperOptions, SelectionRule
from heedful.papers.attefa import find_embeddings
from heedful.papers.jain_wallace import JAIN_WALLACE_CORPORA, jain_wallace_model, jain_wallace_recipes
from heedful.papers.published import published_numbers
from heedful.papers.wiegreffe_pinter import wiegreffe_pinter_recipes
from heedful.runner import topological_order
from heedful.store.workspace import Workspace
from heedful.training.trained_model import TrainedModel
from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.types import UserError

SELECTING: Mapping[str, SelectionRule] = {"dev": "dev", "paper": "paper", "code": "code"}


def subjects(choice: PaperOptions) -> list[TrainedModel]:
    """The subjects that are examined, without the second trainings that their attention is compared with."""
    examined = [recipe.subject for recipe in jain_wallace_recipes(choice) if isinstance(recipe, Performance)]
    return [subject for subject in examined if isinstance(subject, TrainedModel)]


def test_jain_wallace_has_every_corpus_encoder_and_attention_once() -> None:
    found = subjects(PaperOptions())
    names = {(s.about["corpus"], s.about["encoder"], s.about["attention"]) for s in found}
    assert len(found) == len(names) == 72
    assert ("babi-2", "convolution", "dot") in names


def test_seeds_limit_and_quick_reach_the_recipes() -> None:
    choice = PaperOptions(("sst",), ("bilstm",), ("additive",), n_seeds=3, limit=50)
    assert [subject.seed for subject in subjects(choice)] == [0, 1, 2]
    limits = [recipe.limit for recipe in jain_wallace_recipes(choice) if isinstance(recipe, Permutation)]
    assert limits == [50, 50, 50]
    (quick,) = subjects(PaperOptions(("babi-1",), ("bilstm",), ("additive",), n_seeds=3, quick=True))
    assert quick.training.epochs == 3


def test_sizes_and_training_are_those_of_the_released_code() -> None:
    sst = jain_wallace_model("sst", "bilstm", "additive", "random")
    assert isinstance(sst.architecture, Attentive)
    assert sst.architecture.encoder == BiLSTM(128)
    assert sst.architecture.input_format == SingleInput()
    assert (
        sst.training.epochs,
        sst.training.batch_size,
        sst.training.reduction,
        sst.training.selection.first_epoch,
    ) == (8, 32, "sum", 2)
    babi = jain_wallace_model("babi-1", "convolution", "dot", "random")
    assert isinstance(babi.architecture, Attentive)
    assert babi.architecture.encoder == Convolution(8)
    assert babi.architecture.input_format == QuestionAnswering()
    assert (babi.training.epochs, babi.training.batch_size, babi.training.reduction) == (100, 50, "mean")
    assert babi.embeddings == RandomEmbeddings(50, std=1.0)
    snli = jain_wallace_model("snli", "average", "additive", "random")
    assert isinstance(snli.architecture, Attentive)
    assert snli.architecture.encoder == Average(128)
    assert (snli.training.epochs, snli.training.batch_size) == (25, 128)


def test_wiegreffe_pinter_has_the_papers_seeds_lambdas_and_guides() -> None:
    found = {type(recipe): recipe for recipe in wiegreffe_pinter_recipes(PaperOptions(("sst",)))}
    necessity, curve, guided = found[UniformBaseline], found[AdversarialTradeoff], found[GuidedModel]
    assert isinstance(necessity, UniformBaseline)
    assert isinstance(curve, AdversarialTradeoff)
    assert isinstance(guided, GuidedModel)
    assert necessity.seeds == (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
    assert curve.lambdas[:3] == (0.0, 1e-5, 5e-5)
    assert len(curve.lambdas) == 16
    assert (
        curve.adversary_training.epochs,
        curve.adversary_training.patience,
        curve.adversary_training.selection.split,
    ) == (80, 10, "dev")
    assert [name for name, _ in guided.guides] == ["base", "adversary", "shuffled base", "random"]
    assert curve.adversary(1e-3) in topological_order([guided])


def test_the_rule_that_chooses_epochs_reaches_bases_and_adversaries() -> None:
    rules = {"dev": ("dev", "deception"), "paper": ("test", "deception"), "code": ("dev", "training_loss")}
    for rule, (split, score) in rules.items():
        choice = PaperOptions(("imdb",), select=SELECTING[rule])
        (curve,) = [recipe for recipe in wiegreffe_pinter_recipes(choice) if isinstance(recipe, AdversarialTradeoff)]
        assert (
            curve.adversary_training.selection.split,
            curve.adversary_training.selection.metric,
            curve.adversary_training.epochs,
        ) == (split, score, 40)
        assert curve.subject.training.selection.split == ("dev" if rule == "dev" else "test")


def test_attefa_has_fourteen_corpora_two_encoders_and_nine_adversaries() -> None:
    found = [recipe for recipe in attefa.attefa_recipes(PaperOptions()) if isinstance(recipe, AtteFa)]
    assert len({(r.subject.about["corpus"], r.subject.about["encoder"]) for r in found}) == len(found) == 28
    assert all(len(recipe.adversary_seeds) == 9 and len(recipe.base_models) == 3 for recipe in found)
    assert all(recipe.adversary_training.reduction == "mean" for recipe in found)
    sst = next(recipe.subject for recipe in found if recipe.subject.about["corpus"] == "sst")
    assert isinstance(sst.tokenization, Words)
    assert (sst.tokenization.longer_than, sst.tokenization.shorter_than) == (None, None)


def test_adversaries_start_where_they_are_asked_to() -> None:
    for start, choice in (("fresh", PaperOptions(("sst",))), ("base", PaperOptions(("sst",), start="base"))):
        trials = [*attefa.attefa_recipes(choice), *wiegreffe_pinter_recipes(choice)]
        assert {trial.start for trial in trials if isinstance(trial, AtteFa | AdversarialTradeoff)} == {start}


def test_quick_versions_look_at_a_part_of_the_corpus() -> None:
    for paper in (wiegreffe_pinter_recipes, attefa.attefa_recipes):
        trained = [
            r for r in topological_order(paper(PaperOptions(("agnews",), quick=True))) if isinstance(r, TrainedModel)
        ]
        assert all(isinstance(subject.corpus, SubsampledCorpus) for subject in trained)
        assert len(trained) <= 20


def test_what_attefa_depends_on_can_be_swept() -> None:
    temperatures = attefa.attefa_by_temperature(MOCK_CORPORA["mock-1"], (0.5, 2.0))
    plans = [trial.subject.architecture for trial in temperatures]
    assert [plan.normalizer for plan in plans if isinstance(plan, Attentive)] == [Softmax(0.5), Softmax(2.0)]
    swept = [
        *attefa.attefa_by_position(("start", "end")),
        *attefa.attefa_by_strength((3.0,)),
        *attefa.attefa_by_filler_count((7,)),
    ]
    models = [trial.subject.about["encoder"] for trial in attefa.attefa_by_architecture(MOCK_CORPORA["mock-1"])]
    assert models == ["bilstm", "gru", "convolution", "average", "smalltransformer"]
    names = {str(trial.subject.about["corpus"]) for trial in swept}
    assert names == {"mock-5-position-start", "mock-5-position-end", "mock-5-strength-3.0", "mock-5-fillers-7"}


def test_vectors_are_pretrained_where_the_data_folder_has_some_but_never_for_babi(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    assert find_embeddings(tmp_path) == "random"
    for name, size in (("small", 10), ("large", 20)):
        (tmp_path / "vectors" / f"{name}.npz").write_bytes(b"0" * size)
    choice = PaperOptions(("sst", "babi-1"), ("average",), ("dot",), available_embeddings=find_embeddings(tmp_path))
    assert [s.embeddings for s in subjects(choice)] == [FileEmbeddings("large"), RandomEmbeddings(50, std=1.0)]


def test_vectors_have_names() -> None:
    assert papers.embeddings_by_name("packaged", 300) == PackagedGloveEmbeddings()
    assert papers.embeddings_by_name("glove.txt", 300) == FileEmbeddings("glove.txt")


def test_published_scores_are_those_behind_table_2() -> None:
    found = published_numbers("performance", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    assert found == pytest.approx(
        {"f1": 0.78352, "f1_micro": 0.80812, "f1_macro": 0.80561, "accuracy": 0.80812, "roc_auc": 0.90244}
    )


def test_published_permutation_medians_are_those_of_figure_3() -> None:
    found = published_numbers("permutation", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    bins = ("0.00_to_0.25", "0.25_to_0.50", "0.50_to_0.75", "0.75_to_1.00")
    assert [found[f"median_change.class_0.attention_{b}"] for b in bins] == [0.0271, 0.0472, 0.0793, 0.107]
    assert f"median_change.class_1.attention_{bins[3]}" not in found


def test_nothing_is_published_about_a_users_own_corpus() -> None:
    assert published_numbers("permutation", {"corpus": "mine", "encoder": "gru", "attention": "dot"}) == {}


def test_a_paper_runs_on_the_corpora_that_are_there_and_says_when_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "_is_available", lambda corpus, data: corpus.name == "sst")
    found = papers.find_recipes("jain-wallace", PaperOptions(), tmp_path)
    assert {subject.corpus.name for subject in topological_order(found) if isinstance(subject, TrainedModel)} == {"sst"}
    monkeypatch.setattr(papers, "_is_available", lambda corpus, data: False)
    with pytest.raises(UserError, match="none of the paper's corpora is in the folder"):
        papers.find_recipes("jain-wallace", PaperOptions(), tmp_path)


@pytest.mark.parametrize("name", JAIN_WALLACE_CORPORA)
def test_real_corpora_have_the_classes_and_shapes_that_their_models_expect(name: str) -> None:
    subject = jain_wallace_model(name, "average", "additive", "random")
    data = Workspace(Path("unused")).data_dir
    shared = Path(__file__).parents[3] / "shared" / "data"
    try:
        splits = subject.corpus.read(shared if shared.is_dir() else data)
    except UserError as absent:
        pytest.skip(f"needs real data: {absent}")
    assert isinstance(subject.architecture, Attentive)
    assert len(splits.train[0].parts) == (2 if subject.architecture.input_format == QuestionAnswering() else 1)
    batch = subject.tokenization.fit(splits.train[:200])(splits.train[:20])
    assert batch.content_mask.any(1).all()


def test_a_file_may_not_take_the_name_of_a_module_in_use_but_may_follow_another_file(tmp_path: Path) -> None:
    text = "from tests.tiny import subject\n\ndef recipes():\n    return [subject(seed={})]\n"
    (tmp_path / "json.py").write_text(text.format(1), encoding="utf-8")
    with pytest.raises(UserError, match=r"json\.py has the name of a module that is already in use"):
        papers.find_recipes(str(tmp_path / "json.py"), PaperOptions(), tmp_path)
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "my_recipes.py").write_text(text.format(seed), encoding="utf-8")
        (found,) = papers.find_recipes(str(folder / "my_recipes.py"), PaperOptions(), tmp_path)
        assert isinstance(found, TrainedModel)
        assert found.seed == seed
