"""The chapter of Learning to Scaffold: print beside ours, doubts about print, and figures from what is stored."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.head_mix import StaticAttention
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.data.images import Digits
from heedful.data.splitting import SubsampledCorpus
from heedful.figures import Axis, Bars, Heatmap, ImageGrid, Lines, Matrix, PatchScores, Pixels, Series
from heedful.models.small_transformers import SmallViT
from heedful.papers._chapter import Comparison, TableView
from heedful.report import scaffold_figures, scaffold_print
from heedful.report.build import build_page
from heedful.report.chapters import paper_figures, paper_tables
from heedful.report.charts import svg
from heedful.report.content import Section
from heedful.report.page import page_html
from heedful.report.scaffold_pictures import HeadWeights, picture_mosaics
from heedful.report.scaffold_print import Spread, explanation_row, is_doubtful, method_row, table_doubts
from heedful.report.spoken import describe_figure
from heedful.report.tabulating import ResultRow
from heedful.store.recipe import Artefact, Json, artefact_name, canonical_json
from heedful.store.workspace import Workspace, write_artefact
from heedful.training.attribution_tables import AttributionTable, ImageSample
from heedful.training.teacher import (
    AttentionExplanation,
    HeadMaps,
    LearnedExplanation,
    MethodExplanation,
    NoExplanation,
    RidgeExplanation,
    TeacherExplanation,
)
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.trials.plausibility import Plausibility
from heedful.trials.simulability import Simulability
from heedful.types import read_heads
from tests.stored import HOSTILE

SCAFFOLD = "scaffold"
ROOM: dict[str, Json] = {"type": "Classroom", "size": 500, "draw": "redrawn", "shared": False}
EXPLANATIONS: Mapping[str, TeacherExplanation] = {
    "no explanation": NoExplanation(),
    "random": RidgeExplanation(),
    "integrated gradients": MethodExplanation(IntegratedGradients()),
    "attention": AttentionExplanation(),
    "SMaT": LearnedExplanation(),
}
TEACHER: dict[str, Json] = {
    "type": "Subject",
    "seed": 0,
    "corpus": {"type": "SST"},
    "vectors": None,
    "objective": {"type": "Supervised"},
    "fit": {"type": "Fit", "epochs": 1},
}
ABOUT: dict[str, Json] = {"corpus": "sst", "encoder": "minilm", "attention": "self", "seed": 0}


def described(value: object) -> dict[str, Json]:
    found = canonical_json(value, Path())
    assert isinstance(found, dict)
    return found


def student(explanation: TeacherExplanation, size: int, seed: int) -> dict[str, Json]:
    kind = "Scaffolded" if isinstance(explanation, LearnedExplanation) else "Student"
    room: dict[str, Json] = {**ROOM, "size": size}
    own: dict[str, Json] = {"explanation": described(explanation), "classroom": room, "seed": seed}
    return {"type": kind, "teacher": dict(TEACHER), **own}


def trial(
    sizes: Sequence[int], seeds: Sequence[int], arms: Mapping[str, TeacherExplanation] = EXPLANATIONS
) -> dict[str, Json]:
    several: list[Json] = [
        [arm, [student(each, size, seed) for size in sizes for seed in seeds]] for arm, each in arms.items()
    ]
    return {"type": "Simulability", "subject": dict(TEACHER), "arms": several, "nulls": ["random"], "margin": 0.01}


def rows(right: Mapping[str, Sequence[int]], size: int = 500, measure: str = "accuracy") -> pd.DataFrame:
    """Students that give so many of the teacher's 20 answers, one for each seed."""
    teacher = [float(place % 2) for place in range(20)]
    found = []
    for place, (arm, several) in enumerate(right.items()):
        for seed, count in enumerate(several):
            answers = [value if at < count else 1 - value for at, value in enumerate(teacher)]
            known = {"arm": arm, "place": place, "size": size, "seed": seed, "null": arm == "random", "margin": 0.01}
            score = {"measure": measure, "teacher": teacher, "student": answers, "simulability": count / 20}
            found.append({**known, **score})
    return pd.DataFrame(found)


