"""Encoders against slow re-derivations and torch's own layers; initialisation against PyTorch's defaults."""

from __future__ import annotations

from math import exp, sqrt, tanh

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Generator, Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.models.encoders import (
    GRU,
    Average,
    BiLSTM,
    Convolution,
    Encoder,
    EncoderModule,
    Perceptron,
    initialize_weights,
)
from heedful.types import UserError

ENCODERS: tuple[Encoder, ...] = (BiLSTM(3), GRU(3), Convolution(2, (1, 3, 5)), Average(4))
INPUTS = 5
LENGTHS = (4, 1, 6)


def built(plan: Encoder, inputs: int = INPUTS, seed: int = 3) -> EncoderModule:
    with torch.device("meta"):
        module = plan.build(inputs)
    return initialize_weights(module, Generator().manual_seed(seed)).double()


def example() -> tuple[Tensor, Tensor]:
    """Embeddings with garbage on padding, and their mask."""
    generator = Generator().manual_seed(11)
    embeddings = torch.randn(len(LENGTHS), max(LENGTHS), INPUTS, generator=generator, dtype=torch.float64)
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    return embeddings, mask


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("plan", "count", "dim"),
    [
        (BiLSTM(128), 440_320, 256),
        (GRU(128), 2 * 3 * 128 * (300 + 128 + 2), 256),
        (Convolution(32), 153_728, 128),
        (Convolution(64), 307_456, 256),
        (Average(128), 38_528, 128),
    ],
)
def test_an_encoder_of_300_wide_vectors_has_the_published_size(plan: Encoder, count: int, dim: int) -> None:
    module = plan.build(300)
    assert parameters_of(module) == count
    assert module.dim == dim


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


def affine(weight: Tensor, bias: Tensor | None, vector: list[float]) -> list[float]:
    rows: list[list[float]] = weight.tolist()
    offsets: list[float] = [0.0] * len(rows) if bias is None else bias.tolist()
    return [
        offset + sum(w * x for w, x in zip(row, vector, strict=True)) for row, offset in zip(rows, offsets, strict=True)
    ]


def lstm_by_hand(cell: nn.LSTM, inputs: list[list[float]]) -> list[list[float]]:
    """i, f, o = sigmoid, g = tanh of W x + b + U h + d; c = f c + i g; h = o tanh(c)."""
    width = cell.hidden_size
    hidden, memory, states = [0.0] * width, [0.0] * width, []
    for vector in inputs:
        a = affine(cell.get_parameter("weight_ih_l0"), cell.get_parameter("bias_ih_l0"), vector)
        b = affine(cell.get_parameter("weight_hh_l0"), cell.get_parameter("bias_hh_l0"), hidden)
        gates = [x + y for x, y in zip(a, b, strict=True)]
        for k in range(width):
            enter, forget = sigmoid(gates[k]), sigmoid(gates[width + k])
            memory[k] = forget * memory[k] + enter * tanh(gates[2 * width + k])
        hidden = [sigmoid(gates[3 * width + k]) * tanh(memory[k]) for k in range(width)]
        states.append(hidden)
    return states


def gru_by_hand(cell: nn.GRU, inputs: list[list[float]]) -> list[list[float]]:
    """r, z = sigmoid of W x + b + U h + d; n = tanh(W x + b + r (U h + d)); h = (1 - z) n + z h."""
    width = cell.hidden_size
    hidden, states = [0.0] * width, []
    for vector in inputs:
        a = affine(cell.get_parameter("weight_ih_l0"), cell.get_parameter("bias_ih_l0"), vector)
        b = affine(cell.get_parameter("weight_hh_l0"), cell.get_parameter("bias_hh_l0"), hidden)
        fresh = []
        for k in range(width):
            reset, keep = sigmoid(a[k] + b[k]), sigmoid(a[width + k] + b[width + k])
            new = tanh(a[2 * width + k] + reset * b[2 * width + k])
            fresh.append((1 - keep) * new + keep * hidden[k])
        hidden = fresh
        states.append(hidden)
    return states


def recurrent_by_hand(module: EncoderModule, inputs: list[list[float]]) -> list[list[float]]:
    ahead, back = module.get_submodule("forward_cell"), module.get_submodule("backward_cell")
    if isinstance(ahead, nn.LSTM) and isinstance(back, nn.LSTM):
        there, again = lstm_by_hand(ahead, inputs), lstm_by_hand(back, inputs[::-1])
    else:
        assert isinstance(ahead, nn.GRU)
        assert isinstance(back, nn.GRU)
        there, again = gru_by_hand(ahead, inputs), gru_by_hand(back, inputs[::-1])
    return [first + second for first, second in zip(there, again[::-1], strict=True)]


