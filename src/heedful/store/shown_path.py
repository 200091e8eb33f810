"""Paths in what is passed on: pages and JSON files name a file or folder, but not where on whose disk it is."""

from __future__ import annotations

import os
from pathlib import PurePath

from heedful.store.recipe import Json


def shown_path(path: str | os.PathLike[str]) -> str:
    """The last part of an absolute path, or of one that begins with "~" or ".."; other names as they are.

    >>> [shown_path(path) for path in ("/home/jane/models/films", "~/films", "../jane/films", "file:///home/jane/films")]
    ['films', 'films', 'films', 'films']
    >>> [shown_path(path) for path in ("models/films", "org/model", "s3://bucket/films")]
    ['models/films', 'org/model', 's3://bucket/films']
    """
    text = os.fspath(path)
    pure = PurePath(text.removeprefix("file://"))
    if not (pure.is_absolute() or text.startswith(("~", ".."))) or len(pure.parts) < 2:
        return text
    return pure.name


def shown_settings(value: Json) -> Json:
    """Settings of a recipe with `shown_path` in place of every absolute path."""
    if isinstance(value, str):
        return shown_path(value) if PurePath(value).is_absolute() else value
    if isinstance(value, dict):
        return {name: shown_settings(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [shown_settings(entry) for entry in value]
    return value
