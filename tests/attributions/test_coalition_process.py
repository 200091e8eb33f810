"""A Gaussian process over coalitions against its literal twin on all coalitions, and the methods that stop by it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions import shapley
from heedful.attributions._coalition_process import WIDENING, choose_coalitions, fit_process, prior_covariance
from heedful.attributions.lime import Lime, centered_moments, predict_coefficients, solve_ridge
from heedful.attributions.method import SampledAttribution
from heedful.attributions.perturbation import outputs_without
from heedful.attributions.shapley import (
    KernelShap,
    Shapley,
    all_coalitions,
    marginal_weights,
    paired_coalitions,
    sample_shapley_values,
)
from heedful.tasks import MulticlassClassification
from heedful.types import Batch, Method, UserError
from tests.games import Game, words
from tests.networks import TinyTransformer, texts, tiny

CPU = torch.device("cpu")
Result = TypeVar("Result")


def exact_weights(count: int) -> Tensor:
    return marginal_weights(all_coalitions(count, CPU), torch.tensor([count]))[0]


def game(count: int, seed: int) -> Tensor:
    """Outputs of all coalitions: a sigmoid of effects of single features and of a few pairs, as a classifier has."""
    generator = Generator().manual_seed(seed)
    every = all_coalitions(count, CPU).double()
    single = torch.randn(count, generator=generator, dtype=torch.float64).mul(1.2)
    pairs = torch.randn(count, count, generator=generator, dtype=torch.float64).triu(1)
    pairs = pairs * (torch.rand(count, count, generator=generator) < 0.25)
    return torch.sigmoid(every @ single + torch.einsum("si,ij,sj->s", every, pairs, every))


def number(coalitions: Tensor) -> Tensor:
    return (coalitions.long() << torch.arange(coalitions.shape[1])).sum(1)


def reader(outputs: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda some: outputs[number(some)]


def test_means_and_errors_are_those_of_the_posterior_written_out() -> None:
    outputs, every = game(6, 1), all_coalitions(6, CPU)
    known = torch.randperm(64, generator=Generator().manual_seed(2))[:17]
    process = fit_process(every[known], outputs[known], torch.tensor([1.0, 0.1, 0.5, 0.0, 2.0, 1.0]))
    assert process.relevance[4] > process.relevance[0] > process.relevance[1] > process.relevance[3] > 0
    prior = prior_covariance(every, every, process.relevance)
    signs = 2 * every.double() - 1
    twin = 10 + torch.stack([(1 + process.relevance * signs * each).prod(1) for each in signs])
    assert torch.allclose(prior, twin, rtol=1e-12)
    across = prior[:, known]
    mean = across @ torch.linalg.solve(prior[known][:, known], outputs[known])
    spread = (prior - across @ torch.linalg.solve(prior[known][:, known], across.t())) * process.variance
    values, errors = process.shapley_values()
    weights = exact_weights(6)
    assert torch.allclose(values, weights @ mean, atol=1e-7)
    assert torch.allclose(errors, WIDENING * ((weights @ spread) * weights).sum(1).sqrt(), rtol=1e-3)
    sums, errors = process.combine_outputs(every, torch.eye(64).double())
    assert torch.allclose(sums, mean, atol=1e-7)
    assert torch.allclose((errors / WIDENING).square(), spread.diagonal(), atol=1e-8)
    assert torch.allclose(sums[known], outputs[known], atol=1e-6), "it goes through what is known"


def posterior_variance(every: Tensor, known: list[int], relevance: Tensor) -> float:
    """The sum of the posterior variances of the Shapley values, from the prior covariance of all coalitions."""
    prior = prior_covariance(every, every, relevance)
    across = prior[:, known]
    spread = prior - across @ torch.linalg.solve(prior[known][:, known], across.t())
    weights = exact_weights(every.shape[1])
    return float(((weights @ spread) * weights).sum())


def test_each_coalition_reduces_the_posterior_variance_most() -> None:
    # Powers of 2 to a sixteenth, the values that coalitions are chosen by.
    relevance = torch.tensor([-1.0, -2.25, -3.5, -1.5, -4.0], dtype=torch.float64).exp2()
    every = all_coalitions(5, CPU)
    known, others = [0, 31, 1, 30, 2, 29], [*range(3, 29)]
    chosen = choose_coalitions(every[known], every[others], relevance, 12).tolist()
    assert len(set(chosen)) == 12
    for place in chosen:
        left = {each: posterior_variance(every, [*known, each], relevance) for each in others if each not in known}
        assert left[others[place]] <= min(left.values()) * (1 + 1e-5)
        known.append(others[place])
    rest = choose_coalitions(every[known], every[[each for each in others if each not in known]], relevance, 14)
    assert sorted(rest.tolist()) == [*range(14)], "all that are left"


def test_chosen_coalitions_do_not_depend_on_rounding() -> None:
    every = all_coalitions(9, CPU)
    relevance = torch.linspace(0.05, 0.2, 9, dtype=torch.float64)
    known = torch.tensor([0, 511, 1, 510, 2, 509])
    others = torch.tensor([each for each in range(512) if each not in known.tolist()])
    chosen = choose_coalitions(every[known], every[others], relevance, 40)
    noise = 1 + 1e-6 * torch.randn(9, generator=Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(choose_coalitions(every[known], every[others], relevance * noise, 40), chosen)
    # Features of equal relevance: many coalitions are equally good, and the first of them is taken.
    equal = torch.full((9,), 0.1, dtype=torch.float64)
    chosen = choose_coalitions(every[known], every[others], equal, 40)
    assert torch.equal(choose_coalitions(every[known], every[others], equal * (1 + 1e-9), 40), chosen)


def test_chosen_coalitions_give_smaller_errors_than_random_ones() -> None:
    chosen, random = [], []
    for seed in range(12):
        outputs = game(10, 100 + seed)
        exact = exact_weights(10) @ outputs
        values, _, used = sample_shapley_values(reader(outputs), torch.tensor([seed]), 10, 60, 1e-9)
        assert used == 62
        chosen.append(float((values - exact).abs().mean()))
        order = paired_coalitions(torch.tensor([seed]), 10, 60)
        singles = order[2:22:2].long().argmax(1).argsort()
        alone, without = (outputs[number(order[start:22:2])] for start in (2, 3))
        effects = ((alone - outputs[0]).square() + (outputs[-1] - without).square()).div(2).sqrt()[singles]
        read = outputs[number(order)]
        values, _ = fit_process(order, read - read[:2].mean(), effects).shapley_values()
        random.append(float((values - exact).abs().mean()))
    assert sum(chosen) < 0.85 * sum(random)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 12, 13, 40])
@pytest.mark.parametrize("samples", [7, 100])
def test_no_coalition_is_read_twice_and_none_too_many(count: int, samples: int) -> None:
    direction = torch.randn(count, generator=Generator().manual_seed(count), dtype=torch.float64)
    seen: list[Tensor] = []

    def read(some: Tensor) -> Tensor:
        seen.append(some)
        return torch.sigmoid(some.double() @ direction)

    values, errors, used = sample_shapley_values(read, torch.tensor([5]), count, samples, 1e-9)
    found = torch.cat(seen)
    assert used == len(found) == len(torch.unique(found, dim=0)) == min(samples + 2, 2**count)
    assert torch.allclose(values.sum(), read(found[1:2])[0] - read(found[:1])[0], atol=1e-12)
    if used == 2**count:
        assert torch.allclose(values, exact_weights(count) @ read(all_coalitions(count, CPU)))
        assert (errors == 0).all()
    seen.clear()
    again = sample_shapley_values(read, torch.tensor([5]), count, samples, 1e-9)
    assert torch.equal(torch.cat(seen), found)
    assert torch.equal(again[0], values)


@pytest.mark.parametrize(("count", "samples"), [(1, 10), (2, 10), (3, 10), (8, 100), (8, 1000), (9, 60), (14, 120)])
def test_coalitions_are_different_pairs_of_all_sizes(count: int, samples: int) -> None:
    found = paired_coalitions(torch.tensor([7]), count, samples)
    assert not found[0].any()
    assert found[1].all()
    assert torch.equal(found[2::2], ~found[3::2])
    assert len(torch.unique(found, dim=0)) == len(found) == min(samples, 2**count - 2) + 2
    longer = paired_coalitions(torch.tensor([7]), count, samples + 20)
    assert torch.equal(longer[: len(found)], found)
    if count > 3:
        assert torch.unique(found[2 : 2 + 2 * count].sum(1)).tolist() == [1, count - 1]
    if samples >= 100:
        assert torch.unique(found.sum(1)).tolist() == [*range(count + 1)]


def normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def synonyms(kept: Tensor, generator: Generator) -> Tensor:
    """Each of three effects needs one word of its group."""
    group, effects = torch.randint(0, 3, kept.shape[1:], generator=generator), normal(generator, 3)
    return torch.stack([(kept * (group == number)).amax(1) for number in range(3)], 1) @ effects


def copies(kept: Tensor, generator: Generator) -> Tensor:
    """Every word stands there twice."""
    half = (kept.shape[1] + 1) // 2
    padded = torch.cat((kept, torch.zeros(len(kept), 2 * half - kept.shape[1])), 1)
    return torch.sigmoid(1.5 * torch.maximum(padded[:, :half], padded[:, half:]) @ normal(generator, half))


def triples(kept: Tensor, generator: Generator) -> Tensor:
    """Small effects of words, and three of three words together."""
    outputs = 0.2 * kept @ normal(generator, kept.shape[1])
    for _ in range(3):
        members = torch.randperm(kept.shape[1], generator=generator)[:3]
        outputs = outputs + normal(generator, 1) * kept[:, members].prod(1)
    return outputs


def parity(kept: Tensor, generator: Generator) -> Tensor:
    """Effects of words, and whether an even number of three words is kept."""
    members = torch.randperm(kept.shape[1], generator=generator)[:3]
    return 0.3 * kept @ normal(generator, kept.shape[1]) + 0.5 * (1 - 2 * kept[:, members]).prod(1)


def dense_network(kept: Tensor, generator: Generator) -> Tensor:
    hidden = torch.tanh((kept - 0.5) @ normal(generator, kept.shape[1], 16) + 0.5 * normal(generator, 16))
    return torch.sigmoid(torch.tanh(0.7 * hidden @ normal(generator, 16, 16)) @ normal(generator, 16))


def weighted_mean(kept: Tensor, generator: Generator) -> Tensor:
    """Attention over the words that are kept."""
    weights, values = (1.5 * normal(generator, kept.shape[1])).exp(), normal(generator, kept.shape[1])
    return torch.sigmoid(2 * (kept @ (weights * values)) / (0.2 + kept @ weights))


def first_word(kept: Tensor, generator: Generator) -> Tensor:
    """The first word that is kept decides alone."""
    is_first = kept * (kept.cumsum(1) == 1)
    return is_first @ normal(generator, kept.shape[1])


def random_transformer(spread: float, kept: Tensor, generator: Generator) -> Tensor:
    """The probability of the first class, by weights that are drawn with this standard deviation."""
    plan, words = TinyTransformer("bert", layers=2, initializer_range=spread), kept.shape[1]
    model = plan.build(MulticlassClassification(3), None, generator)
    ids = torch.randint(10, 40, (1, words + 2), generator=generator)
    numbers = torch.tensor([[-1, *range(words), -1]])
    batch = Batch(("text",), ids, ids > 0, torch.zeros_like(ids), numbers)
    removed = torch.zeros(1, len(kept), words + 2, dtype=torch.bool)
    removed[0, :, 1:-1] = kept == 0
    return outputs_without(model, batch, torch.tensor([0]), removed, "pad", "probability")[0]


SET_FUNCTIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "additive": lambda kept, generator: kept @ normal(generator, kept.shape[1]),
    "maximum": lambda kept, generator: (kept * torch.rand(kept.shape[1], generator=generator)).amax(1),
    "any": lambda kept, generator: 1 - (1 - 0.9 * kept * torch.rand(kept.shape[1], generator=generator)).prod(1),
    "synonyms": synonyms,
    "copies": copies,
    "triples": triples,
    "parity": parity,
    "saturated": lambda kept, generator: torch.sigmoid(4 * kept @ normal(generator, kept.shape[1])),
    "dense network": dense_network,
    "weighted mean": weighted_mean,
    "first word": first_word,
    "transformer": partial(random_transformer, 0.5),
    "saturated transformer": partial(random_transformer, 1.0),
}


def once(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function with its results kept: a smaller error starts with the steps of a larger one."""
    results: dict[bytes, Result] = {}

    def look_up(first: Tensor, second: Tensor, *others: object) -> Result:
        key = first.numpy().tobytes() + second.numpy().tobytes() + repr(others).encode()
        if key not in results:
            results[key] = function(first, second, *others)
        return results[key]

    return look_up


