"""The chapter of Learning to Scaffold: its tables, doubts about published numbers, and figures from stored students."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pandas as pd
import pytest
import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import GradientNorm
from heedful.attributions.head_mix import StaticAttention
from heedful.attributions.method import method_name
from heedful.capabilities import read_heads
from heedful.data.images import Digits
from heedful.data.splitting import SubsampledCorpus
from heedful.figures import Bars, ImageGrid, Lines, Matrix, PatchScores, Pixels
from heedful.measures.rationale_agreement import PLAUSIBILITY_MEASURES
from heedful.models.small_transformers import SmallViT
from heedful.papers import PAPERS, published
from heedful.papers._scaffold_chapter import PUBLISHED_ROWS, _image_grids, _StudentResult, find_doubt, table_doubts
from heedful.papers.chapter import Result
from heedful.papers.scaffold import GRADIENT_NORM, INPUT_X_GRADIENT, INTEGRATED_GRADIENTS
from heedful.results import combine_seeds
from heedful.store.recipe import Artefact, Json
from heedful.store.workspace import Workspace
from heedful.table_view import Comparison
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
from tests.papers.results import StoredEntry, entry, result, table

PAPER = "scaffold"
EXPLANATIONS: Mapping[str, str] = {
    "no explanation": "none",
    "random": "random",
    "integrated gradients": method_name(INTEGRATED_GRADIENTS),
    "attention": "attention, all layers",
    "SMaT": "SMaT",
}
RIGHT: Mapping[str, Sequence[int]] = {
    "no explanation": (10, 11, 12),
    "random": (10, 11, 12),
    "integrated gradients": (9, 12, 12),
    "attention": (12, 12, 13),
    "SMaT": (18, 19, 20),
}
"""How many twentieths of the teacher's 200 predictions the student of each seed repeats."""


def student_rows(right: Mapping[str, Sequence[int]], size: int = 500, measure: str = "accuracy") -> pd.DataFrame:
    """The table of a simulability trial."""
    teacher = [float(place % 2) for place in range(200)]
    found = []
    for place, (arm, several) in enumerate(right.items()):
        for seed, count in enumerate(several):
            predictions = [value if at < 10 * count else 1 - value for at, value in enumerate(teacher)]
            about = {"arm": arm, "place": place, "size": size, "seed": seed, "control": arm == "random", "margin": 0.01}
            scores = {"measure": measure, "teacher": teacher, "student": predictions, "simulability": count / 20}
            found.append({**about, **scores})
    return pd.DataFrame(found)


def simulability(
    rows: pd.DataFrame, corpus: str = "sst", normalizers: Mapping[str, str] | None = None, links: Sequence[str] = ()
) -> Result:
    """The result of a simulability trial whose arms have the explanations of `EXPLANATIONS`, or are mixes."""
    arms: dict[str, Json] = {}
    for arm in dict.fromkeys(rows["arm"]):
        normalizer = (normalizers or {"SMaT": "sparsemax"}).get(arm)
        explanation = EXPLANATIONS.get(arm, "SMaT")
        arms[arm] = {"explanation": explanation, "normalizer": normalizer, "sampling": "redrawn", "share_dev": False}
    trial = entry(
        "trial",
        artefact=Artefact(table=rows),
        facts={"arms": arms},
        links={"arms": list(links), "subject": ["teacher"]},
    )
    found = result(PAPER, "simulability", combine_seeds([Simulability.summary(rows)]), corpus, "minilm", "self")
    return replace(found, entries=(trial,))


def inconsistent_cells(number: int) -> set[frozenset[tuple[str, str]]]:
    """Medians outside their quartiles, and different rows with the same three numbers but for the last digit."""
    table = published.published_simulability(number)
    cells = {(row, column): cell for row, columns in table.items() for column, cell in columns.items()}
    found = {frozenset([place]) for place, cell in cells.items() if not cell.q25 <= cell.median <= cell.q75}
    for (one, first), (other, second) in combinations(cells.items(), 2):
        pairs = ((first.median, second.median), (first.q25, second.q25), (first.q75, second.q75))
        # One in the last published digit, and the rounding error of binary numbers.
        if one[0] != other[0] and all(abs(a - b) <= 0.000101 for a, b in pairs):
            found.add(frozenset([one, other]))
    return found


