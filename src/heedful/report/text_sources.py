"""Joining what is stored about the texts of a model, or was just computed, to a table of texts."""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.attributions.attention import RawAttention
from heedful.attributions.method import MethodTags
from heedful.formatting import page_text
from heedful.report.charts import png_base64
from heedful.report.heatmap import token_spacing
from heedful.report.page import Link
from heedful.report.text_table import (
    FOLDER,
    LEAST_FAITHFUL,
    NAMING_FACTS,
    ScoreCell,
    ScoreColumn,
    TextMetric,
    TextRow,
    TextTable,
    encode_head_maps,
    patch_grid,
)
from heedful.store.artefact_files import Columns as StoredColumns
from heedful.store.artefact_files import IndexEntry, StoredArtefact
from heedful.training.attribution_tables import read_tags

ATTENTION = "attention"
_MODEL_FACTS, _OTHER_FACTS = ("corpus", "encoder", "attention", "seed"), ("method", "split", "limit", "quick")
_ADVERSARIAL = frozenset({"uid", "units", "adversary", "epsilon_max"})
_ADVERSARY_NOTE = "attention weights as far as possible from the model's that change the output by at most epsilon"
_REPLACED = "replaced attention"
_REPLACED_NOTE = "the weights that adversarial attention replaces: mean over the replaced layers, heads and queries"
_ORDER = ("attention", "adversarial", "gradient", "output", "nothing", "search", "control")
"""Explanations by what their scores are made of; attention that was searched for stands beside the model's own."""
_LAYOUT_COLUMNS = ("units", "scored", "segments", "words")
MAX_SHOWN_TEXTS = 20_000
"""Texts of a model that a table holds."""
MAX_MAP_CHARACTERS, MAX_IMAGE_CHARACTERS = 6_000_000, 8_000_000
"""Most that the maps of all heads, and the images, may add to a table; the first texts have theirs."""
_COMPREHENSIVENESS = "aopc_comprehensiveness"
_POWERS = 10.0 ** np.arange(301)
_MAX_FILE_NAME = 120
"""Characters of corpus, encoder and attention in a file name, which file systems limit to 255 bytes."""

_Columns: TypeAlias = Mapping[str, list[object]]
Open: TypeAlias = Callable[[IndexEntry], StoredArtefact]
"""Opens an artefact; a damaged one is empty."""


@dataclass(frozen=True)
class ModelTexts:
    """The artefacts about the texts of one model on one split.

    Args:
        model: artefact name of the model.
        facts: facts of the model in the index.
        attributions: at least one.
        trials: trials of this model on this split.
    """

    model: str
    split: str
    facts: Mapping[str, str | float]
    attributions: tuple[IndexEntry, ...]
    trials: tuple[IndexEntry, ...]
    model_entry: IndexEntry | None

    @functools.cached_property
    def label(self) -> str:
        """What the page is about, in links to it."""
        return ", ".join(f"{name} {value}" for name, value in self.facts.items())

    @functools.cached_property
    def link(self) -> Link:
        """The link to the page from a page in the same folder."""
        return Link(self.label, self.address.rpartition("/")[2])

    @functools.cached_property
    def corpus(self) -> tuple[object, str]:
        """Pages with the same value show the same texts."""
        return self.facts.get("corpus"), self.split

    @functools.cached_property
    def address(self) -> str:
        """The explorer relative to the report; it does not depend on the rest of the workspace."""
        names = " ".join(str(self.facts[name]) for name in NAMING_FACTS if name in self.facts)
        words = [f"seed {self.facts['seed']}"] if "seed" in self.facts else []
        words += [] if self.split == "test" else [self.split]
        return f"{FOLDER}/{page_file(names, words, self.model.rpartition('-')[2])}"


def page_file(names: str, words: Sequence[str], digest: str) -> str:
    """The file of a page beside the index, of the names of a model, which may be long, further words and a digest.

    >>> page_file("SST bilstm", ("seed 0",), "0123456789ab")
    'sst-bilstm-seed-0-0123456789ab.html'
    """
    if len(names) > _MAX_FILE_NAME:
        names = f"{names[: _MAX_FILE_NAME * 2 // 3]} {names[-_MAX_FILE_NAME // 3 :]}"
    stem = re.sub(r"[^a-z0-9]+", "-", " ".join((names, *words)).lower()).strip("-")
    return "-".join(filter(None, (stem, digest))) + ".html"


