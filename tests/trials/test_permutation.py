"""Permuted attention: known answers, invariances, planted truth, and the rows and sums of the trial."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Generator

from heedful.attributions.attention import RawAttention, largest_weights
from heedful.figures import Violin
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import Average, BiLSTM
from heedful.models.input_forms import PairInput
from heedful.results import Statistic, Verdict, summary_frame
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.trials.permutation import Permutation, median_error, output_changes, shuffle_attention
from heedful.types import Batch, Model, UserError
from tests.networks import TinyTransformer
from tests.small_models import some_batch
from tests.tiny import subject
from tests.trials.summaries import values


def some_model(encoder: Average | BiLSTM | None = None) -> AttentiveModel:
    generator = Generator().manual_seed(0)
    table = torch.randn(30, 5, generator=generator)
    return Attentive(encoder or BiLSTM(3), Additive()).build(BinaryClassification(), table, generator).eval()


def test_there_are_as_many_permutations_as_in_the_paper() -> None:
    assert Permutation(subject()).permutations == 100


def test_a_permutation_keeps_the_weights_and_touches_no_special_symbol() -> None:
    batch = some_batch((5, 3))
    attention = some_model()(batch).attention
    support = batch.content_mask[:, None, None, None]
    shuffled = shuffle_attention(attention, support, torch.tensor([1, 2]), range(50))
    assert shuffled.shape == (2, 50, 1, 1, 1, 7)
    assert (shuffled.masked_select(~support.unsqueeze(1).expand_as(shuffled)) == 0).all()
    expected = attention.sort(-1).values.unsqueeze(1).expand_as(shuffled)
    assert torch.equal(shuffled.sort(-1).values, expected)


def test_all_permutations_are_equally_likely() -> None:
    attention = torch.tensor([0.0, 0.1, 0.2, 0.7, 0.0]).reshape(1, 1, 1, 1, 5)
    support = attention > 0
    found = shuffle_attention(attention, support, torch.tensor([11]), range(12_000))[0, :, 0, 0, 0, 1:4]
    counts = Counter(tuple(round(value, 1) for value in row) for row in found.tolist())
    assert set(counts) == set(itertools.permutations((0.1, 0.2, 0.7)))
    assert all(abs(count - 2000) < 5 * math.sqrt(2000) for count in counts.values())


def planted(scores: tuple[float, ...], weights: tuple[float, ...]) -> tuple[AttentiveModel, Batch]:
    """A model whose units have these scores: identity hidden states, decoder s, attention imposed."""
    batch = some_batch((len(scores),))
    model = some_model(Average(len(scores)))
    with torch.no_grad():
        model.decoder.output_layer.weight.copy_(torch.tensor([scores]))  # type: ignore[union-attr, operator]
        model.decoder.output_layer.bias.zero_()  # type: ignore[union-attr, operator]
    hidden = torch.zeros(1, len(scores) + 2, len(scores))
    hidden[0, 1:-1] = torch.eye(len(scores))
    attention = torch.zeros(1, 1, 1, 1, len(scores) + 2)
    attention[0, 0, 0, 0, 1:-1] = torch.tensor(weights)

    def give(
        module: torch.nn.Module, args: tuple[Batch], options: dict[str, object]
    ) -> tuple[tuple[Batch], dict[str, object]]:
        return args, {**options, "hidden": hidden, "attention": attention}

    model.register_forward_pre_hook(give, with_kwargs=True)
    return model, batch


def test_uniform_attention_gives_no_change() -> None:
    model, batch = planted((2.0, 1.0, 0.0, -1.0, -3.0), (0.2,) * 5)
    assert Permutation(subject(), 100, 0).rows(model, batch)["median_change"].tolist() == pytest.approx([0.0], abs=1e-7)


def test_one_hot_attention_gives_the_known_median() -> None:
    """Spec check 7: the change takes 0, .1497, .3808, .6119, .8334 with probability 1/5 each."""
    model, batch = planted((2.0, 1.0, 0.0, -1.0, -3.0), (1.0, 0.0, 0.0, 0.0, 0.0))
    assert Permutation(subject(), 10_001, 0).rows(model, batch)["median_change"].tolist() == pytest.approx(
        [0.3808], abs=1e-4
    )


def test_a_decoder_that_ignores_attention_gives_exactly_zero() -> None:
    model = some_model()
    with torch.no_grad():
        model.decoder.output_layer.weight.zero_()  # type: ignore[union-attr, operator]
    found = Permutation(subject(), 100, 0).rows(model, some_batch((6, 4, 9)))
    assert found["median_change"].tolist() == [0.0, 0.0, 0.0]


def test_the_median_equals_a_loop_through_the_whole_model() -> None:
    model, batch = some_model(), some_batch((6, 4))
    found = Permutation(subject(), 31, 5).rows(model, batch)
    with torch.no_grad():
        trace = model(batch)
        seeds = torch.tensor([derive_seed("permutation", 5, uid) for uid in batch.uids])
        shuffled = shuffle_attention(trace.attention, batch.content_mask[:, None, None, None], seeds, range(31))
        before = torch.sigmoid(trace.logits[:, 0])
        changes = [
            (torch.sigmoid(model(batch, attention=shuffled[:, k]).logits[:, 0]) - before).abs() for k in range(31)
        ]
    expected = torch.stack(changes).median(0).values
    assert found["median_change"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert found["maximum_attention"].tolist() == pytest.approx(trace.attention.amax((1, 2, 3, 4)).tolist())


def test_other_rows_of_the_batch_change_no_row() -> None:
    model, batch = some_model(), some_batch((6, 4, 11))
    alone = Permutation(subject(), 50, 0).rows(model, batch.rows(torch.tensor([1])))
    together = Permutation(subject(), 50, 0).rows(model, batch)
    assert alone["median_change"].iloc[0] == pytest.approx(together["median_change"].iloc[1], abs=1e-6)


def test_both_texts_of_a_compared_pair_are_permuted_within_themselves() -> None:
    generator = Generator().manual_seed(0)
    model = Attentive(BiLSTM(3), Additive(), input_format=PairInput()).build(
        BinaryClassification(), torch.randn(30, 5, generator=generator), generator
    )
    batch = some_batch((7,))
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    batch = Batch(batch.uids, batch.inputs, batch.mask, segments, batch.words)
    support = model.input_format.support(batch)[:, None, None]
    shuffled = shuffle_attention(model(batch).attention, support, torch.tensor([1]), range(20))[:, :, 0, 0]
    assert torch.allclose(shuffled[0, :, 0, 4:], torch.zeros(20, 5))
    assert torch.allclose(shuffled.sum(-1), torch.ones(1, 20, 2))
    assert Permutation(subject(), 20, 0).rows(model, batch)["median_change"].iloc[0] > 0


def test_the_summary_is_by_class_and_by_bin() -> None:
    table = pd.DataFrame(
        {
            "predicted": [0, 0, 0, 1],
            "maximum_attention": [0.1, 0.25, 0.3, 1.0],
            "median_change": [0.1, 0.2, 0.4, 0.8],
        }
    )
    summary = Permutation.summary(table)
    found = values(summary)
    assert found["median_change", "", ""] == pytest.approx(0.3)
    assert found["median_change", "", "class 0, attention 0.00 to 0.25"] == pytest.approx(0.1)
    assert found["median_change", "", "class 0, attention 0.25 to 0.50"] == pytest.approx(0.3)
    assert found["median_change", "", "class 1, attention 0.75 to 1.00"] == pytest.approx(0.8)
    assert math.isnan(found["median_change", "", "class 1, attention 0.00 to 0.25"])
    assert summary["n"].tolist() == [4, 3, 1, 2, 0, 0, 1, 0, 0, 0, 1]
    (figure,) = Permutation.figures(table)
    assert isinstance(figure, Violin)
    assert figure.groups[1][0].values == (0.2, 0.4)


def test_the_verdict_says_whether_concentration_matters() -> None:
    rows = [(0, 0.1, 0.01)] * 10 + [(0, 0.9, 0.5)] * 10
    table = pd.DataFrame(rows, columns=["predicted", "maximum_attention", "median_change"])
    size, concentration = Permutation.findings(Permutation.summary(table))
    assert (size.verdict, concentration.verdict) == (Verdict.SUPPORTED, Verdict.SUPPORTED)
    assert [each.value for each in concentration.evidence] == [0.01, 0.5]
    table["median_change"] = table["median_change"].iloc[::-1].tolist()
    assert Permutation.findings(Permutation.summary(table))[1].verdict is Verdict.NOT_SUPPORTED
    few = Permutation.findings(Permutation.summary(table.tail(10)))
    assert [each.verdict for each in few] == [Verdict.NOT_SUPPORTED, Verdict.UNDECIDED]


def test_a_bin_is_summed_up_by_its_median_and_begins_with_its_lower_bound() -> None:
    bounds = [0.0, 0.25, 0.5, 0.75]
    rows = [(0, place, change) for place in bounds for change in (0.1, 0.2, 0.6 + place)]
    rows += [(0, math.nextafter(place, 0), 0.0) for place in bounds[1:]]
    table = pd.DataFrame(rows, columns=["predicted", "maximum_attention", "median_change"])
    summary = Permutation.summary(table)
    found = summary[summary["subset"].str.contains("attention")]
    # Each bin but the last has a fourth text with 0, from just below the next bin.
    assert found["n"].tolist() == [4, 4, 4, 3]
    assert found["value"].tolist() == pytest.approx([0.15, 0.15, 0.15, 0.2])
    assert summary["value"].iloc[:2].tolist() == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (math.nextafter(0.05, 0), Verdict.NOT_SUPPORTED),
        (0.05, Verdict.UNDECIDED),
        (math.nextafter(0.25, 0), Verdict.UNDECIDED),
        (0.25, Verdict.SUPPORTED),
    ],
)
def test_a_change_is_small_below_005_and_large_from_025_on(change: float, verdict: Verdict) -> None:
    size, _ = Permutation.findings(summary_frame([Statistic("median_change", value=change)]))
    assert size.verdict is verdict


def test_concentration_is_judged_between_bins_of_ten_texts_and_must_raise_the_change_in_every_class() -> None:
    def verdict(*classes: tuple[int, int, float, float]) -> Verdict:
        """Texts in the lowest and in the highest bin of each class, and their changes."""
        rows = [
            (label, place, change)
            for label, (few, many, low, high) in enumerate(classes)
            for place, count, change in ((0.1, few, low), (0.9, many, high))
            for _ in range(count)
        ]
        table = pd.DataFrame(rows, columns=["predicted", "maximum_attention", "median_change"])
        return Permutation.findings(Permutation.summary(table))[1].verdict

    assert verdict((10, 10, 0.1, 0.2)) is Verdict.SUPPORTED
    assert verdict((9, 10, 0.1, 0.2)) is verdict((10, 9, 0.1, 0.2)) is Verdict.UNDECIDED
    assert verdict((10, 10, 0.2, 0.2)) is Verdict.NOT_SUPPORTED
    assert verdict((10, 10, 0.1, 0.2), (10, 10, 0.2, 0.1)) is Verdict.NOT_SUPPORTED
    assert verdict((10, 10, 0.1, 0.2), (10, 9, 0.2, 0.1)) is Verdict.SUPPORTED


def test_a_limit_takes_the_same_instances_for_every_subject(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    first, second = (workspace.get(Permutation(subject(seed=seed), limit=7)) for seed in (0, 1))
    assert len(first.table) == 7
    assert set(first.table["uid"]) == set(second.table["uid"])
    assert first.notes["n"] == 7
    assert first.notes["of"] == 40


def transformer() -> Model:
    plan = TinyTransformer("bert", vocab_size=30)
    return plan.build(BinaryClassification(), None, Generator().manual_seed(0)).eval().double()


def test_the_attention_of_a_transformer_is_shuffled_by_forward_passes() -> None:
    """One layer and one head, against a loop that shuffles that head row by row and sends it through the network."""
    model, batch = transformer(), some_batch((5, 3))
    with torch.no_grad():
        trace = model(batch)
        found = output_changes(model, batch, trace, 7, seed=3, layer=1, head=0)
        seeds = torch.tensor([derive_seed("permutation", 3, uid) for uid in batch.uids])
        shuffled = shuffle_attention(trace.attention, batch.mask[:, None, None, None], seeds, range(7))[:, :, 1, 0]
        before = torch.sigmoid(trace.logits[:, 0])
        for draw in range(7):
            given = trace.attention.clone()
            given[:, 1, 0] = shuffled[:, draw]
            after = torch.sigmoid(model(batch, attention=given).logits[:, 0])
            assert found[:, draw].tolist() == pytest.approx((after - before).abs().tolist(), abs=1e-9)
    assert found.max() > 0


def test_every_head_of_every_layer_is_shuffled_where_none_is_chosen() -> None:
    model, batch = transformer(), some_batch((6, 4))
    with torch.no_grad():
        trace = model(batch)
        everything = output_changes(model, batch, trace, 20)
        one_head = output_changes(model, batch, trace, 20, layer=0, head=1)
    assert everything.mean() > one_head.mean() > 0


def test_chunks_of_a_transformers_permutations_are_all_different(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = transformer(), some_batch((9,))
    with torch.no_grad():
        trace = model(batch)
        monkeypatch.setattr("heedful.trials.permutation.MAX_WEIGHTS_AT_ONCE", 1)
        found = output_changes(model, batch, trace, 6)
    assert len(set(found[0].tolist())) == 6


def test_the_error_of_a_median_is_its_deviation_over_samples() -> None:
    """Of uniform and of skewed values."""
    generator = Generator().manual_seed(0)
    drawn = torch.rand(2000, 60, generator=generator, dtype=torch.float64)
    for samples in (drawn, -drawn.log()):
        deviation = samples.quantile(0.5, dim=1).std().item()
        mean = torch.stack([median_error(each) for each in samples]).square().mean().sqrt().item()
        assert mean == pytest.approx(deviation, rel=0.2)
    assert median_error(torch.tensor([0.3])) == 0


@pytest.mark.parametrize("kind", ["attentive", "transformer"])
def test_a_text_gets_as_many_permutations_as_its_median_needs(kind: str) -> None:
    model = transformer() if kind == "transformer" else some_model().double()
    batch, all_changes = some_batch((4, 7, 12)), Permutation(subject(), 300)
    with torch.no_grad():
        changes = output_changes(model, batch, model(batch), 300)
    reached = [float(median_error(each[:20])) for each in changes]
    error = sorted(reached)[1]
    found = Permutation(subject(), 300, error=error).rows(model, batch)
    for row in range(3):
        count = int(found["permutations"][row])
        assert (count == 20) == (reached[row] <= error)
        assert found["median_change"][row] == pytest.approx(float(changes[row, :count].quantile(0.5)), abs=1e-9)
        assert found["median_error"][row] == pytest.approx(float(median_error(changes[row, :count])), abs=1e-9)
        assert found["accurate"][row] == (found["median_error"][row] <= error)
        assert found["accurate"][row] or count == 300
    alone = Permutation(subject(), 300, error=error).rows(model, batch.rows(torch.tensor([2])))
    assert alone["permutations"][0] == found["permutations"][2]
    assert alone["median_change"][0] == pytest.approx(found["median_change"][2], abs=1e-9)
    summary = Permutation.summary(found.assign(accurate=[True, False, True]))
    assert values(summary)["inaccurate", "", ""] == 1
    assert values(summary)["permutations", "", ""] == pytest.approx(found["permutations"].mean())
    assert "permutations" not in all_changes.rows(model, batch)


def test_a_transformers_text_has_one_result_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, beside longer texts, and in any number of forward passes."""
    model, batch, trial = transformer(), some_batch((4, 7, 12)), Permutation(subject(), 9, 0)

    def found(rows: Batch) -> pd.Series:
        return trial.rows(model, rows).set_index("uid")["median_change"]

    together = found(batch)
    alone = pd.concat([found(batch.rows(torch.tensor([row]))) for row in range(3)])
    monkeypatch.setattr("heedful.trials.permutation.MAX_WEIGHTS_AT_ONCE", 2**11)
    pd.testing.assert_series_equal(alone, together, rtol=1e-9)
    pd.testing.assert_series_equal(found(batch), together, rtol=1e-9)
    assert together.nunique() == 3


