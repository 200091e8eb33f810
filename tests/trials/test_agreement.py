"""Agreement of attributions: known answers, SciPy on the same rows, controls, questions, words and special tokens."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import PermutedAttention, Random, RandomizedModel
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.method import method_name, tags_of
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.subwords import Subwords
from heedful.figures import Histogram, Matrix
from heedful.formatting import two_decimals
from heedful.measures.rank_correlation import k_from_fraction, kendall_matrix, top_k_kendall_matrix
from heedful.models.input_forms import QuestionAnswering
from heedful.report.charts import svg
from heedful.results import Statistic, Verdict, find_statistic, summary_frame, value_of
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.trials import agreement
from heedful.trials.agreement import (
    Agreement,
    AgreementMeasure,
    Level,
    TopK,
    aggregate_to_level,
    correlate_attributions,
)
from heedful.types import Attribution, Batch, Example, Method, Model, Splits, UserError
from tests.networks import TinyTransformer
from tests.small_shards import SIZE, small_shards
from tests.subword_tokenizers import save_two_pieces
from tests.tiny import WORDS, Sentences, subject
from tests.trials.summaries import values

__all__ = ["small_shards"]

SUBJECT = subject(count=60)


@dataclass(frozen=True)
class Doubled:
    """Attention on another scale: the same order."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        return Attribution(2 * RawAttention()(model, batch, target).scores, batch.content_mask)


@dataclass(frozen=True)
class Opposite:
    """The reverse of attention's order."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        scores = 1 - RawAttention()(model, batch, target).scores
        return Attribution(scores.masked_fill(~batch.content_mask, 0), batch.content_mask)


@dataclass(frozen=True)
class Flat:
    """The same score everywhere, where `level` is not the length of the text."""

    level: int = 5

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        varied = (batch.content_mask.sum(1, keepdim=True) == self.level) * batch.words.clamp(min=0)
        return Attribution((1.0 + varied).masked_fill(~batch.content_mask, 0), batch.content_mask)


@dataclass(frozen=True)
class Signed:
    """Numbers of the words, every second one negative, in pairs of equal size."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        sizes = (batch.words // 2 + 1.0) * (1 - 2 * (batch.words % 2))
        return Attribution(sizes.masked_fill(~batch.content_mask, 0), batch.content_mask)


METHODS = (RawAttention(), Doubled(), Opposite(), Flat(), Signed())
TRIAL = Agreement(SUBJECT, METHODS, other_seed_model=replace(SUBJECT, seed=1))


@pytest.fixture(scope="module")
def table(workspace: Workspace) -> pd.DataFrame:
    return workspace.get(TRIAL).table


