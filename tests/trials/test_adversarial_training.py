"""Trained adversaries: the points and the curve of the trade-off, and AtteFa where the answer is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Generator, Tensor

from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.measures.divergence import jensen_shannon
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import Average, BiLSTM, initialize_weights
from heedful.results import Verdict, value_of
from heedful.store.workspace import Workspace
from heedful.training.predictions import compare_predictions, load_predictor
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa
from heedful.types import Architecture, Batch, Task, Trace
from tests.tiny import subject

pytestmark = pytest.mark.slow

SHORT_TRADEOFF = Training(8, 8, Adam(lr=0.02), EpochSelection(metric="deception"))


@pytest.fixture(scope="module")
def table(workspace: Workspace) -> pd.DataFrame:
    return workspace.get(AdversarialTradeoff(subject(), (0.0, 2.0), (1, 2), adversary_training=SHORT_TRADEOFF)).table


def test_every_point_has_every_instance_once(table: pd.DataFrame) -> None:
    counts = table.groupby(["kind", "setting"])["uid"].agg(["size", "nunique"])
    assert (counts == 40).all().all()
    assert set(table["kind"]) == {"lambda", "seed", "uniform", "search", "exact"}


def test_a_larger_lambda_goes_farther(table: pd.DataFrame) -> None:
    summary = AdversarialTradeoff.summary(table)
    assert value_of(summary, "jsd", "lambda 2") > value_of(summary, "jsd", "lambda 0") + 0.05


def test_points_are_means_over_instances_on_the_papers_scale(table: pd.DataFrame) -> None:
    summary = AdversarialTradeoff.summary(table)
    rows = table[(table["kind"] == "lambda") & (table["setting"] == 2.0)]
    assert value_of(summary, "jsd", "lambda 2") == pytest.approx(rows["jsd"].mean())
    assert value_of(summary, "tvd", "lambda 2") == pytest.approx(rows["stvd"].mean() / 2)
    of_class = rows[rows["predicted"] == 1]
    assert value_of(summary, "jsd", "lambda 2", "class 1") == pytest.approx(of_class["jsd"].mean())
    hits = ((rows["answered"] == 1) & (rows["label"] == 1)).sum()
    f1 = 2 * hits / ((rows["answered"] == 1).sum() + (rows["label"] == 1).sum())
    assert value_of(summary, "f1", "lambda 2") == pytest.approx(f1)


def test_free_weights_are_those_of_the_other_papers_trial(table: pd.DataFrame, workspace: Workspace) -> None:
    summary = AdversarialTradeoff.summary(table)
    free = workspace.get(AdversarialAttention(subject())).table
    assert value_of(summary, "jsd", "exact") == pytest.approx(free["epsilon_max"].mean())
    assert value_of(summary, "jsd", "exact") >= value_of(summary, "jsd", "search") - 1e-9
    assert value_of(summary, "tvd", "exact") <= 0.025 + 1e-9


ONE_WORD = Mock(informative=1, strength=3.0, shortest=6, longest=9, train=300, dev=60, test=80)
SHORT = Training(6, 16, Adam(lr=0.02), EpochSelection(metric="deception"), reduction="mean")


def token_wise(corpus: Mock = ONE_WORD, *, seed: int = 0) -> TrainedModel:
    plan = Attentive(Average(16), Additive())
    return TrainedModel(
        corpus, corpus.tokenization, plan, Training(10, 16, Adam(lr=0.02)), seed, embeddings=RandomEmbeddings(12)
    )


@dataclass(frozen=True)
class EqualStates(Architecture):
    """A pooled model with equal hidden states, so that attention changes no output."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> AttentiveModel:
        model = Attentive(Average(4), Additive()).build(task, embeddings, generator)
        # A projection of zero makes every state tanh(b); the bias still learns a constant output.
        model.get_encoder(0).get_submodule("projection").register_parameter(
            "weight", torch.nn.Parameter(torch.zeros(4, 6), requires_grad=False)
        )
        return model


class Ignoring(AttentiveModel):
    """Attends as any pooled model does, and then reads all units alike."""

    def forward(
        self,
        batch: Batch,
        *,
        embeddings: Tensor | None = None,
        hidden: Tensor | None = None,
        attention: Tensor | None = None,
    ) -> Trace:
        trace = super().forward(batch, embeddings=embeddings, hidden=hidden, attention=attention)
        support = self.input_format.support(batch).float()
        logits = self.decoder(self.decoder_input(batch, trace.hidden), support / support.sum(-1, keepdim=True))
        return replace(trace, logits=logits)