RIGHT: Mapping[str, tuple[int, ...]] = {
    "no explanation": (10, 11, 12),
    "random": (10, 11, 12),
    "integrated gradients": (9, 12, 12),
    "attention": (12, 12, 13),
    "SMaT": (18, 19, 20),
}


def told(table: pd.DataFrame, recipe: Mapping[str, Json], corpus: str = "sst") -> ResultRow:
    summary = Simulability.flat_summary(table)
    return ResultRow("simulability", corpus, "minilm", "self", summary, {}, table=table, paper=SCAFFOLD, recipe=recipe)


def table(start: str, *given: ResultRow) -> TableView:
    (found,) = [each for each in paper_tables(SCAFFOLD, given) if each.caption.startswith(start)]
    return found


def test_just_those_cells_of_table_1_are_doubtful_that_contradict_themselves_or_repeat_another() -> None:
    cells = {cell for each in table_doubts(1) for cell in each.cells if cell[1]}
    assert cells == {
        ("Gradient L2", "2000"),
        ("No Explainer", "2000"),
        ("Gradient x Input", "500"),
        ("Integrated Gradients", "500"),
        ("Attention (all layers)", "500"),
        ("Attention (last layer)", "2000"),
        ("Attention (SMaT)", "500"),
    }
    assert is_doubtful(1, "Integrated Gradients", "1000")
    assert is_doubtful(5, "Gradient L2", "2100")
    assert not is_doubtful(1, "Attention (SMaT)", "1000")
    assert not is_doubtful(3, "Gradient x Input", "9000")
    assert [each.cells for each in table_doubts(3)] == [(("Integrated Gradients", ""),)]


def test_print_agrees_with_itself_where_a_number_stands_in_two_tables() -> None:
    fifth, seventh = scaffold_print.published_simulability(5), scaffold_print.published_simulability(7)
    assert {row: cells["sparsemax"] for row, cells in seventh.items()} == {row: fifth[row]["4200"] for row in seventh}
    cell = scaffold_print.published_simulability(1)["Attention (SMaT)"]["1000"]
    assert (cell.median, cell.q25, cell.q75) == pytest.approx((0.9256, 0.9228, 0.9283))
    assert (Spread(0.5, 0.4, 0.5).is_consistent, Spread(0.5, 0.51, 0.6).is_consistent) == (True, False)
    assert scaffold_print.published_plausibility("mlqe-ro-en", "target")["Attention (SMaT)"] == 0.70
    assert scaffold_print.published_plausibility("mlqe", "source")["Gradient L2"] == 0.67
    assert scaffold_print.published_plausibility("sst", "") == scaffold_print.published_plausibility("mlqe", "") == {}


@pytest.mark.parametrize(
    ("explanation", "row"),
    [
        (NoExplanation(), "No Explainer"),
        (MethodExplanation(GradientNorm(output="logit")), "Gradient L2"),
        (MethodExplanation(GradientNorm(order=1)), ""),
        (MethodExplanation(InputXGradient(), 0.1), "Gradient x Input"),
        (MethodExplanation(IntegratedGradients(n_steps=10)), "Integrated Gradients"),
        (MethodExplanation(RawAttention()), ""),
        (AttentionExplanation(), "Attention (all layers)"),
        (AttentionExplanation(HeadMaps(-1)), "Attention (last layer)"),
        (AttentionExplanation(HeadMaps(2)), ""),
        (RidgeExplanation(), ""),
        (LearnedExplanation(normalizer="softmax"), "Attention (SMaT)"),
        (LearnedExplanation(HeadMaps(-1)), ""),
        (LearnedExplanation(learn_temperature=True), ""),
    ],
)
def test_an_explanation_is_known_by_its_recipe_whatever_it_is_called(explanation: TeacherExplanation, row: str) -> None:
    assert explanation_row(described(explanation)) == row


def test_static_attention_is_known_as_a_method_too() -> None:
    assert method_row(described(StaticAttention())) == "Attention (all layers)"
    assert method_row(described(StaticAttention(-1))) == "Attention (last layer)"


