"""Papers: the number and names of their recipes, the published numbers, and what is asked of the data folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from heedful import papers
from heedful.core.types import UserError
from heedful.core.workspace import Workspace
from heedful.data.batching import Words
from heedful.data.planted import MOCKS
from heedful.data.sampling import Sampled
from heedful.data.vectors import FileVectors, PackagedGlove, RandomVectors
from heedful.models.attention import Softmax
from heedful.models.encoders import Average, BiLSTM, Convolution
from heedful.models.pooled import Pooled
from heedful.models.shapes import Asked, OneText
from heedful.papers import Choice, attefa, jain_wallace, jain_wallace_subject, wiegreffe_pinter
from heedful.papers.choosing import Selecting
from heedful.papers.jain import JAIN_WALLACE
from heedful.papers.own import found_vectors
from heedful.printed import published
from heedful.recipes.subject import Subject
from heedful.runner import ordered
from heedful.trials.attefa import AtteFa
from heedful.trials.guided import Guided
from heedful.trials.necessity import Necessity
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.tradeoff import Tradeoff

SELECTING: Mapping[str, Selecting] = {"dev": "dev", "paper": "paper", "code": "code"}


def subjects(choice: Choice) -> list[Subject]:
    """The subjects that are examined, without the second trainings that their attention is compared with."""
    return [recipe.subject for recipe in jain_wallace(choice) if isinstance(recipe, Performance)]


def test_jain_wallace_has_every_corpus_encoder_and_attention_once() -> None:
    found = subjects(Choice())
    names = {(s.about["corpus"], s.about["encoder"], s.about["attention"]) for s in found}
    assert len(found) == len(names) == 72
    assert ("babi-2", "convolution", "dot") in names


def test_seeds_limit_and_quick_reach_the_recipes() -> None:
    choice = Choice(("sst",), ("bilstm",), ("additive",), seeds=3, limit=50)
    assert [subject.seed for subject in subjects(choice)] == [0, 1, 2]
    limits = [recipe.limit for recipe in jain_wallace(choice) if isinstance(recipe, Permutation)]
    assert limits == [50, 50, 50]
    (quick,) = subjects(Choice(("babi-1",), ("bilstm",), ("additive",), seeds=3, quick=True))
    assert quick.fit.epochs == 3


def test_sizes_and_training_are_those_of_the_released_code() -> None:
    sst = jain_wallace_subject("sst", "bilstm", "additive", "random")
    assert isinstance(sst.model, Pooled)
    assert sst.model.encoder == BiLSTM(128)
    assert sst.model.shape == OneText()
    assert (sst.fit.epochs, sst.fit.batch, sst.fit.reduction, sst.fit.select.first) == (8, 32, "sum", 2)
    babi = jain_wallace_subject("babi-1", "convolution", "dot", "random")
    assert isinstance(babi.model, Pooled)
    assert babi.model.encoder == Convolution(8)
    assert babi.model.shape == Asked()
    assert (babi.fit.epochs, babi.fit.batch, babi.fit.reduction) == (100, 50, "mean")
    assert babi.vectors == RandomVectors(50, deviation=1.0)
    snli = jain_wallace_subject("snli", "average", "additive", "random")
    assert isinstance(snli.model, Pooled)
    assert snli.model.encoder == Average(128)
    assert (snli.fit.epochs, snli.fit.batch) == (25, 128)


def test_wiegreffe_pinter_has_the_papers_seeds_lambdas_and_guides() -> None:
    found = {type(recipe): recipe for recipe in wiegreffe_pinter(Choice(("sst",)))}
    necessity, curve, guided = found[Necessity], found[Tradeoff], found[Guided]
    assert isinstance(necessity, Necessity)
    assert isinstance(curve, Tradeoff)
    assert isinstance(guided, Guided)
    assert necessity.seeds == (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
    assert curve.strengths[:3] == (0.0, 1e-5, 5e-5)
    assert len(curve.strengths) == 16
    assert (curve.fit.epochs, curve.fit.patience, curve.fit.select.on) == (80, 10, "dev")
    assert [name for name, _ in guided.guides] == ["base", "adversary", "shuffled base", "random"]
    assert curve.adversary(1e-3) in ordered([guided])


def test_the_rule_that_chooses_epochs_reaches_bases_and_adversaries() -> None:
    rules = {"dev": ("dev", "deception"), "paper": ("test", "deception"), "code": ("dev", "training_loss")}
    for rule, (split, score) in rules.items():
        choice = Choice(("imdb",), select=SELECTING[rule])
        (curve,) = [recipe for recipe in wiegreffe_pinter(choice) if isinstance(recipe, Tradeoff)]
        assert (curve.fit.select.on, curve.fit.select.by, curve.fit.epochs) == (split, score, 40)
        assert curve.subject.fit.select.on == ("dev" if rule == "dev" else "test")


def test_attefa_has_fourteen_corpora_two_encoders_and_nine_adversaries() -> None:
    found = [recipe for recipe in attefa.attefa(Choice()) if isinstance(recipe, AtteFa)]
    assert len({(r.subject.about["corpus"], r.subject.about["encoder"]) for r in found}) == len(found) == 28
    assert all(len(recipe.adversaries) == 9 and len(recipe.honest) == 3 for recipe in found)
    assert all(recipe.fit.reduction == "mean" for recipe in found)
    sst = next(recipe.subject for recipe in found if recipe.subject.about["corpus"] == "sst")
    assert isinstance(sst.batching, Words)
    assert (sst.batching.longer_than, sst.batching.shorter_than) == (None, None)


def test_adversaries_start_where_they_are_asked_to() -> None:
    for start, choice in (("fresh", Choice(("sst",))), ("base", Choice(("sst",), start="base"))):
        trials = [*attefa.attefa(choice), *wiegreffe_pinter(choice)]
        assert {trial.start for trial in trials if isinstance(trial, AtteFa | Tradeoff)} == {start}


def test_quick_versions_look_at_a_part_of_the_corpus() -> None:
    for paper in (wiegreffe_pinter, attefa.attefa):
        trained = [r for r in ordered(paper(Choice(("agnews",), quick=True))) if isinstance(r, Subject)]
        assert all(isinstance(subject.corpus, Sampled) for subject in trained)
        assert len(trained) <= 20


def test_what_attefa_depends_on_can_be_swept() -> None:
    temperatures = attefa.temperatures(MOCKS["mock-1"], (0.5, 2.0))
    plans = [trial.subject.model for trial in temperatures]
    assert [plan.normaliser for plan in plans if isinstance(plan, Pooled)] == [Softmax(0.5), Softmax(2.0)]
    swept = [*attefa.positions(("start", "end")), *attefa.strengths((3.0,)), *attefa.fillers((7,))]
    models = [trial.subject.about["encoder"] for trial in attefa.encoders(MOCKS["mock-1"])]
    assert models == ["bilstm", "gru", "convolution", "average", "smalltransformer"]
    names = {str(trial.subject.about["corpus"]) for trial in swept}
    assert names == {"mock-5-position-start", "mock-5-position-end", "mock-5-strength-3.0", "mock-5-fillers-7"}


def test_vectors_are_pretrained_where_the_data_folder_has_some_but_never_for_babi(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    assert found_vectors(tmp_path) == "random"
    for name, size in (("small", 10), ("large", 20)):
        (tmp_path / "vectors" / f"{name}.npz").write_bytes(b"0" * size)
    choice = Choice(("sst", "babi-1"), ("average",), ("dot",), found=found_vectors(tmp_path))
    assert [s.vectors for s in subjects(choice)] == [FileVectors("large"), RandomVectors(50, deviation=1.0)]


def test_vectors_have_names() -> None:
    assert papers.vectors_named("packaged", 300) == PackagedGlove()
    assert papers.vectors_named("glove.txt", 300) == FileVectors("glove.txt")


def test_published_scores_are_those_behind_table_2() -> None:
    found = published("performance", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    assert found == pytest.approx(
        {"f1": 0.78352, "f1_micro": 0.80812, "f1_macro": 0.80561, "accuracy": 0.80812, "roc_auc": 0.90244}
    )


def test_published_permutation_medians_are_those_of_figure_3() -> None:
    found = published("permutation", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    bins = ("0.00_to_0.25", "0.25_to_0.50", "0.50_to_0.75", "0.75_to_1.00")
    assert [found[f"median_change.class_0.attention_{b}"] for b in bins] == [0.0271, 0.0472, 0.0793, 0.107]
    assert f"median_change.class_1.attention_{bins[3]}" not in found


def test_nothing_is_published_about_a_users_own_corpus() -> None:
    assert published("permutation", {"corpus": "mine", "encoder": "gru", "attention": "dot"}) == {}


def test_a_paper_runs_on_the_corpora_that_are_there_and_says_when_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "_is_there", lambda corpus, data: corpus.name == "sst")
    found = papers.recipes("jain-wallace", Choice(), tmp_path)
    assert {subject.corpus.name for subject in ordered(found) if isinstance(subject, Subject)} == {"sst"}
    monkeypatch.setattr(papers, "_is_there", lambda corpus, data: False)
    with pytest.raises(UserError, match="none of the paper's corpora is in the folder"):
        papers.recipes("jain-wallace", Choice(), tmp_path)


@pytest.mark.parametrize("name", JAIN_WALLACE)
def test_real_corpora_have_the_classes_and_shapes_that_their_models_expect(name: str) -> None:
    subject = jain_wallace_subject(name, "average", "additive", "random")
    data = Workspace(Path("unused")).data
    shared = Path(__file__).parents[2] / "shared" / "data"
    try:
        splits = subject.corpus.read(shared if shared.is_dir() else data)
    except UserError as absent:
        pytest.skip(f"needs real data: {absent}")
    assert isinstance(subject.model, Pooled)
    assert len(splits.train[0].parts) == (2 if subject.model.shape == Asked() else 1)
    batch = subject.batching.fit(splits.train[:200])(splits.train[:20])
    assert batch.scored.any(1).all()


def test_a_file_may_not_take_the_name_of_a_module_in_use_but_may_follow_another_file(tmp_path: Path) -> None:
    text = "from tests.tiny import subject\n\ndef recipes():\n    return [subject(seed={})]\n"
    (tmp_path / "json.py").write_text(text.format(1), encoding="utf-8")
    with pytest.raises(UserError, match=r"json\.py has the name of a module that is already in use"):
        papers.recipes(str(tmp_path / "json.py"), Choice(), tmp_path)
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "my_recipes.py").write_text(text.format(seed), encoding="utf-8")
        (found,) = papers.recipes(str(folder / "my_recipes.py"), Choice(), tmp_path)
        assert isinstance(found, Subject)
        assert found.seed == seed