@pytest.mark.parametrize("number", [1, 3, 5, 7])
def test_those_cells_are_doubtful_that_contradict_themselves_or_repeat_another(number: int) -> None:
    assert {frozenset(cells) for cells, _ in table_doubts(number) if any(column for _, column in cells)} == (
        inconsistent_cells(number)
    )


def test_doubts_are_about_cells_rows_and_whole_tables() -> None:
    assert {cell for cells, _ in table_doubts(1) for cell in cells if cell[1]} == {
        ("Gradient L2", "2000"),
        ("No Explainer", "2000"),
        ("Gradient x Input", "500"),
        ("Integrated Gradients", "500"),
        ("Attention (all layers)", "500"),
        ("Attention (last layer)", "2000"),
        ("Attention (SMaT)", "500"),
    }
    assert find_doubt(1, "Integrated Gradients", "1000")
    assert find_doubt(5, "Gradient L2", "2100")
    assert not find_doubt(1, "Attention (SMaT)", "1000")
    assert not find_doubt(3, "Gradient x Input", "9000")
    assert [cells for cells, _ in table_doubts(3)] == [(("Integrated Gradients", ""),)]


def test_published_tables_agree_where_they_repeat_a_number() -> None:
    fifth, seventh = published.published_simulability(5), published.published_simulability(7)
    assert {row: cells["sparsemax"] for row, cells in seventh.items()} == {row: fifth[row]["4200"] for row in seventh}
    cell = published.published_simulability(1)["Attention (SMaT)"]["1000"]
    assert (cell.median, cell.q25, cell.q75) == pytest.approx((0.9256, 0.9228, 0.9283))
    assert published.published_plausibility("mlqe-ro-en", "target")["Attention (SMaT)"] == 0.70
    assert published.published_plausibility("mlqe", "source")["Gradient L2"] == 0.67
    assert published.published_plausibility("sst", "") == published.published_plausibility("mlqe", "") == {}


@pytest.mark.parametrize(
    ("explanation", "row"),
    [
        (NoExplanation(), "No Explainer"),
        (MethodExplanation(GRADIENT_NORM), "Gradient L2"),
        (MethodExplanation(GradientNorm(order=1)), ""),
        (MethodExplanation(INPUT_X_GRADIENT, 0.1), "Gradient x Input"),
        (MethodExplanation(INTEGRATED_GRADIENTS), "Integrated Gradients"),
        (MethodExplanation(RawAttention()), ""),
        (AttentionExplanation(), "Attention (all layers)"),
        (AttentionExplanation(HeadMaps(-1)), "Attention (last layer)"),
        (AttentionExplanation(HeadMaps(2)), ""),
        (RidgeExplanation(), ""),
        (LearnedExplanation(normalizer="softmax"), "Attention (SMaT)"),
        (LearnedExplanation(HeadMaps(-1)), ""),
    ],
)
def test_the_published_row_is_found_by_the_explanation_and_not_by_the_name_of_the_arm(
    explanation: TeacherExplanation, row: str
) -> None:
    assert PUBLISHED_ROWS.get(explanation.display_name, "") == row


def test_table_1_has_medians_with_quartiles_and_the_nearest_published_size() -> None:
    both = simulability(pd.concat([student_rows(RIGHT), student_rows(RIGHT, 1500)]))
    first = table(PAPER, "Table 1", both)
    published_columns = tuple(f"published for IMDB with ELECTRA-small, {size} examples" for size in (500, 2000))
    assert first.columns == ("explanation", "500 examples", "1500 examples", *published_columns)
    ours = "55.00 [52.50, 57.50]"
    assert first.rows[0] == ("no explanation", ours, ours, "81.72 [81.24, 81.75]", "84.84 [84.80, 84.88] †")
    assert first.rows[1][::3] == ("random (control)", "–")
    assert first.rows[2][3] == "82.99 [82.59, 82.99] †"
    assert first.rows[4][3] == "91.48 [91.40, 91.56] †"


