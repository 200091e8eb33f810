"""The items of a study: texts or images with the stored scores of several methods, and which of them are drawn.

Items come from the pages of texts that an audit or a report writes, or from a workspace. Both are read in the form in
which these pages hold their data.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from heedful import catalogue
from heedful.audits.analysis import image_pixels
from heedful.audits.evidence import MIN_WORDS, stratify
from heedful.figures import printable
from heedful.measures.rank_correlation import spearman_matrix
from heedful.report.charts import png_base64
from heedful.report.explorer import FOLDER as PAGES
from heedful.report.explorer import ModelTexts, collect_texts, data_json, find_model_texts, patch_grid
from heedful.store.artefact_files import IndexEntry, StoredArtefact
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.study.design import (
    CONTROL,
    MAX_METHODS,
    Study,
    StudyItem,
    StudyOptions,
    control_map,
    make_plans,
    strengths,
)
from heedful.types import UserError, user_path

MAX_WORDS = 200
"""Longest text that people are asked to read, by default."""
MAX_CHOICES = 6
"""Most predictions among which people guess; of more classes others are drawn for each item."""
_DATA = re.compile(r'<script type="application/json" id="data"[^>]*>(.*?)</script>', re.DOTALL)
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


@dataclass(frozen=True)
class _PageRow:
    name: str
    adversarial: bool
    summed: bool


@dataclass(frozen=True)
class _PageWeights:
    weights: list[float | None]


@dataclass(frozen=True)
class _PageText:
    uid: str
    tokens: list[str]
    joined: list[int]
    second: int
    predicted: int | None
    rows: list[_PageWeights | None]
    words: list[int]
    image: str = ""


@dataclass(frozen=True)
class _PageData:
    """What the page of a model's texts holds, as far as a study needs it."""

    classes: list[str]
    rows: list[_PageRow]
    texts: list[_PageText]
    patches: tuple[int, int] | None = None


_PAGE = TypeAdapter(_PageData)


@dataclass(frozen=True)
class ItemSource:
    """All texts or images of one model with their stored scores.

    Args:
        scores: by uid and method one number per word; NaN where there is none.
    """

    name: str
    classes: tuple[str, ...]
    methods: tuple[str, ...]
    texts: Mapping[str, StudyItem]
    scores: Mapping[str, Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True)
class ItemChoice:
    """Which items are drawn, and how their scores become strengths.

    Args:
        by: "class" draws in proportion to the predicted classes, "disagreement" takes those on which the methods
            disagree most.
        scores, scale: see `strengths`.
        max_words: longer texts are left out.
    """

    by: str = "class"
    scores: str = "positive"
    scale: str = "share"
    max_words: int = MAX_WORDS

    def __post_init__(self) -> None:
        for option, value, known in (
            ("--items-by", self.by, ("class", "disagreement")),
            ("--scores", self.scores, ("positive", "size")),
            ("--scale", self.scale, ("share", "rank")),
        ):
            if value not in known:
                raise UserError(f"{option} {value}: choose {' or '.join(known)}")


def build_study(
    source: str | Path,
    methods: Sequence[str],
    options: StudyOptions,
    choice: ItemChoice | None = None,
    *,
    model: str = "",
    title: str = "",
    database: str = "",
) -> Study:
    """Draw the items of a study and what each person is shown; nothing is written.

    Args:
        source: a workspace, the folder of an audit or a report, or one of their pages of texts.
        model: a part of the name of the model, where the source has several.
    """
    choice = choice or ItemChoice()
    found = read_source(source, model)
    names = check_study_methods(methods, found, options)
    if "simulate" in options.tasks and len(found.classes) < 2:
        raise UserError(f"{found.name} predicts numbers, which nobody can guess from a list: use --task rank")
    items, reserved = draw_items(found, names, options, choice)
    noun = "images" if items[0].image else "texts"
    return Study(
        title or f"Explanations of decisions about {noun}",
        f"{found.name} ({shown_path(source)})",
        options.task,
        names,
        options.seed,
        options.allowed_failures,
        (*items, *reserved),
        make_plans(items, reserved, names, options),
        database,
    )


def check_study_methods(methods: Sequence[str], source: ItemSource, options: StudyOptions) -> tuple[str, ...]:
    """The chosen methods without spaces around them; UserError if one is unknown or there are too few or too many."""
    # "gradient(logit,true-class)" is one name: commas inside of parentheses do not separate.
    names = [name.strip() for each in methods for name in re.split(r",(?![^(]*\))", each) if name.strip()]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise UserError(f"the method {doubled[0]} is named twice")
    if unknown := [name for name in names if name not in source.methods]:
        raise UserError(f"no scores of {unknown[0]} are stored; there are: {', '.join(source.methods)}")
    least = 1 if options.task == "simulate" else 2
    if not least <= len(names) <= MAX_METHODS:
        raise UserError(
            f"{len(names)} methods: choose {least} to {MAX_METHODS} with --methods, of {', '.join(source.methods)}"
        )
    return tuple(names)


