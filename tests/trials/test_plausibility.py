"""Plausibility: measures against scikit-learn and by hand, marks lined up with words, the trial on planted truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random
from heedful.attributions.method import method_name
from heedful.capabilities import read_heads
from heedful.data.words import Words
from heedful.figures import Heatmap
from heedful.measures.rationale_agreement import PLAUSIBILITY_MEASURES, RankBy, plausibility_metrics
from heedful.models.small_transformers import SmallTransformer
from heedful.report.charts import svg
from heedful.results import Statistic, Verdict, excess_metric, find_statistic, summary_frame, value_of
from heedful.seeding import sample_uniform
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.training.attribution_tables import AttributionTable, TrueClass
from heedful.training.smat import LearnedAttributionTable, SMaT
from heedful.training.teacher import LearnedExplanation, StudentData
from heedful.training.trained_model import OnOtherData, TrainedModel
from heedful.training.trainer import SGD, Adam, EpochSelection, Training
from heedful.trials.plausibility import RATIONALE_STATUS, HeadPlausibility, Plausibility, Rationales, best_head_rows
from heedful.types import Attribution, Batch, Corpus, Example, Model, Pooling, Splits, UserError, pool_by_word
from tests.tiny import Sentences, Shortcut, subject

NAN = math.nan


MARKS = (
    Example("one", ("a b c", "d e"), 0, (True, False, False, False, True)),
    Example("two", ("a b", "c d e"), 1, (True, True, False, False, False)),
    Example("three", ("a b c d", "e"), 1, (False, False, False, True, False)),
    Example("four", ("a b", "c d"), 0, None),
)
SEEN = torch.tensor([[0, 1, 2, -1, 3, 4], [0, 1, -1, 2, 3, 4], [0, 1, -1, 4, -1, -1], [0, 1, -1, 2, 3, -1]])


def test_marks_are_read_in_each_part_and_each_reason_for_leaving_out_is_kept() -> None:
    marked = Rationales(MARKS, ("source", "target"), "pairs").select([each.uid for each in MARKS], SEEN)
    status = [[RATIONALE_STATUS[place] for place in row] for row in marked.status.tolist()]
    assert status == [
        ["judged", "judged"],
        ["all rationale", "no rationale"],
        ["cut off", "no rationale"],
        ["no rationale", "no rationale"],
    ]
    assert marked.rationale[0].tolist() == [[True, False, False, False, False], [False, False, False, False, True]]
    assert marked.mask[2].tolist() == [[True, True, False, False, False], [False, False, False, False, True]]


def test_a_part_that_people_never_mark_is_no_part_of_the_whole_text() -> None:
    examples = (MARKS[1], MARKS[2])
    marked = Rationales(examples, (), "questions").select(
        ["two", "three"], torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    )
    assert marked.mask[:, 0].tolist() == [[True, True, False, False, False], [True, True, True, True, False]]
    assert [RATIONALE_STATUS[place] for place in marked.status[:, 0].tolist()] == ["all rationale", "judged"]
    with pytest.raises(UserError, match="no word"):
        Rationales((MARKS[3],), (), "no rationale")
    with pytest.raises(UserError, match="2 parts"):
        Rationales(MARKS, ("source", "middle", "target"), "pairs")


@dataclass(frozen=True)
class Pairs(Corpus):
    """Invented pairs: in the first text the word good or bad is marked, in the second the word oops."""

    count: int = 40
    name: ClassVar[str] = "pairs"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        train, dev, test = (
            tuple(self._example(split, number) for number in range(self.count)) for split in ("a", "b", "c")
        )
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test)

    def digest(self, data: Path) -> str:
        return "generated"

    def _example(self, split: str, number: int) -> Example:
        first, second = ["the", "film", "was", "long"], ["we", "saw", "a", "plot", "twist"]
        first.insert(number % 5, "good" if number % 2 else "bad")
        if number % 4:
            second.insert(number % 3, "oops")
        rationale = tuple(word in ("good", "bad", "oops") for word in (*first, *second))
        return Example(f"{split}-{number}", (" ".join(first), " ".join(second)), number % 2, rationale)


@dataclass(frozen=True)
class Turned(Pairs):
    """The same with the names of its classes exchanged."""

    def read(self, data: Path) -> Splits:
        return replace(Pairs.read(self, data), class_names=("positive", "negative"))


@dataclass(frozen=True)
class Knowing:
    """Scores from the word ids alone: the marked words of `Pairs` and `Sentences` get `strength`, all others 0."""

    strength: float = 1.0
    words: tuple[int, ...] = ()

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        known = torch.isin(batch.inputs, torch.tensor(self.words)) & batch.content_mask
        return Attribution(self.strength * known.double(), batch.content_mask)


def pairs(**changes: object) -> TrainedModel:
    plan = SmallTransformer(layers=2, heads=2, width=8)
    made = TrainedModel(Pairs(), Words(), plan, Training(2, 8, Adam(lr=0.01)))
    return replace(made, **changes)  # type: ignore[arg-type]


def knowing(workspace: Workspace, of: TrainedModel, strength: float = 1.0) -> Knowing:
    vocabulary = of.restore(workspace).tokenizer.vocabulary
    return Knowing(strength, tuple(vocabulary.index(word) for word in ("good", "bad", "oops") if word in vocabulary))


@pytest.mark.slow
def test_scores_that_are_the_marks_score_one_and_their_reverse_zero_beside_random_ones(workspace: Workspace) -> None:
    of = pairs()
    good, bad = knowing(workspace, of), knowing(workspace, of, -1.0)
    trial = Plausibility(of, (good, bad), parts=("source", "target"), target="label")
    table = workspace.get(trial).table
    summary = Plausibility.summary(table)
    named_good, named_bad = table.drop_duplicates("place").sort_values("place")["method"].tolist()[:2]
    for part, count in (("source", 40), ("target", 30)):
        assert value_of(summary, "judged", subset=part) == count
        assert value_of(summary, "no_rationale", subset=part) == 40 - count
        area = find_statistic(summary, "auc", named_good, part)
        assert area is not None
        assert (area.value, area.n) == (1.0, count)
        assert math.isnan(area.low), "equal values have no interval"
        assert value_of(summary, "token_iou", named_good, part) == 1.0
        assert value_of(summary, "auc", named_bad, part) == 0.0
        assert 0.3 < value_of(summary, "auc", "random", part) < 0.7
        better, worse = (find_statistic(summary, excess_metric("auc"), each, part) for each in (named_good, named_bad))
        assert better is not None
        assert worse is not None
        assert better.low > 0.2
        assert worse.high < -0.2
    assert [(each.method, each.evidence[0].subset, each.verdict) for each in Plausibility.findings(summary)] == [
        (named_good, "source", Verdict.SUPPORTED),
        (named_bad, "source", Verdict.NOT_SUPPORTED),
        (named_good, "target", Verdict.SUPPORTED),
        (named_bad, "target", Verdict.NOT_SUPPORTED),
    ]
    oracle = value_of(summary, "auc", "best-head (oracle)", "source")
    assert f"best-head (oracle) {oracle:.2f}" in Plausibility.interpretation(summary)
    drawn_figures = [svg(figure) for figure in Plausibility.figures(table) if not isinstance(figure, Heatmap)]
    assert len(drawn_figures) == 6
    assert all(text.startswith("<svg") for text in drawn_figures)


def test_against_turns_the_order_round_and_size_forgets_the_sign(workspace: Workspace) -> None:
    of = pairs()
    bad = knowing(workspace, of, -1.0)
    ranks: tuple[RankBy, ...] = ("against", "size")
    for rank in ranks:
        trial = Plausibility(of, (bad,), parts=("source", "target"), rank=rank, oracles=False)
        table = workspace.get(trial).table
        assert (table.query("place == 0 and status == 'judged'")["auc"] == 1.0).all()
        assert value_of(Plausibility.summary(table), f"ranked_by_{rank}") == 1.0


def test_heads_are_ranked_as_the_methods_are(workspace: Workspace) -> None:
    """Turned round, an area is one minus itself; the size of a share is the share."""
    trial = Plausibility(pairs(), (RawAttention(),), parts=("source", "target"))
    turned, sized = replace(trial, rank="against"), replace(trial, rank="size")
    assert trial.head_scores is not None
    assert turned.head_scores is not None
    one, other = (
        workspace.get(each).tensors["plausibility"][..., 0] for each in (trial.head_scores, turned.head_scores)
    )
    torch.testing.assert_close(other, 1 - one, equal_nan=True)
    assert sized.head_scores == trial.head_scores
    assert workspace.artefact_name(trial.head_scores) != workspace.artefact_name(turned.head_scores)
    best = value_of(Plausibility.summary(workspace.get(turned).table), "auc", "best-head (oracle)", "source")
    assert best == pytest.approx(float(1 - one[:, 0, 2:].nanmean(0).min()), abs=1e-6)


def test_an_undefined_area_is_called_so_and_ranked_last(workspace: Workspace) -> None:
    of = pairs()
    found = Plausibility.summary(workspace.get(Plausibility(of, (RawAttention(), knowing(workspace, of)))).table)
    chosen = "best-head (chosen on other texts)"
    found.loc[(found["metric"] == "auc") & (found["method"] == chosen), "value"] = NAN
    words = Plausibility.interpretation(found)
    assert words.index("best-layer (chosen on other texts) 0.") < words.index(f"{chosen} undefined")
    assert "nan" not in words


@pytest.mark.slow
def test_the_best_head_and_layer_are_those_of_a_literal_search(workspace: Workspace) -> None:
    of = pairs()
    made = workspace.get(HeadPlausibility(of, parts=("source", "target")))
    trained = of.restore(workspace)
    batch = trained.batch("test")
    with torch.no_grad():
        scores = read_heads(trained.model, batch).scores
    examples = {example.uid: example for example in trained.examples("test")}
    maps = [scores[:, layer].mean(1) for layer in range(2)] + [
        scores[:, layer, head] for layer in (0, 1) for head in (0, 1)
    ]
    areas: dict[tuple[str, int, int], float] = {}
    for row, uid in enumerate(batch.uids):
        cut = len(str(examples[uid].parts[0]).split())
        marks = np.array(examples[uid].rationale)
        for place, each in enumerate(maps):
            scored = batch.content_mask[row]
            weights = torch.softmax(each[row][scored].double(), -1).numpy()
            for part, inside in enumerate((slice(None, cut), slice(cut, None))):
                truth = marks[inside]
                if truth.any():
                    areas[uid, part, place] = roc_auc_score(truth, weights[inside])
    tensor = made.tensors["plausibility"]
    assert tensor.shape == (40, 2, 6, len(PLAUSIBILITY_MEASURES))
    for number, uid in enumerate(made.table["uid"]):
        for part in (0, 1):
            for place in range(6):
                expected = areas.get((uid, part, place), NAN)
                assert tensor[number, part, place, 0].item() == pytest.approx(expected, abs=1e-6, nan_ok=True)
    table = workspace.get(Plausibility(of, (RawAttention(),), parts=("source", "target"))).table
    for part, name in enumerate(("source", "target")):
        means = [np.mean([v for (_, p, m), v in areas.items() if (p, m) == (part, place)]) for place in range(6)]
        rows = table[(table["part"] == name) & (table["status"] == "judged")]
        oracle = rows[rows["method"] == "best-head (oracle)"]
        assert oracle["auc"].mean() == pytest.approx(max(means[2:]), abs=1e-6)
        assert set(oracle["which"]) == {f"layer {int(np.argmax(means[2:])) // 2}, head {int(np.argmax(means[2:])) % 2}"}
        assert rows[rows["method"] == "best-layer (oracle)"]["auc"].mean() == pytest.approx(max(means[:2]), abs=1e-6)
        elsewhere = rows[rows["method"] == "best-head (chosen on other texts)"]["auc"].mean()
        assert elsewhere <= max(means[2:]) + 1e-6


def test_a_head_that_is_best_by_luck_alone_is_found_out_on_other_texts() -> None:
    generator = Generator().manual_seed(0)
    numbers = torch.rand(60, 1, 100, 1, generator=generator).expand(-1, -1, -1, len(PLAUSIBILITY_MEASURES))
    uids = [f"text-{number}" for number in range(60)]
    texts = pd.DataFrame({"uid": uids, "part": ""})
    made = Artefact({"plausibility": numbers}, pd.DataFrame({"uid": uids}), {"layers": 4, "heads": 24})
    found = {str(rows["method"].iloc[0]): rows["auc"].mean() for rows in best_head_rows(made, texts)}
    assert found["best-head (oracle)"] > 0.56
    assert abs(found["best-head (chosen on other texts)"] - 0.5) < 0.1
    assert found["best-head (oracle)"] - found["best-head (chosen on other texts)"] > 0.05


def test_the_best_layer_and_head_by_hand_and_none_for_a_part_without_judged_texts() -> None:
    areas = torch.tensor([[0.5, 0.9, 0.1], [0.5, 0.7, 0.2]], dtype=torch.float64)
    numbers = torch.stack((areas, torch.full_like(areas, NAN)), 1).unsqueeze(-1) + torch.arange(
        float(len(PLAUSIBILITY_MEASURES))
    )
    made = Artefact({"plausibility": numbers}, pd.DataFrame({"uid": ["a", "b"]}), {"layers": 1, "heads": 2})
    texts = pd.DataFrame({"uid": ["a", "a", "b", "b"], "part": ["source", "target"] * 2})
    layer, _, head, _ = best_head_rows(made, texts)
    assert (layer["method"].iloc[0], head["method"].iloc[0]) == ("best-layer (oracle)", "best-head (oracle)")
    assert layer["which"].tolist() == ["layer 0", "", "layer 0", ""]
    assert head["which"].tolist() == ["layer 0, head 0", "", "layer 0, head 0", ""]
    assert head["auc"].tolist() == pytest.approx([0.9, NAN, 0.7, NAN], nan_ok=True)
    overlap = 0.5 + list(PLAUSIBILITY_MEASURES).index("token_iou")
    assert layer["token_iou"].tolist() == pytest.approx([overlap, NAN, overlap, NAN], nan_ok=True)


def test_marks_that_are_cut_off_with_the_end_of_a_text_are_counted(workspace: Workspace) -> None:
    of = replace(subject(), corpus=Shortcut(Sentences()), training=Training(2, 8, Adam(lr=0.02)))
    table = workspace.get(Plausibility(of, (RawAttention(),))).table
    assert set(table["kind"]) == {"method", "control"}
    assert value_of(Plausibility.summary(table), "cut_off") == 0
    examples = of.restore(workspace).examples("test")
    rationales = Rationales(examples, (), "cut")
    words = torch.arange(2).expand(len(examples), 2)
    status = rationales.select([each.uid for each in examples], words).status[:, 0]
    lost = [not any((each.rationale or ())[:2]) and any(each.rationale or ()) for each in examples]
    assert (status == RATIONALE_STATUS.index("cut off")).tolist() == lost
    assert 0 < sum(lost) < len(lost)


def test_a_model_on_other_data_has_the_same_weights_and_trains_nothing(workspace: Workspace) -> None:
    home = pairs()
    workspace.get(home)
    there_now = OnOtherData(home, Pairs(10), merge_splits=True)
    visited, at_home = there_now.restore(workspace), home.restore(workspace)
    assert len(visited.examples("test")) == 30
    for name, weight in visited.model.state_dict().items():
        assert torch.equal(weight, at_home.model.state_dict()[name])
    assert not workspace.get(there_now).tensors
    assert there_now.about == home.about | {"corpus": "pairs"}
    table = workspace.get(Plausibility(there_now, (knowing(workspace, home),), oracles=False)).table
    assert value_of(Plausibility.summary(table), "texts") == 30
    with pytest.raises(UserError, match=r"has the classes positive, negative, but .* with negative, positive"):
        OnOtherData(home, Turned()).restore(workspace)


@dataclass(frozen=True)
class Copied(Recipe):
    """The table of another recipe, as a learned explainer would give one."""

    recipe: Recipe

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(table=workspace.get(self.recipe).table, notes={"of": 1})


def test_a_learned_explainers_scores_are_judged_as_any_methods(workspace: Workspace) -> None:
    of = pairs()
    own = Plausibility(of, (RawAttention(),), oracles=False)
    attributed = own.score_recipes["attention"]
    both = Plausibility(of, (RawAttention(),), learned_explainers=(("learned", Copied(attributed)),), oracles=False)
    table = workspace.get(both).table
    names = table.sort_values("place")["method"].unique().tolist()
    assert names == ["attention", "learned", "random"]
    one, other = (table[table["method"] == name]["auc"].to_numpy() for name in names[:2])
    np.testing.assert_array_equal(one, other)
    with pytest.raises(UserError, match="other texts"):
        workspace.get(
            replace(both, learned_explainers=(("learned", Copied(replace(own, limit=5).score_recipes["attention"])),))
        )
    with pytest.raises(UserError, match="twice"):
        Plausibility(of, (RawAttention(), RawAttention()))
    with pytest.raises(UserError, match="at least"):
        Plausibility(of, ())
    with pytest.raises(UserError, match="random scores are always added"):
        Plausibility(of, (RawAttention(), Random(3)))
    with pytest.raises(UserError, match="'random' is the name of the random scores"):
        replace(both, learned_explainers=(("random", Copied(attributed)),))
    assert list(Plausibility(of, (RawAttention(), Random())).score_recipes) == ["attention", "random"]


def test_few_texts_give_no_interval_and_no_verdict(workspace: Workspace) -> None:
    of = pairs()
    table = workspace.get(Plausibility(of, (RawAttention(), Random()), limit=6, oracles=False)).table
    summary = Plausibility.summary(table)
    area = find_statistic(summary, "auc", "attention")
    assert area is not None
    assert math.isnan(area.low)
    assert math.isfinite(area.value)
    assert [each.verdict for each in Plausibility.findings(summary)] == [Verdict.UNDECIDED]


@pytest.mark.slow
def test_learned_scores_are_those_of_the_median_students_explainer(workspace: Workspace) -> None:
    of = pairs()
    fit = Training(1, 8, SGD(lr=0.05), EpochSelection(first_epoch=1), reduction="mean")
    student = SMaT(of, of.architecture, LearnedExplanation(), StudentData(8), training=fit)
    students = tuple(replace(student, seed=seed) for seed in (0, 1, 2))
    recipe = LearnedAttributionTable(of, students)
    reached = {each: float(str(workspace.get(each).notes["simulability"])) for each in students}
    median = recipe.median_student(workspace)
    assert reached[median] == sorted(reached.values())[1]
    made = workspace.get(recipe)
    assert made.notes["student"] == median.about
    method = median.explainer(workspace)
    expected = workspace.get(AttributionTable(of, method)).table
    assert made.table["uid"].tolist() == expected["uid"].tolist()
    np.testing.assert_allclose(np.concatenate(made.table["scores"]), np.concatenate(expected["scores"]))
    table = workspace.get(Plausibility(of, (RawAttention(),), (("learned", recipe),), oracles=False)).table
    assert "learned" in set(table["method"])
    there_now = OnOtherData(of, Pairs(10))
    assert len(workspace.get(LearnedAttributionTable(there_now, students[:1])).table) == 10
    with pytest.raises(UserError, match="with this teacher"):
        LearnedAttributionTable(pairs(seed=5), students)


def test_random_scores_have_an_area_of_one_half_also_where_marked_words_have_more_tokens() -> None:
    """Each text has ten words; the two marked ones have three tokens, the others one."""
    words = torch.tensor([0, 0, 0, 1, 1, 1, *range(2, 10)]).expand(2000, 14)
    scores = sample_uniform(torch.arange(2000), 1, 14)[:, 0]
    marked, mask = (torch.arange(10) < 2).expand(2000, 10), torch.ones(2000, 10, dtype=torch.bool)

    def area(pooling: Pooling) -> float:
        return float(plausibility_metrics(pool_by_word(scores, words, pooling)[0], marked, mask)["auc"].mean())

    assert area(pairs_trial().pooling) == pytest.approx(0.5, abs=0.02)
    assert area("sum") > 0.9
    assert area("max") > 0.7


def pairs_trial() -> Plausibility:
    return Plausibility(pairs(), (RawAttention(),))


def judged_table(target: str, right: Sequence[float], wrong: Sequence[float]) -> pd.DataFrame:
    """A method with these areas on texts that are predicted right and wrong, beside random scores."""
    areas = {"mine": (*right, *wrong), "random": [0.45 + 0.1 * (text % 2) for text in range(len(right) + len(wrong))]}
    return pd.DataFrame(
        {
            "uid": f"t{text}",
            "part": "",
            "status": "judged",
            "method": method,
            "place": place,
            "which": "",
            "kind": "control" if place else "method",
            "right": text < len(right),
            "pooling": "mean",
            "target": target,
            **dict.fromkeys(PLAUSIBILITY_MEASURES, area),
        }
        for place, (method, values) in enumerate(areas.items())
        for text, area in enumerate(values)
    )


def test_the_iou_f1_of_eraser_is_that_of_mean_precision_and_mean_recall() -> None:
    table = judged_table("predicted", right=(0.9, 0.8), wrong=(0.1,))
    table.loc[table["method"] == "mine", "iou_precision"] = [1.0, 0.5, 0.0]
    table.loc[table["method"] == "mine", "iou_recall"] = [0.5, 0.25, 0.0]
    found = find_statistic(Plausibility.summary(table), "iou_f1", "mine")
    assert found is not None
    assert [found.value, found.n] == pytest.approx([2 * 0.5 * 0.25 / 0.75, 3])


def test_texts_that_are_predicted_right_are_judged_apart() -> None:
    summary = Plausibility.summary(judged_table("predicted", right=(0.9, 0.8), wrong=(0.1,)))
    assert value_of(summary, "auc_right", "mine") == pytest.approx(0.85)
    assert value_of(summary, "auc_wrong", "mine") == pytest.approx(0.1)
    found = find_statistic(summary, "auc_right", "random")
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.n == 2
    words = Plausibility.interpretation(summary)
    assert "On the one text that is predicted wrong, as another class" in words
    assert "mine 0.60, random 0.48." in words, "the best method comes first"


def test_the_verdict_rests_on_texts_that_are_predicted_right_unless_the_true_class_is_explained() -> None:
    right, wrong = [0.85 + 0.01 * (text % 3) for text in range(30)], [0.1 + 0.01 * (text % 3) for text in range(60)]
    verdicts = {}
    for target in ("predicted", "label"):
        summary = Plausibility.summary(judged_table(target, right, wrong))
        (finding,) = Plausibility.findings(summary)
        verdicts[target] = finding.verdict
        assert "mine" in Plausibility.interpretation(summary)
    assert verdicts == {"predicted": Verdict.SUPPORTED, "label": Verdict.NOT_SUPPORTED}
    for few in ((), right[:6]):
        summary = Plausibility.summary(judged_table("predicted", few, wrong))
        assert [each.verdict for each in Plausibility.findings(summary)] == [Verdict.UNDECIDED]


@dataclass(frozen=True)
class NamesTarget:
    """The number of the explained class as the score of every token."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        return Attribution(target.double().unsqueeze(1) * batch.content_mask, batch.content_mask)