def find_model_texts(entries: Iterable[IndexEntry]) -> list[ModelTexts]:
    """All models with stored attributions, by address; of several samples of one method the largest is kept."""
    by_name: dict[str, IndexEntry] = {}
    attributions: dict[tuple[str, str], dict[str, IndexEntry]] = {}
    trials: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        by_name[entry.name] = entry
        model = entry.link("subject")
        if model is not None and entry.kind == "attributions":
            methods = attributions.setdefault((model, str(entry.facts["split"])), {})
            method = str(entry.facts["method"])
            if method not in methods or _sample_size(entry) > _sample_size(methods[method]):
                methods[method] = entry
        elif model is not None and entry.kind == "trial":
            trials.setdefault(model, []).append(entry)
    models = []
    for (model, split), methods in attributions.items():
        known = next(iter(methods.values())).facts
        names = [name for name in _MODEL_FACTS if name in known] + sorted(known.keys() - {*_MODEL_FACTS, *_OTHER_FACTS})
        facts = {name: value for name in names if isinstance(value := known[name], str | int | float) and value != ""}
        if "training" in facts and "seed" not in facts:  # a given model has a name, and no encoder that was chosen here
            named = {"corpus": facts.get("corpus", ""), "model": facts.get("encoder", "")}
            facts = {**named, **{name: facts[name] for name in facts if name not in ("corpus", "encoder", "attention")}}
        tested = tuple(trials.get(model, ())) if split == "test" else ()
        models.append(ModelTexts(model, split, facts, tuple(methods.values()), tested, by_name.get(model)))
    return sorted(models, key=lambda source: natural_sort_key(source.address))


def _sample_size(entry: IndexEntry) -> float:
    limit = entry.facts.get("limit")
    return float(limit) if isinstance(limit, int | float) else math.inf


