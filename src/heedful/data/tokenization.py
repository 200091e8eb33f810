"""From examples to batches: what words, subwords and patches have in common.

The parts of an example follow one another on the one unit axis. Each token knows the whitespace word it comes from, so
that rationales, tokenizers and models count the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from heedful.data.stored_examples import keep_examples
from heedful.segmentation import Break, read_breaks
from heedful.types import Batch, Example, Selection, UserError


@dataclass(frozen=True)
class TokenizedExample:
    """One example before padding: the id, the part and the word of each token (word -1 for special tokens)."""

    ids: list[int]
    segments: list[int]
    words: list[int]


def text_parts(example: Example) -> tuple[str, ...]:
    """The one or two parts of an example, which must be text."""
    texts = tuple(part for part in example.parts if isinstance(part, str))
    if not texts or len(texts) != len(example.parts):
        raise UserError(f"example {example.uid} has a part that is not text: use Patches for images")
    if len(texts) > 2:
        raise UserError(f"example {example.uid} has {len(texts)} parts: give one or two texts")
    return texts


def drop_empty(examples: Sequence[Example]) -> Selection:
    """The examples in which every part has words."""
    has_words = (all(text.strip() for text in text_parts(example)) for example in examples)
    kept = keep_examples(examples, np.fromiter(has_words, np.bool_, len(examples)))
    dropped = len(examples) - len(kept)
    return Selection(kept, {"no words in the text": dropped} if dropped else {})


def drop_by_length(texts: Selection, lengths: Iterable[int], lower: int | None, upper: int | None) -> Selection:
    """The examples of more than `lower` and fewer than `upper` words."""
    words = np.fromiter(lengths, np.int64, len(texts.examples))
    short = words <= (-1 if lower is None else lower)
    long = ~short & (words >= (np.inf if upper is None else upper))
    reasons = {f"{lower} words or fewer": int(short.sum()), f"{upper} words or more": int(long.sum())}
    dropped = {**texts.num_dropped, **{reason: count for reason, count in reasons.items() if count}}
    return Selection(keep_examples(texts.examples, ~short & ~long), dropped)


def label_tensor(examples: Sequence[Example]) -> Tensor | None:
    """Labels `[batch]`, int64 if all are integers, else float32; None if an example has none."""
    labels = [example.label for example in examples if example.label is not None]
    if not labels or len(labels) < len(examples):
        return None
    whole = all(isinstance(label, int) for label in labels)
    return torch.tensor(labels, dtype=torch.int64 if whole else torch.float32)


def check_labels(examples: Sequence[Example]) -> None:
    """UserError if some examples have labels and others do not: training and trials need all of them, or none."""
    unlabelled = next((example.uid for example in examples if example.label is None), None)
    if unlabelled is not None and any(example.label is not None for example in examples):
        raise UserError(f"example {unlabelled} has no label, but others have one: label it or leave it out")


def count_answers(examples: Iterable[Example]) -> int:
    """Number of possible answers: the largest class index + 1; 0 without candidates."""
    has_candidates, largest = False, -1
    for example in examples:
        has_candidates |= example.candidates is not None
        seen = (*(example.candidates or ()), *([example.label] if isinstance(example.label, int) else ()))
        largest = max(largest, *seen, -1)
    return largest + 1 if has_candidates else 0


def candidate_mask(examples: Sequence[Example], num_answers: int) -> Tensor | None:
    """The candidate answers `[batch output]`; all of them for an example without candidates."""
    if all(example.candidates is None for example in examples):
        return None
    width = max([num_answers, *(max(example.candidates, default=-1) + 1 for example in examples if example.candidates)])
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        mask[row, slice(None) if example.candidates is None else list(example.candidates)] = True
    return mask


def pad_batch(rows: Sequence[TokenizedExample], examples: Sequence[Example], *, pad_id: int, num_answers: int) -> Batch:
    """One left-aligned batch with the labels and candidates of the examples."""
    width = max((len(row.ids) for row in rows), default=0)
    lengths = torch.tensor([len(row.ids) for row in rows], dtype=torch.int64)
    return Batch(
        uids=tuple(example.uid for example in examples),
        inputs=_pad_lists([row.ids for row in rows], width, pad_id),
        mask=torch.arange(width) < lengths.unsqueeze(1),
        segments=_pad_lists([row.segments for row in rows], width, 0),
        words=_pad_lists([row.words for row in rows], width, -1),
        labels=label_tensor(examples),
        candidates=candidate_mask(examples, num_answers),
        pad_id=pad_id,
        breaks=_example_breaks(examples, [row.words for row in rows]),
    )


def with_breaks(batch: Batch, examples: Sequence[Example]) -> Batch:
    """The batch of these texts, which knows their sentences also if a tokenizer of a user made it; images unchanged."""
    if batch.breaks is not None or batch.inputs.dim() > 2:
        return batch
    return replace(batch, breaks=_example_breaks(examples, batch.words.tolist()).to(batch.words.device))


def _example_breaks(examples: Sequence[Example], words: Sequence[Sequence[int]]) -> Tensor:
    """What ends behind each word `[batch word]`, where the tokens that the model reads are of these words."""
    breaks = [read_breaks(text_parts(example), {*row}) for row, example in zip(words, examples, strict=True)]
    for example, row, ends in zip(examples, words, breaks, strict=True):
        if max(row, default=-1) >= len(ends):
            raise UserError(
                f"the tokenizer gives a token of example {example.uid} the word number {max(row)}, but its text has "
                f"{len(ends)} words between spaces; let `words` of its batches count these from 0, over all parts"
            )
    return _pad_lists(breaks, max(map(len, breaks), default=0), int(Break.UNREAD)).to(torch.int8)


def _pad_lists(lists: Sequence[list[int]], width: int, pad_value: int) -> Tensor:
    full = [values + [pad_value] * (width - len(values)) for values in lists]
    return torch.tensor(full, dtype=torch.int64).reshape(len(lists), width)


def read_saved_number(saved: Mapping[str, object], name: str) -> int:
    """An integer in the saved state of a tokenizer."""
    value = saved.get(name)
    if not isinstance(value, int):
        raise UserError(f"the saved tokenizer has no number {name!r}: delete this artefact and make it again")
    return value


TRUNCATED = "texts truncated"
"""Remarks of tokenizers on texts, with numbers."""