def test_table_1_has_medians_with_quartiles_and_the_nearest_class_of_print() -> None:
    both = pd.concat([rows(RIGHT), rows(RIGHT, 1500)])
    first = table("Table 1", told(both, trial((500, 1500), (0, 1, 2))))
    assert first.columns == (
        "explanation",
        "500 examples",
        "1500 examples",
        "published, 500 examples",
        "published, 2000 examples",
    )
    assert first.rows[0] == (
        "no explanation",
        "55.00 [52.50, 57.50]",
        "55.00 [52.50, 57.50]",
        "81.72 [81.24, 81.75]",
        "84.84 [84.80, 84.88] †",
    )
    assert first.rows[1][::3] == ("random (knows nothing)", "–")
    assert first.rows[2][3] == "82.99 [82.59, 82.99] †"
    assert first.rows[4][3] == "91.48 [91.40, 91.56] †"
    assert "other data, so that only the order" in first.note
    assert "each seed learns from others, and early stopping sees others" in first.note


def test_the_verdict_is_the_trials_own_and_so_are_gains_over_random() -> None:
    judged = table("Do explanations help?", told(rows(RIGHT), trial((500,), (0, 1, 2))))
    by_arm = {str(row[0]): row for row in judged.rows}
    assert by_arm["no explanation"][3] == by_arm["no explanation"][5] == "–"
    assert by_arm["random (knows nothing)"][4:6] == ("–", "does not help")
    assert str(by_arm["SMaT"][3]).startswith("+40.00 [+")
    assert by_arm["SMaT"][5:] == ("helps", "–"), "the paper's rule is about five seeds"
    assert by_arm["integrated gradients"][5] == "undecided"
    assert str(by_arm["integrated gradients"][3]).startswith("+0.00 [\N{MINUS SIGN}")
    assert "Helping a student is not being true" in judged.note


def test_the_papers_rule_is_told_of_five_seeds() -> None:
    arms = {"no explanation": 11, "random": 8, "integrated gradients": 11, "attention": 12, "SMaT": 19}
    right = {arm: (count - 1, count, count, count, count + 1) for arm, count in arms.items()}
    judged = table("Do explanations help?", told(rows(right), trial((500,), range(5))))
    assert [row[-1] for row in judged.rows] == ["–", "worse", "no", "better", "better"]
    assert "with fewer there is a dash" in judged.note


def test_a_single_seed_has_neither_quartiles_nor_an_interval() -> None:
    one = told(rows({arm: values[:1] for arm, values in RIGHT.items()}), trial((500,), (0,)))
    assert table("Table 1", one).rows[4][1] == "90.00"
    assert table("Do explanations help?", one).rows[4][2:4] == ("90.00 (no interval)", "+40.00 (no interval)")


def test_correlations_are_told_as_such_and_other_corpora_have_no_print() -> None:
    given = rows(RIGHT, measure="pearson")
    one = told(given, trial((4200,), (0, 1, 2)), "mlqe")
    one = replace(one, summary={name.replace(".500", ".4200"): value for name, value in one.summary.items()})
    fifth = table("Table 5", one)
    assert fifth.rows[4][1:] == ("0.950 [0.925, 0.975]", "0.863 [0.841, 0.872]")
    assert "the same corpus" in fifth.note
    (strange,) = [
        each for each in paper_tables(SCAFFOLD, [replace(one, corpus="loudest")]) if each.columns[0] == "explanation"
    ][:1]
    assert strange.columns == ("explanation", "4200 examples")


def test_table_7_is_there_where_several_normalisers_were_tried_and_only_sparsemax_stands_beside_table_1() -> None:
    arms: Mapping[str, TeacherExplanation] = {
        "no explanation": NoExplanation(),
        "one": LearnedExplanation(),
        "other": LearnedExplanation(normalizer="entmax15"),
    }
    given = told(
        rows({"no explanation": (10, 11, 12), "one": (15, 15, 15), "other": (16, 16, 16)}),
        trial((500,), (0, 1, 2), arms),
    )
    seventh = table("Table 7", given)
    assert seventh.rows == (
        ("sparsemax", "75.00 [75.00, 75.00]", "0.863 [0.841, 0.872]"),
        ("1.5-entmax", "80.00 [80.00, 80.00]", "0.716 [0.713, 0.724]"),
    )
    assert [row[2] for row in table("Table 1", given).rows][1:] == ["91.48 [91.40, 91.56] †", "–"]
    assert not [
        each for each in paper_tables(SCAFFOLD, [told(rows(RIGHT), trial((500,), (0, 1, 2)))]) if "7" in each.caption
    ]


