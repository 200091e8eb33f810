"""Items: scores of words by hand, and which items are drawn from pages and workspaces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr

from heedful.attributions import Random, StaticAttention
from heedful.data.images import Digits
from heedful.data.splitting import SubsampledCorpus
from heedful.models.small_transformers import ScalarMix, SmallViT
from heedful.report.charts import png_pixels
from heedful.report.text_table import ScoreCell, ScoreColumn, TextRow, TextTable, write_text_table
from heedful.store.workspace import Workspace
from heedful.study.design import CONTROL, StudyOptions
from heedful.study.items import ItemChoice, build_study, read_source
from heedful.training.attribution_tables import AttributionTable, ImageSample
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Training
from heedful.types import UserError
from tests.invented_studies import METHODS, image_page, text_page
from tests.stored import FilmAdversary, FilmModel, FilmScores, stored

SMALL = StudyOptions(items=10, per_person=8, people=4, checks=1, repeats=1)


def test_pieces_of_words_are_added_or_averaged(tmp_path: Path) -> None:
    rows = (
        ScoreColumn("lime", pooling="sum"),
        ScoreColumn("attention"),
        ScoreColumn("x", is_adversarial=True),
    )
    weights = (ScoreCell(np.array([1.0, 2.0, -4.0, np.nan])), ScoreCell(np.array([0.2, 0.4, 0.4, 0.0])), None)
    text = TextRow("u", ("un", "kind", "words", "."), (1, 3), 3, 1, 0.9, None, (), weights, words=(0, 0, 1, 2))
    source = read_source(
        write_text_table(TextTable({}, ("no", "yes"), rows, (), texts=(text,)), tmp_path / "texts.parquet")
    )
    assert source.methods == ("lime", "attention")
    item = source.texts["u"]
    assert (item.words, item.joined, item.second, item.predicted) == (("unkind", "words", "."), (2,), 2, "yes")
    np.testing.assert_allclose(source.scores["u"]["lime"], [3.0, -4.0, np.nan])
    np.testing.assert_allclose(source.scores["u"]["attention"], [0.3, 0.4, 0.0], atol=1e-9)


def test_of_models_with_one_title_none_is_taken_silently(tmp_path: Path) -> None:
    for name, n in (("model-1a", 5), ("model-2b", 7)):
        text_page(tmp_path / f"audit/texts/{name}.html", n)
    with pytest.raises(UserError, match=r"2 models: .*\(model-1a\); .*\(model-2b\)"):
        read_source(tmp_path / "audit")
    assert [len(read_source(tmp_path / "audit", name).texts) for name in ("1a", "2b")] == [5, 7]


def test_items_of_a_page_are_stratified_and_have_maps_of_every_method(tmp_path: Path) -> None:
    study = build_study(text_page(tmp_path / "audit/texts/texts.html").parents[1], ["lime, gradient,attention"], SMALL)
    assert study.methods == ("lime", "gradient", "attention")
    assert len(study.items) == SMALL.items + SMALL.reserved == 12
    assert Counter(item.predicted for item in study.items[:10]) == {"negative": 5, "positive": 5}
    for item in study.items:
        assert item.maps.keys() == {*study.methods, CONTROL}
        assert all(len(shown) == len(item.words) and max(shown) == 1.0 for shown in item.maps.values())
    assert study == build_study(tmp_path / "audit", list(study.methods), SMALL)


def test_items_by_disagreement_are_those_with_the_lowest_correlation(tmp_path: Path) -> None:
    page = text_page(tmp_path / "p.html")
    source = read_source(page)
    study = build_study(page, ["lime", "random"], SMALL, ItemChoice(by="disagreement"))

    def correlation(uid: str) -> float:
        ranks = [np.argsort(np.argsort(source.scores[uid][name])) for name in ("lime", "random")]
        return float(pearsonr(*ranks).statistic)

    worst = sorted(source.texts, key=correlation)[:10]
    assert {item.uid for item in study.items[:10]} == {*worst}


def test_images_have_their_pixels_and_patches(tmp_path: Path) -> None:
    study = build_study(image_page(tmp_path / "p.html"), METHODS[:3], SMALL)
    assert study.noun == "image"
    assert all(item.image and item.patches == (4, 4) and len(item.words) == 16 for item in study.items)


def test_of_many_classes_some_are_offered_with_the_predicted_one_among_them(tmp_path: Path) -> None:
    page = text_page(tmp_path / "p.html", classes=20)
    options = StudyOptions(items=10, per_person=8, people=4, task="simulate", checks=1, repeats=1)
    for item in build_study(page, ["lime"], options).items:
        assert len(item.choices) == 6
        assert item.predicted in item.choices


def test_a_workspace_is_read_without_its_adversaries(tmp_path: Path) -> None:
    model = FilmModel()
    workspace = stored(
        tmp_path, model, FilmScores(model), FilmScores(model, "gradient", sign=-1.0), FilmAdversary(model)
    )
    source = read_source(workspace.root)
    assert source.methods == ("attention", "gradient")
    np.testing.assert_allclose(source.scores["t-10"]["gradient"], [0.2, -0.5, 0.3])
    stored(tmp_path, FilmModel(1), FilmScores(FilmModel(1)))
    with pytest.raises(UserError, match="2 models: choose one with --model"):
        read_source(tmp_path)
    assert read_source(tmp_path, "seed 1").methods == ("attention",)


@pytest.mark.slow
def test_images_of_a_vision_transformer_come_from_the_workspace_and_the_corpus(tmp_path: Path) -> None:
    corpus = SubsampledCorpus(Digits(), 64, 16, 24)
    architecture = ScalarMix(SmallViT((1, 8, 8), 2))
    teacher = TrainedModel(corpus, Digits().tokenization, architecture, Training(2, 32), embeddings=None)
    workspace = Workspace(tmp_path)
    for recipe in (
        ImageSample(teacher, 3),
        *(AttributionTable(teacher, each) for each in (Random(), StaticAttention())),
    ):
        workspace.get(recipe)
    source = read_source(tmp_path)
    assert source.methods == ("static-attention", "random")
    pixels = {example.uid: example.parts[0] for example in corpus.read(tmp_path).test}
    assert source.texts.keys() == pixels.keys()
    for uid, item in source.texts.items():
        assert item.patches == (4, 4)
        shown = np.array(png_pixels(item.image).rows)
        np.testing.assert_allclose(shown[..., 0], np.asarray(pixels[uid])[0], atol=1 / 255)


@pytest.mark.parametrize(
    ("methods", "options", "choice", "remedy"),
    [
        (["lime"], {}, {}, "choose 2 to 6"),
        (["lime", "lime"], {}, {}, "twice"),
        (["lime", "nonsense"], {}, {}, "there are: lime"),
        (["lime", "random"], {"items": 400}, {}, "use --items 38"),
        (["lime", "random"], {}, {"by": "taste"}, "--items-by taste"),
        (["lime", "random"], {}, {"max_words": 2}, "examine more texts"),
    ],
)
def test_what_cannot_be_built_is_one_line(
    tmp_path: Path, methods: list[str], options: dict[str, int], choice: dict[str, str | int], remedy: str
) -> None:
    page = text_page(tmp_path / "p.html")
    with pytest.raises(UserError, match=remedy):
        build_study(
            page,
            methods,
            StudyOptions(**{"items": 10, "per_person": 8, "checks": 1, "repeats": 1, **options}),  # type: ignore[arg-type]
            ItemChoice(**choice),  # type: ignore[arg-type]
        )


def test_what_is_not_a_source_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("<p>")
    (tmp_path / "y.parquet").write_text("PAR1")
    for path, reason in (("x.html", "x.parquet"), ("y.parquet", "y.parquet"), ("z", "z"), (".", "workspace")):
        with pytest.raises(UserError, match=reason):
            read_source(tmp_path / path)