@functools.lru_cache(maxsize=4096)
def natural_sort_key(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts numbers in names by size.

    >>> sorted(["sst-10", "sst-9"], key=natural_sort_key)
    ['sst-9', 'sst-10']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((int(part), "") if part.isascii() and part.isdigit() else (0, part) for part in parts)


Metrics: TypeAlias = Mapping[TextMetric, Mapping[str, float | None]]
"""Numbers by uid."""


def choose_texts(source: ModelTexts, open_artefact: Open) -> frozenset[str] | None:
    """The uids of the texts of a model that are shown; None shows all of them, where they are at most `MAX_SHOWN_TEXTS`.

    Texts of the smaller tables come first, because they have the most rows; of the others those with the smallest hash.
    """
    counts = [open_artefact(entry).notes.get("n") for entry in source.attributions]
    if all(isinstance(count, int) and count <= MAX_SHOWN_TEXTS for count in counts):
        return None  # their tables need not be opened
    tables = (open_artefact(entry).columns for entry in source.attributions)
    stored = sorted(
        (table for table in tables if isinstance(table, StoredColumns) and "uid" in table),
        key=lambda table: table.num_rows,
    )
    if not stored or stored[-1].num_rows <= MAX_SHOWN_TEXTS:
        return None
    chosen: dict[str, None] = {}
    for table in stored:
        uids = (str(uid) for batch in table.batches(["uid"]) for uid in batch.column(0).to_pylist())
        new = heapq.nsmallest(MAX_SHOWN_TEXTS - len(chosen), (uid for uid in uids if uid not in chosen), key=_uid_hash)
        chosen |= dict.fromkeys(new)
    return frozenset(chosen)


def _uid_hash(uid: str) -> bytes:
    return hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def read_chosen_texts(entry: IndexEntry, chosen: Collection[str] | None, open_artefact: Open) -> _Columns:
    """The table of an artefact, without other texts than the chosen ones."""
    table = open_artefact(entry).columns
    return table.keep(chosen) if chosen is not None and isinstance(table, StoredColumns) and "uid" in table else table


def collect_texts(source: ModelTexts, open_artefact: Open) -> TextTable:
    """Join all that is stored about the texts of a model by uid."""
    attributions: list[_StoredAttributions] = []
    texts: dict[str, _TextRecord] = {}
    chosen = choose_texts(source, open_artefact)
    for entry in source.attributions:
        table = read_chosen_texts(entry, chosen, open_artefact)
        if not {"uid", "scores"} <= table.keys():
            continue
        if not texts.keys() >= {*table["uid"]}:
            if "units" not in table:
                continue
            texts = _text_records(table) | texts
        attributions.append(_StoredAttributions(entry, table, read_tags(open_artefact(entry).notes)))
    trials = [(entry, read_chosen_texts(entry, chosen, open_artefact)) for entry in source.trials]
    sources = sorted(
        [*_attribution_rows(attributions), *_adversarial_rows(trials, attributions)], key=lambda weights: weights.rank
    )
    rows = [weights.row for weights in sources]
    if not any(row.is_adversarial and row.is_visible for row in rows):
        rows = [replace(row, is_visible=True) if row.is_adversarial else row for row in rows]
    metrics, marked = {**_metrics(trials, sources), **_faithfulness(trials)}, _marked_words(trials)
    classes = [] if source.model_entry is None else open_artefact(source.model_entry).notes.get("classes")
    examined = [*(stored.entry for stored in attributions), *(entry for entry, _ in trials)]
    total = max((of for entry in examined if isinstance(of := open_artefact(entry).notes.get("of"), int)), default=0)
    warnings = []
    if total > len(texts):
        others = "are not shown" if chosen else "were not examined"
        warnings.append(f"{len(texts)} of {total} texts; the others {others}.")
    if "model" not in source.facts and not any(row.is_adversarial for row in rows):
        warnings.append("No adversarial attention is stored for this model.")
    return TextTable(
        source.facts,
        tuple(map(str, _items(classes))),
        tuple(rows),
        tuple(metrics),
        tuple(warnings),
        texts=_build_texts(texts, sources, metrics, marked),
    )


def tabulate_texts(
    tables: Mapping[str, pd.DataFrame],
    rows: Sequence[ScoreColumn],
    facts: Mapping[str, str | float],
    classes: Sequence[str],
    metrics: Metrics = MappingProxyType({}),
    marked: Mapping[str, Collection[int]] = MappingProxyType({}),
    head_maps: Mapping[str, NDArray[np.floating]] = MappingProxyType({}),
    images: Mapping[str, NDArray[np.uint8]] = MappingProxyType({}),
) -> TextTable:
    """The table of texts from tables of `attribution_rows` in memory, one per method.

    Args:
        tables: by the name of each of `rows`, with uids as a column or as the index; a text that one of them does not
            have is missing in its row.
        metrics: numbers to sort by, each by uid.
        marked: by uid the numbers of the whitespace words that people marked.
        head_maps: by uid the attention on each word in each layer and head `[layer head word]`.
        images: by uid the image whose patches have the scores, `[height width 3]`.
    """
    columns = {name: _table_columns(table) for name, table in tables.items()}
    texts: dict[str, _TextRecord] = {}
    for table in columns.values():
        if not texts.keys() >= {*table["uid"]}:
            texts = _text_records(table) | texts
    sources = [
        _WeightSource(row, (0, 0.0, row.name), _weights_by_uid(columns[row.name], "scores"))
        for row in rows
        if row.name in columns
    ]
    rounded = {
        metric: dict(zip(values, _rounded_cells(list(values.values())), strict=True))
        for metric, values in metrics.items()
    }
    uids = sorted(sorted(texts), key=natural_sort_key)
    built = _build_texts(texts, sources, rounded, marked)
    heads = next(((maps.shape[0], maps.shape[1]) for maps in head_maps.values()), (0, 0))
    maps, pictures = list[str](), list[str]()
    for uid, text in zip(uids, built, strict=True):
        shape = (*heads, len(text.word_groups))
        known = heads != (1, 1) and uid in head_maps and head_maps[uid].shape == shape
        maps.append(encode_head_maps(head_maps[uid]) if known else "")
        pictures.append(png_base64(images[uid]) if uid in images else "")
    maps, pictures = _first(maps, MAX_MAP_CHARACTERS), _first(pictures, MAX_IMAGE_CHARACTERS)
    warnings = [
        f"{what} are kept of the first {count} of {len(built)} {'images' if images else 'texts'} only."
        for what, kept, stored in (("Maps of layers and heads", maps, head_maps), ("Pictures", pictures, images))
        if 0 < (count := sum(map(bool, kept))) < min(len(built), len(stored))
    ]
    return TextTable(
        facts,
        tuple(classes),
        tuple(source.row for source in sources),
        tuple(rounded),
        tuple(warnings),
        heads if any(maps) else (0, 0),
        patch_grid(built[0].tokens) if images else None,
        tuple(
            text._replace(maps=text_maps, image=image)
            for text, text_maps, image in zip(built, maps, pictures, strict=True)
        ),
    )


def _first(items: Sequence[str], most: int) -> list[str]:
    """The items up to this many characters in all; the others are empty.

    >>> _first(["abc", "", "de", "f"], 5)
    ['abc', '', 'de', '']
    """
    return [item if end <= most else "" for item, end in zip(items, itertools.accumulate(map(len, items)), strict=True)]


def _table_columns(table: pd.DataFrame) -> _Columns:
    """The columns that `attribution_rows` has, numbers of a text as arrays."""
    table = table if "uid" in table else table.reset_index(names="uid")
    arrays = {
        name: [np.asarray(cell, dtype=float) for cell in table[name]]
        for name in ("scores", "scored", "segments", "words")
        if name in table
    }
    others = {name: table[name].tolist() for name in ("uid", "predicted", "probability", "label") if name in table}
    return {**others, "units": [list(cell) for cell in table["units"]], **arrays}


class _TextRecord(NamedTuple):
    """A text with its prediction, as it is stored with an attribution."""

    layout: _TextLayout
    predicted: float | None
    probability: float | None
    label: float | None


def _text_records(table: _Columns) -> dict[str, _TextRecord]:
    """By uid the texts of a table."""
    facts = (_rounded_cells(_cells(table, name)) for name in ("predicted", "probability", "label"))
    records = zip(_text_layouts(table), *facts, strict=True)
    return dict(zip(map(str, table["uid"]), map(_TextRecord._make, records), strict=True))


_known_layouts: dict[bytes, list[_TextLayout]] = {}
"""The layouts of the last tables by their content: many models read the same texts."""
_MAX_KNOWN_LAYOUTS = 4


def _text_layouts(table: _Columns) -> list[_TextLayout]:
    """The layouts of all texts of a table."""
    digest = table.digest(*_LAYOUT_COLUMNS) if isinstance(table, StoredColumns) else b""
    if digest in _known_layouts:
        return _known_layouts[digest]
    units, flags, segments, words = (_cells(table, name) for name in _LAYOUT_COLUMNS)
    layouts = [
        _text_layout([str(unit) for unit in _items(tokens)], scored, _array(parts), _array(numbers))
        for tokens, scored, parts, numbers in zip(units, flags, segments, words, strict=True)
    ]
    if digest:
        if len(_known_layouts) == _MAX_KNOWN_LAYOUTS:
            _known_layouts.clear()
        _known_layouts[digest] = layouts
    return layouts


def _cells(table: _Columns, name: str) -> Sequence[object]:
    """A column, with None if the table does not have it."""
    return table[name] if name in table else [None] * len(table["uid"])


@dataclass(frozen=True)
class _WeightSource:
    """One row over all texts.

    Args:
        weights: by uid the weights, with four significant digits.
        units: by uid the units that have weights, where these are not all units.
        numbers: by uid divergence, bound, change and whether these are certified, of an adversarial attention.
    """

    row: ScoreColumn
    rank: tuple[int, float, str]
    weights: Mapping[str, NDArray[np.float64]]
    units: Mapping[str, object] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float | None, float | None, float | None, bool]] = field(default_factory=dict)

    def of_texts(self, texts: Mapping[str, _TextRecord]) -> Iterator[ScoreCell | None]:
        """The weights of the scored units of each text; None if nothing is stored or it belongs to another text."""
        for uid, (layout, *_) in texts.items():
            weights = self.weights.get(uid)
            if weights is not None and uid in self.units:
                weights = self._spread(uid, weights, layout.length)
            if weights is None or len(weights) != layout.length:
                yield None
                continue
            shown = weights if layout.scored is None else weights[layout.scored]
            yield ScoreCell(shown, *self.numbers[uid]) if uid in self.numbers else ScoreCell(shown)

    def _spread(self, uid: str, weights: NDArray[np.float64], length: int) -> NDArray[np.float64] | None:
        """The weights at their units, with 0 elsewhere; None if they are not units of this text."""
        known = _array(self.units[uid])
        if not len({*known.tolist()}.intersection(range(length))) == len(known) == len(weights):
            return None
        spread = np.zeros(length)
        spread[known.astype(int)] = weights
        return spread


