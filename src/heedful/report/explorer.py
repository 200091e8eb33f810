"""The explorer of texts: one page per model and split, with every stored explanation of every text side by side.

The page holds its texts as JSON; a script searches, filters and sorts them, and pools the scores of a word's tokens.
Without a script the first texts are shown. An explanation that is not stored for a text is missing there. Images are
shown under the scores of their patches.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import orjson
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from heedful import __version__
from heedful.figures import Heatmap, ImageGrid, PatchScores, Pixels, Series, printable
from heedful.papers._chapter import Cell, TableView
from heedful.report.charts import png_base64, png_pixels, svg
from heedful.report.heatmap import heatmap_view, token_spacing
from heedful.report.html import HtmlDocument, format_number, write_atomically
from heedful.report.page import Link
from heedful.store.artefact_files import Columns as StoredColumns
from heedful.store.artefact_files import IndexEntry, StoredArtefact
from heedful.store.recipe import json_digest
from heedful.training.attribution_tables import TRUE_CLASS

FOLDER = "texts"
"""Folder of the explorers beside the report."""
TEXTS_PER_PAGE = 20
TEXTS_WITHOUT_SCRIPT = 20
LONG_TEXT = 100
"""Mean number of tokens above which a page shows half as many texts."""
ATTENTION = "attention"
_NAMES = ("corpus", "model", "encoder", "attention")
_MODEL_FACTS, _OTHER_FACTS = ("corpus", "encoder", "attention", "seed"), ("method", "split", "limit", "quick")
_ADVERSARIAL = frozenset({"uid", "units", "adversary", "epsilon_max"})
_NOTES = {
    "attention": "attention weights of the model; they sum to 1",
    "gradient": "gradient of the predicted class times the embedding; negative where the token lowers the output",
    "leave-one-out": "what the output of the predicted class loses when the token is removed",
    "leave-one-out(distribution)": "size of the change of all outputs when the token is removed",
    "SMaT": "attention heads mixed by weights that were learned to teach a student (Fernandes et al. 2022)",
    "learned-head-mix": "attention heads mixed by weights that were learned for this model",
    "learned-layer-mix": "integrated gradients of all layers, mixed by weights that were learned for this model",
    "permuted-attention": "attention weights in random order, as a control",
    "random": "random scores, as a control",
}
_SELF_ATTENTION_NOTE = (
    "attention that the token receives, mean over layers, heads and queries; special tokens get the rest"
)
_ADVERSARY_NOTE = "attention weights as far as possible from the model's that change the output by at most epsilon"
_REPLACED = "replaced attention"
_REPLACED_NOTE = "the weights that adversarial attention replaces: mean over the replaced layers, heads and queries"
_ORDER = ("attention", "adversarial", "gradient", "leave-one-out", "", "search", "permuted-attention", "random")
_CONTROLS = ("permuted-attention", "random", "randomised")
_WEIGHTS = frozenset({
    "attention", "head-attention", "static-attention", "rollout", "flow", "value-norm", "kobayashi-norm", "relevance",
    "attention-x-gradient", "gradient-norm", "random", "permuted-attention", "SMaT", "learned-head-mix",
    "leave-one-out(distribution)",
})  # fmt: skip
"""Methods whose scores are weights without sign: a word has the mean of its tokens, otherwise their sum."""
_LAYOUT_COLUMNS = ("units", "scored", "segments", "words")
MARKED = "marked by people"
ALL_HEADS = "attention, all layers, all heads"
MAX_TEXTS = 20_000
"""Texts of a model that a page shows."""
MAX_MAP_CHARACTERS, MAX_IMAGE_CHARACTERS = 6_000_000, 8_000_000
"""Most that the maps of all heads, and the images, may add to a page; the first texts have theirs."""
_STEPS, _OCTAVE = 255, 16
"""Steps of a weight in a map of a head, and steps of the scale of a map in an octave."""
LEAST_FAITHFUL, MOST_MANIPULABLE = "Least faithful", "Most manipulable"
"""Selections of texts that the page offers where there is a number for them."""
_COMPREHENSIVENESS = "aopc_comprehensiveness"
_DOCUMENT = HtmlDocument("explorer.html", ("style.css", "explorer.css"), ("frame.js", "explorer.js"))
_FILE_NAME = re.compile(r"[a-z0-9-]+-[0-9a-f]{12}\.html")
_POWERS = 10.0 ** np.arange(301)
_MAX_FILE_NAME = 120
"""Characters of corpus, encoder and attention in a file name, which file systems limit to 255 bytes."""
_GENERATOR = '<meta name="generator" content="heedful">'

Columns: TypeAlias = Mapping[str, list[object]]
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
        names = " ".join(str(self.facts[name]) for name in _NAMES if name in self.facts)
        words = [_shortened(names, _MAX_FILE_NAME)]
        words += [f"seed {self.facts['seed']}"] if "seed" in self.facts else []
        words += [] if self.split == "test" else [self.split]
        stem = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
        return f"{FOLDER}/{stem}-{self.model.rpartition('-')[2]}.html"


def _shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end if it is longer."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} {text[-most // 3 :]}"


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
    found = []
    for (model, split), methods in attributions.items():
        known = next(iter(methods.values())).facts
        names = [name for name in _MODEL_FACTS if name in known] + sorted(known.keys() - {*_MODEL_FACTS, *_OTHER_FACTS})
        facts = {name: value for name in names if isinstance(value := known[name], str | int | float) and value != ""}
        if "training" in facts and "seed" not in facts:  # a given model has a name, and no encoder that was chosen here
            named = {"corpus": facts.get("corpus", ""), "model": facts.get("encoder", "")}
            facts = {**named, **{name: facts[name] for name in facts if name not in ("corpus", "encoder", "attention")}}
        tested = tuple(trials.get(model, ())) if split == "test" else ()
        found.append(ModelTexts(model, split, facts, tuple(methods.values()), tested, by_name.get(model)))
    return sorted(found, key=lambda each: natural_sort_key(each.address))


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


@dataclass(frozen=True)
class ExplanationRow:
    """One explanation, the same for all texts.

    Args:
        is_visible: whether it is shown before the reader selects rows.
        is_adversarial: whether its weights were searched far from attention; they come with a divergence.
        is_summed: whether the score of a word is the sum of those of its tokens; else it is their mean.
    """

    name: str
    note: str = ""
    is_visible: bool = True
    is_adversarial: bool = False
    is_summed: bool = False


@dataclass(frozen=True)
class TextMetric:
    """A number of each text to sort by.

    Args:
        finding: name of a button that shows the texts with the extreme numbers first; empty for none.
        is_descending: whether the extreme numbers are the largest.
    """

    name: str
    finding: str = ""
    is_descending: bool = False


class TokenWeights(NamedTuple):
    """One row of one text, NaN where a weight is undefined; the last four fields belong to adversarial attention.

    A report has half a million of them, and a named tuple is made in a third of the time of a dataclass.
    """

    weights: NDArray[np.float64]
    divergence: float | None = None
    bound: float | None = None
    change: float | None = None
    certified: bool = False


class ExplorerText(NamedTuple):
    """One text.

    Args:
        tokens: the tokens that can receive a score, without marks of the tokenizer.
        joined: indices of tokens without a space before them.
        second: index of the first token of the second part (question, hypothesis); 0 for single texts.
        label: class, or a number for regression; None where unknown.
        metrics: one number for each of `ExplorerData.metrics`.
        rows: one per row in `ExplorerData.rows`; None where it is not stored.
        words: number of the word of each token; empty if every token is a word.
        marked: indices of the tokens that people marked as reasons for the label; None if nobody was asked.
        maps: the attention on words in each layer and head as by `encode_head_maps`; empty if it is not stored.
        image: a PNG image in base64; empty for a text.
    """

    uid: str
    tokens: tuple[str, ...]
    joined: tuple[int, ...]
    second: int
    predicted: int | None
    probability: float | None
    label: float | None
    metrics: tuple[float | None, ...]
    rows: tuple[TokenWeights | None, ...]
    words: tuple[int, ...] = ()
    marked: tuple[int, ...] | None = None
    maps: str = ""
    image: str = ""


@dataclass(frozen=True)
class ExplorerData:
    """All that one explorer shows.

    Args:
        heads: layers, and heads of a layer, of the maps of the texts; zeros if there are none.
        patches: rows and columns of the patches of images; None for texts.
    """

    facts: Mapping[str, str | float]
    classes: tuple[str, ...]
    rows: tuple[ExplanationRow, ...]
    metrics: tuple[TextMetric, ...]
    texts: tuple[ExplorerText, ...]
    warnings: tuple[str, ...] = ()
    heads: tuple[int, int] = (0, 0)
    patches: tuple[int, int] | None = None

    def class_name(self, number: float | None) -> str:
        """The name of a class; a number that is not whole, as in regression, is shown itself."""
        if number is None:
            return "unknown"
        if number != int(number):
            return f"{number:.3g}"
        return self.classes[int(number)] if 0 <= number < len(self.classes) else f"class {int(number)}"


Metrics: TypeAlias = Mapping[TextMetric, Mapping[str, float | None]]
"""Numbers by uid."""


def choose_texts(source: ModelTexts, open_artefact: Open) -> frozenset[str] | None:
    """The uids of the texts of a model that are shown; None shows all of them, where they are at most `MAX_TEXTS`.

    Texts of the smaller tables come first, because they have the most rows; of the others those with the smallest hash.
    """
    counts = [open_artefact(each).notes.get("n") for each in source.attributions]
    if all(isinstance(count, int) and count <= MAX_TEXTS for count in counts):
        return None  # their tables need not be opened
    tables = [table for each in source.attributions if "uid" in (table := open_artefact(each).columns)]
    stored = sorted((each for each in tables if isinstance(each, StoredColumns)), key=lambda each: each.num_rows)
    if not stored or stored[-1].num_rows <= MAX_TEXTS:
        return None
    chosen: dict[str, None] = {}
    for table in stored:
        uids = (str(uid) for batch in table.batches(["uid"]) for uid in batch.column(0).to_pylist())
        new = heapq.nsmallest(MAX_TEXTS - len(chosen), (uid for uid in uids if uid not in chosen), key=_uid_hash)
        chosen |= dict.fromkeys(new)
    return frozenset(chosen)


def _uid_hash(uid: str) -> bytes:
    return hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def read_texts(entry: IndexEntry, chosen: Collection[str] | None, open_artefact: Open) -> Columns:
    """The table of an artefact, without other texts than the chosen ones."""
    table = open_artefact(entry).columns
    return table.keep(chosen) if chosen is not None and isinstance(table, StoredColumns) and "uid" in table else table


def collect_texts(source: ModelTexts, open_artefact: Open) -> ExplorerData:
    """Join all that is stored about the texts of a model by uid."""
    attributions: list[tuple[IndexEntry, Columns]] = []
    texts: dict[str, _TextRecord] = {}
    chosen = choose_texts(source, open_artefact)
    for entry in source.attributions:
        table = read_texts(entry, chosen, open_artefact)
        if not {"uid", "scores"} <= table.keys():
            continue
        if not texts.keys() >= {*table["uid"]}:
            if "units" not in table:
                continue
            texts = _text_records(table) | texts
        attributions.append((entry, table))
    trials = [(entry, read_texts(entry, chosen, open_artefact)) for entry in source.trials]
    rows = sorted(
        [*_attribution_rows(attributions), *_adversarial_rows(trials, attributions)], key=lambda each: each.rank
    )
    if not any(each.row.is_adversarial and each.row.is_visible for each in rows):
        rows = [
            replace(each, row=replace(each.row, is_visible=True)) if each.row.is_adversarial else each for each in rows
        ]
    metrics, marked = {**_metrics(trials, rows), **_faithfulness(trials)}, _marked_words(trials)
    classes = [] if source.model_entry is None else open_artefact(source.model_entry).notes.get("classes")
    examined = [entry for entry, _ in (*attributions, *trials)]
    sizes = [of for entry in examined if isinstance(of := open_artefact(entry).notes.get("of"), int)]
    warnings = [
        f"{len(texts)} of {total} texts; the others {'are not shown' if chosen else 'were not examined'}."
        for total in [max(sizes, default=0)]
        if total > len(texts)
    ]
    if "model" not in source.facts and not any(each.row.is_adversarial for each in rows):
        warnings.append("No adversarial attention is stored for this model.")
    return ExplorerData(
        source.facts,
        tuple(map(str, classes)) if isinstance(classes, list) else (),
        tuple(each.row for each in rows),
        tuple(metrics),
        _build_texts(texts, rows, metrics, marked),
        tuple(warnings),
    )


def tabulate_texts(
    tables: Mapping[str, pd.DataFrame],
    rows: Sequence[ExplanationRow],
    facts: Mapping[str, str | float],
    classes: Sequence[str],
    metrics: Metrics = MappingProxyType({}),
    marked: Mapping[str, Collection[int]] = MappingProxyType({}),
    head_maps: Mapping[str, NDArray[np.floating]] = MappingProxyType({}),
    images: Mapping[str, NDArray[np.uint8]] = MappingProxyType({}),
) -> ExplorerData:
    """The data of an explorer from tables of `attribution_rows` in memory, one per method.

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
    found = _build_texts(texts, sources, rounded, marked)
    heads = next(((each.shape[0], each.shape[1]) for each in head_maps.values()), (0, 0))
    maps, pictures = list[str](), list[str]()
    for uid, text in zip(uids, found, strict=True):
        shape = (*heads, len(word_groups(text)))
        known = heads != (1, 1) and uid in head_maps and head_maps[uid].shape == shape
        maps.append(encode_head_maps(head_maps[uid]) if known else "")
        pictures.append(png_base64(images[uid]) if uid in images else "")
    maps, pictures = _first(maps, MAX_MAP_CHARACTERS), _first(pictures, MAX_IMAGE_CHARACTERS)
    warnings = [
        f"{what} are kept of the first {count} of {len(found)} {'images' if images else 'texts'} only."
        for what, kept, given in (("Maps of layers and heads", maps, head_maps), ("Pictures", pictures, images))
        if 0 < (count := sum(map(bool, kept))) < min(len(found), len(given))
    ]
    return ExplorerData(
        facts,
        tuple(classes),
        tuple(each.row for each in sources),
        tuple(rounded),
        tuple(text._replace(maps=own, image=image) for text, own, image in zip(found, maps, pictures, strict=True)),
        tuple(warnings),
        heads if any(maps) else (0, 0),
        patch_grid(found[0].tokens) if images else None,
    )


