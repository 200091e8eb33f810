"""The user's texts for an audit: columns found by name and content, labels matched with the outputs of a model.

All rows are one `test` split, because the model is given. Whatever is decided is said in the notes, and what cannot be
decided is asked for in one line. Besides plain tables this reads HateXplain's own `dataset.json` and ERASER's
annotations with their folder of documents.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import ClassVar, Literal

from heedful.data._evaluation_rows import NO_LABEL, DiskReader, RowReader, SampleReader, finite_number, text_of_row
from heedful.data.io import (
    OPTIONAL_TEXT,
    TEXT_OR_PATH,
    FileCorpus,
    Row,
    check_types,
    declared_classes,
    file_type,
    find_path,
    is_present,
    iterate_rows,
)
from heedful.data.label_match import CERTAIN_MATCHES, HATEXPLAIN_CLASSES, LabelMatch, LabelOrder, match_labels
from heedful.data.rationales import (
    CHECKED_CELLS,
    FORM_NAMES,
    RationaleCell,
    RationaleForm,
    RationaleReading,
    find_rationale_form,
    read_rationale_cell,
)
from heedful.data.table import DEFAULT_WORDS, label_text
from heedful.data.tokenization import Words
from heedful.store.recipe import added_field
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import Splits, UserError, check_choice, shorten, user_path

MAX_TEXTS = 20_000
"""Texts that are kept for an audit."""
MAX_COLUMNS = 1000
MAX_VALUES = 1000
"""Different values of a column that are remembered; no label has more."""
MAX_IDS = 100_000
"""Ids that are compared with each other."""
MAX_DOCUMENT_SIZE = 1 << 24
NO_COLUMN = "none"
"""Given in place of a column: there is none, whatever the names suggest."""

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

LabelMatching = LabelOrder | Literal["number", "none"]
MATCH_NAMES: Mapping[LabelMatching, str] = {
    "name": "by name",
    "index": "by number",
    "beginning": "by the beginning of their names",
    "united": "by uniting hate speech and offensive",
    "counted": "by number, counted from 0",
    "order": "by order",
}
Assumed = Literal["header", "text", "label", "rationale"]
Layout = Literal["table", "hatexplain", "eraser"]
LAYOUT_NOTES: Mapping[Layout, str] = {
    "hatexplain": "the file has HateXplain's own form: a label is that of most annotators, none if no label has most; "
    "a word is marked if at least half of those who marked words marked it; normal posts have no rationale",
    "eraser": "the file has ERASER's form, with the documents in the folder docs beside it",
}


@dataclass(frozen=True)
class GivenColumns:
    """The columns that the user named; None finds a column, "none" does without one.

    Args:
        rationale_form: how the column of rationales marks words; None finds it.
    """

    text: str | None = None
    second_text: str | None = None
    label: str | None = None
    rationale: str | None = None
    uid: str | None = None
    rationale_form: str | None = None

    def __post_init__(self) -> None:
        check_types("GivenColumns", {name: (value, OPTIONAL_TEXT) for name, value in vars(self).items()})
        if self.rationale_form is not None:
            check_choice("rationale form", self.rationale_form, RationaleForm)


@dataclass(frozen=True)
class EvaluationColumns:
    """The columns of a table, and which output of the model each label is.

    Args:
        outputs: names of the model's outputs in order; none for a number.
        label_index: each value of the label column and the index of its output.
        matching: how labels were matched; all but "name" and "index" are assumptions.
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
    assumed: tuple[Assumed, ...] = added_field(())

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
        return (*(sentences[each] for each in self.assumed), *matched)

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
        count = f"{len(self.label_index)} value{'s' if len(self.label_index) > 1 else ''}"
        how = f"matched with the outputs {MATCH_NAMES[self.matching]}"
        how += "" if self.matching in CERTAIN_MATCHES else ", which is an assumption"
        return f"{column}, {count} {how} ({self._label_pairs()})"