def test_the_verdict_is_the_trials_own_and_gains_over_random_are_shown() -> None:
    judged = table(PAPER, "Do explanations help?", simulability(student_rows(RIGHT)))
    by_arm = {str(row[0]): row for row in judged.rows}
    assert by_arm["no explanation"][3] == by_arm["no explanation"][5] == "–"
    assert by_arm["random (control)"][4:6] == ("–", "does not help")
    assert str(by_arm["SMaT"][3]).startswith("+40.00 [+")
    assert by_arm["SMaT"][5:] == ("helps", "–"), "the paper's rule needs five seeds"
    assert by_arm["integrated gradients"][5] == "undecided"
    assert str(by_arm["integrated gradients"][3]).startswith("+0.00 [\N{MINUS SIGN}")


def test_the_papers_rule_needs_five_seeds() -> None:
    arms = {"no explanation": 11, "random": 8, "integrated gradients": 11, "attention": 12, "SMaT": 19}
    right = {arm: (count - 1, count, count, count, count + 1) for arm, count in arms.items()}
    judged = table(PAPER, "Do explanations help?", simulability(student_rows(right)))
    assert [row[-1] for row in judged.rows] == ["–", "worse", "no", "better", "better"]


def test_a_single_seed_has_neither_quartiles_nor_an_interval() -> None:
    one = simulability(student_rows({arm: values[:1] for arm, values in RIGHT.items()}))
    assert table(PAPER, "Table 1", one).rows[4][1] == "90.00"
    cells = table(PAPER, "Do explanations help?", one).rows[4][2:4]
    assert cells == ("90.00 (no interval)", "+40.00 (no interval)")


def test_correlations_have_three_digits_and_other_tasks_no_published_column() -> None:
    one = simulability(student_rows(RIGHT, 4200, "pearson"), "mlqe")
    assert table(PAPER, "Table 5", one).rows[4][1:] == ("0.950 [0.925, 0.975]", "0.863 [0.841, 0.872]")
    other = table(PAPER, "Students by explanation", replace(one, corpus="mine"))
    assert other.columns == ("explanation", "4200 examples")


def test_table_7_compares_normalizers_and_only_sparsemax_is_beside_table_1() -> None:
    rows = student_rows({"no explanation": (10, 11, 12), "one": (15, 15, 15), "other": (16, 16, 16)})
    given = simulability(rows, normalizers={"one": "sparsemax", "other": "entmax15"})
    assert table(PAPER, "Table 7", given).rows == (
        ("sparsemax", "75.00 [75.00, 75.00]", "0.863 [0.841, 0.872]"),
        ("1.5-entmax", "80.00 [80.00, 80.00]", "0.716 [0.713, 0.724]"),
    )
    assert [row[2] for row in table(PAPER, "Table 1", given).rows][1:] == ["91.48 [91.40, 91.56] †", "–"]
    captions = [each.caption for each in PAPERS[PAPER].tables([simulability(student_rows(RIGHT))])]
    assert not any("Table 7" in caption for caption in captions)


AREAS = {
    method_name(INTEGRATED_GRADIENTS): 0.6,
    method_name(StaticAttention()): 0.5,
    "mine": 0.8,
    "random": 0.5,
    "best-head (oracle)": 0.9,
}