def _first(items: Sequence[str], most: int) -> list[str]:
    """The items up to this many characters in all; the others are empty.

    >>> _first(["abc", "", "de", "f"], 5)
    ['abc', '', 'de', '']
    """
    return [item if end <= most else "" for item, end in zip(items, itertools.accumulate(map(len, items)), strict=True)]


def patch_grid(names: Iterable[str]) -> tuple[int, int]:
    """Rows and columns of patches, which are called "row,column" from 0.

    >>> patch_grid(["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"])
    (2, 3)
    """
    places = [tuple(map(int, name.split(","))) for name in names]
    rows, columns = (1 + max(place[axis] for place in places) for axis in (0, 1))
    return rows, columns


def encode_head_maps(maps: NDArray[np.floating]) -> str:
    """Maps `[layer head word]` of weights in [0, 1] in base64: per head a byte s, then a byte w per word.

    A weight is w / 255 of the scale 2^(-s / 16), which is at least the largest weight of its head and 4.4 % more at
    most: every weight is right to 1/488 of the largest one of its head.
    """
    values = np.asarray(maps, dtype=np.float64)
    peaks = values.max(-1, initial=0.0, keepdims=True)
    scales = np.clip(np.floor(-_OCTAVE * np.log2(np.maximum(peaks, 1e-30))), 0, _STEPS)
    weights = np.clip(np.round(_STEPS * values * 2 ** (scales / _OCTAVE)), 0, _STEPS)
    return base64.b64encode(np.concatenate([scales, weights], -1).astype(np.uint8).tobytes()).decode()


