"""A third way of removal by hand, and the distance of perturbed texts from real ones."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest
import torch

from heedful.attributions.infill import draw_infill
from heedful.attributions.method import Baseline
from heedful.attributions.perturbation import LeaveOneOut
from heedful.audits import removal
from heedful.audits.audit_result import Audit
from heedful.audits.evidence import BlockAttributions, BlockErasure, BlockSearch, TextSample, read_block
from heedful.audits.questions import UNDER_INFILL
from heedful.audits.removal import (
    DRAWS,
    FAR,
    INFILL,
    REAL,
    BlockInfill,
    InfillWords,
    PerturbedDistances,
    deciding_states,
)
from heedful.audits.schedule import AuditOptions, audit
from heedful.audits.verdict_rules import BEST, NULL
from heedful.audits.work_list import FinishedWork
from heedful.explainer import Explainer
from heedful.results import Verdict
from heedful.store.workspace import Workspace
from heedful.types import Model
from tests.audits.test_map_questions import WorstFirst
from tests.audits.test_schedule import Sums, additive
from tests.small_models import subject

WAYS: tuple[Baseline, ...] = ("delete", "unk")
LEAVE_ONE_OUT = LeaveOneOut(feature="word")


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return additive()


@pytest.fixture(scope="module")
def sample(explainer: Explainer) -> TextSample:
    return TextSample(explainer.recipe(Sums()))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("removal"))


@pytest.fixture(scope="module")
def result(explainer: Explainer, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    options = AuditOptions(texts=28, workers=1, only_methods=True, methods=("leave-one-out", WorstFirst()))
    return audit(explainer, Sums(), options=options, workspace=tmp_path_factory.mktemp("audit"))


# Infill


def test_the_fall_under_infill_is_that_of_texts_written_out(sample: TextSample, workspace: Workspace) -> None:
    """The output of the model is the sum of the weights of the words, of those that are filled in as well."""
    scores, words = BlockAttributions(sample, LEAVE_ONE_OUT, 2), InfillWords(sample)
    found = workspace.get(BlockInfill(scores, words)).table
    erased = workspace.get(BlockErasure(scores, WAYS)).table[: len(found)].set_index("uid")
    block = read_block(sample, 2, workspace)
    infill = draw_infill(block.batch, words.pool(workspace), sample.seed, DRAWS).ids
    weights = block.loaded.model.get_parameter("table").detach()[:, 0]

    def probability(row: int, ids: list[int]) -> float:
        total = math.fsum(float(weights[token]) for token in ids)
        return 1 / (1 + math.exp(-total if int(block.target[row]) else total))

    for row, (uid, fall) in enumerate(zip(found["uid"], found["comprehensiveness"], strict=True)):
        content = block.batch.content_mask[row]
        text, falls = block.batch.inputs[row][content].tolist(), []
        for size in filter(None, map(int, erased["counts"][uid])):
            removed = {int(word) for word in erased["order"][uid][:size]}
            outputs = []
            for ids in infill[:, row][:, content].tolist():
                written = [ids[place] if place in removed else word for place, word in enumerate(text)]
                outputs.append(probability(row, written))
            falls.append(probability(row, text) - sum(outputs) / DRAWS)
        assert fall == pytest.approx(sum(falls) / len(falls), abs=1e-5)


def test_the_orders_of_the_search_are_tried_one_by_one(sample: TextSample, workspace: Workspace) -> None:
    """An order that was searched under one way of deletion has the value of scores that rank the words so."""
    search, words = BlockSearch(sample, 2, WAYS), InfillWords(sample)
    found = workspace.get(BlockInfill(search, words)).table
    assert found["uid"].tolist() == workspace.get(search).table["uid"].tolist()
    # On a sum the words that the search removes first are those of leave-one-out.
    own = workspace.get(BlockInfill(BlockAttributions(sample, LEAVE_ONE_OUT, 2), words)).table
    for way in range(len(WAYS)):
        ranked = found["comprehensiveness"][way * len(own) : (way + 1) * len(own)]
        assert ranked.tolist() == pytest.approx(own["comprehensiveness"].tolist(), abs=1e-6)


def test_the_best_order_known_is_that_of_a_method_or_of_the_search() -> None:
    own = pd.DataFrame({"uid": ["x", "y"], "comprehensiveness": [0.3, 0.2], "is_random": False})
    others = pd.DataFrame(
        {
            "uid": ["x", "y"] * 4,
            "comprehensiveness": [0.2, 0.0, 0.4, 0.1, 0.1, 0.0, 0.0, 0.2],  # two ways of deletion, two random orders
            "is_random": [False] * 4 + [True] * 4,
        }
    )

    def table(question: object, name: str = "", kind: object = None) -> pd.DataFrame:
        return own if name else others

    plan = SimpleNamespace(answered={"a": None})
    found = UNDER_INFILL.read(cast(FinishedWork, SimpleNamespace(plan=plan, table=table)))
    assert {*found} == {"a", BEST, NULL}
    assert found[BEST].to_dict() == {"x": 0.4, "y": 0.2}
    assert found[NULL].to_dict() == pytest.approx({"x": 0.05, "y": 0.1})


def test_an_audit_says_what_holds_under_infill(result: Audit) -> None:
    best, worst = (next(each for each in result.methods if name in each.name) for name in ("leave", "worst"))
    assert best.answer(INFILL).verdict is Verdict.SUPPORTED
    assert best.answer(INFILL).statistic.value > 0.9
    assert worst.answer(INFILL).verdict is Verdict.NOT_SUPPORTED
    ways = {way.share.subset: way for way in best.by_way}
    assert {*ways} == {*WAYS, INFILL}
    assert [way.tier for way in ways.values()] == [1, 1, 1]
    assert ways[INFILL].share.value == pytest.approx(best.answer(INFILL).statistic.value)
    assert ways["delete"].share.value == pytest.approx(1.0, abs=0.02)  # on a sum
    assert min(way.tier for way in worst.by_way) > 1
    assert Audit.from_json(result.to_json()) == result


# The distance from real texts


def test_distances_by_hand() -> None:
    """Nearest other texts of 0, 1 and 3 are at 1, 1 and 2, and 95 % of them within 1.9."""
    states = {REAL: torch.tensor([[0.0], [1.0], [3.0]]), "mask": torch.tensor([[0.0], [5.0], [3.5]])}
    table = removal.distance_table(["a", "b", "c"], {way: each.double() for way, each in states.items()})
    assert table["way"].tolist() == [REAL] * 3 + ["mask"] * 3
    assert table["distance"].tolist() == [1.0, 1.0, 2.0, 1.0, 2.0, 2.5]  # a text's own original does not count
    assert table["far"].tolist() == [False, False, True, False, True, True]


@pytest.mark.parametrize("name", ["bert", "SingleInput"])
def test_the_deciding_state(name: str) -> None:
    model, batch = subject(name)
    found = deciding_states(model, batch)
    with torch.no_grad():
        trace = model(batch)
    for row in range(len(batch)):
        if name == "bert":  # its head reads the class token
            expected = trace.hidden[row, 0]
        else:
            expected = sum(
                (trace.attention[row, 0, 0, 0, unit] * trace.hidden[row, unit] for unit in range(batch.mask.shape[1])),
                start=torch.zeros(trace.hidden.shape[2]),
            )
        assert found[row].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_half_of_the_words_are_removed_under_every_way(
    explainer: Explainer, sample: TextSample, workspace: Workspace
) -> None:
    recipe, words = PerturbedDistances(sample, WAYS, InfillWords(sample)), InfillWords(sample)
    model, batch = explainer.model, read_block(sample, 4, workspace).batch
    perturbed = {str(way): texts for way, (texts, _) in recipe.perturbed(model, batch, words.pool(workspace)).items()}
    assert [*perturbed] == [REAL, *WAYS, INFILL]
    assert torch.equal(perturbed[REAL].inputs, batch.inputs)
    for row, count in enumerate(batch.content_mask.sum(1).tolist()):
        left = perturbed["delete"]
        kept = left.words[row][left.content_mask[row]].tolist()
        assert len(kept) == count - count // 2
        unknown = perturbed["unk"].inputs[row].eq(batch.unk_id or 0)
        assert unknown[batch.content_mask[row]].nonzero().flatten().tolist() == [
            number for number in range(count) if number not in kept
        ]
        same = perturbed[INFILL].inputs[row].eq(batch.inputs[row])
        assert bool(same[batch.content_mask[row]][kept].all())


def test_an_audit_has_a_distance_for_every_way_of_removal(result: Audit) -> None:
    assert [(row.metric, row.subset, row.n) for row in result.distances] == [
        (FAR, way, removal.REAL_TEXTS) for way in (*WAYS, INFILL)
    ]
    assert all(0 <= row.low <= row.value <= row.high <= 1 for row in result.distances)
    assert all(row.null == pytest.approx(0.05) for row in result.distances)
    assert {*result.distances} <= {*result.statistics("faithful")}


def test_a_model_without_hidden_states_is_skipped_with_the_reason(
    sample: TextSample, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(model: Model, batch: object, embeddings: object = None) -> torch.Tensor:
        return torch.zeros(1, 0)

    monkeypatch.setattr(removal, "deciding_states", nothing)
    recipe = PerturbedDistances(sample, WAYS, None)
    artefact = recipe.make(workspace)
    assert not len(artefact.table)
    assert artefact.notes["refusal"]
    work = SimpleNamespace(
        recipes=lambda *_, **__: [recipe],
        workspace=SimpleNamespace(get=lambda _: artefact),
        plan=SimpleNamespace(failure=lambda *_: ""),
        table=lambda *_, **__: artefact.table,
    )
    assert [*UNDER_INFILL.untested(cast(FinishedWork, work))] == ["distance from real texts"]
    assert UNDER_INFILL.distances(cast(FinishedWork, work), 0.025) == ()