def convolution_by_hand(module: EncoderModule, inputs: list[list[float]]) -> list[list[float]]:
    """relu(b + sum over the window of W_j . x_{t+j}), nothing beyond both ends."""
    states: list[list[float]] = [[] for _ in inputs]
    for window in module.get_submodule("convolutions").children():
        assert isinstance(window, nn.Conv1d)
        assert window.bias is not None
        reach = window.kernel_size[0] // 2
        for t, state in enumerate(states):
            values = window.bias.tolist()
            for offset in range(-reach, reach + 1):
                if 0 <= t + offset < len(inputs):
                    added = affine(window.weight[:, :, offset + reach], None, inputs[t + offset])
                    values = [value + more for value, more in zip(values, added, strict=True)]
            state.extend(max(0.0, value) for value in values)
    return states


def average_by_hand(module: EncoderModule, inputs: list[list[float]]) -> list[list[float]]:
    layer = module.get_submodule("projection")
    assert isinstance(layer, nn.Linear)
    return [[tanh(value) for value in affine(layer.weight, layer.bias, vector)] for vector in inputs]


def by_hand(module: EncoderModule, plan: Encoder, inputs: list[list[float]]) -> list[list[float]]:
    if isinstance(plan, Convolution):
        return convolution_by_hand(module, inputs)
    if isinstance(plan, Average):
        return average_by_hand(module, inputs)
    return recurrent_by_hand(module, inputs)


@pytest.mark.parametrize("plan", ENCODERS, ids=str)
def test_hidden_states_follow_the_formula_and_are_zero_on_padding(plan: Encoder) -> None:
    module = built(plan)
    embeddings, mask = example()
    hidden = module(embeddings, mask)
    assert hidden.shape == (*mask.shape, module.dim)
    assert int(torch.count_nonzero(hidden[~mask])) == 0
    for row, length in enumerate(LENGTHS):
        expected = by_hand(module, plan, embeddings[row, :length].tolist())
        torch.testing.assert_close(hidden[row, :length], torch.tensor(expected, dtype=torch.float64))


def summary_by_hand(plan: Encoder, states: list[list[float]]) -> list[float]:
    columns = list(zip(*states, strict=True))
    if isinstance(plan, Convolution):
        return [max(column) for column in columns]
    if isinstance(plan, Average):
        return [sum(column) / len(column) for column in columns]
    half = len(columns) // 2
    return states[-1][:half] + states[0][half:]


@pytest.mark.parametrize("plan", ENCODERS, ids=str)
def test_the_summary_reads_real_units_only(plan: Encoder) -> None:
    module = built(plan)
    embeddings, mask = example()
    hidden = module(embeddings, mask)
    dirty = hidden + 100.0 * ~mask.unsqueeze(-1)
    for row, length in enumerate(LENGTHS):
        expected = torch.tensor(summary_by_hand(plan, hidden[row, :length].tolist()), dtype=torch.float64)
        torch.testing.assert_close(module.summary(hidden, mask)[row], expected)
        torch.testing.assert_close(module.summary(dirty, mask)[row], expected)


