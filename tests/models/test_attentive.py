"""Pooled models: every law over every combination, and each shape against a slow re-derivation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf, tanh

import pytest
import torch
from torch import Generator, Tensor, nn

from heedful.models.attentive import (
    Additive,
    Attentive,
    AttentiveModel,
    Dot,
    Entmax,
    Normalizer,
    Softmax,
    Sparsemax,
    UniformWeights,
)
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Encoder
from heedful.models.input_forms import (
    DecoderInput,
    InputFormat,
    LinearReadout,
    PairInput,
    QuestionAnswering,
    SingleInput,
)
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import Batch, Model, Task, Trace, UserError
from tests.model_laws import LAWS, TEXT_LAWS, Case, Law, assert_close, assert_same_trace, finite_sum, law_name

VOCABULARY, WIDTH, START, END = 20, 5, 2, 3
ENCODERS: tuple[Encoder, ...] = (BiLSTM(3), GRU(3), Convolution(2, (1, 3)), Average(4))
NORMALISERS: tuple[Normalizer, ...] = (Softmax(0.7), Sparsemax(), Entmax(), UniformWeights())
SHAPES: tuple[InputFormat, ...] = (SingleInput(), QuestionAnswering(), PairInput())
PLANS = tuple(
    Attentive(encoder, attention, Softmax(0.7), shape)
    for encoder, attention, shape in product(ENCODERS, (Additive(), Dot()), SHAPES)
)


def batch_of(*rows: tuple[tuple[int, ...], ...]) -> Batch:
    """Rows of parts of word ids, each part between its start and end symbols."""
    ids = [[unit for part in row for unit in (START, *part, END)] for row in rows]
    parts = [[k for k, part in enumerate(row) for _ in range(len(part) + 2)] for row in rows]
    width = max(map(len, ids))
    words = []
    for row in ids:
        count = iter(range(len(row)))
        words.append([-1 if unit in (START, END) else next(count) for unit in row])

    def table(values: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (width - len(row)) for row in values])

    mask = table([[1] * len(row) for row in ids], 0).bool()
    uids = tuple(f"row-{k}" for k in range(len(rows)))
    return Batch(uids, table(ids, 0), mask, table(parts, 0), table(words, -1))


def batch_for(shape: InputFormat) -> Batch:
    if isinstance(shape, SingleInput):
        return batch_of(((5, 6, 7, 8),), ((9,),), ((6, 10, 5, 5, 11, 12),))
    pairs = batch_of(
        ((5, 6, 7, 8), (9, 10)), ((11,), (12, 13, 5)), ((14, 15), (6,)), ((7, 7, 8, 16, 17, 18), (19, 4, 6))
    )
    admitted = torch.tensor([[True, True, False], [True, True, True], [False, True, True], [True, False, True]])
    return replace(pairs, candidates=admitted) if isinstance(shape, QuestionAnswering) else pairs


def vectors() -> Tensor:
    return torch.randn(VOCABULARY, WIDTH, generator=Generator().manual_seed(21))


def built(plan: Attentive, seed: int = 1) -> AttentiveModel:
    model = plan.build(MulticlassClassification(3), vectors(), Generator().manual_seed(seed)).double()
    with torch.no_grad():  # larger weights than a fresh model has: no test should pass because all is nearly zero
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def case_for(plan: Attentive) -> Case:
    def build(seed: int) -> Model:
        return built(plan, seed)

    def support(batch: Batch) -> Tensor:
        rows = [batch.content_mask & ((batch.segments == part) | (part < 0)) for part in _attended(plan.input_format)]
        return torch.stack(rows, 1)[:, None, None]

    return Case(build, batch_for(plan.input_format), support)


def _attended(shape: InputFormat) -> tuple[int, ...]:
    """The part that each query attends to; -1 for all."""
    return {SingleInput: (-1,), QuestionAnswering: (0,), PairInput: (0, 1)}[type(shape)]


def plan_name(plan: Attentive) -> str:
    names = (plan.encoder, plan.attention, plan.input_format)
    return "-".join(str(name).replace("()", "") for name in names)


@pytest.mark.parametrize("law", LAWS + TEXT_LAWS, ids=law_name)
@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_law_holds_under_every_normaliser(plan: Attentive, law: Law) -> None:
    for normaliser in NORMALISERS:
        law(case_for(replace(plan, normalizer=normaliser)))


@pytest.mark.parametrize("law", LAWS + TEXT_LAWS, ids=law_name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_law_holds_in_float32_too(shape: InputFormat, law: Law) -> None:
    plan = Attentive(BiLSTM(4), Additive(), input_format=shape)
    case = case_for(plan)
    law(replace(case, build=lambda seed: case.build(seed).float()))


@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_hidden_states_may_be_put_back_in(plan: Attentive) -> None:
    model, batch = built(plan), batch_for(plan.input_format)
    trace = model(batch)
    assert_same_trace(model(batch, hidden=trace.hidden), trace, batch)
    every = model(batch, embeddings=trace.embeddings, hidden=trace.hidden, attention=trace.attention)
    assert_same_trace(every, trace, batch)
    foreign = trace.hidden.flip(0) * batch.mask.unsqueeze(-1)
    moved = model(batch, hidden=foreign)
    assert torch.equal(moved.hidden, foreign)
    assert not torch.allclose(moved.logits, trace.logits)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_only_served_to_compute_a_given_field_is_not_run(shape: InputFormat) -> None:
    model, batch = built(Attentive(BiLSTM(3), Additive(), input_format=shape)), batch_for(shape)
    trace = model(batch)
    ran: list[str] = []
    for name in ("encoders.0", "attention"):
        model.get_submodule(name).register_forward_pre_hook(_note(ran, name))
    model(batch, hidden=trace.hidden)
    assert ran == ["attention"]
    ran.clear()
    model(batch, attention=trace.attention)
    assert set(ran) == {"encoders.0"}
    ran.clear()
    model(batch, hidden=trace.hidden, attention=trace.attention)
    model.readout(batch, trace.hidden)(trace.attention[:, 0])
    assert ran == []


def _note(ran: list[str], name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
    return lambda module, args: ran.append(name)


@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_a_readout_says_what_the_model_says_under_each_attention(plan: Attentive) -> None:
    model, batch = built(plan), batch_for(plan.input_format)
    trace = model(batch)
    draws = torch.rand(4, *trace.attention.shape, generator=Generator().manual_seed(3), dtype=torch.float64)
    readout = model.readout(batch, trace.hidden)
    logits = readout(torch.stack([draw[:, 0, 0] for draw in draws], dim=1))
    assert logits.shape == (len(batch), 4, 3)
    for k, draw in enumerate(draws):
        assert_close(logits[:, k], model(batch, hidden=trace.hidden, attention=draw).logits)


def lists(tensor: Tensor) -> list[list[float]]:
    rows: list[list[float]] = tensor.tolist()
    return rows


def affine(layer: nn.Module, vector: list[float]) -> list[float]:
    assert isinstance(layer, nn.Linear)
    return [
        bias + sum(w * x for w, x in zip(row, vector, strict=True))
        for row, bias in zip(lists(layer.weight), layer.bias.tolist(), strict=True)
    ]


def context_by_hand(trace: Trace, row: int, query: int) -> list[float]:
    weights, states = trace.attention[row, 0, 0, query].tolist(), lists(trace.hidden[row])
    return [
        sum(weight * state[k] for weight, state in zip(weights, states, strict=True)) for k in range(len(states[0]))
    ]


def decoded_by_hand(model: AttentiveModel, batch: Batch, trace: Trace, row: int) -> list[float]:
    answer = model.get_submodule("decoder.output_layer")
    first = context_by_hand(trace, row, 0)
    if isinstance(model.input_format, SingleInput):
        return affine(answer, first)
    if isinstance(model.input_format, PairInput):
        second = context_by_hand(trace, row, 1)
        pairs = list(zip(first, second, strict=True))
        return affine(answer, first + second + [abs(a - b) for a, b in pairs] + [a * b for a, b in pairs])
    question = question_by_hand(batch, trace, row)
    inner = zip(
        affine(model.get_submodule("decoder.document"), first),
        affine(model.get_submodule("decoder.question"), question),
        strict=True,
    )
    logits = affine(answer, [tanh(a + b) for a, b in inner])
    assert batch.candidates is not None
    return [x if admitted else -inf for x, admitted in zip(logits, batch.candidates[row], strict=True)]


def question_by_hand(batch: Batch, trace: Trace, row: int) -> list[float]:
    """The forward state of the last and the backward state of the first unit of part 1."""
    places = [t for t in range(batch.mask.shape[1]) if batch.mask[row, t] and batch.segments[row, t] == 1]
    half = trace.hidden.shape[2] // 2
    ahead: list[float] = trace.hidden[row, places[-1], :half].tolist()
    back: list[float] = trace.hidden[row, places[0], half:].tolist()
    return ahead + back


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logits_follow_the_formula_of_the_shape(shape: InputFormat) -> None:
    model, batch = built(Attentive(BiLSTM(3), Additive(), input_format=shape)), batch_for(shape)
    trace = model(batch)
    for row in range(len(batch)):
        assert trace.logits[row].tolist() == pytest.approx(decoded_by_hand(model, batch, trace, row), abs=1e-10)


@pytest.mark.parametrize("attention", [Additive(), Dot()], ids=str)
def test_a_document_is_attended_under_the_summary_of_its_question(attention: Additive | Dot) -> None:
    model, batch = (
        built(Attentive(BiLSTM(3), attention, input_format=QuestionAnswering())),
        batch_for(QuestionAnswering()),
    )
    trace = model(batch)
    questions = torch.tensor([question_by_hand(batch, trace, row) for row in range(len(batch))], dtype=torch.float64)
    scores = model.attention(trace.hidden, questions)
    for row in range(len(batch)):
        real = batch.content_mask[row] & (batch.segments[row] == 0)
        assert_close(trace.attention[row, 0, 0, 0, real], scores[row, real].softmax(0))
    assert trace.scores is not None
    assert int(torch.count_nonzero(trace.scores[..., 0, :][:, 0, 0][batch.segments == 1])) == 0


@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
@pytest.mark.parametrize("shape", [QuestionAnswering(), PairInput()], ids=str)
def test_each_part_is_encoded_as_if_it_stood_alone(encoder: Encoder, shape: InputFormat) -> None:
    model, batch = built(Attentive(encoder, Additive(), input_format=shape)), batch_for(shape)
    trace = model(batch)
    for row, part in product(range(len(batch)), (0, 1)):
        reader = shape.part_encoders[part]
        units = batch.mask[row] & (batch.segments[row] == part)
        vectors_of_part = model.embedding_tables[reader](batch.inputs[row, units]).unsqueeze(0)
        alone = model.encoders[reader](vectors_of_part, torch.ones(1, int(units.sum()), dtype=torch.bool))
        assert_close(trace.hidden[row, units], alone[0])
    assert int(torch.count_nonzero(trace.hidden[~batch.mask])) == 0


def test_a_compared_text_has_the_same_attention_in_either_place() -> None:
    model = built(Attentive(GRU(3), Additive(), input_format=PairInput()))
    there = model(batch_of(((5, 6, 7), (8, 9)))).attention[0, 0, 0]
    back = model(batch_of(((8, 9), (5, 6, 7)))).attention[0, 0, 0]
    assert_close(there[0, 1:4], back[1, 5:8])
    assert_close(there[1, 6:8], back[0, 1:3])


def test_start_and_end_are_read_but_not_attended_to() -> None:
    model, batch = built(Attentive(BiLSTM(3), Additive())), batch_for(SingleInput())
    other = replace(batch, inputs=batch.inputs.masked_fill(batch.inputs == END, 4))
    first, second = model(batch), model(other)
    special = batch.mask & ~batch.content_mask
    assert int(torch.count_nonzero(first.attention[:, 0, 0, 0][special])) == 0
    assert not torch.allclose(first.logits, second.logits)


def test_document_and_question_have_tables_and_encoders_of_their_own() -> None:
    def layers(shape: InputFormat) -> set[str]:
        model = built(Attentive(Average(4), Dot(), input_format=shape))
        return {name.rpartition(".")[0] for name, _ in model.named_parameters()}

    own = {"embedding_tables.0", "embedding_tables.1", "encoders.0.projection", "encoders.1.projection"}
    assert own <= layers(QuestionAnswering())
    shared = {"embedding_tables.0", "encoders.0.projection", "attention.score", "decoder.output_layer"}
    assert layers(PairInput()) == shared


@pytest.mark.parametrize(
    ("plan", "task", "vocabulary", "count"),
    [
        (Attentive(BiLSTM(128), Additive(), input_format=PairInput()), MulticlassClassification(3), 40_257, 12_553_519),
        (Attentive(BiLSTM(128), Additive()), BinaryClassification(), 13_826, 13_826 * 300 + 440_320 + 33_024 + 257),
    ],
)
def test_a_model_has_the_published_size(plan: Attentive, task: Task, vocabulary: int, count: int) -> None:
    model = AttentiveModel(task, plan, (vocabulary, 300))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_the_readout_gives_the_worked_example_of_the_specification() -> None:
    decoder = SingleInput().build(2, 1).to_empty(device="cpu").double()
    decoder.load_state_dict(
        {"output_layer.weight": torch.tensor([[0.5, -0.25]]), "output_layer.bias": torch.tensor([0.1])}
    )
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]], dtype=torch.float64)
    attention = torch.tensor([[[0.6, 0.3, 0.1]]], dtype=torch.float64)
    reading = DecoderInput(hidden, None, None)
    readout = decoder.readout(reading)
    assert isinstance(readout, LinearReadout)
    assert readout.scores[0, :, 0].tolist() == pytest.approx([0.5, -0.5, -0.75])
    assert readout.offset.tolist() == pytest.approx([0.1])
    for logits in (decoder(reading, attention), readout(attention.unsqueeze(1))[:, 0]):
        assert float(logits.detach().sigmoid()) == pytest.approx(0.543639, abs=5e-7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_starting_vectors_are_copied_and_padding_is_zero_and_stays_so(shape: InputFormat) -> None:
    table = vectors()
    model = Attentive(Average(4), Additive(), input_format=shape).build(
        MulticlassClassification(3), table, Generator().manual_seed(1)
    )
    weights = [weight for name, weight in model.named_parameters() if name.startswith("embedding_tables.")]
    assert all(torch.equal(weight[1:], table[1:]) for weight in weights)
    optimiser = torch.optim.Adam(model.parameters(), weight_decay=1e-2, amsgrad=True)
    torch.autograd.backward(finite_sum(model(batch_for(shape))))
    optimiser.step()
    assert all(int(torch.count_nonzero(weight[0])) == 0 for weight in weights)
    assert not any(torch.equal(weight[1:], table[1:]) for weight in weights)
    assert torch.equal(table, vectors())


def test_a_text_without_a_word_is_refused_by_name() -> None:
    batch = batch_of(((5, 6),), ((),))
    model = built(Attentive(Average(4), Additive()))
    with pytest.raises(UserError, match=r"'row-1' has no word"):
        model(batch)


def test_an_example_without_a_question_is_refused_by_name() -> None:
    batch = batch_of(((5, 6), (7,)), ((5,),))
    for encoder in ENCODERS:
        with pytest.raises(UserError, match=r"'row-1' has no question"):
            built(Attentive(encoder, Additive(), input_format=QuestionAnswering()))(batch)


def test_a_pooled_model_without_starting_vectors_is_refused() -> None:
    with pytest.raises(UserError, match=r"Words\(\)"):
        Attentive(Average(4), Additive()).build(MulticlassClassification(3), None, Generator())