def test_the_true_class_is_explained_if_asked_for(workspace: Workspace) -> None:
    of = pairs()
    trial = Plausibility(of, (NamesTarget(),), oracles=False, target="label")
    table = workspace.get(trial.score_recipes["names-target"]).table
    assert table["scores"].map(max).tolist() == table["label"].tolist()
    predicted = workspace.get(replace(trial, target="predicted").score_recipes["names-target"]).table
    assert predicted["scores"].map(max).tolist() == predicted["predicted"].tolist()
    assert value_of(workspace.get(trial).summary, "explains_label") == 1.0
    assert method_name(TrueClass(NamesTarget())) == "names-target(true-class)"
    with pytest.raises(UserError, match="target"):
        Plausibility(of, (), (("learned", Copied(trial.score_recipes["random"])),), target="label")


@pytest.mark.parametrize(("judged", "decided"), [(24, False), (25, True)])
def test_a_verdict_needs_25_judged_texts(
    judged: int,
    decided: bool,  # noqa: FBT001
) -> None:
    rows = [Statistic("judged", value=judged)]
    for method, area in (("mine", 0.8), ("random", 0.5)):
        rows.append(Statistic("auc", method, "", area, n=judged))
    words = Plausibility.interpretation(summary_frame(rows))
    assert ("More plausible than random scores" in words) == decided
    assert ("no verdict" in words) != decided


def test_a_trial_with_oracles_depends_on_the_scores_of_heads() -> None:
    with_them, without = (Plausibility(pairs(), (RawAttention(),), oracles=oracles) for oracles in (True, False))
    assert with_them.head_scores in with_them.dependencies
    assert len(with_them.dependencies) == len(without.dependencies) + 1 == 3
