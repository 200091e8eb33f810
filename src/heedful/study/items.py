"""The items of a study: texts or images with the stored scores of several methods, and which of them are drawn.

Items come from the tables of texts that an audit or a report writes beside its pages, or from a workspace.
"""

from __future__ import annotations

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
from torch import Tensor

from heedful import catalogue
from heedful.audits.analysis import image_pixels
from heedful.audits.evidence import MIN_WORDS, stratify
from heedful.formatting import page_text
from heedful.measures.rank_correlation import spearman_matrix
from heedful.report.charts import png_base64
from heedful.report.text_sources import ModelTexts, collect_texts, find_model_texts
from heedful.report.text_table import FOLDER as TABLES
from heedful.report.text_table import TextTable, patch_grid, read_table_header, read_text_table
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

_MAX_WORDS = 200
"""Longest text that people are asked to read, by default."""
MAX_CHOICES = 6
"""Most predictions among which people guess; of more classes others are drawn for each item."""


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
    max_words: int = _MAX_WORDS

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
    items_source = read_source(source, model)
    names = check_study_methods(methods, items_source, options)
    if "simulate" in options.tasks and len(items_source.classes) < 2:
        raise UserError(f"{items_source.name} predicts numbers, which nobody can guess from a list: use --task rank")
    items, reserved = draw_items(items_source, names, options, choice)
    return Study(
        title or f"Explanations of decisions about {'images' if items[0].image else 'texts'}",
        f"{items_source.name} ({shown_path(source)})",
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
    names = [name.strip() for listed in methods for name in re.split(r",(?![^(]*\))", listed) if name.strip()]
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
    usable = [usable[index] for index in rng.permutation(len(usable))]
    if choice.by == "disagreement":
        agreement = {uid: _agreement(source, uid, methods) for uid in usable}
        main = sorted(usable, key=lambda uid: agreement[uid])[: options.items]
    else:
        table = pd.DataFrame({"uid": usable, "predicted": [source.texts[uid].predicted for uid in usable]})
        main = [str(uid) for uid in stratify(table)["uid"][: options.items]]
    reserved = [uid for uid in usable if uid not in {*main}][: options.reserved]
    finish = [_finished(source, uid, methods, choice, rng) for uid in (*main, *reserved)]
    return finish[: len(main)], finish[len(main) :]


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
        drawn = {item.predicted, *(others[index] for index in rng.permutation(len(others))[: MAX_CHOICES - 1])}
        choices = tuple(name for name in source.classes if name in drawn)
    return replace(item, maps={**maps, CONTROL: control_map(list(maps.values()), rng)}, choices=choices)


# Sources


def read_source(source: Path | str, model: str = "") -> ItemSource:
    """The texts of one model: from a table of an audit or a report or its page, from their folder, or a workspace."""
    workspace, path = Workspace(source), user_path(source)
    if workspace.store is not None:
        return _read_stored(workspace, str(source), model)
    if path.is_file():
        table = read_text_table(path.with_suffix(".parquet"))
        return _read_items(table, table.title)
    tables = sorted((path / TABLES).glob("*.parquet"))
    if tables:
        names = _unique([(read_table_header(table).title, table.stem) for table in tables])
        titles = dict(zip(names, tables, strict=True))
        title = _choose(list(titles), model, str(path))
        return _read_items(read_text_table(titles[title]), title)
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a workspace, or the folder of an audit or a report")
    return _read_stored(workspace, str(path), model)


def _read_stored(workspace: Workspace, shown: str, model: str) -> ItemSource:
    entries = workspace.entries()
    models = find_model_texts(entries)
    sources = dict(zip(_unique([(_source_label(source), source.model) for source in models]), models, strict=True))
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

    table = collect_texts(replace(source, trials=()), open_artefact)
    tokens = table.texts[0].tokens if table.texts else ()
    if tokens and all(re.fullmatch(r"\d+,\d+", token) for token in tokens):
        images = _images(source, {text.uid for text in table.texts}, entries, workspace)
        texts = tuple(text._replace(image=images.get(text.uid, "")) for text in table.texts)
        table = replace(table, texts=texts, patches=patch_grid(tokens))
    return _read_items(table, label)


def _images(source: ModelTexts, uids: Set[str], entries: Sequence[IndexEntry], workspace: Workspace) -> dict[str, str]:
    """By uid images as PNG in base64: those that are stored with the model, and those of a corpus of the catalogue."""
    images: dict[str, Tensor] = {}
    for entry in entries:
        if entry.kind == "images" and entry.link("subject") == source.model:
            artefact = entry.load()
            stored = artefact.tensors["images"].float() / 255
            images |= dict(zip(map(page_text, artefact.table["uid"]), stored, strict=True))
    corpus = catalogue.CORPORA.get(str(source.facts.get("corpus", "")))
    if corpus is not None and not uids <= images.keys():
        with suppress(UserError):  # its files may be missing; then only the stored images are there
            splits = corpus.read(workspace.data_dir)
            examples = {"train": splits.train, "dev": splits.dev, "test": splits.test}.get(source.split, ())
            parts = {page_text(example.uid): example.parts[0] for example in examples}
            images |= {uid: part for uid, part in parts.items() if isinstance(part, Tensor)}
    return {uid: png_base64(image_pixels(image)) for uid, image in images.items() if uid in uids}


def _read_items(table: TextTable, name: str) -> ItemSource:
    """The texts of a table as items, with the scores of their words."""
    texts: dict[str, StudyItem] = {}
    scores: dict[str, dict[str, NDArray[np.float64]]] = {}
    classes = table.class_names
    for text in table.texts:
        if text.predicted is None and classes:
            continue
        groups = text.word_groups
        texts[text.uid] = StudyItem(
            text.uid,
            tuple("".join(text.tokens[token] for token in group) for group in groups),
            tuple(number for number, group in enumerate(groups) if number and group[0] in text.joined),
            sum(group[0] < text.second for group in groups),
            classes[text.predicted] if text.predicted is not None and 0 <= text.predicted < len(classes) else "",
            (),
            {},
            text.image,
            table.patches,
        )
        scores[text.uid] = {
            row.name: text.pool(cell.weights, row.pooling)
            for row, cell in zip(table.rows, text.rows, strict=True)
            if cell is not None and not row.is_adversarial
        }
    methods = tuple(row.name for row in table.rows if not row.is_adversarial)
    return ItemSource(name, classes, methods, texts, scores)