def marks(areas: Mapping[str, float], parts: Sequence[str] = ("",), texts: int = 12) -> pd.DataFrame:
    """Rows of a plausibility trial: areas that differ a little from text to text."""
    names = list(areas)
    return pd.DataFrame(
        {
            "uid": f"t{text:02d}",
            "part": part,
            "length": 8,
            "marked": 2,
            "status": "judged",
            "method": name,
            "place": names.index(name),
            "kind": "null" if name == "random" else "oracle" if "oracle" in name else "method",
            "which": "",
            **dict.fromkeys(("average_precision", "f1", "iou", "recall"), area),
            "auc": area + 0.01 * (text - 5.5) / 5.5,
        }
        for part in parts
        for name, area in areas.items()
        for text in range(texts)
    )


AREAS = {"ig": 0.6, "static": 0.5, "mine": 0.8, "random": 0.5, "best-head (oracle)": 0.9}
LEARNED: dict[str, Json] = {"type": "LearnedScores", "students": [student(LearnedExplanation(), 500, 0)]}
MARKED: dict[str, Json] = {
    "type": "Plausibility",
    "subject": dict(TEACHER),
    "methods": [described(IntegratedGradients()), described(StaticAttention())],
    "learned": [["mine", LEARNED]],
    "split": "test",
    "limit": None,
}


def plausible(corpus: str, parts: Sequence[str] = ("",)) -> ResultRow:
    given = marks(AREAS, parts)
    summary = Plausibility.flat_summary(given)
    return ResultRow("plausibility", corpus, "minilm", "self", summary, {}, table=given, paper=SCAFFOLD, recipe=MARKED)


def test_table_2_has_areas_beside_print_and_says_who_is_above_random() -> None:
    second = table("Table 2", plausible("eraser-movies"))
    assert [row[0] for row in second.rows] == [
        "integrated gradients †",
        "attention, all layers",
        "mine",
        "random",
        "best-head (oracle)",
    ]
    pairs = [row[1] for row in second.rows]
    assert [pair.published for pair in pairs if isinstance(pair, Comparison)] == [0.53, 0.68, 0.73, None, 0.75]
    assert [pair.ours for pair in pairs if isinstance(pair, Comparison)] == pytest.approx(list(AREAS.values()))
    assert [row[3] for row in second.rows] == ["above", "–", "above", "–", "above"]
    assert "Plausible is not faithful" in second.note


def test_table_6_judges_source_and_target_apart() -> None:
    sixth = table("Table 6", plausible("mlqe-en-de", ("source", "target")))
    assert sixth.columns[1::3] == ("AUC, source", "AUC, target")
    both = [cell.published for cell in sixth.rows[2] if isinstance(cell, Comparison)]
    assert both == [0.64, 0.65]
    assert not [
        row
        for row in table("Words that", plausible("films")).rows
        for c in row
        if isinstance(c, Comparison) and c.published
    ]


def test_words_ranked_by_size_stand_in_a_table_of_their_own_and_signs_are_explained() -> None:
    by_score = plausible("mlqe-en-de", ("source", "target"))
    by_size = replace(by_score, recipe={**MARKED, "rank": "size"})
    sixth = table("Table 6: words that people marked, ", by_score, by_size)
    other = table("Words that people marked, ranked by the size of their scores, ", by_score, by_size)
    assert "a true signed explanation gives marked words negative scores" in sixth.note
    assert "whatever the sign; .5 is chance. Print has no such order." in other.note
    pooled = replace(by_score, recipe={**MARKED, "pooling": "sum"})
    assert "A word's score is the sum of its pieces'" in table("Table 6: words that people marked, ", pooled).note
    assert {cell.published for row in other.rows for cell in row if isinstance(cell, Comparison)} == {None}