def pair(table: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    return table[(table["first"] == first) & (table["second"] == second)]


def test_a_row_for_each_instance_and_unordered_pair(table: pd.DataFrame) -> None:
    names = [method_name(each) for each in (*METHODS, *TRIAL.compared_controls)] + ["attention-of-another-seed"]
    assert names[5:7] == ["random", "permuted-attention"]
    assert len(table) == 60 * math.comb(8, 2)
    met = table.drop_duplicates("place").sort_values("place")
    assert list(zip(met["first"], met["second"], strict=True)) == list(combinations(names, 2))
    assert (table.groupby(["first", "second"])["uid"].nunique() == 60).all()


def test_the_same_order_gives_1_and_the_reverse_gives_minus_1(table: pd.DataFrame) -> None:
    for first, second, value in (
        ("attention", "doubled", 1),
        ("attention", "opposite", -1),
        ("doubled", "opposite", -1),
    ):
        assert pair(table, first, second)["value"].tolist() == pytest.approx([value] * 60, abs=1e-12)


def test_constant_scores_are_undefined_and_counted_but_not_averaged(table: pd.DataFrame) -> None:
    rows = pair(table, "attention", "flat")
    assert rows["defined"].tolist() == (rows["length"] == 5).tolist()
    assert 0 < rows["defined"].sum() < 60
    summary = Agreement.summary(table)
    mean = find_statistic(summary, "mean", "attention~flat")
    assert mean is not None
    assert value_of(summary, "undefined", "attention~flat") == 60 - rows["defined"].sum()
    assert mean.n == rows["defined"].sum()
    assert mean.value == pytest.approx(rows["value"][rows["defined"]].mean())
    assert (rows["tied"][~rows["defined"]] == 1).all()


ORACLES: dict[AgreementMeasure, Callable[..., object]] = {
    "kendall": stats.kendalltau,
    "spearman": stats.spearmanr,
    "pearson": stats.pearsonr,
    "weighted": stats.weightedtau,
}


def oracle(measure: AgreementMeasure, x: list[float], y: list[float]) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ORACLES[measure](*([round(abs(v) / max(map(abs, row)) / 1e-9) for v in row] for row in (x, y)))
    return float(found.statistic), float(found.pvalue)  # type: ignore[attr-defined]


@pytest.mark.parametrize("measure", ORACLES)
def test_every_value_and_p_value_is_that_of_scipy(measure: AgreementMeasure, workspace: Workspace) -> None:
    methods = (RawAttention(), Signed(), Random(seed=4))
    table = workspace.get(Agreement(SUBJECT, methods, measure=measure)).table
    scores = {
        method_name(method): workspace.get(AttributionTable(SUBJECT, method)).table.set_index("uid")
        for method in (*methods, PermutedAttention())
    }
    for first, second in combinations(scores, 2):
        for _, row in pair(table, first, second).head(25).iterrows():
            scored = scores[first].loc[row["uid"], "scored"]
            x, y = (
                [v for v, s in zip(scores[n].loc[row["uid"], "scores"], scored, strict=True) if s]
                for n in (first, second)
            )
            assert row["length"] == len(x)
            value, p_value = oracle(measure, x, y)
            assert row["value"] == pytest.approx(value, abs=1e-9)
            assert row["p_value"] == pytest.approx(p_value, abs=1e-9, nan_ok=True)


def test_significant_shares_are_those_of_scipy_on_the_same_rows(table: pd.DataFrame, workspace: Workspace) -> None:
    attention, signed = (workspace.get(AttributionTable(SUBJECT, m)).table for m in (RawAttention(), Signed()))
    found = []
    for (_, one), (_, other) in zip(attention.iterrows(), signed.iterrows(), strict=True):
        assert one["uid"] == other["uid"]
        x, y = ([v for v, s in zip(row["scores"], row["scored"], strict=True) if s] for row in (one, other))
        found.append((*oracle("kendall", x, y), one["predicted"]))
    positive = sum(p <= 0.05 and value > 0 for value, p, _ in found)
    negative = sum(p <= 0.05 and value < 0 for value, p, _ in found)
    summary = Agreement.summary(table)
    assert positive != negative
    assert min(positive, negative) > 0
    assert value_of(summary, "significant_positive", "attention~signed") == pytest.approx(positive / 60)
    assert value_of(summary, "significant_negative", "attention~signed") == pytest.approx(negative / 60)
    assert value_of(summary, "significant", "attention~signed") == pytest.approx((positive + negative) / 60)
    of_class = [value for value, _, predicted in found if predicted == 1]
    mean = find_statistic(summary, "mean", "attention~signed", "class 1")
    assert mean is not None
    assert mean.value == pytest.approx(sum(of_class) / len(of_class))
    assert mean.n == len(of_class)


@pytest.mark.parametrize("control", ["random", "permuted-attention"])
def test_controls_agree_with_attention_at_zero_within_the_error_of_the_mean(control: str, table: pd.DataFrame) -> None:
    summary = Agreement.summary(table)
    error = value_of(summary, "std", f"attention~{control}") / math.sqrt(60)
    assert 0 < error < 0.1
    assert abs(value_of(summary, "mean", f"attention~{control}")) < 3 * error


def test_signs_count_only_where_absolute_is_off(workspace: Workspace, table: pd.DataFrame) -> None:
    signed = workspace.get(Agreement(SUBJECT, METHODS, absolute=False)).table
    with_sign, without = pair(signed, "attention", "signed"), pair(table, "attention", "signed")
    assert not with_sign["value"].equals(without["value"])
    # Sizes come in pairs, so that without signs all units are tied, but for the last of an odd number.
    lengths = without["length"]
    assert without["tied"].tolist() == pytest.approx(((lengths - lengths % 2) / lengths).tolist())
    assert (with_sign["tied"] == 0).all()


def test_the_top_of_a_trial_is_the_measure_on_its_rows(workspace: Workspace) -> None:
    methods = (RawAttention(), Random(seed=4))
    attention, random = (workspace.get(AttributionTable(SUBJECT, m)).table.set_index("uid") for m in methods)
    fixed, share, nonzero = (
        workspace.get(Agreement(SUBJECT, methods, (), measure="top-k", k=k)).table for k in (2, 0.5, "nonzero")
    )
    assert fixed["p_value"].isna().all()
    assert math.isnan(value_of(Agreement.summary(fixed), "significant", "attention~random(seed-4)"))
    for index, uid in enumerate(fixed["uid"]):
        kept = torch.tensor(attention.loc[uid, "scored"])
        x, y = (torch.tensor(t.loc[uid, "scores"])[kept] for t in (attention, random))
        half = k_from_fraction(kept[kept], 0.5)[0, 0]
        for found, k in ((fixed, 2), (share, half), (nonzero, len(x))):
            assert found["value"].iloc[index] == pytest.approx(
                top_k_kendall_matrix(torch.stack((x, y)), k).value[0, 1].item()
            )


@dataclass(frozen=True)
class Swaying:
    """Random sizes, every third word speaking against."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        scores = Random(seed=4)(model, batch, target).scores.abs() * torch.where(batch.words % 3 == 1, -1, 1)
        return Attribution(scores.masked_fill(~batch.content_mask, 0), batch.content_mask)


def share(measure: str, x: list[float], y: list[float], k: int) -> float:
    """The measures of Krishna et al. by their definition, for scores without ties."""
    tops = [[i for _, i in sorted((-abs(value), i) for i, value in enumerate(z))][:k] for z in (x, y)]
    if measure == "pairwise-rank":
        pairs = list(combinations(range(len(x)), 2))
        return sum((abs(x[i]) > abs(x[j])) == (abs(y[i]) > abs(y[j])) for i, j in pairs) / len(pairs)
    chosen = set(tops[0]) & set(tops[1])
    if "rank" in measure:
        chosen = {i for i in chosen if tops[0].index(i) == tops[1].index(i)}
    if "sign" in measure:
        chosen = {i for i in chosen if math.copysign(1, x[i]) == math.copysign(1, y[i])}
    return len(chosen) / min(k, len(x))


SHARES: tuple[AgreementMeasure, ...] = ("feature", "rank", "sign", "signed-rank", "pairwise-rank")


@pytest.mark.slow
@pytest.mark.parametrize("measure", SHARES)
def test_shares_are_those_of_sizes_and_of_signs_whatever_the_option(
    measure: AgreementMeasure, workspace: Workspace
) -> None:
    methods = (RawAttention(), Swaying())
    scores = [workspace.get(AttributionTable(SUBJECT, m)).table.set_index("uid") for m in methods]
    ks: tuple[TopK, ...] = (2, 0.5, "nonzero")
    for k, absolute in product(ks, (True, False)):
        trial = Agreement(SUBJECT, methods, (), measure=measure, k=k, absolute=absolute)
        table = workspace.get(trial).table
        expected = []
        for uid in table["uid"]:
            scored = scores[0].loc[uid, "scored"]
            x, y = ([v for v, s in zip(t.loc[uid, "scores"], scored, strict=True) if s] for t in scores)
            units = {2: 2, 0.5: max(1, len(x) // 2), "nonzero": len(x)}[k]
            expected.append(share(measure, x, y, units))
        assert table["value"].tolist() == pytest.approx(expected)
        assert 0 < table["value"].mean() <= 1
        assert table["p_value"].isna().all()


@pytest.mark.parametrize(
    ("measure", "scale"),
    [("feature", {"lowest": 0.0}), ("pairwise-rank", {"lowest": 0.0, "no_relation": 0.5}), ("kendall", {})],
)
def test_a_share_is_drawn_from_0_to_1_and_a_correlation_from_minus_1(measure: str, scale: dict[str, float]) -> None:
    table = known().assign(measure=measure)
    gradient, *_, matrix = Agreement.figures(table)
    assert isinstance(gradient, Histogram)
    assert isinstance(matrix, Matrix)
    assert gradient.x.limits == matrix.limits == (scale.get("lowest", -1.0), 1.0)
    found = values(Agreement.summary(table))
    assert {name: found[name, "", ""] for name in ("lowest", "no_relation") if (name, "", "") in found} == scale


def test_attributions_are_shared_and_made_once(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    methods = (RawAttention(), Doubled())
    small = subject()
    workspace.get(AttributionTable(small, RawAttention(), limit=7))
    trial = Agreement(small, methods, other_seed_model=replace(small, seed=1), limit=7)
    assert workspace.get(trial).notes["n"] == 7
    assert workspace.get(trial).notes["of"] == 40
    workspace.get(Agreement(small, methods, measure="spearman", limit=7))
    kinds = [finished.recipe_class for finished in workspace.entries()]
    assert kinds.count("AttributionTable") == len(trial.dependencies) == 5
    assert all(workspace.has(need) for need in trial.dependencies)


@dataclass(frozen=True)
class Questions(Sentences):
    """The same sentences, each with a question."""

    def read(self, data: Path) -> Splits:
        splits = super().read(data)
        parts = {s: tuple(_asked(e) for e in splits[s]) for s in ("train", "dev", "test")}
        return replace(splits, **parts)  # type: ignore[arg-type]


def _asked(example: Example) -> Example:
    return replace(example, parts=(*example.parts, "was the film good or bad"))


def test_only_the_document_is_compared_where_attention_cannot_reach_the_question(tmp_path: Path) -> None:
    asking = replace(
        SUBJECT,
        corpus=Questions(40),
        architecture=replace(SUBJECT.architecture, input_format=QuestionAnswering()),  # type: ignore[type-var]
    )
    workspace = Workspace(tmp_path)
    table = workspace.get(Agreement(asking, (RawAttention(), Doubled()))).table
    texts = {example.uid: example.parts for example in Questions(40).read(tmp_path).test}
    assert {uid: len(str(parts[0]).split()) for uid, parts in texts.items()} == dict(
        zip(table["uid"], table["length"], strict=True)
    )
    # With the question's zeros among them, attention would be tied with itself there.
    assert (pair(table, "attention", "doubled")["tied"] == 0).all()
    assert pair(table, "attention", "permuted-attention")["tied"].max() == 0


def made(scores: list[list[float]], *, uids: str = "ab", parts: list[list[int]] | None = None) -> pd.DataFrame:
    """A table as `Attributed` makes it."""
    return pd.DataFrame(
        {
            "uid": list(uids),
            "scores": scores,
            "scored": [[True] * len(row) for row in scores],
            "segments": parts or [[0] * len(row) for row in scores],
            "predicted": [0] * len(scores),
        }
    )


def test_a_sparse_attention_keeps_the_zeros_of_a_part_that_it_can_reach() -> None:
    parts = [[0, 0, 1], [0, 0, 1]]
    reachable = made([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], parts=parts)
    unreachable = made([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]], parts=parts)
    other = made([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    for first, lengths in ((reachable, [3, 3]), (unreachable, [2, 2])):
        found = correlate_attributions({"a": first, "b": other}, kendall_matrix, absolute=True)
        assert found["length"].tolist() == lengths


def test_noise_below_the_resolution_is_a_tie() -> None:
    noisy = made([[0.1, 0.2, 0.2 + 1e-12, 0.2 - 1e-12], [0.1, 0.2, 0.2 + 1e-6, 0.4]])
    other = made([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    found = correlate_attributions({"a": noisy, "b": other}, kendall_matrix, absolute=True)
    assert found["value"].tolist() == pytest.approx([stats.kendalltau([1, 2, 2, 2], [1, 2, 3, 4]).statistic, 1.0])
    assert found["tied"].tolist() == [0.75, 0.0]


@pytest.mark.parametrize("rows", [1, 3, 256])
def test_instances_come_back_in_their_order_whatever_their_length(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "TEXTS_PER_CHUNK", rows)
    numbers = torch.rand(2, 5, 12, generator=torch.Generator().manual_seed(0)).tolist()
    one, other = ([row[:length] for row, length in zip(each, (9, 3, 12, 5, 4), strict=True)] for each in numbers)
    tables = {"a": made(one, uids="abcde"), "b": made(other, uids="abcde")}
    found = correlate_attributions(tables, kendall_matrix, absolute=True)
    assert found["length"].tolist() == [9, 3, 12, 5, 4]
    expected = [oracle("kendall", x, y)[0] for x, y in zip(one, other, strict=True)]
    assert found["value"].tolist() == pytest.approx(expected)


def test_tables_are_lined_up_by_uid_and_strangers_are_refused() -> None:
    first, turned = made([[1.0, 2.0], [3.0, 2.0, 1.0]]), made([[1.0, 2.0, 3.0], [1.0, 2.0]], uids="ba")
    found = correlate_attributions({"a": first, "b": turned}, kendall_matrix, absolute=True)
    assert found["value"].tolist() == [1.0, -1.0]
    for other_table, words in (
        (made([[1.0, 2.0], [1.0, 2.0, 3.0]], uids="ax"), "other texts"),
        (made([[1.0, 2.0], [1.0, 2.0]]), "other tokens"),
        (made([[1.0, math.nan], [1.0, 2.0, 3.0]]), "not finite"),
    ):
        with pytest.raises(UserError, match=words):
            correlate_attributions({"a": first, "b": other_table}, kendall_matrix, absolute=True)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (lambda: Agreement(SUBJECT, (RawAttention(),)), "two methods"),
        (lambda: Agreement(SUBJECT, (RawAttention(), Random())), "twice"),
        (lambda: Agreement(SUBJECT, (RawAttention(), Random()), other_seed_model=subject(seed=1)), "twice"),
        (lambda: Agreement(SUBJECT, (RawAttention(), Doubled(), Doubled()), ()), "twice"),
        (lambda: Agreement(SUBJECT, METHODS, k=0), "k is 0"),
        (lambda: Agreement(SUBJECT, METHODS, k=2.5), "k is 2.5"),
        (lambda: Agreement(SUBJECT, METHODS, k=True), "k is True"),
        (lambda: Agreement(SUBJECT, METHODS, k="non-zero"), "k is 'non-zero'"),  # type: ignore[arg-type]
    ],
)
def test_a_trial_that_makes_no_sense_is_refused(trial: Callable[[], Agreement], words: str) -> None:
    with pytest.raises(UserError, match=words):
        trial()


def test_names_have_the_class_and_the_options_that_are_not_default() -> None:
    assert [method_name(each) for each in (RawAttention(), RawAttention(layer=1, head=0), Flat(), Flat(7))] == [
        "attention",
        "attention(layer-1,head-0)",
        "flat",
        "flat(level-7)",
    ]

    @dataclass(frozen=True)
    class LeaveOneOut:
        output: str = "probability"
        cut: bool = True

    assert method_name(LeaveOneOut("logit", cut=False)) == "leave-one-out(logit,no-cut)"
    assert method_name(RandomizedModel(RawAttention(0), 2)) == "randomized(method-attention(layer-0),seed-2)"


def known(*forms: str) -> pd.DataFrame:
    """Two instances, attention, gradient, loo and a control, with values set by hand.

    Args:
        forms: methods that are attention in another form.
    """
    values = {
        ("attention", "gradient", False): (0.2, 0.4),
        ("attention", "loo", False): (0.1, -0.1),
        ("attention", "random", True): (0.0, math.nan),
        ("gradient", "loo", False): (0.8, 0.4),
        ("gradient", "random", True): (0.0, 0.1),
        ("loo", "random", True): (0.1, 0.0),
    }
    rows = [
        (uid, index, place, first, second, control, value[index], 0.05 if value[index] > 0 else 0.06)
        for place, ((first, second, control), value) in enumerate(values.items())
        for index, uid in enumerate("xy")
    ]
    table = pd.DataFrame(rows, columns=["uid", "predicted", "place", "first", "second", "control", "value", "p_value"])
    table["defined"] = table["value"].notna()
    table["p_value"] = table["p_value"].where(table["defined"])
    for column in ("first", "second"):
        table[f"{column}_is_attention"] = table[column].isin(["attention", *forms])
    return table.assign(length=9, tied=0.5, variants=False, measure="kendall", level="unit", special_tokens=False)


def test_the_summary_of_known_rows() -> None:
    found = values(Agreement.summary(known().sample(frac=1, random_state=2)))
    expected = {
        ("texts", "", ""): 2,
        ("mean", "attention~gradient", ""): 0.3,
        ("std", "attention~gradient", ""): 0.1,
        ("mean", "attention~gradient", "class 1"): 0.4,
        ("significant", "attention~loo", ""): 0.5,
        ("significant_positive", "attention~loo", ""): 0.5,
        ("significant_negative", "attention~loo", ""): 0,
        ("undefined", "attention~random", ""): 1,
        ("mean", "attention~random", ""): 0,
        ("excess", "gradient~loo over attention~loo", ""): 0.6,
        ("excess", "gradient~loo over attention~gradient", ""): 0.3,
        ("excess_std", "gradient~loo over attention~gradient", ""): 0.3,
        ("excess", "attention~gradient over attention~random", ""): 0.2,
        ("control", "random", ""): 1,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert ("mean", "gradient~random", "") in found
    assert ("mean", "gradient~random", "class 0") not in found
    # A single value has no spread, which is not a spread of 0.
    for key in (("std", "attention~gradient", "class 1"), ("std", "attention~random", "")):
        assert math.isnan(found[key])
    assert math.isnan(found["excess_std", "attention~gradient over attention~random", ""])


def test_a_share_of_the_top_with_itself_is_not_drawn_as_1() -> None:
    matrix = Agreement.figures(known().assign(measure="rank"))[-1]
    assert isinstance(matrix, Matrix)
    assert [row[place] for place, row in enumerate(matrix.values)] == [None] * 4
    assert matrix.values[0][1] == pytest.approx(0.3)
    assert svg(matrix).startswith("<svg")


def test_four_predicted_classes_are_counted_together() -> None:
    copies = [known().replace({"uid": {"x": f"x{i}", "y": f"y{i}"}}).assign(predicted=i) for i in range(4)]
    three, four = pd.concat(copies[:3]), pd.concat(copies)
    assert ("mean", "attention~gradient", "class 2") in values(Agreement.summary(three))
    assert set(Agreement.summary(four)["subset"]) == {""}
    histogram = Agreement.figures(four)[0]
    assert isinstance(histogram, Histogram)
    assert [series.name for series in histogram.series] == ["all texts", "random (control)"]


def test_figures_show_the_classes_the_controls_and_every_pair() -> None:
    gradient, loo, controls, matrix = Agreement.figures(known().sample(frac=1, random_state=2))
    assert isinstance(gradient, Histogram)
    assert gradient.x.limits == (-1.0, 1.0)
    assert gradient.bins == 30
    classes, control = gradient.series[:-1], gradient.series[-1]
    assert [(s.name, s.values) for s in classes] == [("predicted class 0", (0.2,)), ("predicted class 1", (0.4,))]
    assert (control.name, sum(value == 0.0 for value in control.values)) == ("random (control)", 1)
    assert isinstance(loo, Histogram)
    assert loo.title == "attention against loo"
    assert isinstance(controls, Histogram)
    assert [series.name for series in controls.series] == ["random (control)"]
    assert isinstance(matrix, Matrix)
    assert matrix.rows == ("attention", "gradient", "loo", "random")
    assert matrix.values[1] == pytest.approx((0.3, 1.0, 0.6, 0.05))
    assert [row[2] for row in matrix.values] == pytest.approx(list(matrix.values[2]))
    assert all(svg(figure).startswith("<svg") for figure in (gradient, loo, controls, matrix))


def test_attention_of_another_seed_is_shown_with_the_controls_but_is_not_one(table: pd.DataFrame) -> None:
    *_, controls, matrix = Agreement.figures(table)
    assert isinstance(controls, Histogram)
    expected = ["random (control)", "permuted-attention (control)", "attention-of-another-seed"]
    assert [series.name for series in controls.series] == expected
    assert isinstance(matrix, Matrix)
    assert len(matrix.rows) == len(matrix.columns) == 8


def with_means(summary: pd.DataFrame, **means: float) -> pd.DataFrame:
    """The summary with other mean agreements of attention."""
    changed = summary.copy()
    for method, value in means.items():
        at = (changed["metric"] == "mean") & (changed["method"] == f"attention~{method}") & (changed["subset"] == "")
        changed.loc[at, "value"] = value
    return changed


def test_the_verdict_compares_attention_with_chance_and_with_the_other_methods() -> None:
    summary = Agreement.summary(known())

    def verdict(**means: float) -> tuple[Verdict, str]:
        (finding,) = Agreement.findings(with_means(summary, **means))
        return finding.verdict, finding.reason

    less = Agreement.interpretation(summary)
    assert all(number in less for number in ("gradient at 0.30", "loo at 0.00", "random at 0.00", "0.60"))
    assert verdict() == (Verdict.NOT_SUPPORTED, "less than they agree with each other")
    assert verdict(gradient=0.1) == (Verdict.NOT_SUPPORTED, "hardly more than chance")
    assert verdict(loo=0.9)[0] is Verdict.SUPPORTED
    assert verdict(gradient=math.nan, loo=math.nan)[0] is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("attention", "chance", "others", "verdict", "reason"),
    [
        (math.nextafter(0.1, 0), 0.0, 0.1, Verdict.NOT_SUPPORTED, "hardly more than chance"),
        (0.1, 0.0, 0.1, Verdict.SUPPORTED, "as much as they agree with each other"),
        (0.0, -1.0, 0.1, Verdict.SUPPORTED, "as much as they agree with each other"),
        (0.0, -1.0, math.nextafter(0.1, 1), Verdict.NOT_SUPPORTED, "less than they agree with each other"),
        (0.1, 0.0, math.nan, Verdict.UNDECIDED, "more than chance"),
        (0.1, math.nan, math.nan, Verdict.UNDECIDED, "as shown; there is nothing to compare it with"),
    ],
)
def test_agreements_count_as_equal_up_to_a_difference_of_01(
    attention: float, chance: float, others: float, verdict: Verdict, reason: str
) -> None:
    means = {"attention~gradient": attention, "attention~random": chance, "gradient~loo": others}
    rows = [Statistic("mean", pair, value=value) for pair, value in means.items()]
    (finding,) = Agreement.findings(summary_frame([*rows, Statistic("control", "random", value=1.0)]))
    assert (finding.verdict, finding.reason) == (verdict, reason)


def test_a_correlation_is_significant_up_to_a_p_value_of_005() -> None:
    table = known()
    first = (table["first"] == "attention") & (table["second"] == "gradient")
    table.loc[first, "p_value"] = [0.05, math.nextafter(0.05, 1)]
    assert value_of(Agreement.summary(table), "significant", "attention~gradient") == 0.5


def test_variants_of_one_method_do_not_count_as_methods_that_agree() -> None:
    (finding,) = Agreement.findings(Agreement.summary(known().assign(variants=lambda table: table["second"] == "loo")))
    assert (finding.verdict, finding.reason) == (Verdict.UNDECIDED, "more than chance")


def test_another_kind_of_attention_is_no_other_measure_of_importance() -> None:
    """Else rollout would agree with other measures because it agrees with attention."""
    summary = with_means(Agreement.summary(known("loo")), loo=0.9)
    (finding,) = Agreement.findings(summary)
    assert finding.evidence[0].method == "attention~gradient"
    assert "attention~loo" not in {each.method for each in finding.evidence}
    assert "Other kinds of attention: loo at 0.90." in Agreement.interpretation(summary)
    alone = Agreement.summary(known("loo", "gradient"))
    (finding,) = Agreement.findings(alone)
    assert (finding.verdict, finding.reason) == (Verdict.UNDECIDED, "only kinds of attention were compared")


def test_the_interpretation_shows_another_training_apart_from_chance(table: pd.DataFrame) -> None:
    summary = Agreement.summary(table)
    again = value_of(summary, "mean", "attention~attention-of-another-seed")
    words = Agreement.interpretation(summary)
    assert f"attention-of-another-seed at {two_decimals(again)}" in words
    assert "random at 0.03, permuted-attention at 0.06" in words
    evidence = {each.method for each in Agreement.findings(summary)[0].evidence}
    assert "attention~attention-of-another-seed" not in evidence


def test_permuted_attention_keeps_the_weights_of_each_part_and_moves_them() -> None:
    generator = torch.Generator().manual_seed(0)
    plan = replace(SUBJECT.architecture, input_format=QuestionAnswering())  # type: ignore[type-var]
    model = plan.build(Sentences().read(Path()).task, torch.randn(30, 6, generator=generator), generator).eval()
    words = torch.tensor([[-1, 0, 1, 2, 3, 4, 5, -1, -1, 6, 7, 8, -1], [-1, 0, 1, 2, -1, -1, 3, -1] + [-1] * 5])
    inputs = torch.where(words >= 0, words + 4, 2)
    inputs[1, 8:] = 0
    segments = torch.tensor([[0] * 8 + [1] * 5, [0] * 5 + [1] * 3 + [0] * 5])
    batch = Batch(("one", "two"), inputs, inputs > 0, segments, words)
    target = torch.zeros(2, dtype=torch.int64)
    weights = RawAttention()(model, batch, target).scores
    draws = torch.stack([PermutedAttention(seed)(model, batch, target).scores for seed in range(30)])
    assert torch.equal(draws.sort(-1).values, weights.sort(-1).values.expand_as(draws))
    assert (draws[:, ~batch.content_mask] == 0).all()
    assert (draws[:, segments == 1] == 0).all()
    # Each of six places gets the largest weight now and then.
    assert set(draws[:, 0].argmax(-1).tolist()) == {1, 2, 3, 4, 5, 6}
    alone = PermutedAttention(3)(model, batch.rows(torch.tensor([1])), target[:1]).scores
    assert torch.allclose(alone[0], draws[3, 1, : alone.shape[1]], atol=1e-7)


SIGNED: tuple[Method, ...] = (InputXGradient(special_tokens=True), GradientNorm(special_tokens=True))


@pytest.fixture(scope="module")
def pieced(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A tiny transformer that reads most words in two pieces."""
    tokenization = Subwords(save_two_pieces(tmp_path_factory.mktemp("tokenizer"), WORDS), 32)
    base = subject(epochs=2, count=12)
    return replace(base, tokenization=tokenization, architecture=TinyTransformer(), embeddings=None)


def pooled(scores: list[float], words: list[int], method: Method, *, specials: bool) -> list[float]:
    """Sizes of the sums or means over each word's pieces, by a loop; special symbols behind all words."""
    pieces: dict[int, list[float]] = {}
    for place, (score, word) in enumerate(zip(scores, words, strict=True)):
        if word >= 0 or specials:
            pieces.setdefault(int(word) if word >= 0 else 1000 + place, []).append(float(score))
    is_summed = tags_of(method).pooling == "sum"
    return [abs(sum(pieces[key]) / (1 if is_summed else len(pieces[key]))) for key in sorted(pieces)]


@pytest.mark.parametrize("specials", [False, True])
def test_by_word_sums_of_contributions_and_means_of_weights_are_correlated(
    pieced: TrainedModel,
    workspace: Workspace,
    specials: bool,  # noqa: FBT001
) -> None:
    trial = Agreement(pieced, SIGNED, (), level="word", special_tokens=specials)
    table = workspace.get(trial).table.set_index("uid")
    tables = [workspace.get(AttributionTable(pieced, method)).table.set_index("uid") for method in SIGNED]
    assert {tags_of(method).pooling for method in SIGNED} == {"sum", "mean"}
    assert len(table) == 12
    for uid in table.index:
        x, y = (
            pooled(scores.loc[uid, "scores"], scores.loc[uid, "words"], method, specials=specials)
            for scores, method in zip(tables, SIGNED, strict=True)
        )
        assert table.loc[uid, "length"] == len(x) < len(tables[0].loc[uid, "scores"])
        assert table.loc[uid, "value"] == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-9)


