"""Infill: words replaced by words of other texts, a way of removal that no method uses.

Deleted or masked words leave a text that no one would write. Words of other texts of the same data leave one of the
same length from the same vocabulary. What is filled in says something itself, so that it is drawn several times and the
outputs are averaged: the mean is the output where the word that stands there is not known (the marginal of Štrumbelj
and Kononenko, 2014, over words as frequent as they are in the data).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from heedful.attributions.method import feature_index
from heedful.attributions.perturbation import distinct_texts, logits_without
from heedful.store.recipe import derive_seed
from heedful.types import Batch, Model, NotApplicable


@dataclass(frozen=True, eq=False)
class WordPool:
    """The words of many texts, each as often as it occurs, as token ids.

    Args:
        words: by number of tokens, the ids of all words of this length `[word token]`.
        owners: by number of tokens, the number of the text that each of them is from `[word]`.
        uids: of the texts.
    """

    words: dict[int, Tensor]
    owners: dict[int, Tensor]
    uids: tuple[str, ...]

    @classmethod
    def of_texts(cls, batch: Batch) -> WordPool:
        """The words of the texts of a batch; NotApplicable for images."""
        if batch.inputs.dim() > 2:
            raise NotApplicable("images have no words of other images to be filled in")
        numbers = feature_index(batch, "word")
        ids: dict[int, list[list[int]]] = {}
        owners: dict[int, list[int]] = {}
        for row, (tokens, places) in enumerate(zip(batch.inputs.tolist(), numbers.tolist(), strict=True)):
            words: dict[int, list[int]] = {}
            for token, place in zip(tokens, places, strict=True):
                if place >= 0:
                    words.setdefault(place, []).append(token)
            for word in words.values():
                ids.setdefault(len(word), []).append(word)
                owners.setdefault(len(word), []).append(row)
        return cls(
            {length: torch.tensor(ids[length]) for length in sorted(ids)},
            {length: torch.tensor(owners[length]) for length in sorted(ids)},
            batch.uids,
        )

    def without(self, uid: str) -> dict[int, Tensor]:
        """By number of tokens the words of all other texts."""
        own = self.uids.index(uid) if uid in self.uids else -1
        others = {length: words[self.owners[length] != own] for length, words in self.words.items()}
        return {length: words for length, words in others.items() if len(words)}


@dataclass(frozen=True, eq=False)
class Infill:
    """What replaces each token of the texts of a batch, several times.

    Args:
        ids: `[draw batch unit]`; special tokens and padding stay as they are.
    """

    ids: Tensor


def draw_infill(batch: Batch, pool: WordPool, seed: int, draws: int) -> Infill:
    """Other words for every word of a batch, whichever will be removed, with the same number of tokens.

    A word is drawn among those of the other texts that have as many tokens, in proportion to their frequency; where
    there is none, several shorter words together take its place. So the text keeps its length and the numbers of its
    words. What is drawn depends on the seed, the uid and the draw, not on the rest of the batch.
    """
    filled = batch.inputs.repeat(draws, 1, 1)
    for row, (uid, numbers) in enumerate(zip(batch.uids, feature_index(batch, "word").tolist(), strict=True)):
        words, places = pool.without(uid), dict[int, list[int]]()
        for unit, number in enumerate(numbers):
            if number >= 0:
                places.setdefault(number, []).append(unit)
        if not words and places:
            raise NotApplicable("there is no other text whose words could be filled in")
        for draw in range(draws):
            generator = Generator().manual_seed(derive_seed("infill", seed, uid, draw))
            for units in places.values():
                drawn = _draw_word(words, len(units), generator)
                filled[draw, row, units] = torch.tensor(drawn, device=filled.device, dtype=filled.dtype)
    return Infill(filled)


def _draw_word(words: dict[int, Tensor], length: int, generator: Generator) -> list[int]:
    """The ids of a word of so many tokens, or of the longest words that together have as many."""
    drawn: list[int] = []
    while len(drawn) < length:
        fitting = max((size for size in words if size <= length - len(drawn)), default=min(words))
        chosen = int(torch.randint(len(words[fitting]), (1,), generator=generator))
        drawn += words[fitting][chosen].tolist()
    return drawn[:length]


def infilled_probabilities(model: Model, batch: Batch, kept: Tensor, infill: Infill) -> Tensor:
    """Mean probabilities over draws `[batch sample class]`, in float64, with only the `kept` `[batch sample unit]`.

    All other content tokens are replaced.
    """
    removed = ~kept & batch.content_mask.unsqueeze(1)
    origin = torch.arange(len(batch), device=removed.device).repeat_interleave(removed.shape[1])
    rows = removed.flatten(0, 1)
    first, group = distinct_texts(batch, origin, rows, by_removal=True)
    texts, is_replaced = batch.repeat(removed.shape[1]).rows(first), rows[first]
    is_replaced = is_replaced[:, : texts.mask.shape[1]]
    nothing = torch.zeros_like(is_replaced).unsqueeze(1)
    draws: Sequence[Tensor] = [
        model.task.probabilities(
            logits_without(
                model,
                replace(texts, inputs=torch.where(is_replaced, ids[origin[first], : nothing.shape[2]], texts.inputs)),
                nothing,
                "pad",
            )[:, 0].double()
        )
        for ids in infill.ids
    ]
    return torch.stack(list(draws)).mean(0)[group].reshape(*removed.shape[:2], -1)