def test_only_tables_of_print_that_ours_stand_beside_are_doubted() -> None:
    assert {row[0] for row in table("†", plausible("eraser-movies")).rows} == {"table 2"}
    both = table("†", plausible("mlqe"), told(rows(RIGHT), trial((500,), (0, 1, 2))))
    assert {row[0] for row in both.rows} == {"table 1", "table 6"}
    assert ("table 1", "Gradient L2, 2000 examples") in [row[:2] for row in both.rows]


def test_several_corpora_are_drawn_beside_each_other_with_what_they_share() -> None:
    sst = told(rows(RIGHT), trial((500,), (0, 1, 2)))
    other = {name: EXPLANATIONS[name] for name in ("no explanation", "SMaT")}
    images = told(rows({name: RIGHT[name] for name in other}), trial((500,), (0, 1, 2), other), "cifar10")
    assert paper_figures(SCAFFOLD, [sst]) == ()
    (drawn,) = paper_figures(SCAFFOLD, [images, sst])
    assert isinstance(drawn, Bars)
    assert drawn.labels == ("SMaT",)
    assert [series.name for series in drawn.series] == ["sst, 500 examples", "cifar10, 500 examples"]
    assert drawn.series[0].values == pytest.approx((0.4,))


def seal(root: Path, description: Mapping[str, Json], artefact: Artefact) -> None:
    folder = root / artefact_name(description)
    folder.mkdir(parents=True)
    write_artefact(folder, description, artefact)


WEIGHTS = (
    torch.tensor([0.5, 0.0, 0.5, 0.0]),
    torch.tensor([0.0, 0.0, 1.0, 0.0]),
    torch.tensor([0.25, 0.25, 0.25, 0.25]),
)
"""Of the three seeds: two layers of two heads."""


def school(root: Path) -> None:
    """A trial with its students, and no teacher: an arm with a hostile name, and one student lost."""
    arms = {HOSTILE if arm == "attention" else arm: each for arm, each in EXPLANATIONS.items()}
    right = {HOSTILE if arm == "attention" else arm: values for arm, values in RIGHT.items()}
    recipe = trial((500,), (0, 1, 2), arms)
    seal(root, recipe, Artefact({}, rows(right), {"about": ABOUT, "n": 20, "of": 20}))
    for arm, explanation in arms.items():
        for seed in range(3) if arm != "random" else ():
            history: list[Json] = [
                {
                    "epoch": epoch,
                    "loss": 1.0,
                    "simulability": 0.1 * epoch + 0.01 * seed,
                    "support": 4 - epoch,
                    "largest": 0.2,
                }
                for epoch in (1, 2)
            ]
            learned: dict[str, Tensor] = (
                {"coefficients": WEIGHTS[seed]} if isinstance(explanation, LearnedExplanation) else {}
            )
            notes: dict[str, Json] = {"history": history, "layers": 2}
            seal(root, student(explanation, 500, seed), Artefact(learned, pd.DataFrame(), notes))


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> tuple[Section, ...]:
    root = tmp_path_factory.mktemp("school")
    school(root)
    reading(root)
    (chapter,) = build_page(Workspace(root)).papers
    assert chapter.name == SCAFFOLD
    assert "onerror=alert(1)&gt;" in (text := page_html(build_page(Workspace(root))))
    assert HOSTILE not in text
    return chapter.sections


def of_kind(sections: Sequence[Section], experiment: str) -> Section:
    (found,) = [each for each in sections if each.experiment == experiment]
    return found


def test_the_median_student_of_each_kind_is_drawn_epoch_by_epoch(sections: tuple[Section, ...]) -> None:
    curves = [each for each in of_kind(sections, "simulability").figures if isinstance(each, Lines)]
    (agreement,) = [each for each in curves if each.title.startswith("Learning curves: agreement")]
    names = [up.name for _, up in agreement.curves]
    assert names == ["no explanation", "integrated gradients", HOSTILE, "SMaT"]
    plain, _, alike, _ = (up.values for _, up in agreement.curves)
    # Of the hostile arm two of three students answer alike: by seed the second is in the middle.
    assert plain == alike == pytest.approx((0.11, 0.21))
    (heads,) = [each for each in curves if each.title.endswith("heads in use")]
    assert [up.name for _, up in heads.curves] == ["SMaT, seed 0", "SMaT, seed 1", "SMaT, seed 2"]
    assert heads.curves[0][1].values == (3.0, 2.0)


