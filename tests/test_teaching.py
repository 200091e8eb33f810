"""Classes, the teacher's words kept and looked up, and explanations as distributions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.gradient import InputXGradient
from heedful.attributions.layermix import LayerMix
from heedful.attributions.learned import StaticAttention
from heedful.core.headscores import read_heads
from heedful.core.types import Batch, UserError
from heedful.core.workspace import Workspace
from heedful.data.loudest import Loudest
from heedful.recipes.banks import Bank, HeadBank, LayerBank, MethodBank
from heedful.recipes.explanations import Explanation, Learned, Mixed, Ridged, Static, Teaching, Unexplained
from heedful.recipes.subject import Trained
from heedful.recipes.teaching import Classroom, Maps, Part, Taught, answers
from tests.corpus_laws import lawful
from tests.schools import ROOM, TEACHER, same, weights

PUPILS = ROOM.pupils(0)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("teaching"), batch_size=7)


@pytest.fixture(scope="module")
def trained(workspace: Workspace) -> Trained:
    return TEACHER.restore(workspace)


@pytest.fixture(scope="module")
def batch(trained: Trained) -> Batch:
    """Some pupils in an order of their own, beside a text that is longer than theirs."""
    return trained.batcher(PUPILS.of(trained)[3:9])


def uids(part: Part, trained: Trained) -> list[str]:
    return [example.uid for example in part.of(trained)]


def teaching(explanation: Explanation, workspace: Workspace) -> Teaching:
    """The explanation on the pupils' examples."""
    taught = tuple(Taught(workspace.get(Maps(TEACHER, PUPILS, bank))) for bank in explanation.banks)
    found = explanation.teaching(taught)
    assert found is not None
    return found


def test_a_redrawn_class_changes_with_the_seed_and_a_fixed_one_does_not(trained: Trained) -> None:
    redrawn, fixed = Classroom(size=20), Classroom(size=20, draw="fixed")
    assert uids(redrawn.pupils(1), trained) != uids(redrawn.pupils(2), trained)
    assert redrawn.pupils(1) == redrawn.pupils(1)
    assert fixed.pupils(1) == fixed.pupils(2)
    assert len(set(uids(fixed.pupils(1), trained))) == 20


def test_dev_is_divided_without_overlap_unless_it_is_shared(trained: Trained) -> None:
    dev = trained.examples("dev")
    outer, judged = Classroom(outer_share=0.25).divided(dev)
    assert (len(outer), len(judged)) == (4, 12)
    assert {example.uid for example in (*outer, *judged)} == {example.uid for example in dev}
    shared = Classroom(shared=True).divided(dev)
    assert shared == (dev, dev)


def test_a_pool_of_unseen_texts_is_cut_from_the_test_split_without_overlap(trained: Trained) -> None:
    room = Classroom(size=21, pool="test")
    parts = [uids(part, trained) for part in (room.pupils(0), room.dev, room.test)]
    assert [len(part) for part in parts] == [21, 3, 6]
    assert len({uid for part in parts for uid in part}) == 30
    assert all(uid.startswith("test-") for part in parts for uid in part)


def test_a_limit_caps_dev_and_test_for_all_seeds_alike(trained: Trained) -> None:
    room = Classroom(size=5, limit=6)
    assert len(uids(room.dev, trained)) == len(uids(room.test, trained)) == 6
    assert len(uids(room.pupils(0), trained)) == 5


@pytest.mark.parametrize(
    "wrong",
    [{"size": 0}, {"draw": "again"}, {"pool": "dev"}, {"outer_share": 1.0}, {"outer_share": 0.0}, {"limit": 1}],
)
def test_a_classroom_that_cannot_be_is_refused(wrong: dict[str, int | str | float]) -> None:
    with pytest.raises(UserError):
        Classroom(**wrong)  # type: ignore[arg-type]


BANKS: tuple[Bank, ...] = (HeadBank(), HeadBank(-1), MethodBank(InputXGradient()), LayerBank())