@pytest.mark.slow
@pytest.mark.parametrize("name", SET_FUNCTIONS)
def test_two_posterior_errors_cover_exact_shapley_values_of_every_kind_of_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = []
    monkeypatch.setattr(shapley, "fit_process", once(fit_process))
    monkeypatch.setattr(shapley, "choose_coalitions", once(choose_coalitions))
    for seed in range(16):
        count = 8 + seed % 3
        outputs = SET_FUNCTIONS[name](all_coalitions(count, CPU).double(), Generator().manual_seed(seed))
        exact = exact_weights(count) @ outputs
        for error in (0.1, 0.05, 0.02):
            values, errors, used = sample_shapley_values(reader(outputs), torch.tensor([seed]), count, 1000, error)
            if used < 1 << count:  # not exact
                assert errors.max() <= max(error * float(values.abs().max()), 1e-7)
                inside.append((values - exact).abs() <= 2 * errors + 1e-7)
    assert len(inside) >= 12
    assert torch.cat(inside).double().mean() >= 0.95


def test_two_posterior_errors_cover_exact_shapley_values() -> None:
    inside, relative, samples = [], [], []
    for seed in range(16):
        count = 7 + seed % 4
        outputs = game(count, seed)
        exact = exact_weights(count) @ outputs
        for error in (0.1, 0.04):
            values, errors, used = sample_shapley_values(reader(outputs), torch.tensor([seed]), count, 1000, error)
            assert torch.allclose(values.sum(), outputs[-1] - outputs[0], atol=1e-12)
            inside.append((values - exact).abs() <= 2 * errors + 1e-7)
            relative.append(float((values - exact).abs().max() / exact.abs().max()) / error)
            samples.append(used / (1 << count))
            assert used >= 5 * count
    assert torch.cat(inside).double().mean() >= 0.95
    assert sum(relative) / len(relative) < 1
    assert sum(samples) / len(samples) < 0.5