def test_weights_of_heads_are_shown_by_layer_for_the_median_seed_and_on_average(sections: tuple[Section, ...]) -> None:
    one, mean = (each for each in of_kind(sections, "simulability").figures if isinstance(each, Matrix))
    assert one.title == "Figure 5: weights of the heads, SMaT, seed 1 (the median); 1 of 4 heads in use"
    assert one.rows == ("layer 0", "layer 1")
    assert one.values == ((0.0, 0.0), (1.0, 0.0))
    assert mean.values[0] == pytest.approx((0.25, 0.25 / 3))
    assert mean.values[1] == pytest.approx((1.75 / 3, 0.25 / 3))


def test_a_section_has_every_number_of_its_trial_in_one_readable_table(sections: tuple[Section, ...]) -> None:
    (simulated,) = of_kind(sections, "simulability").tables
    assert simulated.rows[-1][:4] == ("SMaT", 500, 0.95, 0.925)
    (judged,) = of_kind(sections, "plausibility").tables
    assert judged.rows[2][0] == "mine"
    assert str(judged.rows[2][1]).startswith("0.800 [0.79")
    assert "judged: 12" in judged.note


WORDS = ("what", "a", "fine", "and", "very", "good", "film", "indeed")


def attributed(scores: Sequence[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "uid": f"t{text:02d}",
            "units": ["<sos>", *WORDS, HOSTILE],
            "scores": [0.0, *scores, 0.0],
            "scored": [False, *(True for _ in WORDS), False],
            "words": [-1, *range(8), -1],
            "segments": [0] * 10,
            "predicted": 1,
            "probability": 0.9,
            "label": 1,
        }
        for text in range(12)
    )


SLOPES = (0.0, 0.0, 2.0, 0.0, 0.0, -1.0, 0.0, 0.0)
SHARES = (0.125, 0.125, 0.125, 0.0, 0.0, 0.5, 0.125, 0.0)


def reading(root: Path) -> None:
    """A plausibility trial with the attributions that it compared; those of static attention are lost."""
    seal(root, MARKED, Artefact({}, marks(AREAS), {"about": ABOUT, "n": 12, "of": 12}))
    own: dict[str, Json] = {"subject": dict(TEACHER), "split": "test", "limit": None}
    slopes: dict[str, Json] = {"type": "Attributed", "revision": 2, "method": described(IntegratedGradients()), **own}
    seal(root, slopes, Artefact({}, attributed(SLOPES), {"about": ABOUT, "n": 12, "of": 12}))
    seal(root, LEARNED, Artefact({}, attributed(SHARES), {"about": ABOUT, "n": 12, "of": 12}))


def test_a_model_of_numbers_says_a_number_and_one_of_classes_a_class() -> None:
    row = pd.Series({"predicted": 0, "probability": -0.31})
    assert scaffold_figures._format_prediction(row, []) == "\N{MINUS SIGN}0.31"
    row = pd.Series({"predicted": 1, "probability": 0.9})
    assert scaffold_figures._format_prediction(row, ["bad", "good"]) == "good (0.90)"
    assert scaffold_figures._format_prediction(row, None) == "output 1 (0.90)"


def test_texts_show_explanations_side_by_side_and_are_chosen_from_both_ends(sections: tuple[Section, ...]) -> None:
    shown = of_kind(sections, "plausibility").heatmaps
    assert [each.title.split(": ")[1] for each in shown] == [
        "people and the last explanation agree most here",
        "a typical text",
        "they agree least here",
    ]
    first = shown[0]
    assert isinstance(first, Heatmap)
    assert first.units == WORDS
    assert [row.name for row in first.rows] == ["integrated gradients", "mine (over an even share)"]
    assert first.rows[0].values == SLOPES
    assert first.rows[1].values == tuple(share - 0.125 for share in SHARES)
    assert "mine 0.81" in first.caption
    assert "mine 0.79" in shown[2].caption


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, TrainedModel]:
    workspace = Workspace(tmp_path_factory.mktemp("pictures"))
    plan = SmallViT((1, 8, 8), 2, layers=2, heads=2, width=8)
    part = SubsampledCorpus(Digits(), 20, 8, 8)
    return workspace, TrainedModel(part, part.tokenization, plan, Training(2, 8, Adam()), embeddings=None)


