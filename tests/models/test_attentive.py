"""Attentive models: every law over every combination, and attention, normalizers and decoders re-derived by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import exp, inf, sqrt, tanh

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from heedful.models.attentive import (
    Additive,
    Attention,
    Attentive,
    AttentiveModel,
    Dot,
    Entmax,
    Normalizer,
    Softmax,
    Sparsemax,
    UniformWeights,
)
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Encoder, initialize_weights
from heedful.models.input_forms import (
    DecoderInput,
    InputFormat,
    LinearReadout,
    PairInput,
    QuestionAnswering,
    SingleInput,
)
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.testing.checks import check_model, trace_differences
from heedful.types import Batch, Model, Task, Trace, UserError
from tests.networks import assert_close

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


def check_laws(plan: Attentive, dtype: torch.dtype = torch.float64) -> None:
    """The model laws of `heedful.testing` for this architecture."""

    def build(seed: int) -> Model:
        return built(plan, seed).to(dtype)

    def support(batch: Batch) -> Tensor:
        rows = [batch.content_mask & ((batch.segments == part) | (part < 0)) for part in _attended(plan.input_format)]
        return torch.stack(rows, 1)[:, None, None]

    report = check_model(build, batch_for(plan.input_format), support)
    assert report, str(report)


def _attended(shape: InputFormat) -> tuple[int, ...]:
    """The part that each query attends to; -1 for all."""
    return {SingleInput: (-1,), QuestionAnswering: (0,), PairInput: (0, 1)}[type(shape)]


def plan_name(plan: Attentive) -> str:
    names = (plan.encoder, plan.attention, plan.input_format)
    return "-".join(str(name).replace("()", "") for name in names)


@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_the_model_laws_hold(plan: Attentive) -> None:
    check_laws(plan)


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_the_model_laws_hold_under_every_normaliser(normaliser: Normalizer) -> None:
    check_laws(Attentive(BiLSTM(3), Additive(), normaliser, PairInput()))


@pytest.mark.slow
@pytest.mark.parametrize("normaliser", NORMALISERS[1:], ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_the_model_laws_hold_for_every_plan_and_normaliser(plan: Attentive, normaliser: Normalizer) -> None:
    check_laws(replace(plan, normalizer=normaliser))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_model_laws_hold_in_float32_too(shape: InputFormat) -> None:
    check_laws(Attentive(BiLSTM(4), Additive(), input_format=shape), torch.float32)


@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_hidden_states_may_be_put_back_in(plan: Attentive) -> None:
    model, batch = built(plan), batch_for(plan.input_format)
    trace = model(batch)
    assert not list(trace_differences(model.forward(batch, hidden=trace.hidden), trace, batch.mask))
    every = model.forward(batch, embeddings=trace.embeddings, hidden=trace.hidden, attention=trace.attention)
    assert not list(trace_differences(every, trace, batch.mask))
    foreign = trace.hidden.flip(0) * batch.mask.unsqueeze(-1)
    moved = model.forward(batch, hidden=foreign)
    assert torch.equal(moved.hidden, foreign)
    assert not torch.allclose(moved.logits, trace.logits)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_only_served_to_compute_a_given_field_is_not_run(shape: InputFormat) -> None:
    model, batch = built(Attentive(BiLSTM(3), Additive(), input_format=shape)), batch_for(shape)
    trace = model(batch)
    ran: list[str] = []
    for name in ("encoders.0", "attention"):
        model.get_submodule(name).register_forward_pre_hook(_note(ran, name))
    model.forward(batch, hidden=trace.hidden)
    assert ran == ["attention"]
    ran.clear()
    model(batch, attention=trace.attention)
    assert set(ran) == {"encoders.0"}
    ran.clear()
    model.forward(batch, hidden=trace.hidden, attention=trace.attention)
    model.readout(batch, trace.hidden)(trace.attention[:, 0])
    assert ran == []


def _note(ran: list[str], name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
    return lambda module, args: ran.append(name)


@pytest.mark.parametrize("plan", PLANS, ids=plan_name)
def test_a_readout_gives_the_models_logits_under_each_attention(plan: Attentive) -> None:
    model, batch = built(plan), batch_for(plan.input_format)
    trace = model(batch)
    draws = torch.rand(4, *trace.attention.shape, generator=Generator().manual_seed(3), dtype=torch.float64)
    readout = model.readout(batch, trace.hidden)
    logits = readout(torch.stack([draw[:, 0, 0] for draw in draws], dim=1))
    assert logits.shape == (len(batch), 4, 3)
    for k, draw in enumerate(draws):
        assert_close(logits[:, k], model.forward(batch, hidden=trace.hidden, attention=draw).logits)


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
def test_each_part_is_encoded_separately(encoder: Encoder, shape: InputFormat) -> None:
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


def test_start_and_end_tokens_are_encoded_but_not_attended_to() -> None:
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
    with torch.device("meta"):
        model = AttentiveModel(task, plan, (vocabulary, 300))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_the_readout_gives_the_worked_example_of_the_specification() -> None:
    decoder = SingleInput().decoder(2, 1).to_empty(device="cpu").double()
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
    logits = model(batch_for(shape)).logits
    torch.autograd.backward(logits[torch.isfinite(logits)].square().sum())
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


ALL_NORMALISERS: tuple[Normalizer, ...] = (
    Softmax(),
    Softmax(0.3),
    Sparsemax(),
    Entmax(),
    Entmax(1.2),
    Entmax(2.0),
    UniformWeights(),
)


def built_attention(plan: Attention, dim: int, *, with_question: bool) -> nn.Module:
    return initialize_weights(plan.build(dim, with_question=with_question), Generator().manual_seed(5)).double()


def states_and_question(dim: int) -> tuple[Tensor, Tensor]:
    """Hidden states of two rows, and a question for each."""
    generator = Generator().manual_seed(9)
    hidden = torch.randn(2, 5, dim, generator=generator, dtype=torch.float64)
    return hidden, torch.randn(2, dim, generator=generator, dtype=torch.float64)


def linear(module: nn.Module, name: str) -> nn.Linear:
    found = module.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def dot_product(first: Tensor, second: Tensor) -> float:
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return sum(float(a) * float(b) for a, b in pairs)


@pytest.mark.parametrize(
    ("plan", "dim", "with_question", "count"),
    [
        (Additive(), 256, False, 33_024),
        (Additive(), 128, False, 8_320),
        (Additive(), 256, True, 33_024 + 256 * 128 + 128),
        (Dot(), 256, False, 256),
        (Dot(), 256, True, 0),
    ],
)
def test_attention_has_the_published_size(plan: Attention, dim: int, *, with_question: bool, count: int) -> None:
    assert sum(parameter.numel() for parameter in plan.build(dim, with_question=with_question).parameters()) == count


@pytest.mark.parametrize("with_question", [False, True])
def test_additive_scores_follow_the_formula(*, with_question: bool) -> None:
    module = built_attention(Additive(), 6, with_question=with_question)
    hidden, question = states_and_question(6)
    scores = module(hidden, question if with_question else None)
    unit, score = linear(module, "hidden_projection"), linear(module, "score")
    assert score.bias is None
    for row in range(2):
        for t in range(5):
            total = 0.0
            for k in range(3):
                inner = dot_product(unit.weight[k], hidden[row, t]) + float(unit.bias.detach()[k])
                if with_question:
                    other = linear(module, "question_projection")
                    inner += dot_product(other.weight[k], question[row]) + float(other.bias.detach()[k])
                total += float(score.weight.detach()[0, k]) * tanh(inner)
            assert float(scores.detach()[row, t]) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("with_question", [False, True])
def test_dot_scores_follow_the_formula(*, with_question: bool) -> None:
    module = built_attention(Dot(), 6, with_question=with_question)
    hidden, question = states_and_question(6)
    scores = module(hidden, question if with_question else None)
    for row in range(2):
        for t in range(5):
            key = question[row] if with_question else linear(module, "score").weight[0]
            assert float(scores.detach()[row, t]) == pytest.approx(
                dot_product(key, hidden[row, t]) / sqrt(6), abs=1e-12
            )


def test_an_attention_built_for_questions_needs_one() -> None:
    with pytest.raises(ValueError, match="question"):
        built_attention(Dot(), 4, with_question=True)(states_and_question(4)[0])


def test_additive_attention_on_one_dimension_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        Additive().build(1, with_question=False)


def softmax_by_hand(scores: list[float], temperature: float) -> list[float]:
    top = max(scores)
    powers = [exp((score - top) / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def entmax_by_hand(scores: list[float], alpha: float) -> list[float]:
    """p_t = max(0, (alpha-1) u_t - tau)^(1/(alpha-1)), tau bisected until the weights sum to one."""
    raised = [(alpha - 1) * score for score in scores]
    low, high = max(raised) - 1, max(raised)
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(0.0, score - middle) ** (1 / (alpha - 1)) for score in raised)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(0.0, score - low) ** (1 / (alpha - 1)) for score in raised]


def weights_by_hand(normaliser: Normalizer, scores: list[float]) -> list[float]:
    if isinstance(normaliser, Softmax):
        return softmax_by_hand(scores, normaliser.temperature)
    if isinstance(normaliser, UniformWeights):
        return [1 / len(scores)] * len(scores)
    return entmax_by_hand(scores, normaliser.alpha if isinstance(normaliser, Entmax) else 2.0)


Scores = st.lists(st.floats(-50, 50), min_size=1, max_size=7)


@pytest.mark.parametrize("normaliser", ALL_NORMALISERS, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(real=Scores, hidden=Scores)
def test_weights_follow_the_formula_for_any_values_off_the_mask(
    normaliser: Normalizer, real: list[float], hidden: list[float]
) -> None:
    scores = torch.tensor([hidden + real + hidden], dtype=torch.float64)
    mask = torch.tensor([[False] * len(hidden) + [True] * len(real) + [False] * len(hidden)])
    weights = normaliser(scores, mask)
    assert int(torch.count_nonzero(weights[~mask])) == 0
    assert float(weights.sum()) == pytest.approx(1, abs=1e-9)
    assert weights[mask].tolist() == pytest.approx(weights_by_hand(normaliser, real), abs=1e-7)


@pytest.mark.parametrize("normaliser", ALL_NORMALISERS, ids=str)
def test_infinities_and_nan_off_the_mask_touch_neither_weights_nor_gradients(normaliser: Normalizer) -> None:
    scores = torch.tensor([[0.1, torch.inf, 0.4, torch.nan, -torch.inf]]).requires_grad_()
    mask = torch.tensor([[True, False, True, False, False]])
    weights = normaliser(scores, mask)
    expected = weights_by_hand(normaliser, [0.1, 0.4])
    assert weights[mask].tolist() == pytest.approx(expected, abs=1e-6)
    assert int(torch.count_nonzero(weights[~mask])) == 0
    if weights.requires_grad:
        (gradient,) = torch.autograd.grad(weights[0, 0], scores)
        assert bool(torch.isfinite(gradient).all())
        assert int(torch.count_nonzero(gradient[~mask])) == 0


@pytest.mark.parametrize("normaliser", ALL_NORMALISERS[:-1], ids=str)
def test_gradients_of_the_weights_agree_with_finite_differences(normaliser: Normalizer) -> None:
    scores = torch.tensor([[0.3, -0.2, 9.0, 0.15], [0.1, 0.5, 0.4, -9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [True, True, True, False]])
    assert torch.autograd.gradcheck(lambda u: normaliser(u, mask), (scores.requires_grad_(),), atol=1e-4)


def test_sparse_weights_have_exact_zeros_where_softmax_has_none() -> None:
    scores, mask = torch.tensor([[0.0, 3.0, 2.9]]), torch.ones(1, 3, dtype=torch.bool)
    zeros = {type(n): int((n(scores, mask) == 0).sum()) for n in (Softmax(), Sparsemax(), Entmax())}
    assert zeros == {Softmax: 0, Sparsemax: 1, Entmax: 1}
    assert Sparsemax()(scores, mask).tolist()[0] == pytest.approx([0.0, 0.55, 0.45])


def test_entmax_of_alpha_1_is_named() -> None:
    with pytest.raises(UserError, match="Softmax"):
        Entmax(1.0)
