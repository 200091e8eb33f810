"""Attention is not Explanation: the recipes of its 72 models, its tables and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from heedful.data.embeddings import FileEmbeddings, RandomEmbeddings
from heedful.figures import Bars
from heedful.models.attentive import Attentive
from heedful.models.encoders import Average, BiLSTM, Convolution
from heedful.models.input_forms import QuestionAnswering, SingleInput
from heedful.papers import PAPERS
from heedful.papers.chapter import Result
from heedful.papers.jain_wallace import JainWallaceOptions, jain_wallace_model
from heedful.papers.paper_options import find_embeddings
from heedful.papers.published import NumberKey
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.table_view import Comparison
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trained_model import TrainedModel
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.types import UserError
from tests.papers.results import SST_SIZES, Number, entry, named, plain, result, summary, table


def model(corpus: str, encoder: str, attention: str) -> TrainedModel:
    return jain_wallace_model(
        JainWallaceOptions.known_corpora[corpus], encoder, attention, JainWallaceOptions(embeddings="random")
    )


def subjects(options: JainWallaceOptions) -> list[ModelRecipe]:
    """The subjects that are examined, without the second trainings that their attention is compared with."""
    examined = [recipe.subject for recipe in options.recipes() if isinstance(recipe, Performance)]
    return [subject for subject in examined if isinstance(subject, TrainedModel)]


def test_jain_wallace_has_every_corpus_encoder_and_attention_once() -> None:
    found = subjects(JainWallaceOptions())
    names = {(s.about["corpus"], s.about["encoder"], s.about["attention"]) for s in found}
    assert len(found) == len(names) == 72
    assert ("babi-2", "convolution", "dot") in names


def test_seeds_limit_and_quick_reach_the_recipes() -> None:
    options = JainWallaceOptions(("sst",), n_seeds=3, encoders=("bilstm",), attentions=("additive",), limit=50)
    assert [subject.seed for subject in subjects(options)] == [0, 1, 2]
    limits = [recipe.limit for recipe in options.recipes() if isinstance(recipe, Permutation)]
    assert limits == [50, 50, 50]
    (quick,) = subjects(JainWallaceOptions(("babi-1",), 3, quick=True, encoders=("bilstm",), attentions=("additive",)))
    assert isinstance(quick, TrainedModel)
    assert quick.training.epochs == 3


def test_sizes_and_training_are_those_of_the_released_code() -> None:
    sst = model("sst", "bilstm", "additive")
    assert isinstance(sst.architecture, Attentive)
    assert sst.architecture.encoder == BiLSTM(128)
    assert sst.architecture.input_format == SingleInput()
    assert (
        sst.training.epochs,
        sst.training.batch_size,
        sst.training.reduction,
        sst.training.selection.first_epoch,
    ) == (8, 32, "sum", 2)
    babi = model("babi-1", "convolution", "dot")
    assert isinstance(babi.architecture, Attentive)
    assert babi.architecture.encoder == Convolution(8)
    assert babi.architecture.input_format == QuestionAnswering()
    assert (babi.training.epochs, babi.training.batch_size, babi.training.reduction) == (100, 50, "mean")
    assert babi.embeddings == RandomEmbeddings(50, std=1.0)
    snli = model("snli", "average", "additive")
    assert isinstance(snli.architecture, Attentive)
    assert snli.architecture.encoder == Average(128)
    assert (snli.training.epochs, snli.training.batch_size) == (25, 128)


def test_vectors_are_pretrained_where_the_data_folder_has_some_but_never_for_babi(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    assert find_embeddings(tmp_path) == "random"
    for name, size in (("small", 10), ("large", 20)):
        (tmp_path / "vectors" / f"{name}.npz").write_bytes(b"0" * size)
    options = JainWallaceOptions(("sst", "babi-1"), encoders=("average",), attentions=("dot",), data_dir=tmp_path)
    assert [s.embeddings for s in subjects(options)] == [FileEmbeddings("large"), RandomEmbeddings(50, std=1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["20news", "sst", "babi-1", "cnn", "snli"])
def test_real_corpora_have_the_classes_and_shapes_that_their_models_expect(name: str) -> None:
    subject = model(name, "average", "additive")
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


CHAPTER = PAPERS["jain-wallace"]


def ours(trial: str, encoder: str, numbers: dict[NumberKey, Number]) -> Result:
    return result("jain-wallace", trial, numbers, encoder=encoder, statistics=SST_SIZES)


def test_table_1_has_sizes_and_scores_beside_the_published_ones() -> None:
    performance = ours("performance", "bilstm", plain({"f1": 0.80}))
    sizes = (Comparison(13826, 16175), Comparison(19.2, 19), Comparison(6355, 6355), Comparison(1725, 1725))
    first = table("jain-wallace", "Table 1", performance)
    # Beside ours is the score of the re-run, selected on dev as ours; the printed one was selected on test.
    assert first.rows == (("sst", *sizes, Comparison(0.80, 0.78352, 0.02), 0.81),)
    quick = table("jain-wallace", "Table 1", replace(performance, quick=True))
    bare = tuple(Comparison(size.ours, None) for size in sizes)
    assert quick.rows[0] == ("sst (quick)", *bare, Comparison(0.80, None), "")


def test_models_of_other_papers_are_not_among_those_of_tables_1_and_2() -> None:
    performance = ours("performance", "bilstm", plain({"f1": 0.80}))
    agreement = ours("agreement", "bilstm", named("mean", {"attention~gradient": 0.3}, "class 0"))
    others = [replace(each, paper=name) for each in (performance, agreement) for name in ("wiegreffe-pinter", "attefa")]
    assert len(table("jain-wallace", "Table 1", performance, *others).rows) == 1
    cells = table("jain-wallace", "Table 2", agreement, *others).rows
    assert len(cells) == len({row[:2] for row in cells})


def test_standard_deviations_are_shown_and_not_judged() -> None:
    numbers: dict[NumberKey, Number] = {(metric, "attention~gradient", "class 0"): 0.3 for metric in ("mean", "std")}
    shown = table("jain-wallace", "Table 2", ours("agreement", "bilstm", numbers))
    cells = dict(zip(shown.columns[:4], shown.rows[0], strict=False))
    assert (cells["corpus"], cells["class"]) == ("sst", "0")
    assert cells["std"] == Comparison(0.3, 0.21)
    assert cells["mean"] == Comparison(0.3, 0.34, 0.1)


def test_table_2_has_the_shape_of_the_paper() -> None:
    numbers: dict[NumberKey, Number] = {
        (metric, "attention~gradient", f"class {c}"): 0.3 for metric in ("mean", "std", "significant") for c in (0, 1)
    }
    average, bilstm = (ours("agreement", encoder, numbers) for encoder in ("average", "bilstm"))
    shown = table("jain-wallace", "Table 2", average)
    assert [row[:2] for row in shown.rows] == [("sst", "0"), ("sst", "1")]
    assert shown.columns == ("corpus", "class", "mean", "std", "significant")
    assert shown.rows[0][2] == Comparison(0.3, 0.61, 0.1)
    assert shown.rows[1][4] == Comparison(0.3, 0.83, 0.13)
    both = table("jain-wallace", "Table 2", average, bilstm)
    assert len(both.columns) == 11, "both encoders, and leave-one-out of the BiLSTM"
    assert both.rows[0][2] == Comparison(0.3, 0.34, 0.1), "the BiLSTM comes first, as in print"
    assert both.rows[0][5] == Comparison(0.3, 0.61, 0.1)
    assert len(set(both.groups)) == 4
    assert CHAPTER.tables([replace(average, settings={"measure": "feature"})]) == ()


def test_figures_6_to_8_have_the_published_differences_beside_ours() -> None:
    excesses = {"leave-one-out(distribution)": 0.3, "gradient": 0.2}
    numbers = named(
        "excess", {f"gradient~leave-one-out(distribution) over attention~{name}": v for name, v in excesses.items()}
    )
    loo = ("mean", "attention~leave-one-out(distribution)", "")
    found = CHAPTER.figures(
        [ours("agreement", "bilstm", {**numbers, loo: 0.25}), ours("agreement", "average", {loo: 0.6})]
    )
    values = [[*figure.series[0].values, *figure.series[1].values] for figure in found if isinstance(figure, Bars)]
    assert len(values) == 3
    assert values[0] == pytest.approx([0.3, 0.36453])
    assert values[2] == pytest.approx([0.35, 0.331], abs=1e-3)
    assert CHAPTER.figures([]) == ()


def test_trained_adversaries_of_the_same_model_are_shown_beside_free_weights() -> None:
    rows = pd.DataFrame({"epsilon_max": [0.5, 0.7], "change": [0.01, 0.03]})
    free = entry("free", artefact=Artefact(table=rows), links={"subject": ["model"]})
    curve = summary(
        {
            **named("lambda", {"lambda 0.001": 1e-3}),
            **named("jsd", {"lambda 0.001": 0.4}),
            **named("tvd", {"lambda 0.001": 0.03}),
        }
    )
    tradeoff = entry(
        "curve", artefact=Artefact(summary=curve), facts={"trial": "adversarial-tradeoff"}, links={"subject": ["model"]}
    )
    elsewhere = replace(tradeoff, links={"subject": ["other model"]})
    trial = replace(ours("adversarial-attention", "bilstm", {}), entries=(free,), settings={"solver": "exact"})
    (found,) = CHAPTER.section(trial, [free, tradeoff, elsewhere]).tables
    assert [row[1:] for row in found.rows] == [pytest.approx((0.6, 0.02)), pytest.approx((0.4, 0.06))]
    assert CHAPTER.section(trial, [free, elsewhere]).tables == ()