def decode_head_maps(encoded: str, heads: tuple[int, int]) -> NDArray[np.float64]:
    """The maps `[layer head word]` again."""
    found = np.frombuffer(base64.b64decode(encoded), dtype=np.uint8).reshape(*heads, -1).astype(np.float64)
    return found[..., 1:] / _STEPS * 2 ** (-found[..., :1] / _OCTAVE)


def _table_columns(table: pd.DataFrame) -> Columns:
    """The columns that `attribution_rows` has, numbers of a text as arrays."""
    table = table if "uid" in table else table.reset_index(names="uid")
    arrays = {
        name: [np.asarray(cell, dtype=float) for cell in table[name]]
        for name in ("scores", "scored", "segments", "words")
        if name in table
    }
    lists = {name: [list(cell) for cell in table[name]] for name in ("units",)}
    others = {name: table[name].tolist() for name in ("uid", "predicted", "probability", "label") if name in table}
    return {**others, **lists, **arrays}


class _TextRecord(NamedTuple):
    """A text with its prediction, as it is stored with an attribution."""

    layout: _TextLayout
    predicted: float | None
    probability: float | None
    label: float | None


def _text_records(table: Columns) -> dict[str, _TextRecord]:
    """By uid the texts of a table."""
    facts = (_rounded_cells(_cells(table, name)) for name in ("predicted", "probability", "label"))
    records = zip(_text_layouts(table), *facts, strict=True)
    return dict(zip(map(str, table["uid"]), map(_TextRecord._make, records), strict=True))


