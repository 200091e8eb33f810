"""Scores that were made elsewhere, as a method.

Texts are matched by uid, by text, or by what the tokens spell; scores of tokens are added up per word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from heedful.audits.score_alignment import Exclusion, align_scores, spell, token_texts
from heedful.audits.score_files import MIN_CELLS, ScoreRecord, Target, read_score_records
from heedful.catalogue import METHODS
from heedful.data.io import find_path
from heedful.data.label_match import CERTAIN_MATCHES, match_labels
from heedful.data.table import EvaluationTable
from heedful.store.file_digest import FileState, file_state, hash_files
from heedful.types import Attribution, Batch, Corpus, DiskResource, Example, Model, UserError, shorten

_MIN_TEXTS = 10
"""Texts that must be matched, or all if there are fewer."""
_MAX_METHODS = 50


@dataclass(frozen=True)
class ExternalScores:
    """The scores of one method of a file for the texts of a corpus.

    Args:
        scores: uid to explained output to one score per word; the output is None where the file does not say.
        notes: how many texts have scores, and what was left out and why.
    """

    scores: Mapping[str, Mapping[int | None, tuple[float, ...]]]
    notes: tuple[str, ...]

    def find(self, uid: str, target: int) -> tuple[float, ...] | None:
        """The scores of the words of a text for an output; None if the file has none."""
        by_output = self.scores.get(uid, {})
        return by_output.get(target, by_output.get(None))


def read_external(
    path: Path, examples: Sequence[Example], outputs: Sequence[str] = (), *, line_numbers: bool = False
) -> dict[str, ExternalScores]:
    """The scores of each method in a file for these examples, by name.

    Rows that belong to no example or whose tokens do not spell its text are counted; too few matches are an error.

    Args:
        outputs: names of the model's outputs, for the targets.
        line_numbers: the uids only count lines, which other tools count in other ways: a uid alone proves nothing.
    """
    index = _ExampleIndex(examples, line_numbers=line_numbers)
    records = list(read_score_records(path, _max_cells(examples)))
    targets = _target_index(path, records, outputs)
    methods: dict[str, dict[str, dict[int | None, tuple[float, ...]]]] = {}
    lost: dict[str, Counter[Exclusion]] = {}
    for record in records:
        name = record.method or path.stem.split(".")[0] or "given"
        name = f"{name} (given)" if name in METHODS else name
        scores, counts = methods.setdefault(name, {}), lost.setdefault(name, Counter())
        if len(methods) > _MAX_METHODS:
            raise UserError(f"{path}: more than {_MAX_METHODS} methods; is the column of methods right?")
        matched = _match_record(record, index)
        if isinstance(matched, Exclusion):
            counts[matched] += 1
            continue
        uid, words = matched
        by_output = scores.setdefault(uid, {})
        if targets[record.target] in by_output:
            counts[Exclusion.SECOND_ROW] += 1
        else:
            by_output[targets[record.target]] = words
    if not records:
        raise UserError(f"{path}: the file has no scores; give one row per text")
    return {
        name: ExternalScores(*_check_matches(path, name, scores, lost[name], len(examples)))
        for name, scores in methods.items()
    }


def _check_matches(
    path: Path,
    name: str,
    scores: Mapping[str, Mapping[int | None, tuple[float, ...]]],
    lost: Counter[Exclusion],
    total: int,
) -> tuple[Mapping[str, Mapping[int | None, tuple[float, ...]]], tuple[str, ...]]:
    kept = {uid: by_output for uid, by_output in scores.items() if by_output}
    reasons = [f"{count} rows {reason.value}" for reason, count in lost.items()]
    notes = (f"{name}: {path.name} has scores of {len(kept)} of {total} texts", *reasons)
    if len(kept) < min(_MIN_TEXTS, total):
        raise UserError(
            f"{'; '.join(notes)}; at least {min(_MIN_TEXTS, total)} texts are needed: give the text of each row as in "
            "the data, or its id in the id column of the data"
        )
    return kept, notes


class _ExampleIndex:
    """Examples by uid, by text, and by what their words spell."""

    def __init__(self, examples: Sequence[Example], *, line_numbers: bool) -> None:
        self._line_numbers = line_numbers
        self._by_uid = {example.uid: example for example in examples}
        self._by_text: dict[tuple[str, ...], Example] = {}
        self._by_letters: dict[str, list[Example]] = {}
        for example in examples:
            parts = tuple(part for part in example.parts if isinstance(part, str))
            if len(parts) != len(example.parts):
                raise UserError("scores made elsewhere are read for texts only, and the data are images")
            self._by_text.setdefault(tuple(part.strip() for part in parts), example)
            self._by_letters.setdefault(self._letters(example), []).append(example)

    @staticmethod
    def _letters(example: Example) -> str:
        return spell("".join(part for part in example.parts if isinstance(part, str)))

    def find(self, record: ScoreRecord) -> Example | Exclusion:
        """The example that a record belongs to: the text decides, then the tokens, then the uid."""
        named = self._by_uid.get(record.uid) if record.uid is not None else None
        matches = self._spelled(record)
        # A uid may count rows in another way than the data do, so that it only chooses between texts that fit.
        if record.texts:
            exact = self._by_text.get(tuple(text.strip() for text in record.texts))
            if named is not None and self._letters(named).startswith(spell("".join(record.texts))):
                return named
            matches = [exact] if exact else matches
        elif record.tokens is None:
            if self._line_numbers:
                return Exclusion.LINE_NUMBERS
            matches = [named] if named else []
        elif named is not None and (named in matches or not matches):
            # The tokens of a text that was cut off, or that has unknown words, are compared when they are aligned.
            is_known = not self._line_numbers or any(token_texts(record.tokens))
            return named if is_known else Exclusion.LINE_NUMBERS
        elif record.uid is not None and named is None and not self._line_numbers:
            matches = []  # an id of a text that is not in the data
        if len(matches) > 1:
            return Exclusion.SEVERAL_TEXTS
        return matches[0] if matches else Exclusion.NO_TEXT

    def _spelled(self, record: ScoreRecord) -> list[Example]:
        """The examples that the text of a record spells, or all its tokens together."""
        texts: Sequence[str | None] = record.texts or list(token_texts(record.tokens or ()))
        letters = "".join(text for text in texts if text is not None)
        return self._by_letters.get(spell(letters), []) if None not in texts else []


def _max_cells(examples: Sequence[Example]) -> int:
    """Scores that a file needs at most: one per character of each text, padded to the longest, and special tokens."""
    longest = max(
        (sum(len(part) for part in example.parts if isinstance(part, str)) for example in examples), default=0
    )
    return max(MIN_CELLS, len(examples) * (longest + 64))


def _target_index(path: Path, records: Sequence[ScoreRecord], outputs: Sequence[str]) -> dict[Target, int | None]:
    """The output of each target that the records name: by its number, its name, or its place in the file."""
    in_file = {record.target: record.output for record in records if record.target is not None}
    index: dict[Target, int | None] = {None: None}
    if not outputs:  # the model gives one number
        return index | dict.fromkeys(in_file)
    names = [target for target in in_file if isinstance(target, str)]
    matched = match_labels(names, outputs)
    by_name = dict(matched[1]) if matched is not None and matched[0] in CERTAIN_MATCHES else {}
    for target, output in in_file.items():
        number = target if isinstance(target, int) else by_name.get(str(target), output)
        if number is None or not 0 <= number < len(outputs):
            known = shorten(", ".join(outputs[:6]))
            raise UserError(f"{path}: the model has no output {shorten(target)} ({known}); give its name or number")
        index[target] = number
    return index


def _match_record(record: ScoreRecord, index: _ExampleIndex) -> tuple[str, tuple[float, ...]] | Exclusion:
    """The uid of the text of a record and the scores of its words, or why there are none."""
    example = index.find(record)
    if isinstance(example, Exclusion):
        return example
    words = _word_scores(record, example)
    return words if isinstance(words, Exclusion) else (example.uid, words)


def _word_scores(record: ScoreRecord, example: Example) -> tuple[float, ...] | Exclusion:
    """One score per word of all parts, or why the tokens have none."""
    parts = [part.split() for part in example.parts if isinstance(part, str)]
    words = [word for part in parts for word in part]
    if record.spans is not None:
        wrong = next((span for span in record.spans if not 0 <= span[0] < span[1] <= len(words)), None)
        if wrong is not None:
            raise UserError(
                f"{record.location}: words {wrong[0]} to {wrong[1]} are predicted, but the text has {len(words)} words"
            )
        marked = {word for start, end in record.spans for word in range(start, end)}
        return tuple(float(word in marked) for word in range(len(words)))
    if record.tokens is None:
        if len(record.scores) not in (len(words), len(parts[0])):
            raise UserError(
                f"{record.location}: there are {len(record.scores)} scores, but the text has {len(words)} words; give "
                "one score per word, or the tokens"
            )
        return record.scores + (0.0,) * (len(words) - len(record.scores))
    if len(record.tokens) != len(record.scores):
        raise UserError(
            f"{record.location}: there are {len(record.tokens)} tokens, but {len(record.scores)} scores; give one each"
        )
    return align_scores(record.tokens, record.scores, words)


@dataclass(frozen=True)
class ExternalAttributions(DiskResource):
    """The scores that a file has for the texts of a corpus, under one name; the content of the file is its digest.

    The score of a word is divided among its units. A text without scores has no scored unit and zeros: leave it out
    with `covered_uids`.

    Args:
        path: the file.
        name: of the method in the file.
        corpus: the texts, whose test split is explained.
        folder: the data folder of file and corpus; both may also be given by their own paths.
    """

    revision: ClassVar[int] = 2

    path: str
    name: str
    corpus: Corpus
    folder: str = "."

    @property
    def display_name(self) -> str:
        """The name in the file."""
        return self.name

    def digest(self, data: Path) -> str:
        """A hash of the file; the corpus is a field with a digest of its own."""
        return hash_files([find_path(self.path, Path(self.folder))])

    def read(self) -> ExternalScores:
        """The scores by uid, read once per process unless a file changes."""
        return _read_once(self.path, self.corpus, self.folder)[self.name]

    def covered_uids(self, predicted: Mapping[str, int] | None = None) -> frozenset[str]:
        """The texts that have scores; with the predicted outputs by uid, those with scores for the predicted one."""
        table = self.read()
        if predicted is None:
            return frozenset(table.scores)
        return frozenset(uid for uid, target in predicted.items() if table.find(uid, target) is not None)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The scores of the file for each text and target."""
        table = self.read()
        scores = torch.zeros(batch.words.shape, dtype=torch.float64)
        mask = batch.content_mask.cpu().clone()
        words = batch.words.cpu()
        for row, (uid, output) in enumerate(zip(batch.uids, target.tolist(), strict=True)):
            word_scores = table.find(uid, int(output))
            if word_scores is None:
                mask[row] = False
                continue
            numbers = words[row][mask[row]]
            if len(numbers) and int(numbers.max()) >= len(word_scores):
                raise UserError(f"{self.path}: text {uid} has more words than scores; its text has changed")
            units = torch.bincount(numbers, minlength=len(word_scores)).clamp(min=1)
            scores[row, mask[row]] = (torch.tensor(word_scores, dtype=torch.float64) / units)[numbers]
        return Attribution(scores.to(batch.words.device), mask.to(batch.words.device))


def external_methods(path: str | Path, corpus: Corpus, data: Path) -> dict[str, ExternalAttributions]:
    """The methods in a file of scores for the texts of a corpus, by name."""
    folder = "."
    try:
        find_path(path, Path(folder))
        corpus.digest(Path(folder))
    except UserError:
        folder = str(data)
    return {
        name: ExternalAttributions(str(path), name, corpus, folder) for name in _read_once(str(path), corpus, folder)
    }


def _read_once(path: str, corpus: Corpus, folder: str) -> Mapping[str, ExternalScores]:
    file = find_path(path, Path(folder))
    return _read_cached(file, file_state(file), corpus, corpus.digest(Path(folder)), folder)


@lru_cache(maxsize=4)
def _read_cached(
    path: Path, state: FileState, corpus: Corpus, digest: str, folder: str
) -> Mapping[str, ExternalScores]:
    splits = corpus.read(Path(folder))
    line_numbers = isinstance(corpus, EvaluationTable) and corpus.columns.uid is None
    return read_external(path, splits.test, splits.class_names, line_numbers=line_numbers)