def test_two_posterior_errors_cover_the_regression_on_all_samples() -> None:
    inside, samples = [], []
    for seed in range(12):
        count = 7 + seed % 4
        outputs, generator = game(count, 40 + seed), Generator().manual_seed(seed)
        coalitions = torch.rand(400, count, generator=generator) < 0.5
        weights = 0.7 + 0.3 * torch.rand(400, generator=generator).double()
        moments = centered_moments(coalitions[None].double(), outputs[number(coalitions)][None], weights[None])
        expected = solve_ridge(*moments, 1.0)[0]
        for error in (0.1, 1e-9):
            found = predict_coefficients(lambda some: outputs[number(some)], coalitions, weights, 1.0, error)  # noqa: B023
            values, errors, used = found
            if error < 0.01:
                assert torch.allclose(values, expected, atol=1e-10), "all samples are read"
            else:
                inside.append((values - expected).abs() <= 2 * errors + 1e-7)
                samples.append(used / len(torch.unique(coalitions, dim=0)))
    assert torch.cat(inside).double().mean() >= 0.95
    assert sum(samples) / len(samples) < 0.6


@pytest.mark.parametrize("method", [KernelShap(error=0.1), Lime(60, error=0.1)], ids=["kernel-shap", "lime"])
def test_the_rest_of_a_batch_changes_no_sample(method: Method) -> None:
    model, batch, target = tiny("bert"), texts(), torch.tensor([0, 2, 1])
    together = method(model, batch, target)
    assert isinstance(together, SampledAttribution)
    assert (together.posterior_errors[~together.mask] == 0).all()
    for row in range(len(batch)):
        text = batch.rows(torch.tensor([row]))
        alone = method(model, text, target[row : row + 1])
        assert isinstance(alone, SampledAttribution)
        assert alone.samples[0] == together.samples[row]
        width = text.mask.shape[1]
        assert torch.allclose(alone.scores[0], together.scores[row, :width], atol=1e-5)
        assert torch.allclose(alone.posterior_errors[0], together.posterior_errors[row, :width], rtol=0.05, atol=1e-5)


