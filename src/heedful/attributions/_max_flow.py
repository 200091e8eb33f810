"""Maximum flow through attention layers, from the top to each token at the bottom, with few full solutions.

A few families of cuts, priced for all sinks at once, contain the minimum cut nearly always, and a flow on a thinned
graph is a flow on the full one. Where a thin flow reaches the cheapest cut, both are optimal; only the other sinks are
solved on the full graph. Capacities are integers in units of 2^-30.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CAPACITY_SCALE = 2**30
"""Integer capacity of an edge of weight 1; SciPy counts in 32 bits."""
DECIMALS = 9
"""Digits to which flows are rounded."""
MAX_UNITS_UNTHINNED = 64
"""Tokens up to which thinning a graph costs more than it saves."""
THIN_GRAPH_EDGES = (8, 32)
"""Edges of each token that a thin graph keeps, the thinnest graph first."""
NUM_HUBS = 16
"""Tokens that receive most from the source; thin graphs keep all their edges."""


@dataclass(frozen=True)
class MaxFlows:
    """Maximum flows to some tokens, each to within `tolerance`.

    Args:
        values: one flow per sink.
        bounds: capacity of the cheapest known cut.
        certified: True where the flow reaches that capacity, which proves both optimal.
        solved_on_thin_graph: True where a thin graph was enough for the proof.
    """

    values: FloatArray
    bounds: FloatArray
    certified: BoolArray
    solved_on_thin_graph: BoolArray
    tolerance: float


def max_flows(layers: FloatArray, source: FloatArray, sinks: Sequence[int] | NDArray[np.int64]) -> MaxFlows:
    """The maximum flow from the source to each sink at the bottom.

    Args:
        layers: capacities `[layer unit unit]` in [0, 1], the lowest layer first: from a token above (row) to one below.
        source: how much may enter at each token on top `[unit]`; sums to at most 1.

    >>> third = (np.full((2, 3, 3), 1 / 3) + np.eye(3)) / 2
    >>> max_flows(third, np.array([1.0, 0, 0]), [0, 1, 2]).values.round(4).tolist()
    [1.0, 0.5, 0.5]
    """
    if layers.min() < 0 or layers.max() > 1 + 1e-6 or source.sum() > 1 + 1e-6:
        raise ValueError("capacities must be in [0, 1], and the source may sum to at most 1")
    tolerance = layers.shape[0] * layers.shape[1] / CAPACITY_SCALE
    bounds = cut_bounds(layers, source)[sinks]
    graph = _FlowGraph.build(layers, source)
    flows, shortcut = np.empty(len(bounds)), np.zeros(len(bounds), dtype=bool)
    thinnest, lost = 0, 0.0
    for number, (sink, bound) in enumerate(zip(sinks, bounds, strict=True)):
        for thinness in range(thinnest, len(graph.thin)):
            flows[number] = graph.flow(int(sink), graph.thin[thinness])
            if flows[number] >= bound - tolerance:
                # What was enough for one sink is probably enough for the next.
                thinnest, shortcut[number] = thinness, True
                break
        else:
            flows[number], cut = graph.flow_and_cut(int(sink), layers, source)
            # Rounding down costs the smallest cut up to one unit for each of its edges, which may be many.
            if bounds[number] > flows[number] + tolerance:
                lost = max(lost, cut - flows[number])
    certified = flows >= bounds - tolerance
    # Integer capacities lose up to the tolerance, a known cut only the last digits of its sum; rounding keeps ties.
    values = np.where(certified, bounds, flows).round(DECIMALS)
    return MaxFlows(values, bounds, certified, shortcut, max(tolerance, lost) + 0.5 * 10.0**-DECIMALS)


def cut_bounds(layers: FloatArray, source: FloatArray) -> FloatArray:
    """The capacity `[unit]` of the cheapest known cut before each sink, an upper bound of the flow.

    The cuts are: everything that enters; all edges into the column of the sink up to some layer; and where the flow
    starts at one token, all edges out of its column down to some layer, there the cheaper of each token's edge from
    that column and its edge towards the sink, and below that the column of the sink again.
    """
    into = layers.sum(1)
    others = into - np.diagonal(layers, axis1=1, axis2=2)
    below = np.concatenate((np.zeros_like(others[:1]), np.cumsum(others, 0)))[:-1]
    top = np.minimum(source[:, None], layers[-1]).sum(0) + below[-1]
    cuts = [np.full(len(source), source.sum()), *(below[:-1] + into[:-1]), top]
    (entries,) = np.nonzero(source)
    if len(entries) == 1:
        cuts += _column_cuts(layers, below, int(entries[0]))
    cheapest: FloatArray = np.stack(cuts).min(0)
    return cheapest


def _column_cuts(layers: FloatArray, below: FloatArray, first: int) -> list[FloatArray]:
    """Cuts that separate the column of a single source from the other tokens, one per turning layer."""
    leaving = layers[:, first].sum(-1) - layers[:, first, first]
    above = np.append(np.cumsum(leaving[::-1])[::-1], [0.0])
    cuts = []
    for layer in range(len(layers) - 1):
        passing = np.minimum(layers[layer + 1, first, :, None], layers[layer])
        passing[first] = layers[layer, first]
        cuts.append(above[layer + 2] + passing.sum(0) + below[layer])
    return cuts


@dataclass(frozen=True)
class _FlowGraph:
    """Source, tokens layer by layer from the top, and the sinks at the bottom, with integer capacities.

    Args:
        source_capacities: from the source to the tokens on top `[unit]`.
        edges: from each token of the layers, the highest first, to the tokens below `[layer x unit, unit]`.
        thin: the edges that thin graphs keep, the thinnest first; the column of the sink is added.
        whole: the graph with all edges.
    """

    source_capacities: NDArray[np.int32]
    edges: NDArray[np.int32]
    thin: tuple[BoolArray, ...]
    whole: csr_array

    @staticmethod
    def build(layers: FloatArray, start: FloatArray) -> _FlowGraph:
        # Rounded down, so that an integer flow is valid for the true capacities.
        units = len(start)
        edges = np.floor(layers[::-1] * CAPACITY_SCALE).astype(np.int32).reshape(-1, units)
        edges[:units][start <= 0] = 0
        entering = np.floor(start * CAPACITY_SCALE).astype(np.int32)
        thin = tuple(
            _strong_edges(layers, start, strongest) & (edges > 0)
            for strongest in THIN_GRAPH_EDGES
            if units > MAX_UNITS_UNTHINNED
        )
        return _FlowGraph(entering, edges, thin, _edge_matrix(entering, edges, edges > 0))

    def flow(self, sink: int, thin: BoolArray) -> float:
        """The maximum flow to the sink on a thin graph."""
        from scipy.sparse.csgraph import maximum_flow  # as csr_array: its import costs 10 MB, and reports do without it

        kept = thin.copy()
        kept[:, sink] = self.edges[:, sink] > 0
        graph = _edge_matrix(self.source_capacities, self.edges, kept)
        return float(maximum_flow(graph, 0, 1 + len(self.edges) + sink).flow_value / CAPACITY_SCALE)

    def flow_and_cut(self, sink: int, layers: FloatArray, source: FloatArray) -> tuple[float, float]:
        """The maximum flow on the full graph, and the capacity before rounding of the cut that limits it."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        result = maximum_flow(self.whole, 0, 1 + len(self.edges) + sink)
        residual = csr_array(self.whole - result.flow)
        residual.eliminate_zeros()
        reached = np.zeros(residual.shape[0], dtype=bool)
        reached[breadth_first_order(residual, 0, return_predecessors=False)] = True
        by_level = reached[1:].reshape(-1, len(source))
        crossing = by_level[:-1, :, None] & ~by_level[1:, None, :]
        cut = source[~by_level[0]].sum() + layers[::-1][crossing].sum()
        return float(result.flow_value / CAPACITY_SCALE), float(cut)