def detect_columns(
    path: str | Path, *, outputs: tuple[str, ...] = (), given: GivenColumns | None = None
) -> EvaluationColumns:
    """The columns of a table for a model with these outputs (none for a number).

    A `UserError` names the candidates and the option where the names and contents leave a choice.
    """
    check_types(
        "detect_columns",
        {"path": (path, TEXT_OR_PATH), "outputs": (outputs, tuple), "given": (given, (GivenColumns, NoneType))},
    )
    check_types("detect_columns", {f"output {number}": (name, str) for number, name in enumerate(outputs)})
    path, given = user_path(path), given or GivenColumns()
    outputs = outputs if len(outputs) > 1 else ()
    finder = _ColumnFinder(path, outputs, given)
    text, second_text = finder.find_texts()
    taken = {text, second_text}
    uid = finder.find_id(taken)
    columns = EvaluationColumns(text, second_text, uid=uid, outputs=outputs, layout=finder.layout)
    columns = finder.find_label(columns, taken | {uid})
    columns = finder.find_rationale(columns, taken | {uid, columns.label})
    ids = finder.named(ID_NAMES) if uid is None and finder.given.uid is None else []
    unused = (*columns.unused, *(name for name in ids if name not in columns.roles.values()))
    return replace(columns, unused=unused, assumed=(*finder.assumed(columns), *columns.assumed))


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
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
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
        """Whether most values are texts or lists of words; one text in all rows is no text to explain."""
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
        found = [value for value in self.values if value not in NO_LABEL]
        # A class may be called -1, if the only other one is 1.
        return tuple(self.values) if set(self.values) == {"-1", "1"} else tuple(found)