def test_a_head_is_permuted_alike_alone_and_with_all_others() -> None:
    attention, seeds = transformer()(some_batch((6, 4))).attention, torch.tensor([5, 6])
    support = some_batch((6, 4)).mask[:, None, None, None]
    everything = shuffle_attention(attention, support, seeds, range(8))
    one_head = shuffle_attention(attention, support, seeds, range(3, 8), (slice(None), slice(1, 2), slice(0, 1)))
    assert torch.equal(everything[:, 3:, 1:2, :1], one_head)
    orders = everything[0].argsort(-1).flatten(0, -2).tolist()
    assert len({tuple(order) for order in orders}) > 0.9 * len(orders)


def test_the_maximum_attention_of_a_transformer_is_that_of_the_attention_shown() -> None:
    model, batch = transformer(), some_batch((6, 4))
    with torch.no_grad():
        sharp = torch.eye(8, dtype=torch.float64).expand(2, 2, 2, 8, 8) * batch.mask[:, None, None, None]
    shown = RawAttention()(model, batch, torch.tensor([0, 0])).scores.amax(1)
    found = Permutation(subject(), 2).rows(model, batch)["maximum_attention"]
    assert found.tolist() == pytest.approx(shown.tolist())
    # One-hot rows of every head, and yet no token has much of the attention.
    assert largest_weights(sharp, batch).tolist() == pytest.approx([1 / 8, 1 / 6])