_known_layouts: dict[bytes, list[_TextLayout]] = {}
"""The layouts of the last tables by their content: many models read the same texts."""
_MAX_KNOWN_LAYOUTS = 4


def _text_layouts(table: Columns) -> list[_TextLayout]:
    """The layouts of all texts of a table."""
    digest = table.digest(*_LAYOUT_COLUMNS) if isinstance(table, StoredColumns) else b""
    if digest in _known_layouts:
        return _known_layouts[digest]
    units, flags, segments, words = (_cells(table, name) for name in _LAYOUT_COLUMNS)
    found = [
        _text_layout(
            tuple(map(str, _items(tokens))),
            None if scored is None else _array(scored).astype(bool).tobytes(),
            (_array(parts) == 1).tobytes(),
            _array(numbers).astype(np.int32).tobytes(),
        )
        for tokens, scored, parts, numbers in zip(units, flags, segments, words, strict=True)
    ]
    if digest:
        if len(_known_layouts) == _MAX_KNOWN_LAYOUTS:
            _known_layouts.clear()
        _known_layouts[digest] = found
    return found


def _cells(table: Columns, name: str) -> Sequence[object]:
    """A column, with None if the table does not have it."""
    return table[name] if name in table else [None] * len(table["uid"])


@dataclass(frozen=True)
class _WeightSource:
    """One row over all texts.

    Args:
        weights: by uid the weights, with four significant digits.
        places: by uid the units that have weights, where these are not all units.
        numbers: by uid divergence, bound, change and whether these are certified, of an adversarial attention.
    """

    row: ExplanationRow
    rank: tuple[int, float, str]
    weights: Mapping[str, NDArray[np.float64]]
    places: Mapping[str, object] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float | None, float | None, float | None, bool]] = field(default_factory=dict)

    def of_texts(self, texts: Mapping[str, _TextRecord]) -> Iterator[TokenWeights | None]:
        """The weights of the scored units of each text; None if nothing is stored or it belongs to another text."""
        for uid, (layout, *_) in texts.items():
            weights = self.weights.get(uid)
            if weights is not None and uid in self.places:
                weights = self._spread(uid, weights, layout.length)
            if weights is None or len(weights) != layout.length:
                yield None
                continue
            shown = weights if layout.scored is None else weights[layout.scored]
            yield TokenWeights(shown, *self.numbers[uid]) if uid in self.numbers else TokenWeights(shown)

    def _spread(self, uid: str, weights: NDArray[np.float64], length: int) -> NDArray[np.float64] | None:
        """The weights at their places, with 0 elsewhere; None if they are not places of this text."""
        known = _array(self.places[uid])
        if not len({*known.tolist()}.intersection(range(length))) == len(known) == len(weights):
            return None
        found = np.zeros(length)
        found[known.astype(int)] = weights
        return found


