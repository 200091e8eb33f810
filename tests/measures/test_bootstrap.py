"""Bootstrap intervals against SciPy, the normal theory and literal loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator

from heedful.measures import bootstrap
from heedful.measures.bootstrap import Interval, bootstrap_interval, bootstrap_means, percentile_bounds, resample_counts


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def test_the_interval_of_many_values_is_that_of_the_normal_theory() -> None:
    values = torch.tensor(np.random.default_rng(0).normal(3.0, 2.0, size=4000))
    interval = bootstrap_interval(values, resamples=4000, generator=seeded())
    error = values.std().item() / math.sqrt(4000)
    assert interval.estimate == pytest.approx(values.mean().item(), abs=1e-12)
    assert interval.low == pytest.approx(interval.estimate - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(interval.estimate + 1.96 * error, abs=0.1 * error)


def test_the_interval_of_a_skewed_sample_is_close_to_scipys() -> None:
    values = np.random.default_rng(1).exponential(size=100)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(2)
    ).confidence_interval
    ours = bootstrap_interval(torch.tensor(values), resamples=4000, generator=seeded())
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


def test_columns_share_their_draws_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = torch.randn(7, 3, generator=seeded(3), dtype=torch.float64)
    means = bootstrap_means(columns, resamples=50, generator=seeded(1))
    draws = torch.randint(7, (50, 7), generator=seeded(1))
    torch.testing.assert_close(means, columns[draws].mean(1))
    monkeypatch.setattr(bootstrap, "_MAX_DRAWS", 15)
    torch.testing.assert_close(bootstrap_means(columns, resamples=50, generator=seeded(1)), means)


def test_fewer_draws_than_items_give_the_unbiased_variance_of_a_mean() -> None:
    values = torch.tensor([1.0, 2.0, 6.0, 7.0], dtype=torch.float64)
    counts = resample_counts(4, 40_000, seeded(), 3)
    assert (counts.sum(1) == 3).all()
    spread = (counts @ values / 3).var().item()
    assert spread == pytest.approx(values.var().item() / 4, rel=0.03)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = torch.randn(50, generator=seeded())
    first, again, other = (bootstrap_interval(values, generator=seeded(s)) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_higher_level_gives_a_wider_interval() -> None:
    values = torch.randn(50, generator=seeded())
    narrow, wide = (bootstrap_interval(values, level=level, generator=seeded()) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_paired_differences_reveal_a_gain_that_the_spread_of_examples_hides() -> None:
    hard = 10 * torch.randn(100, generator=seeded(1), dtype=torch.float64)
    gain = 0.2 + 0.1 * torch.randn(100, generator=seeded(2), dtype=torch.float64)
    interval = bootstrap_interval((hard + gain) - hard, generator=seeded())
    assert interval.estimate == pytest.approx(gain.mean().item())
    assert 0 < interval.low < interval.high < 0.3
    assert bootstrap_interval(torch.zeros(20), generator=seeded()) == Interval(0.0, 0.0, 0.0)


def test_an_undefined_resample_makes_the_bounds_undefined() -> None:
    low, high = percentile_bounds(torch.tensor([[1.0, 1.0], [2.0, math.nan]]))
    assert not low[0].isnan()
    assert bool(low[1].isnan())
    assert bool(high[1].isnan())


def test_bad_input_is_refused() -> None:
    values = torch.ones(3)
    with pytest.raises(ValueError, match="nothing to resample"):
        bootstrap_interval(torch.zeros(0), generator=seeded())
    with pytest.raises(ValueError, match="NaN"):
        bootstrap_interval(torch.tensor([1.0, math.nan]), generator=seeded())
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval(values, level=95, generator=seeded())
    with pytest.raises(ValueError, match="resamples"):
        bootstrap_interval(values, resamples=0, generator=seeded())