class _StoredAttributions(NamedTuple):
    """A stored attribution table, and the tags of its method."""

    entry: IndexEntry
    table: _Columns
    tags: MethodTags


def _attribution_rows(attributions: Sequence[_StoredAttributions]) -> Iterator[_WeightSource]:
    for entry, table, tags in attributions:
        name, note = str(entry.facts["method"]), tags.caption
        if samples := [_number(cell) for cell in table.get("samples", [])]:
            note = "; ".join(filter(None, (note, f"{np.mean(samples):.0f} samples of a text on average")))
        row = ScoreColumn(name, note, is_visible=not tags.is_control, pooling=tags.pooling)
        rank = _ORDER.index("control" if tags.is_control else tags.reads)
        yield _WeightSource(row, (rank, 0.0, name), _weights_by_uid(table, "scores"))


def _adversarial_rows(
    trials: Sequence[tuple[IndexEntry, _Columns]], attributions: Sequence[_StoredAttributions]
) -> Iterator[_WeightSource]:
    """A row for each adversarial attention, and for the attention that it replaces where no other row shows that."""
    adversaries = [(entry, table) for entry, table in trials if table.keys() >= _ADVERSARIAL]
    for (entry, table), label in zip(adversaries, _distinct_labels([entry for entry, _ in adversaries]), strict=True):
        epsilon, exact = entry.settings.get("epsilon"), entry.settings.get("solver", "exact") == "exact"
        row = ScoreColumn(label, _ADVERSARY_NOTE, is_visible=exact, is_adversarial=True)
        rank = (
            _ORDER.index("adversarial" if exact else "search"),
            -epsilon if isinstance(epsilon, float) else 0.0,
            label,
        )
        weights, uids = _weights_by_uid(table, "adversary"), [str(uid) for uid in table["uid"]]
        columns = (_rounded_cells(_cells(table, name)) for name in ("epsilon_max", "bound", "change"))
        certified = (cell is True for cell in _cells(table, "certified"))
        numbers = dict(zip(uids, zip(*columns, certified, strict=True), strict=True))
        yield _WeightSource(row, rank, weights, _units_by_uid(table), numbers)
    # Of a transformer a part of the attention is replaced; the row of attention is the mean of all.
    replaced = {
        (entry.settings.get("layer"), entry.settings.get("head")): table
        for entry, table in adversaries
        if table.keys() >= {ATTENTION, "queries"}
    }
    for (layer, head), table in replaced.items():
        name = _REPLACED if len(replaced) == 1 else f"{_REPLACED}, layer {layer}, head {head}"
        rank = (_ORDER.index("adversarial"), -1.0, name)
        weights = _weights_by_uid(table, ATTENTION)
        yield _WeightSource(ScoreColumn(name, _REPLACED_NOTE), rank, weights, _units_by_uid(table))
    if not replaced and not any(stored.entry.facts["method"] == ATTENTION for stored in attributions):
        for _, table in adversaries[:1]:
            if ATTENTION in table:
                row = ScoreColumn(ATTENTION, RawAttention.tags.caption)
                weights = _weights_by_uid(table, ATTENTION)
                yield _WeightSource(row, (0, 0.0, ""), weights, _units_by_uid(table))