class _ColumnFinder:
    """The columns of one file by role."""

    def __init__(self, path: Path, outputs: tuple[str, ...], given: GivenColumns) -> None:
        self.path, self.outputs, self.given = path, outputs, given
        self.layout: Layout = "table"
        self.facts: dict[str, _ColumnFacts] = {}
        self.declared = declared_classes(path) if file_type(path) == ".parquet" else {}
        self.rows = 0
        annotators = wrong = 0
        for standard in _standard_rows(path):
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

    def named(self, names: Sequence[str]) -> list[str]:
        """The columns with one of these names, in the order of the names."""
        keys = {column: _column_key(column) for column in self.facts}
        return [column for name in names for column, key in keys.items() if key == name]

    def check_given(self, column: str, option: str) -> str:
        """A column that the user named; UserError lists the existing ones."""
        if column not in self.facts:
            raise UserError(
                f"{self.path}: no column {shorten(column)} ({option}); the columns are {_list(list(self.facts))}"
            )
        return column

    def assumed(self, columns: EvaluationColumns) -> Iterator[Assumed]:
        """What was decided about the names of the columns, the text and the label by content alone."""
        texts = (*TEXT_NAMES, *OTHER_TEXT_NAMES, *(name for pair in PAIR_NAMES for name in pair))
        labels = (*LABEL_NAMES, *NUMBER_NAMES)
        known = self.named((*texts, *labels, *RATIONALE_NAMES, *ID_NAMES))
        if self.given.text is None and not known and file_type(self.path) in (".csv", ".tsv"):
            yield "header"
        if self.given.text is None and columns.text not in self.named(texts):
            yield "text"
        if columns.label is not None and self.given.label is None and columns.label not in self.named(labels):
            yield "label"

    def find_texts(self) -> tuple[str, str | None]:
        """The column of the text, and of the second text of pairs."""
        second = self.given.second_text
        if self.given.text is not None:
            text = self.check_given(self.given.text, "--text-column")
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
                f"{self.path}: no column of texts is found among {_list(list(self.facts))}; name it with --text-column"
            )
        candidates = [" with ".join(map(shorten, pair)) for pair in pairs] + [shorten(column) for column in rest]
        raise UserError(
            f"{self.path}: the text may be column {' or '.join(candidates[:6])}; choose with --text-column, and the "
            "second text of a pair with --second-column"
        )

    def _find_pairs(self, usable: Sequence[str]) -> list[tuple[str, str]]:
        found = []
        for first, second in PAIR_NAMES:
            columns = [[each for each in self.named([name]) if each in usable] for name in (first, second)]
            if all(len(each) == 1 for each in columns):
                found.append((columns[0][0], columns[1][0]))
        # A target is a text only if it reads like one: elsewhere it is a label.
        return [pair for pair in found if _column_key(pair[1]) != "target" or self.facts[pair[1]].is_prose]

    def _may_be_label(self, column: str) -> bool:
        """Whether the values are names or numbers of outputs; one value in all rows may be anything."""
        matched = self._match(column) if len(self.facts[column].labels) > 1 else None
        return matched is not None and matched[0] in CERTAIN_MATCHES

    def _match(self, column: str) -> LabelMatch | None:
        """The outputs of a column's values; numbers stand for the names that a dataset of the hub declares."""
        facts = self.facts[column]
        names = {str(number): name for number, name in enumerate(self.declared.get(column, ()))}
        if facts.labels and set(facts.labels) <= set(names):
            matched = match_labels([names[value] for value in facts.labels], self.outputs)
            if matched is not None and matched[0] in ("name", "beginning", "united"):
                outputs = dict(matched[1])
                return matched[0], tuple((value, outputs[names[value]]) for value in facts.labels)
        return None if facts.many_values else match_labels(facts.labels, self.outputs)

    def find_id(self, taken: set[str | None]) -> str | None:
        """The column of ids, if it has one for every row and none twice."""
        if self.given.uid is not None and (self.given.uid != NO_COLUMN or self.given.uid in self.facts):
            column = self.check_given(self.given.uid, "--id-column")
            if not self._is_id(column):
                raise UserError(f"{self.path}: column {shorten(column)} has empty or repeated ids; choose no id column")
            return column
        candidates = [] if self.given.uid == NO_COLUMN else self.named(ID_NAMES)
        return next((column for column in candidates if column not in taken and self._is_id(column)), None)

    def _is_id(self, column: str) -> bool:
        facts = self.facts[column]
        return facts.present == self.rows and facts.unique and not facts.lists

    def find_label(self, columns: EvaluationColumns, taken: set[str | None]) -> EvaluationColumns:
        """The columns with that of the label, and the output of each of its values."""
        given = self.given.label
        if given == NO_COLUMN and NO_COLUMN not in self.facts:
            return columns
        if given is not None:
            names = [self.check_given(given, "--label-column")]
        else:
            free = [column for column in self.facts if column not in taken]
            names = [column for column in self.named(LABEL_NAMES) if column in free]
            names = names or [column for column in self.named(NUMBER_NAMES) if column in free]
            names = [column for column in names if self.facts[column].present and not self.facts[column].lists]
            others = self.named((*RATIONALE_NAMES, *ID_NAMES))
            unnamed = [column for column in free if column not in others]
            if not names and self.outputs:
                names = [column for column in unnamed if self._may_be_label(column)]
            elif not names:
                numeric = [name for name in unnamed if 0 < self.facts[name].numbers == self.facts[name].present]
                names = numeric if len(numeric) == 1 else []
        if not names:
            return columns
        if not self.outputs:
            return replace(columns, label=self._number_column(names), matching="number")
        usable = {name: match for name in names if (match := self._match(name)) is not None}
        if not usable:
            raise UserError(self._no_match(names[0]))
        if len(usable) > 1:
            usable = {name: match for name, match in usable.items() if name == self._best_of_equal(usable)}
        (label, (how, index)) = next(iter(usable.items()))
        return replace(columns, label=label, matching=how, label_index=index)

    def _number_column(self, names: Sequence[str]) -> str:
        numeric = [name for name in names if self.facts[name].numbers == self.facts[name].present]
        if len(numeric) == 1:
            return numeric[0]
        if not numeric:
            raise UserError(
                f"{self.path}: the model gives a number, but column {shorten(names[0])} does not hold numbers; choose "
                "another with --label-column, or none with --label-column none"
            )
        raise UserError(self._ambiguous("label", numeric, "--label-column"))

    def _ambiguous(self, role: str, names: Sequence[str], option: str) -> str:
        candidates = " or ".join(shorten(name) for name in names[:6])
        return f"{self.path}: the {role} may be column {candidates}; choose with {option}"

    def _no_match(self, name: str) -> str:
        values = self.facts[name].labels
        shown = ", ".join(shorten(value) for value in values[:6]) + (", ..." if len(values) > 6 else "")
        return (
            f"{self.path}: the labels in column {shorten(name)} ({shown or 'none'}) do not match the "
            f"{len(self.outputs)} outputs of the model ({shorten(', '.join(self.outputs[:6]))}); rename the labels, or "
            "choose another column with --label-column, or none with --label-column none"
        )

    def _best_of_equal(self, matches: Mapping[str, LabelMatch]) -> str:
        """The column whose values are matched best, if all columns say the same of every row."""
        names = list(matches)
        index = [dict(matches[name][1]) for name in names]
        for row in (standard.row for standard in _standard_rows(self.path)):
            texts = [label_text(row, name) if name in row.values else None for name in names]
            found = {index[place].get(text) for place, text in enumerate(texts) if text is not None}
            if len(found) > 1:
                raise UserError(self._ambiguous("label", names, "--label-column"))
        return min(names, key=lambda name: list(MATCH_NAMES).index(matches[name][0]))

    def find_rationale(self, columns: EvaluationColumns, taken: set[str | None]) -> EvaluationColumns:
        """The columns with that of the rationales, and their form."""
        given = self.given.rationale
        if given == NO_COLUMN and NO_COLUMN not in self.facts:
            return columns
        if given is not None:
            names = [self.check_given(given, "--rationale-column")]
        else:
            names = [name for name in self.named(RATIONALE_NAMES) if name not in taken and self.facts[name].present]
        forms: dict[str, RationaleReading] = {}
        for name in names:
            reading = self._reading(columns, name)
            if reading is not None:
                forms[name] = reading
        unused = tuple(name for name in names if name not in forms)
        if given is not None and not forms:
            raise UserError(
                f"{self.path}: column {shorten(given)} marks no words of the texts; see 'Rationales' in docs/audit.md, "
                "name its form with --rationale-form, or choose another with --rationale-column"
            )
        if len(forms) > 1:
            raise UserError(self._ambiguous("rationale", list(forms), "--rationale-column"))
        if self.given.rationale_form is not None and not forms:
            raise UserError(f"{self.path}: no column of rationales is found; name it with --rationale-column")
        for name, reading in forms.items():
            assumed: tuple[Assumed, ...] = ("rationale",) if reading.is_assumed else ()
            columns = replace(columns, rationale=name, rationale_form=reading.form, assumed=assumed)
        return replace(columns, unused=unused)

    def _reading(self, columns: EvaluationColumns, name: str) -> RationaleReading | None:
        """The form of a column of rationales, as it is given or found; None if it has none."""
        for form in FORM_NAMES:
            if form == self.given.rationale_form:
                return RationaleReading(form)
        return find_rationale_form(self._cells(columns, name), name)

    def _cells(self, columns: EvaluationColumns, name: str) -> Iterator[RationaleCell]:
        for number, standard in enumerate(_standard_rows(self.path)):
            row = standard.row
            parts = text_of_row(columns, row)
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