def test_a_head_that_is_not_there_is_refused() -> None:
    model, batch = transformer(), some_batch((3,))
    with pytest.raises(UserError, match=r"head 2 .* 2, counted"):
        Permutation(subject(), 2, head=2).rows(model, batch)


def test_the_change_grows_with_concentration_only_if_it_does_in_every_class() -> None:
    def verdict(*rows: tuple[int, float, float]) -> Verdict:
        """Twelve texts each of a predicted class, maximum attention and median change."""
        columns = ("predicted", "maximum_attention", "median_change")
        table = pd.DataFrame([row for row in rows for _ in range(12)], columns=columns)
        return Permutation.findings(Permutation.summary(table))[1].verdict

    assert verdict((0, 0.1, 0.2), (0, 0.9, 0.3), (1, 0.1, 0.2), (1, 0.9, 0.3)) is Verdict.SUPPORTED
    assert verdict((0, 0.1, 0.2), (0, 0.9, 0.3), (1, 0.1, 0.3), (1, 0.9, 0.2)) is Verdict.NOT_SUPPORTED
    assert verdict((0, 0.9, 0.2), (1, 0.95, 0.3)) is Verdict.UNDECIDED


def test_the_trial_has_a_row_for_each_test_instance(tmp_path: Path) -> None:
    table = Workspace(tmp_path).get(Permutation(subject())).table
    assert sorted(table["uid"]) == sorted(f"test-{number}" for number in range(40))
    assert list(table.columns) == ["uid", "length", "predicted", "maximum_attention", "median_change"]
