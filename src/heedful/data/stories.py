"""Small worlds told in sentences, in the manner of bAbI: where is whom, where is what, where was what before.

Persons walk between places, take things that lie there, carry them and put them down. Task 1 asks for a
person (one supporting fact), task 2 for a thing (two), task 3 for the place of a thing before another place
(three). Nothing is told that did not happen, every answer follows from the text alone, and the rationale
marks the facts that carry it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from numpy.random import Generator, default_rng

from heedful.core.tasks import Classes
from heedful.core.types import SPLITS, Corpus, Example, Split, Splits, UserError
from heedful.data.batching import Words
from heedful.data.layout import named

PERSONS = ("Anna", "Boris", "Clara", "Dmitri")
PLACES = ("attic", "cellar", "garage", "kitchen", "library", "stable")
THINGS = ("candle", "hammer", "letter")
VERBS = {
    "go": ("went to", "walked to", "hurried to", "wandered to", "went back to"),
    "take": ("took", "grabbed", "lifted", "picked up"),
    "drop": ("dropped", "left", "put down"),
}
LENGTHS = {1: (2, 10), 2: (6, 20), 3: (12, 40)}


@dataclass(frozen=True)
class Event:
    """One sentence: somebody goes to a place, takes a thing or drops it."""

    person: str
    act: Literal["go", "take", "drop"]
    what: str
    sentence: str


@dataclass(frozen=True)
class Question:
    """A question with its answer and the numbers of the sentences that carry it."""

    text: str
    answer: str
    facts: frozenset[int]


@dataclass(frozen=True)
class Stories(Corpus):
    """Generated stories of task 1, 2 or 3; the answer is one of six places."""

    task: int = 1
    train: int = 8500
    dev: int = 1500
    test: int = 1000
    seed: int = 0
    name: ClassVar[str] = "stories"
    revision: ClassVar[int] = 1
    batching: ClassVar[Words] = Words()
    width: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.task not in LENGTHS:
            raise UserError(f"stories: there is no task {self.task}; choose 1, 2 or 3")
        if min(self.train, self.dev, self.test) < 1:
            raise UserError("stories: each split needs at least one example")
        named(self, f"stories-{self.task}")

    def read(self, data: Path) -> Splits:
        return _read(self)

    def digest(self, data: Path) -> str:
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Stories {self.revision} {' '.join(values)}".encode()).hexdigest()


@lru_cache(maxsize=4)
def _read(corpus: Stories) -> Splits:
    parts = {split: tuple(_part(corpus, split)) for split in SPLITS}
    return Splits(Classes(len(PLACES)), PLACES, parts["train"], parts["dev"], parts["test"])


def _part(corpus: Stories, split: Split) -> Iterator[Example]:
    random = default_rng((corpus.seed, corpus.task, SPLITS.index(split)))
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    for place in range(count):
        events, question = _told(corpus.task, random)
        yield _example(f"{corpus.name}-{split}-{place}", events, question)


def _example(uid: str, events: list[Event], question: Question) -> Example:
    """Sentences joined by a period, question and last one without a sign, as Jain & Wallace join bAbI."""
    marks: list[bool] = []
    for number, event in enumerate(events):
        marks += [False] * (number > 0)
        marks += [number in question.facts] * len(event.sentence.split())
    document = " . ".join(event.sentence for event in events)
    rationale = (*marks, *[False] * len(question.text.split()))
    return Example(uid, (document, question.text), PLACES.index(question.answer), rationale)


def _told(task: int, random: Generator) -> tuple[list[Event], Question]:
    """A story that admits a question of this task; one that does not is told anew."""
    while True:
        shortest, longest = LENGTHS[task]
        events = _events(int(random.integers(shortest, longest + 1)), random, things=task > 1)
        questions = {1: _persons, 2: _things, 3: _earlier}[task](events)
        if questions:
            # Answers first, then questions: else frequent places would be asked for more often.
            answers = sorted({question.answer for question in questions})
            answer = answers[int(random.integers(len(answers)))]
            fitting = [question for question in questions if question.answer == answer]
            return events, fitting[int(random.integers(len(fitting)))]


def _events(count: int, random: Generator, *, things: bool) -> list[Event]:
    at: dict[str, str] = {}
    lying = {thing: PLACES[int(random.integers(len(PLACES)))] for thing in THINGS} if things else {}
    held: dict[str, str] = {}
    events: list[Event] = []
    for _ in range(count):
        person = PERSONS[int(random.integers(len(PERSONS)))]
        choices = [("go", place) for place in PLACES if place != at.get(person)]
        deeds = [("take", thing) for thing, place in lying.items() if place == at.get(person)]
        deeds += [("drop", thing) for thing, holder in held.items() if holder == person]
        # A person who can do something does it half of the time: else things would hardly ever move.
        pool = deeds if deeds and random.random() < 0.5 else choices
        act, what = pool[int(random.integers(len(pool)))]
        if act == "go":
            at[person] = what
            events.append(_spoken(person, "go", what, random))
        elif act == "take":
            del lying[what]
            held[what] = person
            events.append(_spoken(person, "take", what, random))
        else:
            del held[what]
            lying[what] = at[person]
            events.append(_spoken(person, "drop", what, random))
    return events


def _spoken(person: str, act: Literal["go", "take", "drop"], what: str, random: Generator) -> Event:
    verbs = VERBS[act]
    there = " there" if act != "go" and random.random() < 0.3 else ""
    sentence = f"{person} {verbs[int(random.integers(len(verbs)))]} the {what}{there}"
    return Event(person, act, what, sentence)


def _persons(events: list[Event]) -> list[Question]:
    last = {event.person: (number, event.what) for number, event in enumerate(events)}
    return [Question(f"Where is {person}", place, frozenset({number})) for person, (number, place) in last.items()]


def _last_move(events: list[Event], person: str, before: int) -> int:
    """The number of the sentence that brought this person to where they are."""
    return max(n for n, event in enumerate(events[:before]) if event.person == person and event.act == "go")


def _things(events: list[Event]) -> list[Question]:
    questions: list[Question] = []
    for thing in THINGS:
        touched = [n for n, event in enumerate(events) if event.act != "go" and event.what == thing]
        if not touched:
            continue
        deed = events[touched[-1]]
        # A dropped thing stays where it fell; a held one goes with its holder to the end of the story.
        until = touched[-1] if deed.act == "drop" else len(events)
        move = _last_move(events, deed.person, until)
        questions.append(Question(f"Where is the {thing}", events[move].what, frozenset({touched[-1], move})))
    return questions


def _earlier(events: list[Event]) -> list[Question]:
    """Moves of a held thing into a place where it is known to have been only once."""
    questions: list[Question] = []
    for thing in THINGS:
        carried: list[Question] = []
        seen: list[str] = []
        holder, taken = "", -1
        for number, event in enumerate(events):
            if event.act == "take" and event.what == thing:
                holder, taken = event.person, number
                here = events[_last_move(events, holder, number)].what
                seen += [here] if not seen or seen[-1] != here else []
            elif event.act == "drop" and event.what == thing:
                holder = ""
            elif event.act == "go" and event.person == holder:
                origin = _last_move(events, holder, number)
                seen.append(event.what)
                text = f"Where was the {thing} before the {event.what}"
                carried.append(Question(text, events[origin].what, frozenset({taken, origin, number})))
        questions += [question for question in carried if seen.count(question.text.split()[-1]) == 1]
    return questions