@dataclass(frozen=True)
class _StandardRow:
    """A row as that of a plain table.

    Args:
        layout: the form of the file.
        annotators: lists of marks in HateXplain's form.
        wrong_lengths: the lengths of those that do not fit the post: one post of the published file has such a list.
    """

    row: Row
    layout: Layout = "table"
    annotators: int = 0
    wrong_lengths: tuple[int, ...] = ()


def _standard_rows(path: Path) -> Iterator[_StandardRow]:
    """The rows of a file as those of a plain table."""
    documents = path.parent / "docs"
    for row in iterate_rows(path):
        if "post_tokens" in row.values and "annotators" in row.values:
            yield _hatexplain_row(row)
        elif "evidences" in row.values and "annotation_id" in row.values and is_present(documents, "folder"):
            yield _StandardRow(_eraser_row(row, documents), "eraser")
        else:
            yield _StandardRow(row)


def _hatexplain_row(row: Row) -> _StandardRow:
    """A post of HateXplain: joined words, the label of most annotators, and the words that half of them marked.

    Posts without a label of their own, and normal ones, have no rationale, as in the paper.
    """
    tokens = row.value("post_tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{row.location}: post_tokens is {shorten(tokens)}; give a list of words")
    label = _majority_label(row)
    lists = row.values.get("rationales") or []
    if not isinstance(lists, list):
        raise UserError(f"{row.location}: rationales is {shorten(lists)}; give one list of 0 and 1 per annotator")
    for each in lists:
        if not isinstance(each, list) or not all(isinstance(mark, int | float) and mark in (0, 1) for mark in each):
            raise UserError(f"{row.location}: rationales has {shorten(each)}; give one list of 0 and 1 per annotator")
    marks = [each for each in lists if len(each) == len(tokens)]
    rationale: list[int] | None = None
    if marks and label not in (None, "normal"):
        votes = zip(tokens, (sum(column) for column in zip(*marks, strict=True)), strict=True)
        rationale = [int(2 * vote >= len(marks)) for token, vote in votes for _ in token.split()]
    uid = row.values.get("post_id", row.values.get("id"))
    values = {
        **({} if uid is None else {"id": uid}),
        "text": " ".join(tokens),
        "label": label,
        "rationale": rationale,
    }
    wrong = tuple(len(each) for each in lists if len(each) != len(tokens))
    return _StandardRow(Row(row.source, row.line, values, row.line_name), "hatexplain", len(lists), wrong)


