"""What people marked as evidence in the texts of a split, lined up with the words that a model sees.

A text may be left out for three reasons, which are told apart because they mean different things: nobody marked a
word, all words are marked, or what was marked was cut off with the end of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.plausibility import judged
from heedful.core.types import Example, UserError

STATUS = ("judged", "no rationale", "all rationale", "cut off")
"""What became of a text, or of one part of it."""


@dataclass(frozen=True)
class Marked:
    """Marks of a batch of texts, each of their parts by itself.

    Args:
        rationale: True on marked words, `[batch part word]`.
        mask: True on the words of the part that the model sees, `[batch part word]`.
        status: places in `STATUS`, `[batch part]`.
    """

    rationale: Tensor
    mask: Tensor
    status: Tensor


class Rationales:
    """The marks of all texts of a split.

    Args:
        parts: names of the parts that are judged apart; none judges a text as a whole, without the parts in which
            people never marked a word (a question is asked, it is no evidence).
    """

    def __init__(self, examples: Sequence[Example], parts: Sequence[str], corpus: str) -> None:
        counts = [_words(example) for example in examples]
        most = max((len(count) for count in counts), default=0)
        if parts and len(parts) != most:
            raise UserError(f"{corpus}: texts have {most} parts, and the names of {len(parts)} are given")
        if not any(any(example.rationale or ()) for example in examples):
            raise UserError(f"{corpus}: people marked no words of these texts; take a corpus with rationales")
        self.parts = tuple(parts) or ("",)
        self._places = {example.uid: place for place, example in enumerate(examples)}
        self._lengths = np.array([sum(count) for count in counts], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._marks = _marks(examples, self._lengths)
        self._part = np.repeat(np.arange(most).tolist() * len(counts), _padded_counts(counts, most).ravel())
        if not parts:
            self._part = np.where(np.isin(self._part, self._part[self._marks]), 0, -1)

    def of(self, uids: Sequence[str], words: Tensor) -> Marked:
        """The marks of these texts, whose units belong to `words` `[batch unit]`."""
        rows = np.array([self._places[uid] for uid in uids], dtype=np.int64)
        word = np.arange(max(1, int(self._lengths[rows].max())))
        inside = word < self._lengths[rows][:, None]
        places = np.where(inside, self._starts[rows][:, None] + word, 0)
        part = torch.from_numpy(np.where(inside, self._part[places], -1))
        own = part.unsqueeze(1) == torch.arange(len(self.parts)).unsqueeze(1)
        seen = torch.zeros(len(rows), len(word) + 1, dtype=torch.bool)
        seen.scatter_(1, torch.where(words >= 0, words, len(word)).cpu(), True)
        rationale = own & torch.from_numpy(self._marks[places]).unsqueeze(1)
        mask = own & seen[:, :-1].unsqueeze(1)
        return Marked(rationale, mask, _status(rationale, own, mask))


def _words(example: Example) -> tuple[int, ...]:
    """Words of each part."""
    return tuple(len(part.split()) if isinstance(part, str) else 0 for part in example.parts)


def _padded_counts(counts: Sequence[tuple[int, ...]], most: int) -> NDArray[np.int64]:
    return np.array([[*count, *[0] * (most - len(count))] for count in counts], dtype=np.int64).reshape(-1, most)


def _marks(examples: Sequence[Example], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """All marks one after the other; a text that nobody read has none."""
    rows = zip(examples, lengths.tolist(), strict=True)
    found = chain.from_iterable((False,) * n if each.rationale is None else each.rationale for each, n in rows)
    return np.fromiter(found, dtype=bool, count=int(lengths.sum()))


def _status(rationale: Tensor, own: Tensor, mask: Tensor) -> Tensor:
    left = (rationale & mask).any(-1)
    status = torch.full_like(left, STATUS.index("all rationale"), dtype=torch.int64)
    status[judged(rationale, mask)] = STATUS.index("judged")
    status[~left] = STATUS.index("cut off")
    status[~(rationale & own).any(-1)] = STATUS.index("no rationale")
    return status