def _edge_matrix(entering: NDArray[np.int32], edges: NDArray[np.int32], kept: BoolArray) -> csr_array:
    """The graph of the kept edges as a CSR matrix."""
    from scipy.sparse import csr_array

    units = len(entering)
    places = np.flatnonzero(kept)
    above, below = np.divmod(places, units)
    ends = np.concatenate((np.arange(1, units + 1), 1 + (above // units + 1) * units + below))
    counts = np.concatenate(([units], np.bincount(above, minlength=len(edges)), np.zeros(units, dtype=np.int64)))
    capacities = np.concatenate((entering, edges.ravel()[places]))
    starts = np.append([0], np.cumsum(counts))
    return csr_array((capacities, ends.astype(np.int32), starts.astype(np.int32)), shape=(len(counts), len(counts)))


def _strong_edges(layers: FloatArray, start: FloatArray, strongest: int) -> BoolArray:
    """The edges above the lowest layer that a thin graph keeps: own columns, strongest edges, and all edges of hubs."""
    inner, units = layers[:0:-1], layers.shape[1]
    kept = np.zeros(layers.shape, dtype=bool)
    best = np.argpartition(-inner, strongest, axis=-1)[..., :strongest]
    np.put_along_axis(kept[:-1], best, values=True, axis=-1)
    kept[:-1] |= np.eye(units, dtype=bool)
    received = np.einsum("u,luv->v", start, inner) + len(inner) * start
    kept[:-1, np.argsort(-received, kind="stable")[:NUM_HUBS]] = True
    return kept.reshape(-1, units)