def _attribution_rows(attributions: Sequence[tuple[IndexEntry, Columns]]) -> Iterator[_WeightSource]:
    for entry, table in attributions:
        name = str(entry.facts["method"])
        base = name.partition("(")[0]
        is_self_attention = base == ATTENTION and entry.facts.get("attention") == "self"
        note = _SELF_ATTENTION_NOTE if is_self_attention else _NOTES.get(name, _NOTES.get(base, ""))
        if TRUE_CLASS in name:
            note = "; ".join(filter(None, (note, "scores for the true class in place of the predicted one")))
        if samples := [_number(cell) for cell in table.get("samples", [])]:
            note = "; ".join(filter(None, (note, f"{np.mean(samples):.0f} samples of a text on average")))
        row = ExplanationRow(name, note, is_visible=base not in _CONTROLS, is_summed=not {name, base} & _WEIGHTS)
        rank = _ORDER.index("random" if base in _CONTROLS else base if base in _ORDER else "")
        yield _WeightSource(row, (rank, 0.0, name), _weights_by_uid(table, "scores"))


def _adversarial_rows(
    trials: Sequence[tuple[IndexEntry, Columns]], attributions: Sequence[tuple[IndexEntry, Columns]]
) -> Iterator[_WeightSource]:
    """A row for each adversarial attention, and for the attention that it replaces where no other row shows that."""
    adversaries = [(entry, table) for entry, table in trials if table.keys() >= _ADVERSARIAL]
    for (entry, table), label in zip(adversaries, _distinct_labels([entry for entry, _ in adversaries]), strict=True):
        epsilon, exact = entry.settings.get("epsilon"), entry.settings.get("solver", "exact") == "exact"
        row = ExplanationRow(label, _ADVERSARY_NOTE, is_visible=exact, is_adversarial=True)
        rank = (
            _ORDER.index("adversarial" if exact else "search"),
            -epsilon if isinstance(epsilon, float) else 0.0,
            label,
        )
        weights, uids = _weights_by_uid(table, "adversary"), [str(uid) for uid in table["uid"]]
        columns = (_rounded_cells(_cells(table, name)) for name in ("epsilon_max", "bound", "change"))
        certified = (each is True for each in _cells(table, "certified"))
        numbers = dict(zip(uids, zip(*columns, certified, strict=True), strict=True))
        yield _WeightSource(row, rank, weights, _places_by_uid(table), numbers)
    # Of a transformer a part of the attention is replaced; the row of attention is the mean of all.
    replaced = {
        (entry.settings.get("layer"), entry.settings.get("head")): table
        for entry, table in adversaries
        if table.keys() >= {ATTENTION, "queries"}
    }
    for (layer, head), table in replaced.items():
        name = _REPLACED if len(replaced) == 1 else f"{_REPLACED}, layer {layer}, head {head}"
        rank = (_ORDER.index("adversarial"), -1.0, name)
        yield _WeightSource(
            ExplanationRow(name, _REPLACED_NOTE), rank, _weights_by_uid(table, ATTENTION), _places_by_uid(table)
        )
    if not any(entry.facts["method"] == ATTENTION for entry, _ in attributions):
        for _, table in adversaries[:1]:
            row = ExplanationRow(ATTENTION, _NOTES[ATTENTION])
            if ATTENTION in table and not replaced:
                weights = _weights_by_uid(table, ATTENTION)
                yield _WeightSource(row, (0, 0.0, ""), weights, _places_by_uid(table))


def _weights_by_uid(table: Columns, column: str) -> dict[str, NDArray[np.float64]]:
    """By uid the weights with four significant digits."""
    rows = [_array(cell) for cell in table[column]]
    values = _round_digits(np.concatenate([*rows, np.empty(0)]))
    ends = itertools.accumulate(map(len, rows))
    rounded = (values[end - len(row) : end] for row, end in zip(rows, ends, strict=True))
    return dict(zip(map(str, table["uid"]), rounded, strict=True))