def short_texts() -> Batch:
    batch = texts()
    return batch.keep_units(~batch.content_mask | (batch.content_mask.cumsum(1) <= 5))


def test_an_error_out_of_reach_reads_everything_and_is_exact() -> None:
    model, batch, target = tiny("bert"), short_texts(), torch.tensor([0, 2, 1])
    found = KernelShap(error=1e-9)(model, batch, target)
    assert isinstance(found, SampledAttribution)
    assert torch.allclose(found.scores, Shapley()(model, batch, target).scores, atol=1e-7)
    assert (found.posterior_errors == 0).all()
    assert torch.equal(found.samples, 1 << batch.content_mask.sum(1))
    lime = Lime(50, error=1e-9)(model, batch, target)
    assert torch.allclose(lime.scores, Lime(50)(model, batch, target).scores, atol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_up_to_four_words_are_exact_whatever_the_error(count: int) -> None:
    # Five samples per word are all that there are.
    game, batch = Game(torch.tensor([0.0, 0.3, -0.2, 0.7, 0.1]), bond=0.4), words(tuple(range(1, count + 1)))
    target = torch.zeros(1, dtype=torch.int64)
    found = KernelShap(feature="word").for_words()(game, batch, target)
    assert isinstance(found, SampledAttribution)
    assert found.samples.tolist() == [1 << count]
    assert found.posterior_errors.max() == 0
    torch.testing.assert_close(found.scores, Shapley()(game, batch, target).scores, atol=1e-12, rtol=0)


def test_a_constant_output_needs_the_least_samples_and_gets_zeros() -> None:
    values, errors, used = sample_shapley_values(
        lambda some: torch.full((len(some),), 0.7).double(), torch.tensor([3]), 9, 1000, 0.05
    )
    assert used == 45
    assert values.abs().max() < 1e-9
    assert errors.max() < 1e-7


@pytest.mark.parametrize("error", [0, 1, -0.1, "much"])
def test_an_error_that_is_no_share_is_refused(error: float) -> None:
    with pytest.raises(UserError, match="error"):
        KernelShap(error=error)
    with pytest.raises(UserError, match="error"):
        Lime(error=error)
