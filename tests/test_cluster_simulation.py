"""The simulation of a cluster: hand values where one thing alone is the limit, and verdicts that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cluster_simulation import FREE, SHARED_FOLDER, Load, simulate


def test_without_costs_a_run_takes_the_work_divided_by_the_cores() -> None:
    alone = simulate(Load(500, 0, 2.0), 1, FREE)
    assert alone.efficiency == pytest.approx(1.0)
    assert alone.seconds == pytest.approx(500 * 2.0, rel=0.1)  # the mean of 500 draws
    four = simulate(Load(500, 0, 2.0), 4, FREE)
    assert four.seconds == pytest.approx(alone.seconds / 4, rel=0.01)


def test_a_trial_waits_for_its_model() -> None:
    """One model and one trial on many cores: one after the other, and half of two cores is idle."""
    run = simulate(Load(1, 1, 2.0), 2, FREE)
    assert run.efficiency == pytest.approx(0.5)
    started = simulate(Load(1, 1, 2.0), 2, replace(FREE, start_seconds=3.0, latency=0.25))
    # The start of one worker, two ways through the network for each recipe (the core's first has the start instead).
    assert started.seconds == pytest.approx(run.seconds + 3.0 + 0.25 * 3)


def test_the_driver_is_the_limit_where_cores_finish_more_recipes_than_it_can_hand_out() -> None:
    """1 ms per recipe is 1 000 recipes per second, however many cores there are."""
    load = Load(20_000, 0, 1.0)
    costs = replace(FREE, driver_seconds=0.001)
    run = simulate(load, 10_000, costs)
    assert run.seconds == pytest.approx(20.0, rel=0.15)
    assert run.limit(simulate(load, 10_000, FREE)) == "driver"
    assert simulate(load, 500, costs).limit(simulate(load, 500, FREE)) == "none"


def test_the_workspace_is_the_limit_where_it_answers_too_slowly() -> None:
    costs = replace(FREE, reads=5, writes=5, store_rate=1_000.0)
    run = simulate(Load(20_000, 0, 1.0), 10_000, costs)
    assert run.seconds == pytest.approx(200.0, rel=0.1)  # 200 000 operations
    assert run.limit(simulate(Load(20_000, 0, 1.0), 10_000, FREE)) == "workspace"


def test_a_short_run_waits_for_its_workers_to_start() -> None:
    """Every core starts once: 3 s more for all, and nobody is busy."""
    load = Load(8, 0, 1.0)
    run = simulate(load, 4, replace(FREE, start_seconds=3.0))
    assert run.seconds == pytest.approx(simulate(load, 4, FREE).seconds + 3.0)
    assert run.limit(simulate(load, 4, FREE)) == "startup, latency"


def test_long_recipes_scale_where_short_ones_do_not() -> None:
    short, long = (simulate(Load(1_600, 9, seconds), 1_600, SHARED_FOLDER).efficiency for seconds in (0.1, 600.0))
    assert short < 0.5 < long