def _places_by_uid(table: Columns) -> dict[str, object]:
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
        if name not in ("solver", "epsilon", "limit") and len({str(each.settings.get(name)) for each in entries}) > 1
    }
    return [
        ", ".join(
            ["adversarial attention", str(entry.settings.get("solver", "exact"))]
            + [f"{name} {entry.settings.get(name)}" for name in ("epsilon", *sorted(varying))]
        )
        for entry in entries
    ]


def _metrics(trials: Sequence[tuple[IndexEntry, Columns]], rows: Sequence[_WeightSource]) -> Metrics:
    """Numbers to sort by, each by uid."""
    found: dict[TextMetric, dict[str, float | None]] = {}
    for each in rows:
        if each.row.name == ATTENTION:
            found[TextMetric("largest attention weight")] = {
                uid: float(np.fmax.reduce(weights, initial=0.0)) for uid, weights in each.weights.items()
            }
    permuted = [(entry, table) for entry, table in trials if {"uid", "median_change"} <= table.keys()]
    for entry, table in permuted:
        metric = TextMetric(_with_settings("median change under permutation", entry, permuted))
        found[metric] = dict(zip(map(str, table["uid"]), _rounded_cells(table["median_change"]), strict=True))
    return found


def _faithfulness(trials: Sequence[tuple[IndexEntry, Columns]]) -> Metrics:
    """What the output loses without the words that each method ranks highest, controls apart."""
    found: dict[TextMetric, dict[str, float | None]] = {}
    tested = [(entry, table) for entry, table in trials if {"uid", "method", _COMPREHENSIVENESS} <= table.keys()]
    for entry, table in tested:
        numbers = _rounded_cells(table[_COMPREHENSIVENESS])
        for uid, method, is_control, number in zip(
            table["uid"], table["method"], _cells(table, "control"), numbers, strict=True
        ):
            if is_control is not True:
                name = _with_settings(f"comprehensiveness of {method}", entry, tested)
                found.setdefault(TextMetric(name, LEAST_FAITHFUL), {})[str(uid)] = number
    return found


def _marked_words(trials: Sequence[tuple[IndexEntry, Columns]]) -> dict[str, set[int]]:
    """By uid the numbers of the words that people marked, where a trial stored them."""
    found: dict[str, set[int]] = {}
    for _, table in trials:
        if {"uid", "rationale"} <= table.keys():
            for uid, words in zip(table["uid"], table["rationale"], strict=True):
                if words is not None:
                    found.setdefault(str(uid), set()).update(_array(words).astype(int).tolist())
    return found


def _with_settings(label: str, entry: IndexEntry, rivals: Sequence[tuple[IndexEntry, Columns]]) -> str:
    """The label, with the settings of its trial if there are several such trials."""
    if len(rivals) < 2:
        return label
    settings = (f"{name} {value}" for name, value in entry.settings.items() if value is not None and name != "methods")
    return ", ".join([label, *settings])


