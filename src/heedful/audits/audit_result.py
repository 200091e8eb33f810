"""The result of an audit as frozen values: answers per method and question, decisions, and what they rest on.

Everything is plain data that goes to JSON and back without loss, so that a page, a model card, a gate in CI and
`heedful explain` read the same numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum

import pandas as pd

from heedful.store.recipe import Json, to_json
from heedful.trials._trial import Verdict

SCHEMA = 1
"""Version of the JSON form; increased when a reader of an older form would be wrong."""


class Question(Enum):
    """What an audit asks of every method; the value is the word in tables and in `--require`."""

    FAITHFUL = "faithful"
    MODEL = "model-dependent"
    STABLE = "stable"
    COMPLETE = "complete"
    AGREES = "agrees"
    PLAUSIBLE = "plausible"
    TEACHES = "teaches"


class Decision(Enum):
    """Whether an explanation may be shown to people."""

    SHOW = "may be shown"
    NOT_ALONE = "not alone"
    MISLEADING = "looks right but is not"
    HIDE = "not to be shown"


@dataclass(frozen=True)
class Measurement:
    """One number with its interval and its null; a row of the tidy table of an audit.

    Args:
        question: a value of `Question`, or "attention" for questions about attention alone.
        measure: for instance "comprehensiveness".
        subset: what the measure was computed on or with, for instance the way of deletion; empty for all.
        value: mean over texts; low and high bound it at the level of the audit. NaN where undefined.
        null: the value of the control that `value` is tested against; NaN if there is none.
        p_value: adjusted over methods (Holm); NaN if there is no test.
        struck: why the measure does not count on this data; empty if it counts.
    """

    question: str
    measure: str
    method: str
    subset: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    null: float = math.nan
    p_value: float = math.nan
    struck: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer to one question about one method.

    Args:
        verdict: None where the question was not asked or does not apply; `reason` says why.
        value: the number shown in the table, its interval, and the number of texts behind it.
        null: the value without merit, for comparison; NaN if there is none.
        reason: one plain sentence with the numbers.
        texts_needed: how many texts in all would probably decide it; None unless undecided.
        measurements: the rows that it rests on.
    """

    question: Question
    method: str
    verdict: Verdict | None
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    null: float = math.nan
    reason: str = ""
    texts_needed: int | None = None
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True)
class FailureExample:
    """The text on which an explanation fails most plainly.

    Args:
        highest: numbers of the words that the explanation ranks highest.
        sentence: what happens to the prediction without these words, and without other words.
        others: scores of a better explanation of the same text, for comparison; its name is `other_method`.
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


@dataclass(frozen=True)
class MethodAudit:
    """Everything that an audit says of one method.

    Args:
        name: as in the catalogue and in `heedful explain --method`.
        control: whether it must do badly (random scores, permuted attention).
        answers: one per question, in the order of `Question`.
        achievable: faithfulness as a share of what a search achieves, 0 for random scores, with its interval.
        tier: 1 for the methods that no other beats; 0 where tiers were not formed.
        seconds: per text.
        decision: None for controls.
        reason: why, in one sentence.
        optimised_for: measures that the method itself optimises, where it has an advantage.
    """

    name: str
    control: bool
    answers: tuple[Answer, ...]
    achievable: float
    achievable_low: float
    achievable_high: float
    tier: int
    seconds: float
    decision: Decision | None
    reason: str
    optimised_for: tuple[str, ...] = ()
    failure: FailureExample | None = None

    def answer(self, question: Question) -> Answer:
        """The answer to one question."""
        return next(each for each in self.answers if each.question is question)


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
        rows: rows of the file; `texts` of them were audited.
        accuracy: on the audited texts; NaN without labels.
        rationales: audited texts with marked words.
        classes: number of audited texts by predicted class.
        notes: remarks, for instance how label names were matched.
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


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Args:
        methods: in the order of recommendation, controls last.
        attention: findings about attention itself: permutation, adversary, necessity, sink share.
        measurements: the tidy table of all numbers.
        pairs: rank correlation of each two methods.
        struck: measures that do not count on this data, with the reason.
        untested: questions that were not asked, with the reason and the remedy.
        recommended: names of the methods that may be shown, best first.
        sentence: the answer in one sentence.
        caution: the sentence that must go with every heat-map.
        caption: to copy under a heat-map of the first recommended method.
        level: of the intervals, for instance .975, after the correction for repeated looks.
        look: how often this audit has been evaluated on a growing number of texts.
        seconds: spent in all, over all calls.
    """

    model: AuditedModel
    data: AuditedData
    methods: tuple[MethodAudit, ...]
    attention: tuple[Measurement, ...]
    measurements: tuple[Measurement, ...]
    pairs: tuple[Measurement, ...]
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

    def method(self, name: str) -> MethodAudit:
        """The audit of one method by its name."""
        return next(each for each in self.methods if each.name == name)

    def to_json(self) -> str:
        """The whole result as JSON; `from_json` reads it back."""
        return json.dumps({"schema": SCHEMA, **to_json_object(asdict(self))}, indent=1)

    def measurements_frame(self) -> pd.DataFrame:
        """Every number of the audit, one row each."""
        return pd.DataFrame([asdict(each) for each in self.measurements])


def to_json_object(value: Mapping[str, object]) -> dict[str, Json]:
    """Plain JSON of nested mappings; enums by their values."""

    def plain(part: object) -> object:
        if isinstance(part, Enum):
            return part.value
        if isinstance(part, Mapping):
            return {str(key): plain(each) for key, each in part.items()}
        if isinstance(part, list | tuple):
            return [plain(each) for each in part]
        return part

    converted = to_json(plain(value))
    assert isinstance(converted, dict)
    return converted
