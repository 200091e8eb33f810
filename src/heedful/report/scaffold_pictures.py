"""Figures 4, 7 and 8: pictures with what explanations say of their patches, and all heads of one picture.

Mixes of heads are drawn from the stored maps of all heads, as what they say above and below the picture's mean; the
softmax of an explanation does not see that mean. Other methods are shown as they were stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from heedful.figures import ImageGrid, PatchScores, Pixels
from heedful.report.scaffold_print import ALL_LAYERS, LAST_LAYER, method_row
from heedful.store.recipe import Artefact, Json
from heedful.store.workspace import IndexEntry

MAX_PICTURES = 4
"""Pictures in figure 4."""


@dataclass(frozen=True)
class HeadWeights:
    """A learned explanation: its name and the weight of each head `[layer head]`."""

    name: str
    weights: Tensor


def picture_mosaics(subject: Json, mix: HeadWeights | None, finished: Sequence[IndexEntry]) -> tuple[ImageGrid, ...]:
    """Pictures of this subject's corpus where they are stored; none for texts."""
    stored = [each for each in finished if each.recipe_class == "ImageSample" and each.recipe["subject"] == subject]
    if not stored:
        return ()
    pictured = stored[0].load()
    if not len(pictured.table):
        return ()
    return _explanation_mosaic(pictured, mix, _picture_attributions(subject, stored[0], finished)), _head_mosaic(
        pictured
    )


def _picture_attributions(
    subject: Json, pictured: IndexEntry, finished: Sequence[IndexEntry]
) -> dict[str, pd.DataFrame]:
    """Attributions of the same pictures that print has a row for and that are no mixes of heads."""
    found: dict[str, pd.DataFrame] = {}
    for each in finished:
        method = each.recipe.get("method")
        if each.recipe_class != "AttributionTable" or not isinstance(method, dict) or each.recipe["subject"] != subject:
            continue
        row = method_row(method)
        if each.recipe.get("split") == pictured.recipe["split"] and row not in ("", ALL_LAYERS, LAST_LAYER):
            found.setdefault(row, each.load().table)
    return found


def _explanation_mosaic(pictured: Artefact, mix: HeadWeights | None, methods: dict[str, pd.DataFrame]) -> ImageGrid:
    """Figure 4: a row per picture."""
    heads = pictured.tensors["heads"].double()
    mixes = {"attention, all layers": heads.mean((1, 2)), "attention, last layer": heads[:, -1].mean(1)}
    if mix is not None and mix.weights.numel() == heads.shape[1] * heads.shape[2]:
        weights = mix.weights.double().reshape(1, heads.shape[1], heads.shape[2], 1)
        mixes[mix.name] = (heads * weights).sum((1, 2))
    uids = [str(uid) for uid in pictured.table["uid"]][:MAX_PICTURES]
    own = {name: table for name, table in methods.items() if set(uids) <= set(table["uid"].astype(str))}
    tiles: list[tuple[Pixels | PatchScores, ...]] = []
    for place, uid in enumerate(uids):
        given = [_patch_scores(table, uid) for table in own.values()]
        mixed = [_center(maps[place]) for maps in mixes.values()]
        tiles.append(
            (_pixels(pictured.tensors["images"][place]), *(_patchwork(each, pictured) for each in given + mixed))
        )
    columns = ("picture", *(name.lower() for name in own), *mixes)
    rows = tuple(_picture_label(row, pictured) for _, row in pictured.table.iloc[: len(uids)].iterrows())
    title = "Figure 4: what explanations point at (orange: above the mean or for the answer, blue: below or against)"
    return ImageGrid(title, rows, columns, tuple(tiles))


def _head_mosaic(pictured: Artefact) -> ImageGrid:
    """Figures 7 and 8: every head on the first picture, layer by layer."""
    maps = pictured.tensors["heads"][0].double()
    layers, heads = maps.shape[:2]
    tiles = tuple(tuple(_patchwork(_center(one), pictured) for one in layer) for layer in maps)
    rows = tuple(f"layer {place}" for place in range(layers))
    columns = tuple(f"head {place}" for place in range(heads))
    told = _picture_label(pictured.table.iloc[0], pictured)
    title = f"Figures 7 and 8: all heads on the first picture ({told}), mean over query rows before softmax"
    return ImageGrid(title, rows, columns, tiles)


def _center(scores: Tensor) -> list[float]:
    found: list[float] = (scores - scores.mean()).tolist()
    return found


def _patch_scores(table: pd.DataFrame, uid: str) -> list[float]:
    row = table[table["uid"].astype(str) == uid].iloc[0]
    return [float(score) for score, scored in zip(row["scores"], row["scored"], strict=True) if scored]


def _patchwork(scores: Sequence[float], pictured: Artefact) -> PatchScores:
    """Scores of the patches, which run row by row from the top left."""
    columns = int(str(pictured.notes["columns"]))
    return PatchScores(tuple(tuple(scores[start : start + columns]) for start in range(0, len(scores), columns)))


def _pixels(image: Tensor) -> Pixels:
    """A picture of one channel is grey."""
    colours = image.double().div(255).expand(3, -1, -1) if image.shape[0] == 1 else image.double().div(255)[:3]
    rows = colours.permute(1, 2, 0).tolist()
    return Pixels(tuple(tuple((red, green, blue) for red, green, blue in row) for row in rows))


def _picture_label(row: pd.Series, pictured: Artefact) -> str:
    classes = pictured.notes.get("classes")
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    said, label = int(row["predicted"]), row["label"]
    name = names[said] if said < len(names) else f"class {said}"
    if label is None or label != label or int(label) == said:
        return f"{name} ({row['probability']:.2f})"
    return f"{name} ({row['probability']:.2f}), truly {names[int(label)] if int(label) < len(names) else int(label)}"
