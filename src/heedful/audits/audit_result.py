"""The result of an audit as frozen values: answers per method and question, decisions, and what they rest on.

Everything is plain data that goes to JSON and back without loss, so that a page, a model card, a gate in CI and
`heedful explain` read the same numbers.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints

import pandas as pd

from heedful.attributions.method import Feature, MethodTags
from heedful.audits.questions import MODEL_DEPENDENT, QUESTIONS, TOPICS
from heedful.audits.topics import Role
from heedful.audits.verdict_rules import FAITHFUL, OUT_OF_REACH, WayShare, measure_label
from heedful.formatting import order_of_magnitude, page_text
from heedful.results import Decision, Finding, Statistic, Verdict
from heedful.store.recipe import Json, to_json
from heedful.types import UserError, user_path

SHOWN = "shown"
"""In a requirement: the method must be one that may be shown."""
SCHEMA = 7
"""Version of the JSON form; increased when a reader of an older form would be wrong."""


@dataclass(frozen=True)
class FailureExample:
    """The text on which an explanation fails most plainly.

    Args:
        highest: numbers of the words that the explanation ranks highest.
        sentence: what happens to the prediction without these words, and without other words.
        other_scores: those of a better explanation of the same text, for comparison; its name is `other_method`.
        image: a PNG image in base64 whose patches, called "row,column", are the words; empty for a text.
    """

    uid: str
    predicted: str
    probability: float
    words: tuple[str, ...]
    scores: tuple[float, ...]
    highest: tuple[int, ...]
    sentence: str
    other_method: str = ""
    other_scores: tuple[float, ...] = ()
    image: str = ""


@dataclass(frozen=True)
class WordUse:
    """A word that an explanation ranks first in several texts of one predicted class.

    Args:
        word: in lower case, without punctuation around it.
        predicted: the class that it speaks for.
        first: texts in which it is ranked first, or is in the segment that is.
        texts: texts of this predicted class that contain it.
        by_chance: texts in which it would be in that segment if its words were at random places of the text; 0 where
            words were ranked.
    """

    word: str
    predicted: str
    first: int
    texts: int
    by_chance: float = 0.0


@dataclass(frozen=True)
class OtherThreshold:
    """What would be decided with another threshold, all others as they are.

    Args:
        name: field of `Thresholds`.
        used: its value in this audit.
        value: the one that was tried instead.
        decisions: by method, controls left out.
    """

    name: str
    used: float
    value: float
    decisions: Mapping[str, Decision]


@dataclass(frozen=True)
class MethodAudit:
    """Everything that an audit says of one method.

    Args:
        name: as in the catalogue and in `heedful explain --method`.
        control: whether it must do badly (random scores, permuted attention).
        answers: one per question, in the order of `QUESTIONS`.
        achievable: faithfulness as a share of what a search achieves, 0 for random scores, with its interval.
        tier: 1 for the methods that no other beats; 0 where tiers were not formed.
        seconds: per text.
        decision: None for controls.
        reason: why, in one sentence.
        optimized_for: measures that the method itself optimizes, where it has an advantage, by `measure_label`.
        by_way: faithfulness under each way of removing words, of which infill is the last.
        by_class: the answer on faithfulness on the texts of each predicted class.
        tags: what its scores are made of, and what a heat-map of them can show.
        behind: how far it is behind the most faithful method that passes what is required, and whether that is clearly
            not far; None for that one, for controls, and if no method passes.
    """

    name: str
    control: bool
    answers: tuple[Finding, ...]
    achievable: float
    achievable_low: float
    achievable_high: float
    tier: int
    seconds: float
    decision: Decision | None
    reason: str
    optimized_for: tuple[str, ...] = ()
    failure: FailureExample | None = None
    by_way: tuple[WayShare, ...] = ()
    by_class: Mapping[str, Finding] = field(default_factory=dict)
    tags: MethodTags = MethodTags()
    behind: Finding | None = None

    def answer(self, question: str) -> Finding:
        """The answer to one question."""
        return next(answer for answer in self.answers if answer.question == question)

    @property
    def refuted_classes(self) -> tuple[str, ...]:
        """The classes for whose predictions it is not faithful."""
        return tuple(label for label, answer in self.by_class.items() if answer.verdict is Verdict.NOT_SUPPORTED)

    @property
    def texts_needed(self) -> int | None:
        """About how many texts would decide all that is required and undecided; None where that is not known."""
        required = [self.answer(question.name) for question in QUESTIONS if question.role is Role.REQUIRED]
        required += [] if self.decision is Decision.BEATEN or self.behind is None else [self.behind]
        sizes = [answer.texts_needed for answer in required if answer.verdict is not Verdict.SUPPORTED]
        known = [size for size in sizes if size is not None]
        return max(known) if known and len(known) == len(sizes) else None

    def optimizes(self, row: Statistic) -> bool:
        """Whether the method itself optimizes the measure of a statistic."""
        return measure_label(row) in self.optimized_for


@dataclass(frozen=True)
class AuditedModel:
    """What the audit understood of the model.

    Args:
        source: folder, hub id or the class of an object in memory.
        architecture: for instance "bert, 6 layers, 12 heads, width 384".
        outputs: names of the classes; empty for regression.
        tokenizer: its class.
        unknown_words: share of the words of the texts that the tokenizer does not know.
        truncated: share of the texts that are longer than the model reads.
        digest: of weights and tokenizer.
    """

    name: str
    source: str
    architecture: str
    outputs: tuple[str, ...]
    tokenizer: str
    unknown_words: float
    truncated: float
    digest: str


@dataclass(frozen=True)
class AuditedData:
    """What the audit understood of the data.

    Args:
        columns: role ("text", "second text", "label", "rationale", "id") to column.
        rows: rows of the file; `texts` of them were audited, of which `added` are of rarely predicted classes and count
            for these only.
        accuracy: on all labeled texts that were drawn, before any was left out or added; there are `labeled` of them.
            NaN without labels.
        rationales: audited texts with marked words.
        classes: number of audited texts by predicted class.
        notes: remarks, for instance how label names were matched.
        noun: what is audited: texts or images.
        assumptions: what was decided about columns and labels although another reading is possible.
        feature: what was explained and removed together; "segment" takes the words of short texts.
        segmented: audited texts that were explained by sentences or segments, and not word by word.
    """

    name: str
    source: str
    columns: Mapping[str, str]
    rows: int
    texts: int
    accuracy: float
    rationales: int
    classes: Mapping[str, int]
    notes: tuple[str, ...]
    digest: str
    noun: str = "texts"
    assumptions: tuple[str, ...] = ()
    feature: Feature = "word"
    segmented: int = 0
    labeled: int = 0
    added: int = 0


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Args:
        methods: in the order of recommendation, controls last.
        attention: findings about attention itself: permutation, adversary, necessity, sink share.
        pairs: rank correlation of each two methods, one as `method` and the other as `subset`.
        struck: measures that do not count on this data, by `measure_label`, with the reason.
        untested: questions that were not asked, with the reason and the remedy.
        effects: by predicted class (`subset`, empty for all), how much the output falls without the best words found.
        word_use: the words that the first method ranks first most often, beyond chance where segments are ranked.
        distances: by way of removal (`subset`), the share of texts without half of their words that are farther from
            real texts than nearly all real texts are from each other.
        other_thresholds: what would be decided with each threshold halved and doubled.
        recommended: names of the methods that may be shown, best first.
        sentence: the answer in one sentence.
        caution: the sentence that must go with every heat-map.
        caption: to copy under a heat-map of the first recommended method.
        level: of the intervals, for instance .975, after the correction for repeated looks.
        look: how often this audit has been evaluated on a growing number of texts.
        seconds: spent in all, over all calls.
        date: of the evaluation, as in 2026-01-31; empty if unknown.
    """

    model: AuditedModel
    data: AuditedData
    methods: tuple[MethodAudit, ...]
    attention: tuple[Statistic, ...]
    pairs: tuple[Statistic, ...]
    struck: Mapping[str, str]
    untested: Mapping[str, str]
    recommended: tuple[str, ...]
    sentence: str
    caution: str
    caption: str
    level: float
    look: int
    seed: int
    minutes: float
    seconds: float
    finished: bool
    versions: Mapping[str, str]
    date: str = ""
    effects: tuple[Statistic, ...] = ()
    word_use: tuple[WordUse, ...] = ()
    distances: tuple[Statistic, ...] = ()
    other_thresholds: tuple[OtherThreshold, ...] = ()

    def method(self, name: str) -> MethodAudit:
        """The audit of one method by its name."""
        return next(method for method in self.methods if method.name == name)

    def minutes_to_decide(self, method: MethodAudit) -> int | None:
        """About how many more minutes would decide on a method, to one digit; None where that is not known.

        They depend on the machine, so that they are not a part of the reason.
        """
        texts, needed = self.data.texts - self.data.added, method.texts_needed or 0
        if (
            method.decision not in (Decision.UNDECIDED, Decision.BEATEN)
            or not 0 < texts < needed <= OUT_OF_REACH * texts
        ):
            return None
        return order_of_magnitude(self.seconds * (needed / texts - 1) / 60)

    def __eq__(self, other: object) -> bool:
        """Equality of all values; two undefined numbers are equal."""
        return isinstance(other, Audit) and self.to_json() == other.to_json()

    def to_json(self) -> str:
        """The whole result as JSON, undefined numbers as null; `from_json` reads it back."""
        return json.dumps({"schema": SCHEMA, **to_json_object(asdict(self))}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Audit:
        """The result that `to_json` wrote; UserError if it is damaged or of another version."""
        try:
            content = json.loads(text, parse_constant=_refuse_constant)
            if not isinstance(content, dict):
                raise ValueError("it is not an object")
            schema = content.pop("schema", None)
            if schema == SCHEMA:
                audit = _from_plain(cls, content, "audit")
                assert isinstance(audit, Audit)
                audit._check_names()
                return audit
        except (ValueError, OverflowError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"this is not the JSON of an audit ({reason}); run `heedful audit` again") from error
        raise UserError(f"the audit has schema {schema!r}, this heedful reads {SCHEMA}; run `heedful audit` again")

    def _check_names(self) -> None:
        names = [method.name for method in self.methods]
        if len({*names}) < len(names) or not {*self.recommended} <= {*names}:
            raise ValueError("methods: a name is missing or occurs twice")
        judged = {method.name for method in self.methods if not method.control}
        if any({*other.decisions} != judged for other in self.other_thresholds):
            raise ValueError("other_thresholds: a method is missing or unknown")
        asked = [question.name for question in QUESTIONS]
        for method in self.methods:
            if [answer.question for answer in method.answers] != asked:
                raise ValueError(f"{method.name}: an answer is missing")

    def _printable(self) -> Audit:
        """The audit with U+FFFD in place of what UTF-8 cannot write, which names from outside may hold."""
        text = json.dumps(to_json_object(asdict(self)), ensure_ascii=False)
        audit = _from_plain(Audit, json.loads(page_text(text)), "audit")
        assert isinstance(audit, Audit)
        return audit

    def to_frame(self) -> pd.DataFrame:
        """One row per method: the number behind each question, the verdicts, the decision and its reason."""
        rows: list[dict[str, object]] = []
        for method in self._printable().methods:
            values = {each.column.replace(" ", "_"): method.answer(each.name).statistic.value for each in QUESTIONS}
            values.pop("", None)
            rows.append(
                {
                    "method": method.name,
                    "control": method.control,
                    "decision": "" if method.decision is None else method.decision.value,
                    "faithfulness": method.achievable,
                    "faithfulness_low": method.achievable_low,
                    "faithfulness_high": method.achievable_high,
                    "tier": method.tier,
                    **values,
                    "seconds_per_text": method.seconds,
                    **{answer.question: answer.verdict.value for answer in method.answers},
                    "reason": method.reason,
                }
            )
        return pd.DataFrame(rows)

    def statistics(self, question: str) -> tuple[Statistic, ...]:
        """Every number behind one question, or behind the findings about attention."""
        return TOPICS[question].statistics(self)

    def changed_decisions(self, other: OtherThreshold) -> dict[str, Decision]:
        """The methods that another threshold would decide otherwise, with that decision."""
        return {
            name: decision for name, decision in other.decisions.items() if decision is not self.method(name).decision
        }

    def struck_reason(self, row: Statistic) -> str:
        """Why a statistic does not count; empty if it counts."""
        return self.struck.get(measure_label(row), "")

    def measurements_frame(self) -> pd.DataFrame:
        """Every number of the audit, one row each."""
        audit = self._printable()
        rows = [
            {"question": name, **asdict(row), "struck": audit.struck_reason(row)}
            for name in TOPICS
            for row in audit.statistics(name)
        ]
        names = ["question", *(entry.name for entry in fields(Statistic)), "struck"]
        return pd.DataFrame(rows, columns=names).astype({"n": "Int64"})

    def show(self) -> None:
        """Print the answer and the table of methods."""
        from heedful.audits.audit_tables import print_audit

        print_audit(self._printable())

    def to_html(self, folder: Path | str, texts: str = "") -> Path:
        """Write the pages and the downloads into a folder; returns the path of the answer page.

        Args:
            texts: address of the explorer of texts, relative to the folder; empty if there is none.
        """
        from heedful.audits.audit_page import write_pages

        return write_pages(self._printable(), user_path(folder), texts)

    def _repr_html_(self) -> str:
        """The answer and the table of methods, for notebooks."""
        from heedful.audits.audit_page import summary_html

        return summary_html(self._printable())


@dataclass(frozen=True)
class Requirement:
    """What an explanation must have kept, for a gate: for instance `integrated-gradients: faithful, stable`.

    Args:
        shown: whether the method must be one that may be shown.
    """

    method: str
    questions: tuple[str, ...]
    shown: bool = False

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """From `method: word, word`; the words are names of questions, and "shown".

        >>> Requirement.parse("lime: faithful, shown")
        Requirement(method='lime', questions=('faithful',), shown=True)
        """
        method, colon, words = text.partition(":")
        names = [word.strip() for word in words.split(",") if word.strip()]
        known = [question.name for question in QUESTIONS]
        unknown = [name for name in names if name not in known and name != SHOWN]
        if not colon or not method.strip() or not names or unknown:
            fault = f"unknown word {unknown[0]!r}" if unknown else "it names no method or no word"
            raise UserError(f"--require {text!r}: {fault}; write METHOD: WORD, WORD with {', '.join(known)} or {SHOWN}")
        return cls(method.strip(), tuple(name for name in names if name in known), SHOWN in names)

    def unmet(self, audit: Audit) -> list[str]:
        """What the audit does not support, one line each; empty if all is met."""
        method = next((method for method in audit.methods if method.name == self.method), None)
        if method is None:
            return [f"{self.method} was not audited"]
        lines = [
            f"{self.method} is not {answer.question}: {answer.reason}"
            for answer in map(method.answer, self._implied(method))
            if answer.verdict is not Verdict.SUPPORTED
        ]
        if self.shown and method.decision is not Decision.SHOW:
            decision = "a control" if method.decision is None else method.decision.value
            lines.append(f"{self.method} may not be shown ({decision}): {method.reason}")
        return lines

    def _implied(self, method: MethodAudit) -> tuple[str, ...]:
        """The questions, and with faithfulness dependence on the model: other scores say nothing about this model."""
        if FAITHFUL not in self.questions or MODEL_DEPENDENT in self.questions:
            return self.questions
        is_tested = method.answer(MODEL_DEPENDENT).verdict is not Verdict.NOT_TESTED
        return (*self.questions, MODEL_DEPENDENT) if is_tested else self.questions

    def caveats(self, audit: Audit) -> list[str]:
        """What a requirement that is met does not say, one line each."""
        method = next((method for method in audit.methods if method.name == self.method), None)
        if method is None or FAITHFUL not in self.questions:
            return []
        answer = method.answer(MODEL_DEPENDENT)
        if answer.verdict is not Verdict.NOT_TESTED:
            return []
        return [f"whether {self.method} depends on the model was not tested: {answer.reason}"]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


@functools.cache
def _field_types(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _from_plain(kind: object, value: object, path: str) -> object:
    """The value of a type from plain JSON; ValueError names the path of anything else."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _from_plain(parts[0], value, path)
    if origin is Literal and value in parts:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_from_plain(parts[0], item, f"{path}[{number}]") for number, item in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {name: _from_plain(parts[1], item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(kind, type):
        if is_dataclass(kind) and isinstance(value, dict):
            hints = _field_types(kind)
            if hints.keys() != value.keys():
                raise ValueError(f"{path}: missing or unknown {sorted(hints.keys() ^ value.keys())}")
            return kind(**{name: _from_plain(hint, value[name], f"{path}.{name}") for name, hint in hints.items()})
        if issubclass(kind, Enum):
            return kind(value)
        if kind is float and value is None:
            return math.nan
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if type(value) is kind:
            return value
    raise ValueError(f"{path} is {type(value).__name__}")


def to_json_object(value: Mapping[str, object]) -> dict[str, Json]:
    """Plain JSON of nested mappings; enums by their values."""
    converted = to_json(value)
    assert isinstance(converted, dict)
    return converted