def draw_items(
    source: ItemSource, methods: Sequence[str], options: StudyOptions, choice: ItemChoice
) -> tuple[list[StudyItem], list[StudyItem]]:
    """The items that count, and those of practice and checks."""
    rng = default_rng((options.seed, 15))
    usable = [uid for uid in source.texts if _is_usable(source, uid, methods, choice)]
    needed = options.items + options.reserved
    if len(usable) < needed:
        raise UserError(
            f"{len(usable)} of {len(source.texts)} items can be shown (all methods have scores, {MIN_WORDS} to "
            f"{choice.max_words} words), but {needed} are needed, of which {options.reserved} for practice and checks: "
            + (
                f"use --items {len(usable) - options.reserved}"
                if len(usable) > options.reserved
                else "examine more texts"
            )
        )
    usable = [usable[place] for place in rng.permutation(len(usable))]
    if choice.by == "disagreement":
        agreement = {uid: _agreement(source, uid, methods) for uid in usable}
        main = sorted(usable, key=lambda uid: agreement[uid])[: options.items]
    else:
        main = _stratified(source, usable, options)
    reserved = [uid for uid in usable if uid not in {*main}][: options.reserved]
    finish = [_finished(source, uid, methods, choice, rng) for uid in (*main, *reserved)]
    return finish[: len(main)], finish[len(main) :]


def _stratified(source: ItemSource, usable: Sequence[str], options: StudyOptions) -> list[str]:
    table = pd.DataFrame({"uid": list(usable), "predicted": [source.texts[uid].predicted for uid in usable]})
    return [str(uid) for uid in stratify(table)["uid"][: options.items]]


def _is_usable(source: ItemSource, uid: str, methods: Sequence[str], choice: ItemChoice) -> bool:
    item, scores = source.texts[uid], source.scores[uid]
    most = len(item.words) if item.image else choice.max_words
    return (
        MIN_WORDS <= len(item.words) <= most
        and (bool(item.image) == (item.patches is not None))
        and all(name in scores and bool(np.isfinite(scores[name]).all()) for name in methods)
        # A map without any strength would be a blank page for one method only.
        and all(any(strengths(scores[name].tolist(), kind=choice.scores)) for name in methods)
    )


def _agreement(source: ItemSource, uid: str, methods: Sequence[str]) -> float:
    """Mean rank correlation of all pairs of methods; where it is undefined, as if there were none."""
    if len(methods) < 2:
        return 0.0
    scores = torch.from_numpy(np.stack([source.scores[uid][name] for name in methods]))
    matrix = spearman_matrix(scores).value.nan_to_num(0.0)
    pairs = len(methods) * (len(methods) - 1)
    return float((matrix.sum() - matrix.diagonal().sum()) / pairs)


def _finished(source: ItemSource, uid: str, methods: Sequence[str], choice: ItemChoice, rng: Generator) -> StudyItem:
    """The item with its maps and with the predictions to guess from."""
    item = source.texts[uid]
    maps = {
        name: strengths(source.scores[uid][name].tolist(), kind=choice.scores, scale=choice.scale) for name in methods
    }
    choices = source.classes
    if len(choices) > MAX_CHOICES:
        others = [name for name in choices if name != item.predicted]
        drawn = {item.predicted, *(others[place] for place in rng.permutation(len(others))[: MAX_CHOICES - 1])}
        choices = tuple(name for name in source.classes if name in drawn)
    return replace(item, maps={**maps, CONTROL: control_map(list(maps.values()), rng)}, choices=choices)


# Sources


def read_source(source: Path | str, model: str = "") -> ItemSource:
    """The texts of one model: from a page of an audit or a report, from the folder of such pages, or a workspace."""
    workspace, path = Workspace(source), user_path(source)
    if workspace.store is not None:
        return _read_stored(workspace, str(source), model)
    if path.is_file():
        return _read_page(path)
    pages = sorted((path / PAGES).glob("*.html"))
    if pages:
        names = _unique([(_page_title(page), page.stem) for page in pages])
        titles = dict(zip(names, pages, strict=True))
        return _read_page(titles[_choose(list(titles), model, str(path))])
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a workspace, or the folder of an audit or a report")
    return _read_stored(workspace, str(path), model)


def _read_stored(workspace: Workspace, shown: str, model: str) -> ItemSource:
    entries = workspace.entries()
    found = find_model_texts(entries)
    sources = dict(zip(_unique([(_source_label(each), each.model) for each in found]), found, strict=True))
    if not sources:
        audited = any(entry.kind == "audit attributions" for entry in entries)
        hint = (
            "the folder that heedful audit wrote (--out)" if audited else "a workspace with attributions, or an audit"
        )
        raise UserError(f"{shown} has no stored attributions of texts: give {hint}")
    label = _choose(list(sources), model, shown)
    return _read_workspace(sources[label], entries, workspace, label)


