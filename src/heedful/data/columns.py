"""The columns of a user's table: named by the user, or detected by name and content, for every command.

Whatever is decided is said in the notes, and what cannot be decided is asked for in one line.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Literal

from heedful.data.io import TEXT_OR_PATH, Row, check_fields, check_types, declared_classes, file_type
from heedful.data.label_match import CERTAIN_MATCHES, MATCH_NAMES, LabelMatch, LabelOrder, match_labels
from heedful.data.rationales import (
    CHECKED_CELLS,
    FORM_NAMES,
    RationaleCell,
    RationaleForm,
    RationaleReading,
    find_rationale_form,
    read_rationale_cell,
)
from heedful.data.rows import (
    LAYOUT_NOTES,
    NO_LABEL,
    Layout,
    StandardRow,
    finite_number,
    is_blank,
    label_text,
    standard_rows,
    text_of_row,
)
from heedful.types import UserError, check_choice, shorten, user_path

TaskName = Literal["auto", "regression"]
MAX_COLUMNS = 1000
MAX_VALUES = 1000
"""Different values of a column that are remembered; no label has more."""
MAX_IDS = 100_000
"""Ids that are compared with each other."""
NO_COLUMN = "none"
"""Given in place of a column: there is none, whatever the names suggest."""
MAX_NUMERIC_CLASSES = 20
"""Different values of a column without a usual name that may be the label."""

TEXT_NAMES = (
    *("text", "texts", "sentence", "review", "review_text", "content", "comment", "comment_text", "post", "tweet"),
    *("document", "passage", "tokens", "words"),
)
OTHER_TEXT_NAMES = ("body", "message", "description", "utterance", "article", "input", "inputs", "question", "abstract")
"""Names of texts if there is none of the others."""
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"), ("text1", "text2")),
    *(("text_1", "text_2"), ("text_a", "text_b"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("question_1", "question_2"), ("question", "sentence"), ("document", "question"), ("document", "query")),
    *(("passage", "question"), ("context", "question"), ("article", "question"), ("text", "question")),
    *(("source", "target"), ("src", "mt"), ("source", "translation"), ("claim", "evidence_text")),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "sentiment", "gold", "gold_label", "label_text", "label_name"),
    *("classification", "class_index", "class_name", "y", "coarse_label", "target", "emotion", "intent", "topic"),
)
NUMBER_NAMES = ("rating", "stars", "score")
"""Names of labels if there is none of the others: ratings are classes for some models."""
RATIONALE_NAMES = (
    *("rationale", "rationales", "evidence", "evidences", "highlight", "highlights", "highlighted", "marked"),
    *("marked_text", "rationale_spans", "human_rationale", "human_rationales", "marked_words"),
)
ID_NAMES = ("uid", "id", "idx", "post_id", "annotation_id", "example_id", "uuid", "guid", "review_id", "comment_id")

LabelMatching = LabelOrder | Literal["number", "classes", "none"]
Assumed = Literal["header", "text", "label", "rationale"]


@dataclass(frozen=True)
class TableColumns:
    """The columns that the user names; None detects a column, "none" does without one.

    Args:
        text: column of the text, the document or the premise.
        second_text: column of the question or hypothesis of pairs.
        rationale: column of the words that people marked.
        uid: column of ids; without one the rows are numbered.
        rationale_form: how the column of rationales marks words; None detects it.
        task: of a table to train on; "auto" reads real numbers as regression, everything else as classes.
        classes: names in the order of their indices, with which labels are matched; empty takes the labels of train,
            sorted. An audit takes the outputs of its model.
        seed: chooses which 15 % of the training rows become dev, and which test, where these are not given.
    """

    text: str | None = None
    second_text: str | None = None
    label: str | None = None
    rationale: str | None = None
    uid: str | None = None
    rationale_form: str | None = None
    task: TaskName = "auto"
    classes: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rationale_form is not None:
            check_choice("rationale form", self.rationale_form, RationaleForm)
        repeated = next((name for name, count in Counter(self.classes).items() if count > 1), None)
        if repeated is not None:
            raise UserError(f"TableColumns: the class {shorten(repeated)} is given twice; name each class once")


@dataclass(frozen=True)
class DetectedColumns:
    """The columns of a table, and which output of the model, or which class, each label is.

    Args:
        outputs: names of the model's outputs, or of the classes, in order; none for a number.
        label_index: each value of the label column and the index of its output.
        matching: how labels were matched; "beginning" to "order" are assumptions. The labels of "classes" are still to
            be numbered.
        unused: columns whose names fit but whose content does not.
        assumed: what was decided about columns and rationales although another reading fits.
    """

    text: str
    second_text: str | None = None
    label: str | None = None
    rationale: str | None = None
    uid: str | None = None
    outputs: tuple[str, ...] = ()
    label_index: tuple[tuple[str, int], ...] = ()
    matching: LabelMatching = "none"
    rationale_form: RationaleForm | None = None
    layout: Layout = "table"
    unused: tuple[str, ...] = ()
    assumed: tuple[Assumed, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of the text and of the second text."""
        return (self.text,) if self.second_text is None else (self.text, self.second_text)

    @property
    def roles(self) -> dict[str, str]:
        """What each column is: text, second text, label, rationale, id."""
        names = {
            "text": self.text,
            "second text": self.second_text,
            "label": self.label,
            "rationale": self.rationale,
            "id": self.uid,
        }
        return {role: name for role, name in names.items() if name is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was understood of the table, in sentences."""
        text = f"text: column {shorten(self.text)}"
        if self.second_text is not None:
            text += f"; second text: column {shorten(self.second_text)}"
        rationale = "rationale: no column, so plausibility is not tested"
        if self.rationale is not None and self.rationale_form is not None:
            rationale = f"rationale: column {shorten(self.rationale)}, {FORM_NAMES[self.rationale_form]}"
        return (
            *([LAYOUT_NOTES[self.layout]] if self.layout in LAYOUT_NOTES else []),
            text,
            self._label_note(),
            rationale,
            "id: line numbers" if self.uid is None else f"id: column {shorten(self.uid)}",
            *(f"column {shorten(name)} is not used: its content does not fit its name" for name in self.unused),
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed, in sentences with the option that decides it."""
        names = {"text": self.text, "label": self.label, "rationale": self.rationale}
        columns = {role: shorten(name) for role, name in names.items()}
        form = "" if self.rationale_form is None else FORM_NAMES[self.rationale_form]
        sentences: Mapping[Assumed, str] = {
            "header": "the first line of the file holds the names of the columns "
            f"({_list(list(self.roles.values()))}); if it is a row, put a line of names before it",
            "text": f"column {columns['text']} is the text, because of its content; choose with --text-column",
            "label": f"column {columns['label']} is the label, because of its content; choose with --label-column",
            "rationale": f"column {columns['rationale']} holds {form}, although another form fits; choose with "
            "--rationale-form",
        }
        matched: tuple[str, ...] = ()
        if self.matching in MATCH_NAMES and self.matching not in CERTAIN_MATCHES:
            matched = (
                f"the labels are matched with the outputs {MATCH_NAMES[self.matching]} ({self._label_pairs()}); rename "
                "them like the outputs to be sure",
            )
        return (*(sentences[decision] for decision in self.assumed), *matched)

    def _label_pairs(self) -> str:
        ordered = sorted(self.label_index, key=lambda pair: pair[1])
        pairs = ", ".join(f"{shorten(value)} is {self.outputs[index]}" for value, index in ordered[:8])
        return pairs + (", ..." if len(ordered) > 8 else "")

    def _label_note(self) -> str:
        if self.label is None:
            return "label: no column, so accuracy is not known"
        column = f"label: column {shorten(self.label)}"
        if self.matching == "number":
            return f"{column}, numbers"
        if not self.label_index:
            return column
        count = f"{len(self.label_index)} value{'s' if len(self.label_index) > 1 else ''}"
        how = f"matched with the outputs {MATCH_NAMES[self.matching]}"
        how += "" if self.matching in CERTAIN_MATCHES else ", which is an assumption"
        return f"{column}, {count} {how} ({self._label_pairs()})"


def detect_columns(
    path: str | Path, *, outputs: tuple[str, ...] | None = (), columns: TableColumns | None = None
) -> DetectedColumns:
    """The columns of a file for a model with these outputs, none for a number; or, for None, to train a model on.

    A `UserError` names the candidates and the option where the names and contents leave a choice.
    """
    check_types(
        "detect_columns",
        {
            "path": (path, TEXT_OR_PATH),
            "outputs": (outputs, (tuple, NoneType)),
            "columns": (columns, (TableColumns, NoneType)),
        },
    )
    check_types("detect_columns", {f"output {number}": (name, str) for number, name in enumerate(outputs or ())})
    path = user_path(path)
    declared = declared_classes(path) if file_type(path) == ".parquet" else {}
    headed = file_type(path) in (".csv", ".tsv")
    source = RowSource(str(path), lambda: standard_rows(path), declared, has_header=headed)
    return detect_in_rows(source, outputs=outputs, columns=columns or TableColumns())


@dataclass(frozen=True)
class RowSource:
    """Rows that can be read several times.

    Args:
        name: of file or dataset, for messages.
        declared: class names by column, as the `datasets` library writes them into Parquet files.
        has_header: whether the first line of the file holds the names of the columns.
    """

    name: str
    rows: Callable[[], Iterator[StandardRow]]
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_header: bool = False


def detect_in_rows(source: RowSource, *, outputs: tuple[str, ...] | None, columns: TableColumns) -> DetectedColumns:
    """The columns of rows, as `detect_columns` finds those of a file."""
    if outputs is not None and len(outputs) == 1:
        outputs = ()
    finder = _ColumnFinder(source, outputs, columns)
    text, second_text = finder.find_texts()
    taken = {text, second_text}
    uid = finder.find_id(taken)
    detected = DetectedColumns(text, second_text, uid=uid, outputs=outputs or (), layout=finder.layout)
    detected = finder.find_label(detected, taken | {uid})
    detected = finder.find_rationale(detected, taken | {uid, detected.label})
    ids = finder.named(ID_NAMES) if uid is None and columns.uid is None else []
    unused = (*detected.unused, *(name for name in ids if name not in detected.roles.values()))
    return replace(detected, unused=unused, assumed=(*finder.assumed(detected), *detected.assumed))


class _ColumnFacts:
    """Counts over the values of one column."""

    def __init__(self) -> None:
        self.present = self.strings = self.spaced = self.lists = self.token_lists = self.numbers = 0
        self.values: dict[str, None] = {}
        self.many_values = False
        self._ids: set[str] = set()
        self.unique = True

    def add(self, row: Row, column: str) -> None:
        """Count one value."""
        value = row.values[column]
        if is_blank(value):
            return
        self.present += 1
        if isinstance(value, list | dict):
            self.lists += 1
            self.token_lists += bool(value) and isinstance(value, list) and all(isinstance(v, str) for v in value)
            return
        if not isinstance(value, str | int | float):
            return
        text = value.strip() if isinstance(value, str) else label_text(row, column) or ""
        if isinstance(value, str):
            self.strings += 1
            self.spaced += len(text.split(None, 1)) > 1
            self.lists += text[0] in "[{"
        self.numbers += finite_number(text) is not None
        if len(self._ids) < MAX_IDS:
            key = text if len(text) < 100 else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            self.unique &= key not in self._ids
            self._ids.add(key)
        if text not in self.values:
            if len(self.values) < MAX_VALUES and len(text) <= 200:
                self.values[text] = None
            else:
                self.many_values = True

    @property
    def is_text(self) -> bool:
        """Whether most values are texts or lists of words, and not the same one in all rows."""
        constant = self.present > 1 and len(self.values) == 1 and not self.many_values
        return 2 * max(self.strings, self.token_lists) > self.present and not constant

    @property
    def is_prose(self) -> bool:
        """Whether most values are texts of several words, and not the same few."""
        few = not self.many_values and len(self.values) <= 20 and 2 * len(self.values) <= self.present
        return 2 * self.spaced > self.present and 2 * self.lists < self.present and not few

    @property
    def labels(self) -> tuple[str, ...]:
        """The different values without those that stand for no label."""
        if set(self.values) == {"-1", "1"}:  # a class may be called -1, if the only other one is 1
            return tuple(self.values)
        return tuple(value for value in self.values if value not in NO_LABEL)


class _ColumnFinder:
    """The columns of one table by role."""

    def __init__(self, source: RowSource, outputs: tuple[str, ...] | None, requested: TableColumns) -> None:
        self.source, self.outputs, self.chosen = source, outputs, requested
        self.layout: Layout = "table"
        self.facts: dict[str, _ColumnFacts] = {}
        self.rows = 0
        annotators = wrong = 0
        for standard in source.rows():
            row, self.layout = standard.row, standard.layout
            self.rows += 1
            annotators, wrong = annotators + standard.annotators, wrong + len(standard.wrong_lengths)
            if wrong > 10 and 2 * wrong > annotators:
                raise UserError(
                    f"{row.location}: a rationale has {standard.wrong_lengths[-1]} entries, but the post has "
                    f"{len(str(row.values['text']).split())} words, and {wrong} of {annotators} do not fit; give one 0 "
                    "or 1 per word"
                )
            for column in row.values:
                if column not in self.facts:
                    if len(self.facts) == MAX_COLUMNS:
                        raise UserError(f"{row.location}: more than {MAX_COLUMNS} different columns; is it a table?")
                    self.facts[column] = _ColumnFacts()
                self.facts[column].add(row, column)

    def _plain_rows(self) -> Iterator[Row]:
        return (standard.row for standard in self.source.rows())

    def named(self, names: Sequence[str]) -> list[str]:
        """The columns with one of these names, in the order of the names."""
        keys = {column: _column_key(column) for column in self.facts}
        return [column for name in names for column, key in keys.items() if key == name]

    def check_given(self, column: str, option: str) -> str:
        """A column that the user named; UserError lists the existing ones."""
        if column not in self.facts:
            raise UserError(
                f"{self.source.name}: no column {shorten(column)} ({option}); the columns are {_list(list(self.facts))}"
            )
        return column

    def assumed(self, columns: DetectedColumns) -> Iterator[Assumed]:
        """What was decided about the names of the columns, the text and the label by content alone."""
        texts = (*TEXT_NAMES, *OTHER_TEXT_NAMES, *(name for pair in PAIR_NAMES for name in pair))
        labels = (*LABEL_NAMES, *NUMBER_NAMES)
        known = self.named((*texts, *labels, *RATIONALE_NAMES, *ID_NAMES))
        if self.chosen.text is None and not known and self.source.has_header:
            yield "header"
        if self.chosen.text is None and columns.text not in self.named(texts):
            yield "text"
        if columns.label is not None and self.chosen.label is None and columns.label not in self.named(labels):
            yield "label"

    def find_texts(self) -> tuple[str, str | None]:
        """The column of the text, and of the second text of pairs."""
        second = self.chosen.second_text
        if self.chosen.text is not None:
            text = self.check_given(self.chosen.text, "--text-column")
            has_second = second is not None and (second != NO_COLUMN or second in self.facts)
            return text, self.check_given(str(second), "--second-column") if has_second else None
        usable = [column for column, facts in self.facts.items() if facts.is_text]
        if second is not None and second != NO_COLUMN:
            self.check_given(second, "--second-column")
            usable = [column for column in usable if column != second]
        named = [column for column in self.named(TEXT_NAMES) if column in usable]
        named = named or [column for column in self.named(OTHER_TEXT_NAMES) if column in usable]
        # Lists of words often stand beside the text that they come from.
        named = [column for column in named if self.facts[column].strings] or named
        pairs = [] if second is not None else self._find_pairs(usable)
        rest = [column for column in named if not any(column in pair for pair in pairs)]
        if len(pairs) == 1 and not rest:
            return pairs[0]
        if not pairs and not rest:
            labels = self.named((*LABEL_NAMES, *RATIONALE_NAMES, *ID_NAMES))
            rest = [column for column in usable if self.facts[column].is_prose and column not in labels]
            plain = [column for column in usable if column not in labels and not self._may_be_label(column)]
            rest = rest or plain
        if not pairs and len(rest) == 1:
            return rest[0], None if second == NO_COLUMN else second
        if not pairs and not rest:
            raise UserError(
                f"{self.source.name}: no text column found among {_list(list(self.facts))}; name it with --text-column"
            )
        candidates = [" with ".join(map(shorten, pair)) for pair in pairs] + [shorten(column) for column in rest]
        raise UserError(
            f"{self.source.name}: the text may be column {' or '.join(candidates[:6])}; choose with --text-column, and "
            "the second text of a pair with --second-column"
        )

    def _find_pairs(self, usable: Sequence[str]) -> list[tuple[str, str]]:
        pairs = []
        for names in PAIR_NAMES:
            first, second = ([column for column in self.named([name]) if column in usable] for name in names)
            if len(first) == len(second) == 1:
                pairs.append((first[0], second[0]))
        # A target is a text only if it reads like one: elsewhere it is a label.
        return [pair for pair in pairs if _column_key(pair[1]) != "target" or self.facts[pair[1]].is_prose]

    def _may_be_label(self, column: str) -> bool:
        """Whether the values are names or numbers of outputs, or few; one value in all rows may be anything."""
        facts = self.facts[column]
        if self.outputs is None:
            few = not facts.many_values and 1 < len(facts.labels) <= min(MAX_NUMERIC_CLASSES, facts.present / 2)
            return few and not facts.lists
        matched = self._match(column) if len(facts.labels) > 1 else None
        return matched is not None and matched[0] in CERTAIN_MATCHES

    def _match(self, column: str) -> LabelMatch | None:
        """The outputs of a column's values; numbers stand for the names that a dataset of the hub declares."""
        facts, outputs = self.facts[column], self.outputs or ()
        names = {str(number): name for number, name in enumerate(self.source.declared.get(column, ()))}
        if facts.labels and set(facts.labels) <= set(names):
            matched = match_labels([names[value] for value in facts.labels], outputs)
            if matched is not None and matched[0] in ("name", "beginning", "united"):
                index = dict(matched[1])
                return matched[0], tuple((value, index[names[value]]) for value in facts.labels)
        return None if facts.many_values else match_labels(facts.labels, outputs)

    def find_id(self, taken: set[str | None]) -> str | None:
        """The column of ids, if it has one for every row and none twice."""
        if self.chosen.uid is not None and (self.chosen.uid != NO_COLUMN or self.chosen.uid in self.facts):
            column = self.check_given(self.chosen.uid, "--id-column")
            if not self._is_id(column):
                self._refuse_ids(column)
            return column
        candidates = [] if self.chosen.uid == NO_COLUMN else self.named(ID_NAMES)
        return next((column for column in candidates if column not in taken and self._is_id(column)), None)

    def _is_id(self, column: str) -> bool:
        facts = self.facts[column]
        return facts.present == self.rows and facts.unique and not facts.lists

    def _refuse_ids(self, column: str) -> None:
        """UserError with the first row that has no id, or that of another row."""
        locations: dict[str, str] = {}
        for row in self._plain_rows():
            uid = label_text(row, column) if column in row.values else None
            fault = "no id" if uid is None else f"the id {shorten(uid)} of {locations[uid]}" if uid in locations else ""
            if fault or uid is None:
                raise UserError(
                    f"{row.location}: {fault} in column {shorten(column)}; give each row its own id, or choose no id "
                    "column (--id-column none)"
                )
            locations[uid] = row.location

    def find_label(self, columns: DetectedColumns, taken: set[str | None]) -> DetectedColumns:
        """The columns with that of the label, and the output of each of its values."""
        names = self._label_names(taken)
        if not names:
            return columns
        if self.outputs is None:
            return replace(columns, label=self._first_of_equal(names), matching="classes")
        if not self.outputs:
            return replace(columns, label=self._number_column(names), matching="number")
        usable = {name: match for name in names if (match := self._match(name)) is not None}
        if not usable:
            raise UserError(self._no_match(names[0]))
        if len(usable) > 1:
            usable = {name: match for name, match in usable.items() if name == self._best_of_equal(usable)}
        (label, (how, index)) = next(iter(usable.items()))
        return replace(columns, label=label, matching=how, label_index=index)

    def _label_names(self, taken: set[str | None]) -> list[str]:
        """The columns that may hold the label."""
        requested = self.chosen.label
        if requested is not None:
            without = requested == NO_COLUMN and NO_COLUMN not in self.facts
            return [] if without else [self.check_given(requested, "--label-column")]
        free = [column for column in self.facts if column not in taken]
        named = [column for column in self.named(LABEL_NAMES) if column in free]
        named = named or [column for column in self.named(NUMBER_NAMES) if column in free]
        named = [column for column in named if self.facts[column].present]
        if self.outputs is not None:  # a table to train on must have labels: its reader names the row without one
            named = [column for column in named if not self.facts[column].lists]
        if named:
            return named
        others = self.named((*RATIONALE_NAMES, *ID_NAMES))
        unnamed = [column for column in free if column not in others]
        if self.outputs:
            return [column for column in unnamed if self._may_be_label(column)]
        numeric = [name for name in unnamed if 0 < self.facts[name].numbers == self.facts[name].present]
        if self.outputs is None:
            numeric = [name for name in unnamed if name in numeric or self._may_be_label(name)]
        return numeric if len(numeric) == 1 else []

    def _first_of_equal(self, names: Sequence[str]) -> str:
        """The first column, if the others only have other names for its classes."""
        pairs: dict[str, set[tuple[str, str]]] = {name: set() for name in names[1:]}
        for row in self._plain_rows() if len(names) > 1 else ():
            labels = {name: label_text(row, name) or "" for name in names if name in row.values}
            for name in names[1:]:
                pairs[name].add((labels.get(names[0], ""), labels.get(name, "")))
        for values in pairs.values():
            if len(values) > len({first for first, _ in values}) or len(values) > len({second for _, second in values}):
                raise UserError(self._ambiguous("label", names, "--label-column"))
        return names[0]

    def _number_column(self, names: Sequence[str]) -> str:
        numeric = [name for name in names if self.facts[name].numbers == self.facts[name].present]
        if len(numeric) == 1:
            return numeric[0]
        if not numeric:
            raise UserError(
                f"{self.source.name}: the model gives a number, but column {shorten(names[0])} does not hold numbers; "
                "choose another with --label-column, or none with --label-column none"
            )
        raise UserError(self._ambiguous("label", numeric, "--label-column"))

    def _ambiguous(self, role: str, names: Sequence[str], option: str) -> str:
        candidates = " or ".join(shorten(name) for name in names[:6])
        return f"{self.source.name}: the {role} may be column {candidates}; choose with {option}"

    def _no_match(self, name: str) -> str:
        values, outputs = self.facts[name].labels, self.outputs or ()
        shown = ", ".join(shorten(value) for value in values[:6]) + (", ..." if len(values) > 6 else "")
        return (
            f"{self.source.name}: the labels in column {shorten(name)} ({shown or 'none'}) do not match the "
            f"{len(outputs)} outputs of the model ({shorten(', '.join(outputs[:6]))}); rename the labels, or "
            "choose another column with --label-column, or none with --label-column none"
        )

    def _best_of_equal(self, matches: Mapping[str, LabelMatch]) -> str:
        """The column whose values are matched best, if all columns say the same of every row."""
        names = list(matches)
        index = [dict(matches[name][1]) for name in names]
        for row in self._plain_rows():
            texts = [label_text(row, name) if name in row.values else None for name in names]
            outputs = {of_text.get(text) for of_text, text in zip(index, texts, strict=True) if text is not None}
            if len(outputs) > 1:
                raise UserError(self._ambiguous("label", names, "--label-column"))
        return min(names, key=lambda name: list(MATCH_NAMES).index(matches[name][0]))

    def find_rationale(self, columns: DetectedColumns, taken: set[str | None]) -> DetectedColumns:
        """The columns with that of the rationales, and their form."""
        requested = self.chosen.rationale
        if requested == NO_COLUMN and NO_COLUMN not in self.facts:
            return columns
        if requested is not None:
            names = [self.check_given(requested, "--rationale-column")]
        else:
            names = [name for name in self.named(RATIONALE_NAMES) if name not in taken and self.facts[name].present]
        forms = {name: reading for name in names if (reading := self._reading(columns, name)) is not None}
        unused = tuple(name for name in names if name not in forms)
        if requested is not None and not forms:
            raise UserError(
                f"{self.source.name}: column {shorten(requested)} marks no words of the texts; see 'Rationales' in "
                "docs/audit.md, name its form with --rationale-form, or choose another with --rationale-column"
            )
        if len(forms) > 1:
            raise UserError(self._ambiguous("rationale", list(forms), "--rationale-column"))
        if self.chosen.rationale_form is not None and not forms:
            raise UserError(f"{self.source.name}: no rationale column found; name it with --rationale-column")
        for name, reading in forms.items():
            assumed: tuple[Assumed, ...] = ("rationale",) if reading.is_assumed else ()
            columns = replace(columns, rationale=name, rationale_form=reading.form, assumed=assumed)
        return replace(columns, unused=unused)

    def _reading(self, columns: DetectedColumns, name: str) -> RationaleReading | None:
        """The form of a column of rationales, as it is given or found; None if it has none."""
        for form in FORM_NAMES:
            if form == self.chosen.rationale_form:
                return RationaleReading(form)
        return find_rationale_form(self._cells(columns, name), name)

    def _cells(self, columns: DetectedColumns, name: str) -> Iterator[RationaleCell]:
        for number, row in enumerate(self._plain_rows()):
            parts = text_of_row(row, columns.texts)
            if parts is not None:
                yield read_rationale_cell(row.values.get(name), parts, row.location)
            if number > CHECKED_CELLS:
                return


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(shorten(name) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def _column_key(column: str) -> str:
    """The name of a column without case, and with _ between words."""
    return re.sub(r"\W+", "_", column.strip().casefold()).strip("_")