def _weights_by_uid(table: _Columns, column: str) -> dict[str, NDArray[np.float64]]:
    """By uid the weights with four significant digits."""
    rows = [_array(cell) for cell in table[column]]
    values = _round_digits(np.concatenate([*rows, np.empty(0)]))
    ends = itertools.accumulate(map(len, rows))
    rounded = (values[end - len(row) : end] for row, end in zip(rows, ends, strict=True))
    return dict(zip(map(str, table["uid"]), rounded, strict=True))


def _units_by_uid(table: _Columns) -> dict[str, object]:
    """By uid the units that have weights; empty if these are the first ones in order everywhere, as they mostly are."""
    cells = table["units"]
    lengths = [len(_array(cell)) for cell in cells]
    starts = np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    if np.array_equal(np.concatenate([*map(_array, cells), np.empty(0)]), np.arange(sum(lengths)) - starts):
        return {}
    return dict(zip(map(str, table["uid"]), cells, strict=True))


def _round_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Four significant digits; NaN for everything that is not finite."""
    is_finite = np.isfinite(values)
    sizes = np.abs(np.where(is_finite & (values != 0), values, 1.0))
    decimals = np.clip(3 - np.floor(np.log10(sizes)), -300, 300).astype(int)
    up, down = _POWERS[np.maximum(decimals, 0)], _POWERS[np.maximum(-decimals, 0)]
    return np.where(is_finite, np.round(np.where(is_finite, values, 0.0) * up / down) / up * down, np.nan)


def _distinct_labels(entries: Sequence[IndexEntry]) -> list[str]:
    """Solver and epsilon of each adversarial attention, and the other settings in which they differ."""
    varying = {
        name
        for entry in entries
        for name in entry.settings
        if name not in ("solver", "epsilon", "limit") and len({str(rival.settings.get(name)) for rival in entries}) > 1
    }
    return [
        ", ".join(
            ["adversarial attention", str(entry.settings.get("solver", "exact"))]
            + [f"{name} {entry.settings.get(name)}" for name in ("epsilon", *sorted(varying))]
        )
        for entry in entries
    ]


def _metrics(trials: Sequence[tuple[IndexEntry, _Columns]], sources: Sequence[_WeightSource]) -> Metrics:
    """Numbers to sort by, each by uid."""
    metrics: dict[TextMetric, dict[str, float | None]] = {}
    for source in sources:
        if source.row.name == ATTENTION:
            metrics[TextMetric("largest attention weight")] = {
                uid: float(np.fmax.reduce(weights, initial=0.0)) for uid, weights in source.weights.items()
            }
    permuted = [(entry, table) for entry, table in trials if {"uid", "median_change"} <= table.keys()]
    for entry, table in permuted:
        metric = TextMetric(_with_settings("median change under permutation", entry, permuted))
        metrics[metric] = dict(zip(map(str, table["uid"]), _rounded_cells(table["median_change"]), strict=True))
    return metrics


def _faithfulness(trials: Sequence[tuple[IndexEntry, _Columns]]) -> Metrics:
    """What the output loses without the words that each method ranks highest, controls apart."""
    metrics: dict[TextMetric, dict[str, float | None]] = {}
    tested = [(entry, table) for entry, table in trials if {"uid", "method", _COMPREHENSIVENESS} <= table.keys()]
    for entry, table in tested:
        numbers = _rounded_cells(table[_COMPREHENSIVENESS])
        for uid, method, is_control, number in zip(
            table["uid"], table["method"], _cells(table, "control"), numbers, strict=True
        ):
            if is_control is not True:
                name = _with_settings(f"comprehensiveness of {method}", entry, tested)
                metrics.setdefault(TextMetric(name, LEAST_FAITHFUL), {})[str(uid)] = number
    return metrics


def _marked_words(trials: Sequence[tuple[IndexEntry, _Columns]]) -> dict[str, set[int]]:
    """By uid the numbers of the words that people marked, where a trial stored them."""
    marked: dict[str, set[int]] = {}
    for _, table in trials:
        if {"uid", "rationale"} <= table.keys():
            for uid, words in zip(table["uid"], table["rationale"], strict=True):
                if words is not None:
                    marked.setdefault(str(uid), set()).update(_array(words).astype(int).tolist())
    return marked


def _with_settings(label: str, entry: IndexEntry, rivals: Sequence[tuple[IndexEntry, _Columns]]) -> str:
    """The label, with the settings of its trial if there are several such trials."""
    if len(rivals) < 2:
        return label
    settings = (f"{name} {value}" for name, value in entry.settings.items() if value is not None and name != "methods")
    return ", ".join([label, *settings])


def _build_texts(
    texts: Mapping[str, _TextRecord],
    sources: Sequence[_WeightSource],
    metrics: Metrics,
    marked: Mapping[str, Collection[int]],
) -> tuple[TextRow, ...]:
    """The texts by uid; `marked` holds the numbers of the words that people marked."""
    texts = {uid: texts[uid] for uid in sorted(sorted(texts), key=natural_sort_key)}
    columns = zip(*(source.of_texts(texts) for source in sources), strict=True) if sources else itertools.repeat(())
    return tuple(
        TextRow(
            page_text(uid),
            layout.tokens,
            layout.joined,
            layout.second,
            None if predicted is None else int(predicted),
            probability,
            label,
            tuple(numbers.get(uid) for numbers in metrics.values()),
            cells,
            layout.words,
            tuple(token for token, word in enumerate(layout.numbers) if word in marked[uid]) if uid in marked else None,
        )
        for (uid, (layout, predicted, probability, label)), cells in zip(texts.items(), columns, strict=False)
    )


class _TextLayout(NamedTuple):
    """What is shown of a text, whatever model reads it.

    Args:
        length: number of units.
        scored: the units that can receive a score; None for all.
        numbers: number of the word of each token.
        words: the same; empty if every token is a word.
    """

    tokens: tuple[str, ...]
    joined: tuple[int, ...]
    second: int
    length: int
    scored: NDArray[np.int64] | None
    numbers: tuple[int, ...]
    words: tuple[int, ...]


def _text_layout(
    units: Sequence[str], flags: object, parts: NDArray[np.float64], words: NDArray[np.float64]
) -> _TextLayout:
    """The layout of a text.

    Args:
        flags: whether each unit can receive a score; None for all.
        parts: the part of each unit, 1 for the second; empty for single texts.
        words: number of the word of each unit; empty if every unit is a word.
    """
    scored = np.arange(len(units)) if flags is None else np.flatnonzero(_array(flags))
    spaced = token_spacing([page_text(units[unit]) for unit in scored.tolist()])
    second = np.flatnonzero(parts == 1)
    word_of_unit = words.astype(int) if len(words) == len(units) else np.arange(len(units))
    numbers = tuple(word_of_unit[scored].tolist())
    return _TextLayout(
        tuple(token for _, token in spaced),
        tuple(token for token, (gap, _) in enumerate(spaced) if token and not gap),
        int(np.sum(scored < second[0])) if len(second) else 0,
        len(units),
        None if len(scored) == len(units) else scored,
        numbers,
        numbers if len({*numbers}) < len(numbers) else (),
    )


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _array(value: object) -> NDArray[np.float64]:
    return value if isinstance(value, np.ndarray) else np.empty(0)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _rounded_cells(cells: Sequence[object]) -> list[float | None]:
    """Whole numbers as they are, others with four significant digits; None for everything that is not a finite number."""
    numbers = np.array([_number(cell) for cell in cells], dtype=float)
    is_whole = (numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)
    rounded = np.where(is_whole, numbers, _round_digits(numbers)).tolist()
    return [
        None if value != value else int(value) if whole else value
        for value, whole in zip(rounded, is_whole, strict=True)
    ]
