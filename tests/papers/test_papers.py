"""What all papers share: available corpora, word embeddings, and the user's own data in place of their corpora."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from heedful import catalogue, papers
from heedful.data.columns import TableColumns
from heedful.data.embeddings import FileEmbeddings, PackagedGloveEmbeddings, RandomEmbeddings
from heedful.execution.runner import run, topological_order
from heedful.models.attentive import Attentive
from heedful.models.input_forms import PairInput, QuestionAnswering
from heedful.papers import paper_options
from heedful.papers.attefa import AttefaOptions
from heedful.papers.chapter import flat_settings, training_rules
from heedful.papers.disagreement import DisagreementOptions
from heedful.papers.jain_wallace import JainWallaceOptions
from heedful.papers.paper_options import PaperOptions, UserData
from heedful.papers.scaffold import ScaffoldOptions
from heedful.papers.wiegreffe_pinter import WiegreffePinterOptions
from heedful.store.recipe import Json
from heedful.store.workspace import Workspace
from heedful.table_view import Band
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trained_model import TrainedModel
from heedful.trials.adversarial_training import AtteFa
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.simulability import Simulability
from heedful.trials.trial import Trial
from heedful.types import UserError
from tests.papers.results import StoredEntry, entry, result, to_stored
from tests.training.test_checkpoint import fine_tuned

THINGS = ("bed", "room", "view", "staff", "food", "pool", "bar", "lift", "desk", "key")
REMARKS = {"pleased": ("was lovely", "was a delight"), "cross": ("was broken", "was a nuisance")}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Forty remarks of hotel guests with a mood, a real number and a second text."""
    path = tmp_path / "hotel.csv"
    rows = [(f"the {thing} {remark}", mood) for mood in REMARKS for remark in REMARKS[mood] for thing in THINGS]
    lines = [f"{text},{mood},{place / 7:.3f},{text}" for place, (text, mood) in enumerate(rows)]
    path.write_text("\n".join(["remark,mood,stars,again", *lines]) + "\n", encoding="utf-8")
    return path


def user_data(path: Path, second: str | None = None) -> UserData:
    return UserData(str(path), TableColumns("remark", second, "mood"))


def test_a_paper_runs_on_the_corpora_that_are_there_and_says_when_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_options, "_is_available", lambda corpus, data: corpus.name == "sst" and data == tmp_path)
    found = papers.paper_recipes(JainWallaceOptions(data_dir=tmp_path))
    assert {subject.corpus.name for subject in topological_order(found) if isinstance(subject, TrainedModel)} == {"sst"}
    assert JainWallaceOptions(data_dir=tmp_path).missing_corpora()[0] == "imdb"
    monkeypatch.setattr(paper_options, "_is_available", lambda corpus, data: False)
    with pytest.raises(UserError, match="none of the paper's corpora"):
        papers.paper_recipes(JainWallaceOptions(data_dir=tmp_path))


def test_a_paper_takes_other_corpora_of_the_catalogue_if_they_have_one_text_per_example_and_classes() -> None:
    found = WiegreffePinterOptions(("mock-1", "sst")).recipes()
    assert [trial.subject.corpus.name for trial in found if isinstance(trial, UniformBaseline)] == ["mock-1", "sst"]
    with pytest.raises(UserError, match="no corpus 'digits'"):
        WiegreffePinterOptions(("digits",)).recipes()
    with pytest.raises(UserError, match=r"'mock-0'.* choose from diabetes"):
        WiegreffePinterOptions(("mock-0",)).recipes()


def test_vectors_have_names() -> None:
    sst = JainWallaceOptions.known_corpora["sst"]
    assert JainWallaceOptions(embeddings="packaged").word_embeddings(sst) == PackagedGloveEmbeddings()
    assert JainWallaceOptions(embeddings="glove.txt").word_embeddings(sst) == FileEmbeddings("glove.txt")
    assert JainWallaceOptions().word_embeddings(sst) == RandomEmbeddings(300)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(fine_tuned(tmp_path_factory.mktemp("checkpoint"), names=("negative", "positive")))


def all_options(data: UserData, checkpoint: str) -> list[PaperOptions]:
    """The options of every paper on the user's data, in small."""
    return [
        JainWallaceOptions(user_data=data, quick=True, encoders=("bilstm",), attentions=("additive",)),
        WiegreffePinterOptions(user_data=data, n_seeds=2, lambdas=(0.0, 1e-3)),
        AttefaOptions(user_data=data, n_seeds=1, encoders=("bilstm",)),
        DisagreementOptions(user_data=data, n_seeds=1, encoders=("bilstm",), checkpoints=(checkpoint,)),
        ScaffoldOptions(user_data=data, n_seeds=1, checkpoints=(checkpoint,)),
    ]