def torch_twin(module: EncoderModule, *, double: bool) -> nn.LSTM:
    """torch's own bidirectional layer with the weights of our two cells."""
    twin = nn.LSTM(INPUTS, module.dim // 2, batch_first=True, bidirectional=True)
    twin = twin.double() if double else twin
    ahead, back = module.get_submodule("forward_cell").state_dict(), module.get_submodule("backward_cell").state_dict()
    twin.load_state_dict(ahead | {f"{name}_reverse": weight for name, weight in back.items()})
    return twin


@pytest.mark.parametrize("double", [False, True])
def test_the_bilstm_is_torchs_bidirectional_layer_on_single_rows(*, double: bool) -> None:
    module = built(BiLSTM(3)).to(torch.float64 if double else torch.float32)
    twin = torch_twin(module, double=double)
    embeddings, mask = example()
    embeddings = embeddings.to(next(module.parameters()).dtype)
    hidden = module(embeddings, mask)
    for row, length in enumerate(LENGTHS):
        states, (final, _) = twin(embeddings[row : row + 1, :length])
        torch.testing.assert_close(hidden[row : row + 1, :length], states, rtol=1e-6, atol=1e-6)
        summary = module.summary(hidden, mask)[row]
        torch.testing.assert_close(summary, final[:, 0].flatten(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_the_bilstm_has_the_gradients_of_packed_sequences_in_both_modes(*, training: bool) -> None:
    module = built(BiLSTM(3)).float().train(training)
    twin = torch_twin(module, double=True)
    embeddings, mask = example()
    ours, theirs = embeddings.float().requires_grad_(), embeddings.clone().requires_grad_()
    packed = pack_padded_sequence(theirs, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(twin(packed)[0], batch_first=True)
    torch.autograd.backward([module(ours, mask).pow(2).sum(), states.pow(2).sum()])
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)
    gradients = dict(twin.named_parameters())
    for name, parameter in module.named_parameters():
        way, _, weight = name.partition(".")
        expected = gradients[weight if way == "forward_cell" else f"{weight}_reverse"].grad
        assert parameter.grad is not None
        assert expected is not None
        torch.testing.assert_close(parameter.grad.double(), expected, rtol=1e-5, atol=1e-6)


def second_derivative(module: EncoderModule, embeddings: Tensor, mask: Tensor) -> Tensor:
    leaf = embeddings.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(leaf, mask).pow(2).sum(), leaf, create_graph=True)
    (curvature,) = torch.autograd.grad(gradient.pow(2).sum(), leaf)
    return curvature


@pytest.mark.parametrize("plan", ENCODERS, ids=str)
def test_float32_has_the_second_derivatives_of_float64(plan: Encoder) -> None:
    embeddings, mask = example()
    fine = second_derivative(built(plan), embeddings, mask)
    coarse = second_derivative(built(plan).float(), embeddings.float(), mask)
    assert float(fine.abs().max()) > 1e-3
    torch.testing.assert_close(coarse.double(), fine, rtol=1e-4, atol=1e-5)


def test_the_perceptron_of_one_paper_is_the_average_of_the_other() -> None:
    assert Perceptron(16) == Average(16)


@pytest.mark.parametrize("kernels", [(), (2,), (1, 4), (0,), (-1,)])
def test_kernels_without_a_middle_are_refused(kernels: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="kernels="):
        Convolution(2, kernels)


def test_building_and_filling_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    for plan in ENCODERS:
        built(plan)
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_seeds_fill_equal_weights_and_other_seeds_others() -> None:
    for plan in ENCODERS:
        first, again, other = (list(built(plan, seed=seed).parameters()) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("plan", "bound"),
    [
        (BiLSTM(64), 1 / sqrt(64)),
        (GRU(64), 1 / sqrt(64)),
        (Convolution(64, (3,)), 1 / sqrt(60 * 3)),
        (Average(256), 1 / sqrt(60)),
    ],
    ids=str,
)
def test_weights_are_drawn_as_pytorch_draws_them(plan: Encoder, bound: float) -> None:
    ours = initialize_weights(plan.build(60), Generator().manual_seed(5))
    with torch.random.fork_rng():
        torch.manual_seed(6)
        theirs = initialize_weights(plan.build(60), Generator().manual_seed(7))
        for module in theirs.modules():
            if isinstance(module, nn.LSTM | nn.GRU | nn.Linear | nn.Conv1d):
                module.reset_parameters()
    for drawn, default in zip(ours.parameters(), theirs.parameters(), strict=True):
        mine = drawn.detach()
        assert float(mine.abs().max()) <= bound
        assert float(ks_2samp(mine.flatten(), default.detach().flatten()).pvalue) > 1e-3
        if mine.numel() > 1000:
            assert float(mine.std()) == pytest.approx(bound / sqrt(3), rel=0.03)
            assert float(mine.mean()) == pytest.approx(0, abs=0.05 * bound)


def test_a_table_without_vectors_is_standard_normal_with_a_zero_row_for_padding() -> None:
    table = initialize_weights(nn.Embedding(2001, 50, padding_idx=0, device="meta"), Generator().manual_seed(1))
    assert int(torch.count_nonzero(table.weight[0])) == 0
    assert float(table.weight[1:].detach().std()) == pytest.approx(1, rel=0.01)
    assert float(table.weight[1:].detach().mean()) == pytest.approx(0, abs=0.01)


def test_a_layer_without_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="LayerNorm"):
        initialize_weights(nn.LayerNorm(3), Generator())
