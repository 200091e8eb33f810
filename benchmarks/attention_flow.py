"""Attention flow to every unit of a text: 48 units against networkx, 240 units against SciPy unit by unit.

The graph has six layers; attention is generated, the mean of twelve heads that look at few units each, with a class
symbol that looks much at itself as in trained networks.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from benchmarks.timing import Row, compared
from heedful.attributions._max_flow import CAPACITY_SCALE, MaxFlows, max_flows

LAYERS = 6
HEADS = 12
SHORT = 48
LONG = 240
SPREAD = 3.0
SELF = 0.8
Numbers = NDArray[np.float64]


def rows() -> Iterator[Row]:
    """One row against networkx on few units, one against SciPy on many."""
    short, long = _capacities(SHORT), _capacities(LONG)
    yield compared(_title(short), lambda: _ours(short), lambda: _networkx(short), "networkx, unit by unit", runs=1)
    peer = "SciPy on the whole graph, unit by unit"
    yield compared(_title(long), lambda: _ours(long), lambda: _scipy(long), peer, runs=2)


def _ours(layers: Numbers) -> MaxFlows:
    start = np.zeros(layers.shape[1])
    start[0] = 1
    return max_flows(layers, start, range(1, len(start)))


def _title(layers: Numbers) -> str:
    found = _ours(layers)
    return f"attention flow, {layers.shape[1]} units, {LAYERS} layers, {found.certified.mean():.0%} certified by a cut"


def _capacities(units: int) -> Numbers:
    scores = np.random.default_rng(units).normal(size=(LAYERS, HEADS, units, units)) * SPREAD
    weights = np.exp(scores)
    attention = (weights / weights.sum(-1, keepdims=True)).mean(1)
    attention[:, 0] = (1 - SELF) * attention[:, 0] + SELF * np.eye(units)[0]
    capacities: Numbers = (attention + np.eye(units)) / 2
    return capacities


def _networkx(layers: Numbers) -> None:
    """The graph as the paper's code builds it, one maximum flow per unit."""
    graph = networkx.DiGraph()
    for layer, above, below in np.ndindex(layers.shape):
        graph.add_edge((layer + 1, above), (layer, below), capacity=layers[layer, above, below])
    for unit in range(1, layers.shape[1]):
        networkx.maximum_flow_value(graph, (len(layers), 0), (0, unit))


def _scipy(layers: Numbers) -> None:
    """The same graph with integer capacities in SciPy, one maximum flow per unit."""
    count, units = layers.shape[:2]
    nodes = units * (count + 1)
    ends = np.concatenate([np.tile(np.arange(units) + units * layer, units) for layer in range(count)])
    starts = np.append(np.zeros(units, dtype=np.int64), np.arange(len(ends) // units + 1) * units)
    capacities = np.floor(layers * CAPACITY_SCALE).astype(np.int32).ravel()
    graph = csr_array((capacities, ends.astype(np.int32), starts.astype(np.int32)), shape=(nodes, nodes))
    for unit in range(1, units):
        maximum_flow(graph, count * units, unit)