def _majority_label(row: Row) -> str | None:
    """The label of most annotators; None if no label has more than the others."""
    annotators = row.value("annotators")
    labels: object = annotators.get("label") if isinstance(annotators, dict) else annotators
    if isinstance(annotators, list):
        labels = [each.get("label") if isinstance(each, dict) else each for each in annotators]
    if not isinstance(labels, list):
        raise UserError(f"{row.location}: annotators is {shorten(annotators)}; give a list with a label each")
    names = []
    for label in labels:
        if isinstance(label, int) and 0 <= label < len(HATEXPLAIN_CLASSES):
            label = HATEXPLAIN_CLASSES[label]
        if not isinstance(label, str):
            raise UserError(f"{row.location}: an annotator has the label {shorten(label)}; give a name")
        names.append(label)
    (first, votes), *others = [*Counter(names).most_common(2), (None, 0)][:2]
    return first if first is not None and all(count < votes for _, count in others) else None


def _eraser_row(row: Row, documents: Path) -> Row:
    """An annotation of ERASER with its document."""
    evidences = row.value("evidences")
    groups = evidences if isinstance(evidences, list) else []
    spans = [span for group in groups for span in (group if isinstance(group, list) else [group])]
    if not all(isinstance(span, dict) for span in spans) or not isinstance(evidences, list):
        raise UserError(f"{row.location}: evidences is {shorten(evidences)}; give lists of spans with start_token")
    ids = row.values.get("docids") or sorted({str(span.get("docid")) for span in spans}) or [row.value("annotation_id")]
    if not isinstance(ids, list) or len(ids) != 1 or not isinstance(ids[0], str):
        raise UserError(f"{row.location}: it has the documents {shorten(ids)}; only one document per text is read")
    name = ids[0]
    if Path(name).name != name or not is_present(documents / name, "file"):
        raise UserError(f"{row.location}: no document {shorten(name)} in {documents}; check the folder")
    values: dict[str, object] = {
        "id": row.value("annotation_id"),
        "document": _read_document(documents / name),
        "label": row.values.get("classification"),
        "rationale": spans,
    }
    query = row.values.get("query")
    if isinstance(query, str) and query.strip():
        values["question"] = query
    return Row(row.source, row.line, values, row.line_name)


def _read_document(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_DOCUMENT_SIZE:
            raise UserError(f"{path}: longer than {MAX_DOCUMENT_SIZE} bytes; is it a document?")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8; save the document as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the file and its permissions") from error


@dataclass(frozen=True)
class EvaluationTable(FileCorpus):
    """The texts of one file as the test split for a model that is given; train and dev are empty.

    Args:
        limit: most texts that are kept, chosen by a hash of (seed, text); None keeps all. Above `MAX_TEXTS` the texts
            are kept on disk.
    """

    path: str
    columns: EvaluationColumns
    limit: int | None = MAX_TEXTS
    seed: int = 0
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        check_types(
            "EvaluationTable",
            {
                "path": (self.path, TEXT_OR_PATH),
                "columns": (self.columns, EvaluationColumns),
                "limit": (self.limit, (int, NoneType)),
                "seed": (self.seed, int),
            },
        )
        if self.limit is not None and self.limit < 1:
            raise UserError(f"EvaluationTable: limit is {self.limit}; give a number from 1, or None for all texts")

    @property
    def name(self) -> str:
        return Path(self.path).stem.split(".")[0] or "table"

    def files(self, data: Path) -> tuple[Path, ...]:
        path = find_path(self.path, data)
        documents = path.parent / "docs"
        if self.columns.layout != "eraser" or not is_present(documents, "folder"):
            return (path,)
        try:
            return (path, *sorted(each for each in documents.iterdir() if each.is_file()))
        except OSError as error:
            raise UserError(f"{documents}: {error.strerror}; check the folder and its permissions") from error

    def load(self, data: Path) -> Splits:
        path, rows = find_path(self.path, data), RowReader(self.columns, self.seed)
        reader: SampleReader | DiskReader = DiskReader(rows, self.limit)
        if self.limit is not None and self.limit <= MAX_TEXTS:
            reader = SampleReader(rows, self.limit)
        for standard in _standard_rows(path):
            reader.add(standard.row)
            reader.wrong_lengths += len(standard.wrong_lengths)
        examples = reader.examples()
        if not examples:
            raise UserError(
                f"{path}: no row has a text in column {shorten(self.columns.text)}; choose another with --text-column"
            )
        outputs = self.columns.outputs
        task = MulticlassClassification(len(outputs)) if outputs else Regression()
        return Splits(task, outputs, (), (), examples, reader.notes())