def _build_texts(
    texts: Mapping[str, _TextRecord],
    rows: Sequence[_WeightSource],
    metrics: Metrics,
    marked: Mapping[str, Collection[int]],
) -> tuple[ExplorerText, ...]:
    """The texts by uid; `marked` holds the numbers of the words that people marked."""
    texts = {uid: texts[uid] for uid in sorted(sorted(texts), key=natural_sort_key)}
    weights = zip(*(each.of_texts(texts) for each in rows), strict=True) if rows else itertools.repeat(())
    numbers = ([column.get(uid) for column in metrics.values()] for uid in texts)
    return tuple(
        ExplorerText(
            printable(uid),
            layout.tokens,
            layout.joined,
            layout.second,
            None if predicted is None else int(predicted),
            probability,
            label,
            tuple(own_numbers),
            own_weights,
            layout.words,
            tuple(place for place, word in enumerate(layout.numbers) if word in marked[uid]) if uid in marked else None,
        )
        for (uid, (layout, predicted, probability, label)), own_numbers, own_weights in zip(
            texts.items(), numbers, weights, strict=False
        )
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


@functools.lru_cache(maxsize=4096)
def _text_layout(units: tuple[str, ...], flags: bytes | None, is_second: bytes, words: bytes) -> _TextLayout:
    """The layout of a text; kept, because many models read the same texts.

    Args:
        flags: a byte per unit that says whether it can receive a score; None for all.
        is_second: a byte per unit that says whether it belongs to the second part; empty for single texts.
        words: number of the word of each unit, in four bytes each; empty if every unit is a word.
    """
    scored = np.arange(len(units)) if flags is None else np.flatnonzero(np.frombuffer(flags, dtype=bool))
    is_whole = len(scored) == len(units)
    spaced = token_spacing([printable(units[place]) for place in scored])
    numbers = np.frombuffer(words, dtype=np.int32) if words else np.arange(len(units))
    own = tuple(numbers[scored].tolist()) if len(numbers) == len(units) else tuple(range(len(scored)))
    return _TextLayout(
        tuple(token for _, token in spaced),
        tuple(place for place, (gap, _) in enumerate(spaced) if place and not gap),
        int(np.sum(scored < is_second.find(1))) if 1 in is_second else 0,
        len(units),
        None if is_whole else scored,
        own,
        own if len({*own}) < len(own) else (),
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


def write_explorer(source: ModelTexts, all_sources: Sequence[ModelTexts], folder: Path, open_artefact: Open) -> Path:
    """Write the page of one model and split, with links to other models on the same texts, unless it is up to date."""
    others = [other.link for other in all_sources if other.corpus == source.corpus and other.address != source.address]
    entries = [each.name for each in (*source.attributions, *source.trials)]
    stamp = json_digest(
        [__version__, source.address, *sorted(entries), *(f"{each.label} {each.address}" for each in others)]
    )
    target = folder / source.address
    if _head(target).find(stamp) >= 0:
        return target
    return write_atomically(_explorer_parts(collect_texts(source, open_artefact), others, stamp), target)


def _head(path: Path) -> str:
    """The first characters of a page; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(2000)


def delete_stale_pages(folder: Path, kept: set[str]) -> None:
    """Delete explorers of an earlier report, recognised by their name and generator; other files stay."""
    for path in sorted((folder / FOLDER).glob("*.html")):
        if path.name not in kept and _FILE_NAME.fullmatch(path.name) and _GENERATOR in _head(path):
            path.unlink()


def explorer_html(data: ExplorerData, others: Sequence[Link] = (), stamp: str = "") -> str:
    """The explorer as one HTML document.

    Args:
        others: links to the same texts under other models.
        stamp: digest of all that the page depends on, by which an existing page is recognised as up to date.
    """
    return "".join(_explorer_parts(data, others, stamp))


def _explorer_parts(data: ExplorerData, others: Sequence[Link], stamp: str) -> Iterator[str]:
    tokens = sum(len(text.tokens) for text in data.texts) / max(1, len(data.texts))
    names = [str(data.facts[name]) for name in _NAMES if name in data.facts]
    names += [f"seed {data.facts['seed']}"] if "seed" in data.facts else []
    noun = "texts" if data.patches is None else "images"
    values = {
        "stamp": stamp,
        "title": f"{noun.capitalize()}: {', '.join(names)}",
        "noun": noun,
        "data": data,
        "others": others,
        "predicted": _class_options([text.predicted for text in data.texts], data),
        "labels": _class_options([text.label for text in data.texts], data),
        "selections": _selections(data),
        "outcomes": outcome_table(data),
        "has_pieces": any(text.words for text in data.texts),
        **_view_without_script(data),
        "size": TEXTS_PER_PAGE if tokens < LONG_TEXT else TEXTS_PER_PAGE // 2,
        "json": Markup(data_json(data)),  # safe: everything that could end the script element is escaped
    }
    return _DOCUMENT.render(values)


def data_json(data: ExplorerData) -> str:
    """The data as JSON that cannot end or open an HTML element, whatever the texts contain."""
    known = [int(n) for text in data.texts for n in (text.predicted, text.label) if n is not None and n == int(n)]
    adversarial = [row.is_adversarial for row in data.rows]
    content = {
        "classes": [
            printable(data.class_name(number)) for number in range(max([len(data.classes), *(n + 1 for n in known)]))
        ],
        "rows": [
            {"name": printable(row.name), "adversarial": row.is_adversarial, "summed": row.is_summed}
            for row in data.rows
        ],
        "metrics": [printable(metric.name) for metric in data.metrics],
        "marked": MARKED,
        "heads": data.heads,
        "patches": data.patches,
        "texts": [
            text._asdict()
            | {"rows": [row and (row._asdict() if more else {"weights": row.weights}) for row, more in rows]}
            for text in data.texts
            for rows in [zip(text.rows, adversarial, strict=True)]
        ],
    }
    found = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    for letter in "<>&\u2028\u2029":
        found = found.replace(letter.encode(), f"\\u{ord(letter):04x}".encode())
    return found.decode()


@dataclass(frozen=True)
class TextSelection:
    """A button that selects and sorts texts: values of the fields `outcome`, `order` and `direction`, and a hint."""

    label: str
    outcome: str
    order: str
    direction: str
    hint: str = ""


def _selections(data: ExplorerData) -> list[TextSelection]:
    """What readers look for, as far as the page can show it."""
    found = []
    if wrong := sum(is_right(text) is False for text in data.texts):
        found.append(TextSelection(f"Wrong predictions, surest first ({wrong})", "wrong", "probability", "-1"))
    if sum(not row.is_adversarial for row in data.rows) > 1:
        hint = "1 minus the mean rank correlation of the rows that are shown"
        found.append(TextSelection("Strongest disagreement", "", "disagreement", "-1", hint))
    orders = {
        metric.finding: TextSelection(
            metric.finding, "", f"metric {place}", "-1" if metric.is_descending else "1", metric.name
        )
        for place, metric in reversed([*enumerate(data.metrics)])
        if metric.finding
    }
    adversarial = [place for place, row in enumerate(data.rows) if row.is_adversarial]
    if adversarial and MOST_MANIPULABLE not in orders:
        orders[MOST_MANIPULABLE] = TextSelection(MOST_MANIPULABLE, "", f"row {adversarial[0]}", "-1")
    return [*found, *(orders[name] for name in (LEAST_FAITHFUL, MOST_MANIPULABLE) if name in orders)]


def is_right(text: ExplorerText) -> bool | None:
    """Whether the prediction is the label; None where that is unknown, as for numbers."""
    if text.label is None or text.predicted is None or text.label != int(text.label):
        return None
    return text.predicted == text.label


def outcome_table(data: ExplorerData) -> TableView | None:
    """Means over the texts with right and with wrong predictions; None if one of them has no text."""
    groups = [[text for text in data.texts if is_right(text) is outcome] for outcome in (True, False)]
    if not all(groups):
        return None

    rows: list[tuple[Cell, ...]] = [("texts", *map(len, groups))]
    names = ("probability of the prediction", *(metric.name for metric in data.metrics))
    columns = [list(zip(*((text.probability, *text.metrics) for text in group), strict=True)) for group in groups]
    for place, name in enumerate(names):
        known = [[value for value in group[place] if value is not None] for group in columns]
        rows.append((name, *(math.fsum(own) / len(own) if own else None for own in known)))
    return TableView("Means over texts that are predicted right and wrong", ("", "right", "wrong"), tuple(rows))


def _class_options(numbers: Sequence[float | None], data: ExplorerData) -> list[tuple[int, str, int]]:
    """Value, name and number of texts of each class that occurs."""
    counts = Counter(int(value) for value in numbers if value is not None and value == int(value))
    return [(value, data.class_name(value), counts[value]) for value in sorted(counts)]


def _view_without_script(data: ExplorerData) -> dict[str, object]:
    """The first texts as heat-maps, or the first images with the scores of their patches as a drawing."""
    texts = data.texts[:TEXTS_WITHOUT_SCRIPT]
    heatmaps = [_text_heatmap(text, data) for text in texts]
    if data.patches is None:
        return {"first": [heatmap_view(each) for each in heatmaps], "pictures": ""}
    names = list(dict.fromkeys(row.name for each in heatmaps for row in each.rows))
    tiles = list[tuple[Pixels | PatchScores, ...]]()
    for text, heatmap in zip(texts, heatmaps, strict=True):
        scores = {row.name: np.reshape(row.values, data.patches) for row in heatmap.rows}
        blank = np.zeros(data.patches)
        maps = [PatchScores(tuple(map(tuple, scores.get(name, blank).tolist()))) for name in names]
        tiles.append((png_pixels(text.image), *maps))
    labels = tuple(f"{text.uid}, predicted {data.class_name(text.predicted)}" for text in texts)
    figure = ImageGrid("The first images", labels, ("image", *names), tuple(tiles))
    return {"first": texts, "pictures": Markup(svg(figure, "first"))}  # safe: the text in a chart is escaped


def _text_heatmap(text: ExplorerText, data: ExplorerData) -> Heatmap:
    """The text as it is shown without a script, with the rows that are visible at first."""
    visible = [
        (row, part) for row, part in zip(data.rows, text.rows, strict=True) if row.is_visible and part is not None
    ]
    caption = [f"predicted {data.class_name(text.predicted)} ({format_number(text.probability)})"]
    caption += [] if text.label is None else [f"label {data.class_name(text.label)}"]
    caption += [
        f"{metric.name} {format_number(value)}" for metric, value in zip(data.metrics, text.metrics, strict=True)
    ]
    caption += [
        f"{row.name}: divergence {format_number(part.divergence)} of at most {format_number(part.bound)}, "
        f"output changes by {format_number(part.change)}"
        for row, part in visible
        if row.is_adversarial
    ]
    groups = word_groups(text)
    # A space before each word keeps what looks like the mark of a tokenizer.
    words = tuple(" " + "".join(text.tokens[place] for place in group) for group in groups)
    rows = [
        Series(row.name, tuple(_pooled([part.weights[place] for place in group], row.is_summed) for group in groups))
        for row, part in visible
    ]
    if text.maps:
        means = decode_head_maps(text.maps, data.heads).mean((0, 1))
        rows.append(Series(ALL_HEADS, tuple(means.tolist())))
    if text.marked is not None:
        is_marked = tuple(float(any(place in text.marked for place in group)) for group in groups)
        rows = [Series(MARKED, is_marked), *rows]
    return Heatmap(text.uid, words, tuple(rows), "; ".join(caption))


def word_groups(text: ExplorerText) -> list[list[int]]:
    """The places of the tokens of each word, in text order."""
    numbers = text.words or range(len(text.tokens))
    return [
        [place for place, _ in group] for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1])
    ]


def _pooled(weights: Sequence[float], is_summed: bool) -> float:  # noqa: FBT001
    known = [weight for weight in weights if math.isfinite(weight)]
    if not known:
        return math.nan
    return math.fsum(known) / (1 if is_summed else len(known))