def test_every_paper_runs_its_trials_on_the_users_table(table: Path, checkpoint: str) -> None:
    given = all_options(user_data(table), checkpoint)
    assert {type(options) for options in given} == {paper.options for paper in papers.PAPERS.values()}
    counts = []
    for options in given:
        recipes = papers.paper_recipes(replace(options, data_dir=table.parent))
        trials = [recipe for recipe in recipes if isinstance(recipe, Trial)]
        models = [recipe for recipe in topological_order(recipes) if isinstance(recipe, ModelRecipe)]
        assert {model.corpus.name for model in models} == {"hotel"}
        counts.append(len(trials))
    assert counts == [7, 5, 2, 6, 2]


def test_pairs_are_read_as_each_paper_reads_pairs(table: Path) -> None:
    data = user_data(table, "again")
    formats = []
    for options in all_options(data, "")[:3]:
        model = next(r for r in topological_order(options.recipes()) if isinstance(r, TrainedModel))
        assert isinstance(model.architecture, Attentive)
        formats.append(type(model.architecture.input_format))
    assert formats == [QuestionAnswering, PairInput, PairInput]


def test_small_corpora_are_trained_for_as_many_steps_as_the_papers_smallest(table: Path) -> None:
    options = AttefaOptions(user_data=user_data(table), n_seeds=3, n_bases=2, encoders=("bilstm",))
    _, trial = papers.paper_recipes(options)
    assert isinstance(trial, AtteFa)
    # 28 training texts are one batch: an epoch has one step, not the 39 of the paper's smallest corpus.
    training = trial.adversary_training
    assert (trial.subject.training.epochs, training.epochs, training.patience) == (39 * 8, 39 * 80, 39 * 10)
    assert (trial.adversary_seeds, trial.base_seeds, training.reduction) == ((10, 50, 257), (50,), "mean")
    assert ScaffoldOptions(user_data=user_data(table)).sizes_for(user_data(table).corpus) == (28,)


def test_files_may_be_given_for_every_split(table: Path, tmp_path: Path) -> None:
    splits = replace(user_data(table), dev_path=str(table), test_path=str(table)).corpus.read(tmp_path)
    assert [len(part) for part in (splits.train, splits.dev, splits.test)] == [40, 40, 40]


def test_real_numbers_are_refused_where_a_paper_needs_classes(table: Path, checkpoint: str) -> None:
    data = UserData(str(table), TableColumns("remark", label="stars"))
    *attention_papers, scaffold = all_options(data, checkpoint)
    for options in attention_papers:
        with pytest.raises(UserError, match=r"label stars.*--label-column"):
            options.recipes()
    (trial,) = (recipe for recipe in scaffold.recipes() if isinstance(recipe, Simulability))
    assert {student.training.batch_size for _, students in trial.arms for student in students} == {16}


def test_a_table_with_the_name_of_a_published_corpus_is_refused(table: Path) -> None:
    path = table.rename(table.parent / "imdb.csv")
    with pytest.raises(UserError, match="name of the published corpus 'imdb'"):
        AttefaOptions(user_data=user_data(path)).recipes()


@pytest.mark.slow
def test_jain_wallace_runs_on_a_users_table(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_options, "MIN_EPOCH_STEPS", 2)
    for second in (None, "again"):
        options = JainWallaceOptions(
            user_data=user_data(table, second),
            quick=True,
            encoders=("average",),
            attentions=("additive",),
            embeddings="random",
            data_dir=tmp_path,
            limit=3,
        )
        workspace = Workspace(tmp_path / f"work-{second}")
        outcomes = run(papers.paper_recipes(options), workspace)
        assert {outcome.error for outcome in outcomes} == {None}


def test_chapters_without_results_are_empty() -> None:
    for paper in papers.PAPERS.values():
        assert paper.tables([]) == ()
        assert paper.figures([]) == ()


def trial(name: str, paper: str, model: str) -> StoredEntry:
    return entry(f"{name}-{model}", facts={"trial": name, "paper": paper}, links={"subject": [model]})


def test_shared_trials_are_shown_with_the_paper_that_has_most_trials_on_the_same_model() -> None:
    trials = [
        trial("agreement", "jain-wallace", "one"),
        trial("permutation", "jain-wallace", "one"),
        trial("performance", "jain-wallace", "two"),
        trial("uniform-baseline", "wiegreffe-pinter", "two"),
        trial("faithfulness", "disagreement", "two"),
        trial("uniform-baseline", "wiegreffe-pinter", "three"),
        trial("agreement", "jain-wallace", "three"),
        trial("agreement", "jain-wallace", "four"),
        trial("performance", "jain-wallace", "four"),
        trial("faithfulness", "disagreement", "four"),
        trial("plausibility", "scaffold", "four"),
    ]
    assert list(papers.assign_papers(trials).values()) == [
        "jain-wallace",
        "jain-wallace",
        "disagreement",
        "disagreement",
        "disagreement",
        "wiegreffe-pinter",
        "wiegreffe-pinter",
        "disagreement",
        "disagreement",
        "disagreement",
        "scaffold",
    ]