@dataclass(frozen=True)
class IgnoredAttention(Attentive):
    """The plan of `Ignoring`."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> AttentiveModel:
        assert embeddings is not None
        model = initialize_weights(Ignoring(task, self, embeddings.shape), generator)
        model.initialize_embeddings(embeddings)
        return model


def test_differences_are_those_of_a_loop_over_instances(workspace: Workspace) -> None:
    base, other = subject(), replace(subject(), seed=3)
    table = compare_predictions(other, base, workspace).set_index("uid")
    one, two = base.restore(workspace), other.restore(workspace)
    for example in one.examples("test")[:10]:
        mine, theirs = one.model(one.tokenizer([example])), two.model(two.tokenizer([example]))
        row = table.loc[example.uid]
        jsd = jensen_shannon(mine.attention, theirs.attention).mean()
        assert row["jsd"] == pytest.approx(float(jsd.detach()), abs=1e-6)
        moved = (one.model.task.probabilities(mine.logits) - two.model.task.probabilities(theirs.logits)).abs().max()
        assert row["stvd"] == pytest.approx(float(moved.detach()), abs=1e-5)
        assert row["bound"] >= row["jsd"] - 1e-9


def test_a_subject_does_not_differ_from_itself(workspace: Workspace) -> None:
    table = compare_predictions(subject(), subject(), workspace)
    assert table["jsd"].abs().max() < 1e-12
    assert table["stvd"].max() == 0
    assert (table["predicted"] == table["answered"]).all()


@pytest.mark.slow
def test_where_the_decoder_ignores_attention_other_attention_is_free(workspace: Workspace) -> None:
    base = replace(subject(epochs=8, count=400), architecture=IgnoredAttention(BiLSTM(4), Additive()))
    trial = AtteFa(
        base, (1,), adversary_training=replace(SHORT, epochs=20, batch_size=32, optimizer=Adam(lr=0.01)), start="base"
    )
    summary = AtteFa.summary(workspace.get(trial).table)
    assert value_of(summary, "base_accuracy") > 0.9
    assert value_of(summary, "share_of_mean_bound") > 0.5
    assert value_of(summary, "attefa") < 0.01
    assert AtteFa.findings(summary)[0].verdict is Verdict.NOT_SUPPORTED


@pytest.mark.slow
def test_where_all_states_are_alike_free_weights_reach_the_bound_and_none_can_be_learned(workspace: Workspace) -> None:
    base = replace(subject(epochs=6), architecture=EqualStates())
    trial = AtteFa(base, (1,), adversary_training=replace(SHORT, epochs=30))
    summary = AtteFa.summary(workspace.get(trial).table)
    exact = workspace.get(AdversarialAttention(base)).table
    assert (exact["epsilon_max"] - exact["bound"]).abs().max() < 1e-6
    # Hidden states are all alike, so no attention can be learned either, and what is predicted is a constant.
    assert value_of(summary, "tvd") < 0.005
    assert value_of(summary, "jsd") < 1e-6
    (finding,) = AtteFa.findings(summary)
    assert finding.verdict is Verdict.UNDECIDED
    assert "almost the same for every text" in finding.reason


@pytest.mark.slow
def test_one_decisive_word_costs_what_a_constant_prediction_costs(workspace: Workspace) -> None:
    trial = AtteFa(token_wise(), (1, 2), adversary_training=SHORT)
    summary = AtteFa.summary(workspace.get(trial).table)
    assert value_of(summary, "base_accuracy") > 0.85
    assert value_of(summary, "attefa") == pytest.approx(value_of(summary, "collapse"), rel=0.1)
    assert "gave up" in AtteFa.findings(summary)[0].reason


@pytest.mark.slow
def test_on_one_informative_word_the_divergence_is_that_of_two_bins(workspace: Workspace) -> None:
    base, other = token_wise(), token_wise(seed=1)
    trained = base.restore(workspace)
    batch = trained.batch("test")
    marked = {example.uid: example.rationale for example in trained.examples("test")}
    attentions = [
        load_predictor(each, "test", workspace)(batch).attention[:, 0, 0, 0].double() for each in (base, other)
    ]
    table = compare_predictions(other, base, workspace).set_index("uid")
    for row, uid in enumerate(batch.uids):
        rationale = marked[uid]
        assert rationale is not None
        place = rationale.index(True) + 1
        filler = [unit for unit in range(1, len(rationale) + 1) if unit != place]
        assert float(attentions[0][row, filler].max() - attentions[0][row, filler].min()) < 1e-6
        bins = [torch.stack([each[row, place], each[row, filler].sum()]) for each in attentions]
        assert table.loc[uid]["jsd"] == pytest.approx(float(jensen_shannon(bins[0], bins[1])), abs=1e-6)


@pytest.mark.slow
def test_equal_seeds_give_bit_identical_rows(tmp_path: Path) -> None:
    trial = AtteFa(subject(), (1,), adversary_training=replace(SHORT, epochs=2))
    one, again = (Workspace(tmp_path / name).get(trial).table for name in "ab")
    pd.testing.assert_frame_equal(one, again)
