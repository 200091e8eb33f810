"""Obtaining public corpora: from the hub (or a folder that `save_to_disk` wrote) into the normalised layout.

Everything is written aside and renamed at the end: a folder that is there is complete, and a failed download
leaves nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heedful.core.types import UserError
from heedful.data.hub import Repository, class_names, downloaded, rows, saved
from heedful.data.layout import aside, write_rows
from heedful.data.records import Record
from heedful.data.sources import IMAGES, TEXTS, Pictures, Piece

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

FETCHABLE: tuple[str, ...] = (*TEXTS, *IMAGES)


def fetch(name: str, data: Path, *, source: str | None = None) -> Path:
    """The folder (or image file) of the corpus under `data`, fetched unless it is there already.

    Args:
        source: a folder that `save_to_disk` wrote, used instead of the hub; where a corpus is made of several
            hub datasets, a folder with one such folder for each, named after the last part of its id and its
            config (`multi_nli`, `xnli-en`).
    """
    if name in TEXTS:
        return _fetch_texts(name, TEXTS[name], data, source)
    if name in IMAGES:
        return _fetch_images(name, IMAGES[name], data, source)
    raise UserError(f"nobody can fetch '{name}'; can be fetched: {', '.join(FETCHABLE)}")


def _opened(repository: Repository, source: str | None) -> DatasetDict:
    if source is None:
        return downloaded(repository)
    last = repository.name.split("/")[-1]
    inside = Path(source) / (f"{last}-{repository.config}" if repository.config else last)
    return saved(inside if inside.is_dir() else Path(source))


def _split(found: DatasetDict, split: str, repository: Repository) -> Dataset:
    if split not in found:
        raise UserError(
            f"{repository.name}: no split {split}; there are {', '.join(map(str, found))}; "
            "this source does not fit the corpus"
        )
    return found[split]


def _fetch_texts(name: str, pieces: Sequence[Piece], data: Path, source: str | None) -> Path:
    target = data / Path(pieces[0].file).parent
    if target.is_dir():
        return target
    opened = {repository: _opened(repository, source) for repository in {piece.repository for piece in pieces}}
    files = sorted({piece.file for piece in pieces})
    with aside(target) as folder:
        for file in files:
            lines = _lines([piece for piece in pieces if piece.file == file], opened)
            if not write_rows(folder / f"{Path(file).name}.jsonl.gz", lines):
                raise UserError(
                    f"{name}: {pieces[0].repository.name} gave no row for {file}; this source does not fit the corpus"
                )
    return target


def _lines(pieces: Sequence[Piece], opened: Mapping[Repository, DatasetDict]) -> Iterator[dict[str, object]]:
    count = 0
    for piece in pieces:
        dataset = _split(opened[piece.repository], piece.split, piece.repository)
        for record in rows(dataset, piece.repository.name):
            for row in _converted(piece, record):
                yield {"id": f"{piece.file.replace('/', '-')}-{count}", **row}
                count += 1


def _converted(piece: Piece, record: Record) -> list[dict[str, object]]:
    try:
        return piece.convert(record.values)
    except KeyError as error:
        present = ", ".join(record.values)
        raise UserError(
            f"{record.where}: no column {error}; the columns are {present}; the dataset has changed"
        ) from error


def _fetch_images(name: str, pictures: Pictures, data: Path, source: str | None) -> Path:
    target = data / "images" / f"{pictures.file}.npz"
    if target.is_file():
        return target
    found = _opened(pictures.repository, source)
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    for split in ("train", "test"):
        dataset = _split(found, split, pictures.repository)
        arrays[f"x_{split}"], arrays[f"y_{split}"] = _pixels(dataset, pictures, name)
    arrays["class_names"] = np.array(class_names(found["train"]).get(pictures.label, ()), dtype=np.str_)
    if not len(arrays["class_names"]):
        raise UserError(f"{name}: {pictures.repository.name} does not name its classes in column '{pictures.label}'")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".npz", prefix=".", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _pixels(
    dataset: Dataset, pictures: Pictures, name: str
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.generic]], np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    if not {pictures.image, pictures.label} <= set(dataset.column_names):
        present = ", ".join(dataset.column_names)
        raise UserError(f"{name}: no columns '{pictures.image}' and '{pictures.label}'; the columns are {present}")
    images = np.stack([np.asarray(image, dtype=np.uint8) for image in dataset[pictures.image]])
    return images, np.asarray(dataset[pictures.label], dtype=np.uint8)