MODEL_TRIALS = {
    "jain-wallace": ("performance", "agreement", "permutation", "adversarial-attention"),
    "wiegreffe-pinter": (
        *("performance", "uniform-baseline", "seed-variance", "adversarial-tradeoff"),
        "adversarial-attention",  # the trade-off needs it
    ),
    "attefa": ("performance", "attefa"),
    "disagreement": ("performance", "agreement", "faithfulness", "uniform-baseline"),
    "scaffold": ("performance", "simulability", "plausibility"),
}
"""The trials that the command of each paper makes on one of its models."""


@pytest.mark.parametrize("further", ["permutation", "seed-variance", "attefa", "faithfulness", "plausibility"])
@pytest.mark.parametrize("paper", list(MODEL_TRIALS))
def test_a_trial_of_another_paper_moves_nothing_into_its_chapter(paper: str, further: str) -> None:
    own = [trial(name, catalogue.TRIALS[name].paper, "model") for name in MODEL_TRIALS[paper]]
    before = papers.assign_papers(own)
    shared = [name for name in before if name.startswith(("performance", "agreement"))]
    assert {before[name] for name in shared} == {paper}
    other = trial(further, catalogue.TRIALS[further].paper, "model")
    after = papers.assign_papers([*own, replace(other, name="further")])
    assert {name: after[name] for name in before} == before


def test_the_training_of_a_model_decides_where_its_trials_do_not() -> None:
    """One seed of Neely et al. has no uniform baseline, and with a permutation as many trials of either paper."""
    names = ("performance", "agreement", "faithfulness", "permutation")
    trials = [trial(name, catalogue.TRIALS[name].paper, "model") for name in names]
    for paper, first_epoch, reduction in (("disagreement", 1, "mean"), ("jain-wallace", 2, "sum")):
        selection: dict[str, Json] = {"split": "dev", "first_epoch": first_epoch}
        recipe = flat_settings({"subject": {"training": {"selection": selection, "reduction": reduction}}})
        found = papers.assign_papers(trials, {each.group: recipe for each in trials})
        assert [found[each.name] for each in trials] == [paper, paper, "disagreement", "jain-wallace"]
    # No transformer is a model of Jain & Wallace.
    transformers = [replace(each, facts={**each.facts, "attention": "self"}) for each in trials]
    assert papers.assign_papers(transformers)["agreement-model"] == "disagreement"


def test_a_band_holds_its_ends_despite_binary_rounding() -> None:
    assert Band(-0.02, 0.02).verdict(0.84 - 0.82) == "inside"
    assert Band(high=-0.1).verdict(-0.0999) == "outside"
    assert Band(0.5).verdict(math.nan) == "undefined"


@pytest.mark.parametrize("name", ["jain-wallace", "wiegreffe-pinter", "attefa", "disagreement"])
def test_every_model_of_a_quick_version_is_known_as_quick(name: str) -> None:
    """The command promises that the report says so."""
    for quick in (True, False):
        options = papers.PAPERS[name].options(corpora=("sst",), quick=quick)
        models = {
            each for recipe in options.recipes() for each in recipe.dependencies if isinstance(each, TrainedModel)
        }
        assert models
        assert {each.describe()["quick"] for each in models} == {quick}


DOCUMENTED_CORPORA = {
    "jain-wallace": ("sst", "snli", "babi-1"),
    "wiegreffe-pinter": ("sst", "imdb"),
    "attefa": ("sst", "mock-1"),
    "disagreement": ("sst", "snli"),
    "scaffold": ("digits",),
}


@pytest.mark.parametrize("name", list(papers.PAPERS))
def test_the_documented_selection_of_epochs_is_what_the_command_does_by_default(name: str) -> None:
    options = papers.PAPERS[name].options(corpora=DOCUMENTED_CORPORA[name])
    trials = [recipe for recipe in options.recipes() if isinstance(recipe, Trial)]
    runs = [replace(result(name, each.name, {}), recipe=flat_settings(to_stored(each))) for each in trials]
    done = {rule for each in runs for rule in training_rules(each).values()}
    text = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if f"| `{name}` |" in line]
    assert done
    assert {tuple(row[2:5]) for row in rows if len(row) == 7} == done