def test_special_tokens_are_ranked_only_on_request(pieced: TrainedModel, workspace: Workspace) -> None:
    without, with_them = (workspace.get(Agreement(pieced, SIGNED, (), special_tokens=s)).table for s in (False, True))
    assert (with_them["length"] == without["length"] + 2).all()
    one, other = (workspace.get(AttributionTable(pieced, method)).table for method in SIGNED)
    for row, value in enumerate(with_them["value"]):
        x, y = ([abs(score) for score in each["scores"].iloc[row]] for each in (one, other))
        assert value == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-9)
    assert not with_them["value"].equals(without["value"])


@pytest.mark.parametrize(
    ("level", "specials", "axis"),
    [
        ("word", True, "Kendall's tau, by word, with special tokens"),
        ("word", False, "Kendall's tau, by word"),
        ("unit", False, "Kendall's tau"),
    ],
)
def test_settings_that_are_not_the_default_are_in_the_summary_and_on_the_axes(
    level: Level,
    specials: bool,  # noqa: FBT001
    axis: str,
    pieced: TrainedModel,
    workspace: Workspace,
) -> None:
    table = workspace.get(Agreement(pieced, SIGNED, (), level=level, special_tokens=specials)).table
    summary = Agreement.summary(table)
    assert (value_of(summary, "by_word") == 1, value_of(summary, "special_tokens") == 1) == (level == "word", specials)
    assert ("Special tokens" in Agreement.interpretation(summary)) == specials
    figure = Agreement.figures(table)[0]
    assert isinstance(figure, Histogram)
    assert figure.x.label == axis