def test_pictures_are_those_of_the_corpus_with_the_maps_of_all_heads(pictures: tuple[Workspace, TrainedModel]) -> None:
    workspace, subject = pictures
    made = workspace.get(ImageSample(subject, limit=3))
    trained = subject.restore(workspace)
    chosen = [each for each in trained.examples("test") if each.uid in set(made.table["uid"])]
    assert [each.uid for each in chosen] == list(made.table["uid"])
    first = chosen[0].parts[0]
    assert isinstance(first, Tensor)
    assert torch.equal(made.tensors["images"][0], (first * 255).round().to(torch.uint8))
    with torch.no_grad():
        scores = read_heads(trained.model, trained.tokenizer(chosen)).scores
    assert torch.allclose(made.tensors["heads"], scores[..., 1:], atol=1e-6)
    assert (made.notes["rows"], made.notes["columns"]) == (4, 4)
    larger = workspace.get(AttributionTable(subject, InputXGradient(), limit=6)).table
    assert set(made.table["uid"]) <= set(larger["uid"])


def test_figure_4_shows_the_learned_mix_patch_by_patch_beside_the_picture(
    pictures: tuple[Workspace, TrainedModel],
) -> None:
    workspace, subject = pictures
    made = workspace.get(ImageSample(subject, limit=3))
    workspace.get(AttributionTable(subject, InputXGradient(), limit=6))
    weights = torch.tensor([[0.0, 0.25], [0.75, 0.0]])
    fourth, seventh = picture_mosaics(described(subject), HeadWeights("SMaT", weights), workspace.entries())
    assert fourth.columns == ("picture", "gradient x input", "attention, all layers", "attention, last layer", "SMaT")
    assert len(fourth.rows) == 3
    heads = made.tensors["heads"][0].double()
    mix = 0.25 * heads[0, 1] + 0.75 * heads[1, 0]
    tile = fourth.tiles[0][-1]
    assert isinstance(tile, PatchScores)
    assert [value for row in tile.values for value in row] == pytest.approx((mix - mix.mean()).tolist())
    picture = fourth.tiles[0][0]
    assert isinstance(picture, Pixels)
    assert picture.rows[3][5] == pytest.approx((float(made.tensors["images"][0, 0, 3, 5]) / 255,) * 3)
    assert (len(seventh.rows), len(seventh.columns)) == (2, 2)
    assert picture_mosaics(described(replace(subject, seed=5)), None, workspace.entries()) == ()


def test_a_mosaic_is_drawn_without_anything_from_outside_and_told_in_words() -> None:
    grey = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    values = ((0.0, 1.0), (-0.5, math.nan))
    tiles = (Pixels((grey, grey)), PatchScores(values))
    drawn = ImageGrid("A title", (f"one {HOSTILE}",), ("picture", "mix"), (tiles,))
    text = svg(drawn, "m")
    assert re.findall(r'href="([^"]{0,21})', text) == ["data:image/png;base64"]
    assert " style=" not in text
    assert HOSTILE not in text
    shades = re.findall(r'<path[^>]*class="fill-(\w+)"', text)
    assert sorted(shades) == ["negative", "positive"]
    assert describe_figure(drawn)[0].endswith("picture, a picture; mix, most at row 1, column 2 (1.00).")
    assert describe_figure(drawn)[1] == "1 undefined value left out."


def test_nothing_is_drawn_of_a_mosaic_without_numbers() -> None:
    empty = ImageGrid("A title", ("one",), ("mix",), ((PatchScores(((math.nan,),)),),))
    assert "There are no numbers to draw." in svg(empty, "m")
    assert "<path" in svg(
        Lines("A title", Axis("x"), Axis("y"), ((Series("", (0.0, 1.0)), Series("s", (0.0, 1.0))),)), "m"
    )