def rationale_rows(parts: Sequence[str] = ("",), texts: int = 30) -> pd.DataFrame:
    """The table of a plausibility trial; the AUC differs a little from text to text."""
    names = list(AREAS)
    return pd.DataFrame(
        {
            "uid": f"t{text:02d}",
            "part": part,
            "length": 8,
            "marked": 2,
            "status": "judged",
            "method": name,
            "place": names.index(name),
            "kind": "control" if name == "random" else "oracle" if "oracle" in name else "method",
            "which": "",
            "pooling": "sum",
            "target": "predicted",
            **dict.fromkeys(PLAUSIBILITY_MEASURES, area),
            "auc": area + 0.01 * (2 * (text // (1 + names.index(name)) % 2) - 1),
        }
        for part in parts
        for name, area in AREAS.items()
        for text in range(texts)
    )


def plausibility(corpus: str, parts: Sequence[str] = ("",)) -> Result:
    rows = rationale_rows(parts)
    trial = entry(
        "rationales",
        artefact=Artefact(table=rows),
        facts={"learned_explainers": {"mine": "SMaT"}},
        links={"learned_explainers": ["learned"], "subject": ["teacher"]},
    )
    found = result(PAPER, "plausibility", combine_seeds([Plausibility.summary(rows)]), corpus, "minilm", "self")
    return replace(found, entries=(trial,))


def test_table_2_has_published_areas_and_says_which_methods_are_above_random() -> None:
    second = table(PAPER, "Table 2", plausibility("eraser-movies"))
    names = ["integrated gradients", "attention, all layers", "mine", "random", "best-head (oracle)"]
    assert [row[0] for row in second.rows] == names
    cells = [row[1] for row in second.rows if isinstance(row[1], Comparison)]
    assert [cell.published for cell in cells] == [0.53, 0.68, 0.73, None, 0.75]
    assert [cell.ours for cell in cells] == pytest.approx(list(AREAS.values()), abs=0.002)
    assert [bool(cell.doubt) for cell in cells] == [True, False, False, False, False]
    assert [row[3] for row in second.rows] == ["above", "no different", "above", "–", "above"]


def test_table_6_has_source_and_target_and_ranks_by_size_in_a_table_of_its_own() -> None:
    by_score = plausibility("mlqe-en-de", ("source", "target"))
    by_size = replace(by_score, settings={"rank": "size"})
    sixth = table(PAPER, "Table 6: agreement with rationales, sum of a word's tokens, ", by_score, by_size)
    assert sixth.columns[1::3] == ("AUC, source", "AUC, target")
    assert [cell.published for cell in sixth.rows[2] if isinstance(cell, Comparison)] == [0.64, 0.65]
    for other in (
        table(PAPER, "Agreement with rationales, ranked by the size", by_score, by_size),
        table(PAPER, "Agreement with rationales", plausibility("films")),
    ):
        assert {cell.published for row in other.rows for cell in row if isinstance(cell, Comparison)} == {None}


def test_the_pooling_of_tokens_is_in_the_caption_and_only_sums_are_beside_published_numbers() -> None:
    given = plausibility("eraser-movies")
    captions, notes = {}, {}
    for pooling in ("sum", "mean", "max"):
        (found,) = [
            each
            for each in PAPERS[PAPER].tables([replace(given, settings={"pooling": pooling})])
            if "agreement with rationales" in each.caption.lower()
        ]
        captions[pooling], notes[pooling] = found.caption, found.note
        published = {cell.published for row in found.rows for cell in row if isinstance(cell, Comparison)}
        assert (published == {None}) == (pooling != "sum")
    assert len(set(captions.values())) == 3
    assert "mean of a word's tokens" in captions["mean"]
    assert {pooling for pooling, note in notes.items() if "Random scores reach .5" in note} == {"mean"}
    assert {pooling for pooling, note in notes.items() if "random scores are above .5" in note} == {"sum", "max"}


def test_texts_that_are_predicted_right_and_wrong_have_columns_of_their_own() -> None:
    rows = rationale_rows(texts=60)
    rows["right"] = rows["uid"] < "t30"
    rows.loc[~rows["right"] & (rows["method"] == "mine"), "auc"] = 0.2
    given = replace(
        plausibility("films"), summary=combine_seeds([Plausibility.summary(rows)]), settings={"pooling": "mean"}
    )
    found = table(PAPER, "Agreement with rationales", given)
    row = dict(zip(found.columns, next(row for row in found.rows if row[0] == "mine"), strict=True))
    assert row["AUC, right predictions"] == pytest.approx(0.8, abs=0.002)
    assert row["AUC, wrong predictions"] == pytest.approx(0.2)
    assert (row["against random, right predictions"], row["against random"]) == ("above", "no different")


def test_only_published_tables_beside_ours_are_doubted() -> None:
    assert {row[0] for row in table(PAPER, "†", plausibility("eraser-movies")).rows} == {"table 2"}
    both = table(PAPER, "†", plausibility("mlqe"), simulability(student_rows(RIGHT)))
    assert {row[0] for row in both.rows} == {"table 1", "table 6"}
    assert ("table 1", "Gradient L2, 2000 examples") in [row[:2] for row in both.rows]


def test_several_corpora_are_compared_by_the_explanations_they_share() -> None:
    sst = simulability(student_rows(RIGHT))
    images = simulability(student_rows({arm: RIGHT[arm] for arm in ("no explanation", "SMaT")}), "cifar10")
    assert PAPERS[PAPER].figures([sst]) == ()
    (bars,) = PAPERS[PAPER].figures([images, sst])
    assert isinstance(bars, Bars)
    assert bars.labels == ("SMaT",)
    assert [series.name for series in bars.series] == ["sst, 500 examples", "cifar10, 500 examples"]
    assert bars.series[0].values == pytest.approx((0.4,))


COEFFICIENTS = (
    torch.tensor([0.5, 0.0, 0.5, 0.0]),
    torch.tensor([0.0, 0.0, 1.0, 0.0]),
    torch.tensor([0.25, 0.25, 0.25, 0.25]),
)
"""Of three seeds: two layers of two heads."""


def stored_students() -> tuple[Result, list[StoredEntry]]:
    """A trial with its students; those of the random arm are missing."""
    names = [f"{arm} {seed}" for arm in RIGHT for seed in range(3)]
    students = []
    for arm in RIGHT:
        for seed in range(3) if arm != "random" else ():
            history: list[Json] = [
                {"epoch": epoch, "simulability": 0.1 * epoch + 0.01 * seed, "support": 4 - epoch, "largest": 0.2}
                for epoch in (1, 2)
            ]
            tensors: dict[str, Tensor] = {"coefficients": COEFFICIENTS[seed]} if arm == "SMaT" else {}
            artefact = Artefact(tensors, notes={"history": history, "layers": 2})
            students.append(entry(f"{arm} {seed}", "student", artefact, {"explanation": EXPLANATIONS[arm]}))
    return simulability(student_rows(RIGHT), links=names), students


def test_the_median_student_of_each_arm_is_drawn_epoch_by_epoch() -> None:
    trial, students = stored_students()
    figures = [each for each in PAPERS[PAPER].section(trial, students).figures if isinstance(each, Lines)]
    agreement, heads, _ = figures
    assert [y.name for _, y in agreement.curves] == ["no explanation", "integrated gradients", "attention", "SMaT"]
    # Two of three students with attention agree equally: the second seed is the median.
    assert agreement.curves[0][1].values == agreement.curves[2][1].values == pytest.approx((0.11, 0.21))
    assert [y.name for _, y in heads.curves] == ["SMaT, seed 0", "SMaT, seed 1", "SMaT, seed 2"]
    assert heads.curves[0][1].values == (3.0, 2.0)


def test_head_coefficients_are_shown_by_layer_for_the_median_seed_and_on_average() -> None:
    trial, students = stored_students()
    one, mean = (each for each in PAPERS[PAPER].section(trial, students).figures if isinstance(each, Matrix))
    assert one.title.endswith("SMaT, seed 1 (the median); 1 of 4 heads in use")
    assert one.rows == ("layer 0", "layer 1")
    assert one.values == ((0.0, 0.0), (1.0, 0.0))
    assert mean.values[0] == pytest.approx((0.25, 0.25 / 3))
    assert mean.values[1] == pytest.approx((1.75 / 3, 0.25 / 3))


WORDS = ("what", "a", "fine", "and", "very", "good", "film", "indeed")
GRADIENTS = (0.0, 0.0, 2.0, 0.0, 0.0, -1.0, 0.0, 0.0)
SHARES = (0.125, 0.125, 0.125, 0.0, 0.0, 0.5, 0.125, 0.0)


def attributions(name: str, method: str, scores: Sequence[float]) -> StoredEntry:
    rows = pd.DataFrame(
        {
            "uid": f"t{text:02d}",
            "units": ["<sos>", *WORDS, "<eos>"],
            "scores": [0.0, *scores, 0.0],
            "scored": [False, *(True for _ in WORDS), False],
            "predicted": 1,
            "probability": 0.9,
        }
        for text in range(12)
    )
    return entry(
        name,
        "attributions",
        Artefact(table=rows),
        {"method": method},
        {"split": "test", "limit": None},
        {"subject": ["teacher"]},
    )


def test_texts_show_explanations_side_by_side_and_are_chosen_from_both_ends() -> None:
    stored = [
        attributions("gradients", method_name(INTEGRATED_GRADIENTS), GRADIENTS),
        attributions("learned", "SMaT", SHARES),
        entry("teacher", "model", Artefact(notes={"classes": ["bad", "good"]})),
    ]
    shown = PAPERS[PAPER].section(plausibility("sst"), stored).heatmaps
    assert [each.title.split(": ")[1] for each in shown] == [
        "people and the last explanation agree most here",
        "a typical text",
        "they agree least here",
    ]
    first = shown[0]
    assert first.units == WORDS
    assert [row.name for row in first.rows] == ["integrated gradients", "mine (above uniform)"]
    assert first.rows[0].values == GRADIENTS
    assert first.rows[1].values == tuple(share - 0.125 for share in SHARES)
    assert "good (0.90)" in first.caption
    assert "mine 0.81" in first.caption
    assert "mine 0.79" in shown[2].caption


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, TrainedModel]:
    corpus = SubsampledCorpus(Digits(), 20, 8, 8)
    architecture = SmallViT((1, 8, 8), 2, layers=2, heads=2, width=8)
    model = TrainedModel(corpus, corpus.tokenization, architecture, Training(2, 8, Adam()), embeddings=None)
    return Workspace(tmp_path_factory.mktemp("images")), model


def test_image_samples_are_those_of_the_corpus_with_the_maps_of_all_heads(
    images: tuple[Workspace, TrainedModel],
) -> None:
    workspace, model = images
    sample = workspace.get(ImageSample(model, limit=3))
    loaded = model.restore(workspace)
    chosen = [each for each in loaded.examples("test") if each.uid in set(sample.table["uid"])]
    assert [each.uid for each in chosen] == list(sample.table["uid"])
    first = chosen[0].parts[0]
    assert isinstance(first, Tensor)
    assert torch.equal(sample.tensors["images"][0], (first * 255).round().to(torch.uint8))
    with torch.no_grad():
        scores = read_heads(loaded.model, loaded.tokenizer(chosen)).scores
    assert torch.allclose(sample.tensors["heads"], scores[..., 1:], atol=1e-6)
    assert (sample.notes["rows"], sample.notes["columns"]) == (4, 4)


def test_figure_4_shows_the_learned_mix_patch_by_patch_beside_the_image(images: tuple[Workspace, TrainedModel]) -> None:
    workspace, model = images
    sample = workspace.get(ImageSample(model, limit=3))
    workspace.get(AttributionTable(model, INPUT_X_GRADIENT, limit=6))
    artefact = Artefact({"coefficients": torch.tensor([0.0, 0.25, 0.75, 0.0])}, notes={"layers": 2})
    smat = _StudentResult("SMaT", 0, 0.9, entry("student", "student", artefact))
    name = workspace.artefact_name(model)
    fourth, seventh = _image_grids(name, [smat], workspace.entries())
    assert isinstance(fourth, ImageGrid)
    assert fourth.columns == ("image", "gradient x input", "attention, all layers", "attention, last layer", "SMaT")
    assert len(fourth.rows) == 3
    heads = sample.tensors["heads"][0].double()
    mix = 0.25 * heads[0, 1] + 0.75 * heads[1, 0]
    tile, pixels = fourth.tiles[0][-1], fourth.tiles[0][0]
    assert isinstance(tile, PatchScores)
    assert [value for row in tile.values for value in row] == pytest.approx((mix - mix.mean()).tolist())
    assert isinstance(pixels, Pixels)
    assert pixels.rows[3][5] == pytest.approx((float(sample.tensors["images"][0, 0, 3, 5]) / 255,) * 3)
    assert (len(seventh.rows), len(seventh.columns)) == (2, 2)
    assert _image_grids("another model", [], workspace.entries()) == ()