def test_words_of_one_piece_are_their_units() -> None:
    rows = {"uid": ["a"], "predicted": [0], "scores": [[7.0, 1.0, -2.0]], "segments": [[0, 0, 1]]}
    table = pd.DataFrame({**rows, "scored": [[False, True, True]], "words": [[-1, 0, 1]]})
    assert aggregate_to_level(table, "unit", "sum", special_tokens=False) is table
    found = aggregate_to_level(table, "word", "sum", special_tokens=False)
    assert found["scores"].tolist() == [[1.0, -2.0]]
    assert found["segments"].tolist() == [[0, 1]]


def test_a_method_that_is_silent_on_special_symbols_is_not_ranked_with_them() -> None:
    with pytest.raises(UserError, match="leave-one-out: no scores"):
        Agreement(subject(), (InputXGradient(), LeaveOneOut()), (Random(),), special_tokens=True)
    assert (
        len(Agreement(subject(), (InputXGradient(), RawAttention()), (Random(),), special_tokens=True).dependencies)
        == 3
    )


@pytest.mark.usefixtures("small_shards")
def test_a_part_with_weight_in_another_shard_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros of a part count where the part has weight in any text of the corpus, of whatever shard."""
    trial = Agreement(subject(), (RawAttention(), InputXGradient()))
    shards = {
        0: pd.DataFrame({"segments": [[0, 1]], "scores": [[0.5, 0.0]]}),
        SIZE: pd.DataFrame({"segments": [[0, 0]], "scores": [[0.5, 0.5]]}),
        2 * SIZE: pd.DataFrame({"segments": [[0, 1]], "scores": [[0.0, 0.5]]}),
    }
    monkeypatch.setattr(Agreement, "_read_scores", lambda _, recipe, rows, workspace: shards[rows.start])
    found = [
        trial._weighted_parts(own, range(start, start + SIZE), Workspace(tmp_path)) for start, own in shards.items()
    ]
    assert [{0, 1} <= found[0], found[1], {0, 1} <= found[2]] == [True, {0}, True]
