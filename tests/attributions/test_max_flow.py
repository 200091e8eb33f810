"""Attention flow: known answers, networkx as oracle, and shortcuts that are never wrong."""

from __future__ import annotations

from dataclasses import replace

import networkx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heedful.attributions import _max_flow
from heedful.attributions._max_flow import cut_bounds, max_flows
from heedful.attributions.attention import Flow, attention_flows, residual_attention
from tests.attributions.test_attention import FIRST, SECOND
from tests.networks import texts, tiny
from tests.small_models import pooled, subject, targets

Numbers = NDArray[np.float64]


def layered(attention: object) -> Numbers:
    """Capacities (A + I) / 2 `[layer unit unit]`."""
    found = np.array(attention, dtype=np.float64)
    return (found + np.eye(found.shape[-1])) / 2


def drawn(seed: int, layers: int, units: int, spread: float) -> Numbers:
    """Capacities of random attention, the mean of four heads; a large spread makes heads look at one unit."""
    scores = np.random.default_rng(seed).normal(size=(layers, 4, units, units)) * spread
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights[weights < 1e-3] = 0
    return layered((weights / weights.sum(-1, keepdims=True)).mean(1))


def oracle(layers: Numbers, start: Numbers, sink: int) -> float:
    """networkx on the graph as it is written: one node per layer and unit, real capacities."""
    graph = networkx.DiGraph()
    count = len(layers)
    for unit, entering in enumerate(start):
        graph.add_edge("start", (count, unit), capacity=entering)
    for layer, above, below in np.ndindex(layers.shape):
        graph.add_edge((layer + 1, above), (layer, below), capacity=layers[layer, above, below])
    return float(networkx.maximum_flow_value(graph, "start", (0, sink)))


def first(units: int) -> Numbers:
    one: Numbers = np.zeros(units)
    one[0] = 1
    return one


def values(layers: Numbers) -> list[float]:
    return [float(value) for value in max_flows(layers, first(layers.shape[1]), range(layers.shape[1])).values]


def test_known_answers_of_flow() -> None:
    assert values(layered(np.full((2, 3, 3), 1 / 3))) == pytest.approx([1, 0.5, 0.5], abs=1e-8)
    assert values(layered([FIRST, SECOND])) == pytest.approx([0.7, 0.65, 0.45], abs=1e-8)
    assert values(layered([FIRST])) == pytest.approx([0.6, 0.4, 0], abs=1e-8)


def test_over_six_random_layers_only_the_first_counts_and_many_units_tie() -> None:
    layers = drawn(0, 6, 14, 1.0)
    found = max_flows(layers, first(14), range(14))
    assert found.values == pytest.approx(np.minimum(1, layers[0].sum(0)), abs=1e-7)
    assert (found.values == 1).sum() == (layers[0].sum(0) >= 1).sum() > 2


@pytest.mark.parametrize("seed", range(12))
def test_flow_equals_networkx(seed: int) -> None:
    layers = drawn(seed, 1 + seed % 4, 3 + seed % 5, spread=1.0 + seed % 3 * 3)
    units = layers.shape[1]
    for start in (first(units), np.eye(units)[-1], np.full(units, 1 / units)):
        expected = [oracle(layers, start, sink) for sink in range(units)]
        found = max_flows(layers, start, range(units))
        assert found.values == pytest.approx(expected, abs=1e-7)
        assert (cut_bounds(layers, start) >= np.array(expected) - 1e-9).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_thin_graph_that_fails_is_followed_by_the_whole_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_max_flow, "MAX_UNITS_UNTHINNED", 2)
    monkeypatch.setattr(_max_flow, "THIN_GRAPH_EDGES", (1,))
    monkeypatch.setattr(_max_flow, "NUM_HUBS", 1)
    layers = drawn(seed, 4, 9, spread=4.0)
    found = max_flows(layers, first(9), range(9))
    assert found.values == pytest.approx([oracle(layers, first(9), sink) for sink in range(9)], abs=1e-7)
    assert not found.solved_on_thin_graph.all()
    assert found.certified.sum() > found.solved_on_thin_graph.sum()


def test_a_thin_graph_answers_for_many_units_as_the_whole_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = drawn(3, 4, 80, spread=3.0)
    sinks = range(1, 80, 6)
    thin = max_flows(layers, first(80), sinks)
    monkeypatch.setattr(_max_flow, "MAX_UNITS_UNTHINNED", 100)
    assert thin.values == pytest.approx(max_flows(layers, first(80), sinks).values, abs=2 * thin.tolerance)
    assert thin.solved_on_thin_graph.mean() > 0.5


