"""Bootstrap intervals against SciPy, the normal theory, and a literal loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from heedful.measures import bootstrap
from heedful.measures.bootstrap import Interval, bootstrap_interval, paired_bootstrap
from heedful.measures.classification import f1


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def median(drawn: Tensor) -> Tensor:
    return drawn.quantile(0.5, dim=1)


def class_one_f1(drawn: Tensor) -> Tensor:
    predicted, labels = drawn.unbind(2)
    hits = 2 * (predicted * labels).sum(1)
    return hits / (predicted + labels).sum(1)


def test_the_interval_of_a_mean_is_that_of_the_normal_theory_on_many_values() -> None:
    values = torch.tensor(np.random.default_rng(0).normal(3.0, 2.0, size=4000))
    interval = bootstrap_interval(values, resamples=4000, generator=seeded())
    error = values.std().item() / math.sqrt(4000)
    assert interval.estimate == pytest.approx(values.mean().item(), abs=1e-12)
    assert interval.low == pytest.approx(interval.estimate - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(interval.estimate + 1.96 * error, abs=0.1 * error)


def test_the_interval_of_a_median_is_close_to_scipys() -> None:
    values = np.random.default_rng(1).exponential(size=300)
    theirs = stats.bootstrap(
        (values,), np.median, method="percentile", n_resamples=4000, rng=np.random.default_rng(2)
    ).confidence_interval
    ours = bootstrap_interval(torch.tensor(values), median, resamples=4000, generator=seeded())
    assert ours.estimate == pytest.approx(float(np.median(values)))
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_the_interval_equals_a_literal_loop_over_the_same_draws() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 5.0, 9.0], dtype=torch.float64)
    draws = torch.randint(5, (200, 5), generator=seeded(7)).tolist()
    means = sorted(float(np.mean([values[i].item() for i in row])) for row in draws)
    interval = bootstrap_interval(values, level=0.9, resamples=200, generator=seeded(7))
    low, high = np.quantile(means, [0.05, 0.95])
    assert interval.low == pytest.approx(low)
    assert interval.high == pytest.approx(high)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = torch.randn(50, generator=seeded())
    first, again, other = (bootstrap_interval(values, generator=seeded(s)) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_statistic_of_whole_examples_keeps_prediction_and_label_together() -> None:
    pairs = (torch.rand(80, 2, generator=seeded()) > 0.4).double()
    interval = bootstrap_interval(pairs, class_one_f1, generator=seeded())
    assert interval.estimate == pytest.approx(f1(pairs[:, 0].long(), pairs[:, 1].long()))
    assert interval.low < interval.estimate < interval.high
    alike = pairs[:, :1].expand(80, 2)
    assert bootstrap_interval(alike, class_one_f1, generator=seeded()) == Interval(1.0, 1.0, 1.0, 0.95)


def test_a_wider_level_gives_a_wider_interval() -> None:
    values = torch.randn(50, generator=seeded())
    narrow, wide = (bootstrap_interval(values, level=level, generator=seeded()) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_small_blocks_resample_as_often_as_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(drawn: Tensor) -> Tensor:
        sizes.append(len(drawn))
        return drawn.mean(1)

    monkeypatch.setattr(bootstrap, "_MAX_RESAMPLED_VALUES", 64)
    bootstrap_interval(torch.arange(10.0), counted, resamples=20, generator=seeded())
    assert sum(sizes[:-1]) == 20, "the last call is the estimate"
    assert max(sizes) == 6


def test_paired_examples_show_a_difference_that_their_spread_would_hide() -> None:
    hard = 10 * torch.randn(100, generator=seeded(1), dtype=torch.float64)
    gain = 0.2 + 0.1 * torch.randn(100, generator=seeded(2), dtype=torch.float64)
    result = paired_bootstrap(hard + gain, hard, resamples=999, generator=seeded())
    assert result.interval.estimate == pytest.approx(gain.mean().item())
    assert 0 < result.interval.low < result.interval.high < 0.3
    assert result.p_value == pytest.approx(0.002)
    turned = paired_bootstrap(hard, hard + gain, resamples=999, generator=seeded())
    assert turned.interval.low == pytest.approx(-result.interval.high)
    assert turned.p_value == pytest.approx(0.002)


def test_the_p_value_of_no_difference_is_uniform_over_repetitions() -> None:
    p_values = []
    for seed in range(200):
        first, second = torch.randn(2, 60, generator=seeded(seed))
        p_values.append(paired_bootstrap(first, second, resamples=200, generator=seeded(seed)).p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_equal_systems_have_difference_zero_and_p_value_one() -> None:
    values = torch.randn(20, generator=seeded())
    result = paired_bootstrap(values, values.clone(), median, generator=seeded())
    assert result.interval == Interval(0.0, 0.0, 0.0, 0.95)
    assert result.p_value == 1.0


def test_bad_input_is_refused_in_plain_words() -> None:
    values = torch.ones(3)
    with pytest.raises(ValueError, match="nothing to resample"):
        bootstrap_interval(torch.zeros(0), generator=seeded())
    with pytest.raises(ValueError, match="NaN"):
        bootstrap_interval(torch.tensor([1.0, math.nan]), generator=seeded())
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval(values, level=95, generator=seeded())
    with pytest.raises(ValueError, match="resample"):
        bootstrap_interval(values, resamples=0, generator=seeded())
    with pytest.raises(ValueError, match="one shape"):
        paired_bootstrap(values, torch.ones(4), generator=seeded())