def _unique(labels: Sequence[tuple[str, str]]) -> list[str]:
    """Each label, with its name behind it where several are the same: of two models none is taken silently."""
    times = Counter(label for label, _ in labels)
    return [label if times[label] == 1 else f"{label} ({name})" for label, name in labels]


def _source_label(source: ModelTexts) -> str:
    return source.label if source.split == "test" else f"{source.label}, {source.split}"


def _choose(labels: Sequence[str], model: str, path: str) -> str:
    fitting = [label for label in labels if model.lower() in label.lower()]
    exact = [label for label in labels if model.lower() == label.lower()]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    shown = "; ".join((fitting or labels)[:8])
    wanted = f"no model of {path} is called {model!r}" if not fitting else f"{path} has {len(fitting)} models"
    raise UserError(f"{wanted}: choose one with --model: {shown}")


def _read_workspace(source: ModelTexts, entries: Sequence[IndexEntry], workspace: Workspace, label: str) -> ItemSource:
    opened: dict[str, StoredArtefact] = {}

    def open_artefact(entry: IndexEntry) -> StoredArtefact:
        return opened.setdefault(entry.name, entry.open())

    data = collect_texts(replace(source, trials=()), open_artefact)
    tokens = data.texts[0].tokens if data.texts else ()
    if tokens and all(re.fullmatch(r"\d+,\d+", token) for token in tokens):
        images = _images(source, {text.uid for text in data.texts}, entries, workspace)
        texts = tuple(text._replace(image=images.get(text.uid, "")) for text in data.texts)
        data = replace(data, texts=texts, patches=patch_grid(tokens))
    return _parse_page(data_json(data), label)


def _images(source: ModelTexts, uids: Set[str], entries: Sequence[IndexEntry], workspace: Workspace) -> dict[str, str]:
    """By uid images as PNG in base64: those that are stored with the model, and those of a corpus of the catalogue."""
    found: dict[str, Tensor] = {}
    for entry in entries:
        if entry.kind == "images" and entry.link("subject") == source.model:
            artefact = entry.load()
            stored = artefact.tensors["images"].float() / 255
            found |= dict(zip(map(printable, artefact.table["uid"]), stored, strict=True))
    corpus = catalogue.CORPORA.get(str(source.facts.get("corpus", "")))
    if corpus is not None and not uids <= found.keys():
        with suppress(UserError):  # its files may be missing; then only the stored images are there
            splits = corpus.read(workspace.data_dir)
            examples = {"train": splits.train, "dev": splits.dev, "test": splits.test}.get(source.split, ())
            parts = {printable(example.uid): example.parts[0] for example in examples}
            found |= {uid: part for uid, part in parts.items() if isinstance(part, Tensor)}
    return {uid: png_base64(image_pixels(image)) for uid, image in found.items() if uid in uids}


def _page_title(page: Path) -> str:
    with page.open(encoding="utf-8", errors="replace") as file:
        found = _TITLE.search(file.read(4000))
    return page.stem if found is None else " ".join(found[1].split())


def _read_page(page: Path) -> ItemSource:
    found = _DATA.search(page.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise UserError(f"{page} is no page of texts of an audit or a report")
    return _parse_page(found[1], _page_title(page))


def _parse_page(text: str, name: str) -> ItemSource:
    try:
        data = _PAGE.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{name}: the data of the page are damaged ({first['loc']}: {first['msg']})") from error
    texts: dict[str, StudyItem] = {}
    scores: dict[str, dict[str, NDArray[np.float64]]] = {}
    for each in data.texts:
        if each.predicted is None and data.classes:
            continue
        groups = _word_groups(each)
        texts[each.uid] = StudyItem(
            each.uid,
            tuple("".join(each.tokens[place] for place in group) for group in groups),
            tuple(number for number, group in enumerate(groups) if number and group[0] in each.joined),
            sum(group[0] < each.second for group in groups),
            data.classes[each.predicted] if each.predicted is not None and each.predicted < len(data.classes) else "",
            (),
            {},
            each.image,
            data.patches,
        )
        scores[each.uid] = {
            row.name: _word_scores(weights.weights, groups, is_summed=row.summed)
            for row, weights in zip(data.rows, each.rows, strict=True)
            if weights is not None and not row.adversarial
        }
    methods = tuple(row.name for row in data.rows if not row.adversarial)
    return ItemSource(name, tuple(data.classes), methods, texts, scores)


def _word_groups(text: _PageText) -> list[list[int]]:
    """The places of the tokens of each word, in text order."""
    numbers = text.words or range(len(text.tokens))
    return [
        [place for place, _ in group] for _, group in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1])
    ]


def _word_scores(
    weights: Sequence[float | None], groups: Sequence[Sequence[int]], *, is_summed: bool
) -> NDArray[np.float64]:
    """The sum, or the mean, of the known scores of the tokens of each word; NaN if none is known."""
    found = []
    for group in groups:
        known = [weight for place in group if (weight := weights[place]) is not None]
        found.append(sum(known) / (1 if is_summed else len(known)) if known else np.nan)
    return np.array(found, dtype=float)