@pytest.mark.parametrize("bank", BANKS, ids=lambda bank: bank.called)
def test_maps_looked_up_equal_the_maps_computed_anew(
    bank: Bank, workspace: Workspace, trained: Trained, batch: Batch
) -> None:
    taught = Taught(workspace.get(Maps(TEACHER, PUPILS, bank)))
    anew = bank.read(trained.model, batch)
    torch.testing.assert_close(taught.maps(batch), anew.maps.float().detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(taught.logits(batch), anew.logits.detach(), rtol=1e-5, atol=1e-6)
    assert taught.count == {HeadBank(): 4, HeadBank(-1): 2}.get(bank, anew.maps.shape[1])  # type: ignore[call-overload]


def test_maps_of_texts_of_unlike_length_come_back_unmixed_and_zero_on_padding(tmp_path: Path) -> None:
    from tests.schools import Pairs  # a corpus of unequal lengths

    workspace = Workspace(tmp_path, batch_size=5)
    teacher = replace(TEACHER, corpus=Pairs())
    trained = teacher.restore(workspace)
    whole = trained.batcher(Part("train").of(trained))
    taught = Taught(workspace.get(Maps(teacher, Part("train"), HeadBank())))
    order = whole.lengths.argsort(descending=True)
    for rows in (order[:4], order[-4:], torch.arange(24)):
        part = whole.rows(rows)
        with torch.no_grad():
            expected = read_heads(trained.model, part).maps
        torch.testing.assert_close(taught.maps(part), expected, rtol=1e-5, atol=1e-6)
        assert not taught.maps(part).transpose(1, 2)[~part.mask].any()


def test_the_teacher_is_unchanged_by_being_asked(workspace: Workspace) -> None:
    before = weights(workspace)
    model = TEACHER.restore(workspace).model
    for bank in BANKS:
        workspace.get(Maps(TEACHER, Part("dev"), bank))
    assert same(weights(workspace), before)
    assert same(model.state_dict(), before)


def test_what_the_teacher_was_never_asked_is_said(workspace: Workspace, trained: Trained, batch: Batch) -> None:
    taught = Taught(workspace.get(Maps(TEACHER, PUPILS, HeadBank())))
    with pytest.raises(UserError, match="never asked about example 'test-0'"):
        taught.logits(trained.batch("test"))
    longer = replace(batch, mask=torch.cat((batch.mask, batch.mask[:, :1]), 1))
    with pytest.raises(UserError, match="same batching"):
        taught.maps(longer)


def test_answers_are_classes_of_classifiers(trained: Trained) -> None:
    assert answers(trained.model.task, torch.tensor([[-1.0], [2.0]])).tolist() == [0, 1]


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def by_hand(logits: Tensor, support: Tensor) -> np.ndarray:
    """Softmax over the support of each row, one row at a time."""
    found = np.zeros(logits.shape)
    for row in range(len(logits)):
        units = support[row].numpy()
        found[row, units] = softmax(logits[row].double().numpy()[units])
    return found


def test_attention_that_teaches_is_the_softmax_of_the_mean_of_its_heads(
    workspace: Workspace, trained: Trained, batch: Batch
) -> None:
    with torch.no_grad():
        scores = read_heads(trained.model, batch).scores
    for explanation, logits in (
        (Mixed(), scores.mean((1, 2))),
        (Mixed(HeadBank(-1)), scores[:, -1].mean(1)),
        (Mixed(temperature=0.5), scores.mean((1, 2)) / 0.5),
        (Mixed(phi=(0.0, 0.0, 9.0, 0.0)), scores[:, 1, 0]),
        (Learned(), scores.mean((1, 2))),
        (Learned(tempered=True, temperature=2.0), scores.mean((1, 2)) / 2.0),
    ):
        np.testing.assert_allclose(teaching(explanation, workspace)(batch), by_hand(logits, batch.scored), atol=1e-6)


def test_special_symbols_are_pointed_at_only_on_request(workspace: Workspace, batch: Batch) -> None:
    without, among = (teaching(Mixed(specials=wish), workspace) for wish in (False, True))
    special = batch.mask & ~batch.scored
    assert special.any()
    assert not without(batch)[special].any()
    assert (among(batch)[special] > 0).all()
    for found in (without(batch), among(batch)):
        torch.testing.assert_close(found.sum(1), torch.ones(len(batch)))


def test_static_attention_as_a_method_teaches_what_the_mix_of_heads_teaches(workspace: Workspace, batch: Batch) -> None:
    method = Static(StaticAttention(output="logits"))
    torch.testing.assert_close(teaching(method, workspace)(batch), teaching(Mixed(), workspace)(batch))


def test_a_method_teaches_by_the_softmax_of_its_scores_at_a_temperature(
    workspace: Workspace, trained: Trained, batch: Batch
) -> None:
    target = answers(trained.model.task, trained.model(batch).logits)
    scores = InputXGradient()(trained.model, batch, target).scores
    found = teaching(Static(InputXGradient(), 0.1), workspace)(batch)
    np.testing.assert_allclose(found, by_hand(scores.detach() / 0.1, batch.scored), atol=1e-5)


def test_a_ridge_mix_solves_the_normal_equations_of_leave_one_out_effects(
    workspace: Workspace, trained: Trained
) -> None:
    whole = trained.batcher(PUPILS.of(trained))
    target = answers(trained.model.task, trained.model(whole).logits)
    effects = LeaveOneOut("logit")(trained.model, whole, target).scores.double().numpy()
    with torch.no_grad():
        maps = read_heads(trained.model, whole).maps.double().numpy()
    rows, values = [], []
    for text in range(len(whole)):
        units = whole.scored[text].numpy()
        rows.append(maps[text][:, units].T - maps[text][:, units].mean(1))
        values.append(effects[text, units] - effects[text, units].mean())
    design, response = np.concatenate([*rows, np.eye(4) * 0.1**0.5]), np.concatenate([*values, np.zeros(4)])
    expected = np.linalg.lstsq(design, response, rcond=None)[0]
    np.testing.assert_allclose(teaching(Ridged(0.1), workspace).phi, expected, rtol=1e-3, atol=1e-6)


def peak(found: Teaching, batch: Batch) -> float:
    """The largest share over an even share, text by text."""
    shares = found(batch).double()
    return float(
        np.mean([float(row.max()) * int(words.sum()) for row, words in zip(shares, batch.scored, strict=True)])
    )


def test_a_ridge_mix_is_as_peaked_as_static_attention_and_not_nearly_even(
    workspace: Workspace, trained: Trained
) -> None:
    whole = trained.batcher(PUPILS.of(trained))
    static, rival = (peak(teaching(each, workspace), whole) for each in (Mixed(), Ridged()))
    assert rival == pytest.approx(static, rel=1e-5)
    cold = Ridged(temperature=1.0, effects=LeaveOneOut())
    assert peak(teaching(cold, workspace), whole) < 1 + (static - 1) / 2


def test_nothing_explained_needs_no_maps() -> None:
    assert Unexplained().banks == ()
    assert Unexplained().teaching(()) is None  # type: ignore[func-returns-value]
    assert Unexplained.beta == 0


def test_explanations_that_cannot_be_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="above 0"):
        Static(InputXGradient(), 0.0)
    with pytest.raises(UserError, match="no normaliser"):
        Mixed(normaliser="hardmax")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="special symbols"):
        Learned(MethodBank(InputXGradient()), specials=True)
    with pytest.raises(UserError, match="3 entries, but the teacher has 4"):
        teaching(Mixed(phi=(1.0, 0.0, 0.0)), workspace)


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (Learned, {"rate": -1.0}, "rate must be a number from 0, not -1.0"),
        (Learned, {"rate": float("nan")}, "rate must be a number from 0, not nan"),
        (Learned, {"clip": -5.0}, "clip must be a number above 0, not -5.0"),
        (Learned, {"clip": 0.0}, "clip must be a number above 0"),
        (Learned, {"pilot": 0.0}, "pilot must be a number above 0"),
        (Learned, {"batch": 0}, "batch must be 1 or more, not 0"),
        (Learned, {"way": "newton"}, "there is no way 'newton' to a hypergradient"),
        (Learned, {"bank": LayerBank(LayerMix(specials=True))}, "say specials=True here too, or at neither place"),
        (Ridged, {"ridge": -1.0}, "ridge must be a number from 0, not -1.0"),
        (Ridged, {"temperature": 0.0}, "above 0"),
    ],
)
def test_values_that_make_no_sense_are_refused_at_the_door(
    kind: type[Learned | Ridged], wrong: dict[str, float | str | Bank], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        kind(**wrong)  # type: ignore[arg-type]


def test_the_loudest_word_decides_and_is_the_only_evidence(tmp_path: Path) -> None:
    corpus = Loudest(words=12, length=4, train=300, dev=20, test=20)
    splits = corpus.read(tmp_path)
    assert all(lawful(example, splits) for split in (splits.train, splits.dev, splits.test) for example in split)
    louder: set[tuple[str, str]] = set()
    side: dict[str, int | float | None] = {}
    for example in splits.train:
        assert example.rationale is not None
        words = str(example.parts[0]).split()
        (loudest,) = (word for word, marked in zip(words, example.rationale, strict=True) if marked)
        louder |= {(loudest, word) for word in words if word != loudest}
        assert side.setdefault(loudest, example.label) == example.label
    assert not any((quiet, loud) in louder for loud, quiet in louder)
    with pytest.raises(UserError, match="as many different words"):
        Loudest(words=4, length=5)