def test_a_class_token_that_looks_at_itself_makes_flow_a_constant_plus_first_layer_attention() -> None:
    layers = drawn(1, 4, 9, spread=0.3)
    layers[:, 0] = 0.02 * layers[:, 0] + 0.98 * first(9)
    found = max_flows(layers, first(9), range(1, 9)).values
    leaving = (1 - layers[1:, 0, 0]).sum()
    assert found == pytest.approx(leaving + layers[0, 0, 1:], abs=1e-8)


def test_every_known_cut_is_a_cut() -> None:
    for seed in range(40):
        layers = drawn(100 + seed, 2 + seed % 3, 4, spread=6.0)
        bounds = cut_bounds(layers, first(4))
        assert all(bounds[sink] >= oracle(layers, first(4), sink) - 1e-9 for sink in range(4))


def test_a_small_graph_where_no_known_cut_is_the_smallest_is_solved() -> None:
    layers = layered([np.full((4, 4), 0.25)] * 3)
    # Units 2 and 3 form one cut: 0 -> 2 -> 3 -> sink 1 has little capacity between layers, much within them.
    layers[2] = np.array([[0, 0, 0.5, 0.5], [0] * 4, [0] * 4, [0] * 4])
    layers[1] = np.array([[0] * 4, [0] * 4, [0, 0, 0.1, 0.1], [0, 0, 0.1, 0.1]])
    layers[0] = np.array([[0] * 4, [0] * 4, [0, 1, 0, 0], [0, 1, 0, 0]])
    found = max_flows(layers, first(4), [1])
    assert found.values == pytest.approx([0.4], abs=1e-8)
    assert found.bounds[0] > 0.5
    assert not found.certified.any()


@pytest.mark.parametrize("units", [9, 30])
def test_every_flow_is_within_the_stated_tolerance(units: int) -> None:
    """The smallest cut has an edge from each inner unit to each: rounding takes nearly one unit from every edge."""
    layers = np.zeros((3, units, units))
    layers[2, 0, 1:] = 1 / (units - 1)
    layers[1, 1:, 1:] = (np.floor(2**30 * 0.2 / units**2) + 0.99) / 2**30
    layers[0, 1:, 1] = 1 / (units - 1)
    found = max_flows(layers, first(units), [1])
    error = abs(found.values[0] - layers[1].sum())
    assert not found.certified.any()
    assert error <= found.tolerance < 1.1 * error + 3 * units / 2**30
    assert error > (2 if units > 9 else 0) * 3 * units / 2**30


def test_flow_of_a_transformer_is_networkx_on_its_attention() -> None:
    model, batch = tiny("bert"), texts()
    layers = residual_attention(model(batch).attention.detach()).numpy()
    scores = Flow()(model, batch, targets(batch)).scores
    for row, length in enumerate(batch.lengths.tolist()):
        for unit in range(1, length):
            expected = oracle(layers[row, :, :length, :length], first(length), unit)
            assert float(scores[row, unit]) == pytest.approx(expected, abs=1e-7)


def test_without_a_class_token_flow_enters_everywhere() -> None:
    model, batch = tiny("bert"), texts()
    batch = replace(batch, words=torch.arange(7).expand(3, 7).masked_fill(~batch.mask, -1))
    layers = residual_attention(model(batch).attention.detach()).numpy()[2, :, :3, :3]
    found = Flow()(model, batch, targets(batch)).scores[2, :3].tolist()
    assert found == pytest.approx([oracle(layers, np.full(3, 1 / 3), unit) for unit in range(3)], abs=1e-7)


def test_flows_of_uniform_attention_are_tied_and_certified() -> None:
    batch = texts()
    attention = torch.full((3, 6, 2, 7, 7), 1 / 7) * batch.mask[:, None, None, :, None]
    found = list(attention_flows(attention, batch, batch.content_mask))
    assert [len(each.values) for each in found] == batch.content_mask.sum(1).tolist()
    assert (np.unique(found[0].values, return_counts=True)[1] > 1).all()
    assert found[0].certified.all()


def test_flow_of_a_pooled_model_is_its_attention() -> None:
    _, batch = subject("SingleInput")
    assert Flow()(pooled(), batch, targets(batch)).scores.sum(1) == pytest.approx(torch.ones(3).double())


def test_capacities_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="capacities"):
        max_flows(np.full((1, 2, 2), 1.5), first(2), [0])


def test_the_tolerance_of_a_certified_flow_is_a_unit_of_capacity_for_each_token_of_each_layer() -> None:
    third = (np.full((2, 3, 3), 1 / 3) + np.eye(3)) / 2
    found = max_flows(third, np.array([1.0, 0, 0]), [0, 1, 2])
    assert found.certified.all()
    assert found.tolerance == pytest.approx(2 * 3 / 2**30 + 0.5e-9, rel=1e-12)
