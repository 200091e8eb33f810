"""The design of a study: which person sees which item, with which maps, in which order, and why.

A design is drawn once, before anybody answers, from a seed. Every item is shown to the same number of people (within
one), every item has every condition of a guess equally often (within one), and the order of the maps is shuffled for
each person and item. Attention checks and repeated items are hidden among the others.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.random import Generator, default_rng
from pydantic import TypeAdapter, ValidationError

from heedful.store.atomic_write import atomic_path, flush_to_disk, translate_write_errors, try_to_write
from heedful.study.answers import Occasion
from heedful.study.checksum import CHECKSUM, add_checksum, find_damage
from heedful.study.database_url import without_password
from heedful.types import UserError

STUDY_FILE, LINKS_FILE, KEYS_FILE = "study.json", "links.txt", "keys.json"
CONSENT_FILE, INSTRUCTIONS_FILE, THANKS_FILE = "consent.md", "instructions.md", "thanks.md"
_HEXADECIMAL = re.compile("[0-9a-f]{64}")
_T = TypeVar("_T")
CONTROL = "control"
"""The name of the map to which an attention check asks to give the last place."""
MAX_METHODS = 6
"""Most maps that a person can compare on one page."""
MAX_PEOPLE, MAX_PER_PERSON = 10_000, 200
TOKEN_BYTES = 18
"""Random bytes of a link: 144 bits, which nobody guesses."""


class StudyTask(StrEnum):
    """What a person does with an item."""

    RANK = "rank"
    SIMULATE = "simulate"


@dataclass(frozen=True)
class StudyItem:
    """A text or an image with the maps of all methods.

    Args:
        words: what is shown of a text; the names "row,column" of the patches of an image.
        joined: indices of words without a space before them.
        second: index of the first word of the second text of a pair; 0 if there is none.
        choices: the predictions among which people guess.
        maps: by method the strength of each word, 0 to 1; `CONTROL` is the opposite of what the methods have in common.
        image: a PNG image in base64; empty for a text.
        patches: rows and columns of the patches of an image.
    """

    uid: str
    words: tuple[str, ...]
    joined: tuple[int, ...]
    second: int
    predicted: str
    choices: tuple[str, ...]
    maps: Mapping[str, tuple[float, ...]]
    image: str = ""
    patches: tuple[int, int] | None = None


@dataclass(frozen=True)
class Slot:
    """One page of one person.

    Args:
        maps: the methods whose maps are shown, in this order; None in place of the only one shows no map.
        asked: the guess that an attention check asks for.
    """

    task: StudyTask
    item: str
    occasion: Occasion
    maps: tuple[str | None, ...]
    asked: str | None = None


@dataclass(frozen=True)
class StudyOptions:
    """What the owner of a study chooses.

    Args:
        items: texts or images; those of checks and of practice are drawn in addition.
        per_person: answers of each person, checks and repeats included, practice not.
        people: how many links are made.
        task: rank the maps of an item, guess the model's prediction from at most one map, or half of each.
        checks: attention checks per person; None makes one answer in ten a check.
        repeats: items that a person sees a second time; None makes one answer in ten a repeat.
        max_failed_checks: who fails more checks is left out of the results; None allows half of them.
        practice: items before the first answer that counts, for each task.
    """

    items: int = 50
    per_person: int = 20
    people: int = 30
    task: str = "rank"
    seed: int = 0
    checks: int | None = None
    repeats: int | None = None
    max_failed_checks: int | None = None
    practice: int = 1

    def __post_init__(self) -> None:
        if self.task not in ("rank", "simulate", "both"):
            raise UserError(f"--task {self.task}: choose rank, simulate or both")
        for name, value, least, most in (
            ("--items", self.items, 1, 100_000),
            ("--per-person", self.per_person, 1, MAX_PER_PERSON),
            ("--people", self.people, 1, MAX_PEOPLE),
            ("--checks", self.n_checks, 0, self.per_person),
            ("--repeats", self.n_repeats, 0, self.per_person),
            ("--max-failed-checks", self.allowed_failures, 0, self.per_person),
        ):
            if not least <= value <= most:
                raise UserError(f"{name} {value}: give a number from {least} to {most}")
        for task, share in self.shares.items():
            if share.main < max(1, share.repeats):
                raise UserError(
                    f"of {share.main + share.checks + share.repeats} answers to {task} {share.checks} are checks "
                    f"and {share.repeats} are repeats: increase --per-person or decrease --checks and --repeats"
                )
            if share.main > self.items:
                raise UserError(f"{share.main} different items per person, but --items {self.items}: increase --items")

    @property
    def n_checks(self) -> int:
        return self.per_person // 10 if self.checks is None else self.checks

    @property
    def n_repeats(self) -> int:
        return self.per_person // 10 if self.repeats is None else self.repeats

    @property
    def allowed_failures(self) -> int:
        return self.n_checks // 2 if self.max_failed_checks is None else self.max_failed_checks

    @property
    def tasks(self) -> tuple[StudyTask, ...]:
        """The tasks in the order in which a person does them: guesses first, because a ranking shows the prediction."""
        return (StudyTask.SIMULATE, StudyTask.RANK) if self.task == "both" else (StudyTask(self.task),)

    @property
    def shares(self) -> dict[StudyTask, TaskShare]:
        """How many answers of each kind a person gives in each task."""
        by_task, tasks = {}, self.tasks
        for index, task in enumerate(tasks):
            total, checks, repeats = (
                (number + index) // len(tasks) for number in (self.per_person, self.n_checks, self.n_repeats)
            )
            by_task[task] = TaskShare(total - checks - repeats, checks, repeats)
        return by_task

    @property
    def reserved(self) -> int:
        """Items for checks and practice, which are the same for everybody."""
        return sum(share.checks for share in self.shares.values()) + self.practice * len(self.tasks)


@dataclass(frozen=True)
class TaskShare:
    """Answers of a person in one task."""

    main: int
    checks: int
    repeats: int


@dataclass(frozen=True)
class Study:
    """A whole study as it is stored: its items, and the pages of every person.

    Args:
        source: what the items were drawn from, for the owner; people do not see it.
        plans: by person the pages in their order.
    """

    title: str
    source: str
    task: str
    methods: tuple[str, ...]
    seed: int
    max_failed_checks: int
    items: tuple[StudyItem, ...]
    plans: Mapping[str, tuple[Slot, ...]]
    database: str = ""
    version: int = 1

    @property
    def noun(self) -> str:
        return "image" if any(item.image for item in self.items) else "text"


@dataclass(frozen=True)
class StudyKeys:
    """Who may enter: digests of the tokens in the links, which are stored nowhere but in the file of links.

    Args:
        people: by digest the person.
        admin: digest of the owner's token.
        form_key: key of the codes in forms.
    """

    people: Mapping[str, str]
    admin: str
    form_key: str

    def __post_init__(self) -> None:
        if not all(_HEXADECIMAL.fullmatch(key) for key in (*self.people, self.admin, self.form_key)):
            raise ValueError("a key is not 64 hexadecimal digits")


def token_digest(token: str) -> str:
    """What is stored of a token: it cannot be turned back."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def form_code(keys: StudyKeys, *parts: object) -> str:
    """A code that only the server can make, for what a form must bring back unchanged."""
    text = "\x1f".join(map(str, parts))
    return hmac.new(keys.form_key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


def strengths(scores: Sequence[float], *, kind: str = "positive", scale: str = "share") -> tuple[float, ...]:
    """Scores as strengths from 0 to 1, in one way for all methods.

    Args:
        kind: "positive" shows what speaks for the prediction, "size" also what speaks against it, without its sign.
        scale: "share" divides by the largest; "rank" takes the share of smaller values, so that all maps have the same
            distribution and a method cannot be recognised by how concentrated it is.

    >>> strengths([2, -4, 1]), strengths([2, -4, 1], kind="size"), strengths([2, 0, 1], scale="rank")
    ((1.0, 0.0, 0.5), (0.5, 1.0, 0.25), (1.0, 0.0, 0.5))
    """
    values = np.nan_to_num(np.asarray(scores, dtype=float), nan=0.0, posinf=0.0, neginf=0.0)
    values = np.abs(values) if kind == "size" else np.maximum(values, 0.0)
    if not values.any():
        return tuple(values.tolist())
    if scale == "rank":
        smaller = (values[:, None] > values[None, :]).sum(1) / max(1, len(values) - 1)
        values = np.where(values > 0, smaller, 0.0)
        values = values if values.any() else np.ones(len(values))
    return tuple(np.round(values / values.max(), 4).tolist())


def control_map(maps: Sequence[Sequence[float]], rng: Generator) -> tuple[float, ...]:
    """A map that is strong where the mean of all maps is weak, and as concentrated as one of them.

    >>> control_map([[1.0, 0.5, 0.0], [1.0, 0.2, 0.1]], default_rng(0))
    (0.0, 0.5, 1.0)
    """
    mean = np.mean(np.asarray(maps, dtype=float), axis=0)
    weakest_first = np.lexsort((rng.random(len(mean)), mean))
    scores = np.zeros(len(mean))
    scores[weakest_first] = np.sort(np.asarray(maps[0], dtype=float))[::-1]
    return tuple(scores.tolist())


def make_plans(
    items: Sequence[StudyItem], reserved: Sequence[StudyItem], methods: Sequence[str], options: StudyOptions
) -> dict[str, tuple[Slot, ...]]:
    """By person the pages in their order.

    Args:
        items: those that count.
        reserved: for checks and practice; at least as many as the options need.
    """
    # The maps are known to the owner only: without them nobody can draw the same orders from the usual seed.
    maps = repr([sorted(item.maps.values()) for item in (*items, *reserved)])
    secret = int.from_bytes(hashlib.sha256(maps.encode()).digest()[:16])
    rng = default_rng((options.seed, 16, secret))
    planner = _Planner(methods, options, rng)
    width = len(str(options.people))
    pools: dict[StudyTask, tuple[Sequence[StudyItem], Sequence[StudyItem]]] = {}
    start = 0
    for task, share in options.shares.items():
        practice = start + options.practice
        pools[task] = (reserved[start:practice], reserved[practice : practice + share.checks])
        start = practice + share.checks
    plans = {}
    for number in range(1, options.people + 1):
        slots: list[Slot] = []
        taken: set[str] = set()
        for task, (practice_items, check_items) in pools.items():
            block = planner.block(task, items, check_items, taken)
            taken |= {slot.item for slot in block}
            slots += [
                planner.slot(task, item, Occasion.PRACTICE, Counter(), Counter()) for item in practice_items
            ] + block
        plans[f"p{number:0{width}}"] = tuple(slots)
    return _even_out(plans, [item.uid for item in items]) if len(options.tasks) > 1 else plans


def _even_out(plans: Mapping[str, tuple[Slot, ...]], items: Sequence[str]) -> dict[str, tuple[Slot, ...]]:
    """Plans of both tasks in which every item is ranked equally often, within one.

    Nobody ranks what they guessed, so that an item may have been ranked twice less than another: somebody who has not
    seen it then ranks it in place of one that was ranked most.
    """
    evened = dict(plans)
    ranked = Counter(
        slot.item
        for plan in plans.values()
        for slot in plan
        if slot.task is StudyTask.RANK and slot.occasion is Occasion.MAIN
    )
    while (chain := _exchanges(evened, items, ranked)) is not None:
        for person, before, after in chain:
            evened[person] = tuple(
                replace(slot, item=after) if slot.item == before and slot.task is StudyTask.RANK else slot
                for slot in evened[person]
            )
        ranked[chain[0][1]] -= 1
        ranked[chain[-1][2]] += 1
    return evened


def _exchanges(
    plans: Mapping[str, tuple[Slot, ...]], items: Sequence[str], ranked: Mapping[str, int]
) -> list[tuple[str, str, str]] | None:
    """The shortest chain of exchanges (person, item, new item) from an item that is ranked most to one ranked least.

    In each of them a person ranks an item that they have not seen, in place of the one that the chain has reached.
    None if the items are ranked equally often, within one, or if there is no chain.
    """
    most, least = (pick(ranked[item] for item in items) for pick in (max, min))
    if most - least < 2:
        return None
    ranks = {person: {slot.item for slot in plan if slot.task is StudyTask.RANK} for person, plan in plans.items()}
    seen = {person: {slot.item for slot in plan} for person, plan in plans.items()}
    chains: dict[str, list[tuple[str, str, str]]] = {item: [] for item in items if ranked[item] == most}
    reached = [*chains]
    for before in reached:  # grows while it is read: a breadth-first search
        for person in plans:
            if before in ranks[person]:
                for after in items:
                    if after not in chains and after not in seen[person]:
                        chains[after] = [*chains[before], (person, before, after)]
                        reached.append(after)
                        if ranked[after] == least:
                            return chains[after]
    return None


class _Planner:
    """Draws the pages of one person after the other and counts what has been shown so far."""

    def __init__(self, methods: Sequence[str], options: StudyOptions, rng: Generator) -> None:
        self.methods, self.options, self.rng = tuple(methods), options, rng
        self.shown: dict[StudyTask, Counter[str]] = {task: Counter() for task in options.tasks}
        self.conditions: dict[str, Counter[str | None]] = {}

    def block(
        self, task: StudyTask, items: Sequence[StudyItem], checks: Sequence[StudyItem], taken: set[str]
    ) -> list[Slot]:
        """The pages of one task, without practice."""
        share = self.options.shares[task]
        free = [item for item in items if item.uid not in taken] or list(items)
        if len(free) < share.main:  # a person who has to see an item in both tasks
            free = list(items)
        order = self.rng.permutation(len(free))
        least = sorted(order, key=lambda place: self.shown[task][free[place].uid])[: share.main]
        chosen = [free[index] for index in self.rng.permutation(least)]
        self.shown[task].update(item.uid for item in chosen)
        of_person: Counter[str | None] = Counter()
        slots = [
            self.slot(task, item, Occasion.MAIN, self.conditions.setdefault(item.uid, Counter()), of_person)
            for item in chosen
        ]
        # What is repeated comes from the first half, and comes back in the last third.
        early = self.rng.permutation(max(share.repeats, len(slots) // 2))[: share.repeats]
        again = [slots[index] for index in early]
        for slot in [replace(slot, occasion=Occasion.REPEAT, maps=self._shuffled(slot.maps)) for slot in again]:
            slots.insert(int(self.rng.integers(max(1, 2 * len(slots) // 3), len(slots) + 1)), slot)
        for number, item in enumerate(self.rng.permutation(len(checks))):
            # Spread over the block: one in each part of equal length, never first.
            low, high = (1 + part * len(slots) // len(checks) for part in (number, number + 1))
            slots.insert(int(self.rng.integers(low, max(low + 1, high))), self._check(task, checks[item]))
        return slots

    def slot(
        self,
        task: StudyTask,
        item: StudyItem,
        occasion: Occasion,
        of_item: Counter[str | None],
        of_person: Counter[str | None],
    ) -> Slot:
        """A page of this item: all methods in random order, or the condition that was shown least."""
        if task is StudyTask.RANK:
            return Slot(task, item.uid, occasion, self._shuffled(self.methods))
        conditions = self._shuffled((None, *self.methods))
        if occasion is Occasion.PRACTICE:
            return Slot(task, item.uid, occasion, (next(method for method in conditions if method is not None),))
        chosen = min(conditions, key=lambda method: (of_item[method], of_person[method]))
        of_item[chosen] += 1
        of_person[chosen] += 1
        return Slot(task, item.uid, occasion, (chosen,))

    def _check(self, task: StudyTask, item: StudyItem) -> Slot:
        """A page that says which answer to give: the last place to one of the maps, or a guess.

        Whoever has another opinion about maps passes: to leave people out by their opinion would beg the question.
        """
        if task is StudyTask.RANK:
            shown = (*self._shuffled(self.methods)[1:], CONTROL)
            return Slot(task, item.uid, Occasion.CHECK, self._shuffled(shown))
        wrong = [choice for choice in item.choices if choice != item.predicted]
        asked = wrong[int(self.rng.integers(len(wrong)))]
        return Slot(task, item.uid, Occasion.CHECK, (self._shuffled(self.methods)[0],), asked)

    def _shuffled(self, values: Sequence[_T]) -> tuple[_T, ...]:
        return tuple(values[index] for index in self.rng.permutation(len(values)))


def describe_study(study: Study) -> list[str]:
    """The design in lines, for `--dry-run` and after a build."""
    slots = [slot for plan in study.plans.values() for slot in plan]
    first = next(iter(study.plans.values()))
    kinds = Counter((slot.task, slot.occasion) for slot in first)
    main = [slot for slot in slots if slot.occasion is Occasion.MAIN]
    shown = Counter(slot.item for slot in main)
    classes = Counter(item.predicted for item in study.items if item.uid in shown)
    noun = f"{study.noun}s"
    lines = [
        f"Source: {study.source}.",
        f"Methods, whose names nobody sees: {', '.join(study.methods)}.",
        f"{len(shown)} {noun} that count; predicted: "
        + ", ".join(f"{name} {count}" for name, count in classes.most_common(8))
        + (f" and {len(classes) - 8} more classes" if len(classes) > 8 else "")
        + ".",
        f"{len(study.plans)} people. Each is shown "
        + "; ".join(
            f"{count} {noun if count > 1 else study.noun} to {task.value} ({_PURPOSE[occasion]})"
            for (task, occasion), count in kinds.items()
        )
        + ".",
    ]
    ranked = Counter(slot.item for slot in main if slot.task is StudyTask.RANK)
    if ranked:
        times = _span(ranked[item] for item in shown)
        lines.append(f"Each {study.noun} is ranked {times} times; the order of the maps is random each time.")
    guesses: Counter[tuple[str, str | None]] = Counter(
        (slot.item, slot.maps[0]) for slot in main if slot.task is StudyTask.SIMULATE
    )
    if guesses:
        conditions = (None, *study.methods)
        counts = [guesses[item, method] for item in shown for method in conditions]
        lines.append(f"Each {study.noun} is guessed {_span(counts)} times with each method and with no map.")
    lines.append(f"Stated beforehand: who fails more than {study.max_failed_checks} attention checks is left out.")
    return lines


_PURPOSE = {
    Occasion.MAIN: "counted",
    Occasion.REPEAT: "seen before, for reliability",
    Occasion.CHECK: "attention check",
    Occasion.PRACTICE: "practice",
}


def _span(counts: Iterable[int]) -> str:
    values = sorted(counts)
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


# Files

_STUDY, _KEYS = TypeAdapter(Study), TypeAdapter(StudyKeys)
_File = TypeVar("_File", Study, StudyKeys)
_RESTORE = "restore it from a backup, or build the study again"


def check_study_folder(folder: Path) -> None:
    """UserError if there is a study, whose answers would be lost, or nothing can be written."""
    if (folder / STUDY_FILE).exists():
        raise UserError(f"{folder} has a study: choose another folder with --out, or delete it")
    try_to_write(folder)


def write_study(study: Study, folder: Path, address: str) -> StudyKeys:
    """Write a new study; UserError if there is one, whose answers would be lost.

    The URL of a database is stored without its password. Links with new tokens are in `links.txt`, which only the owner
    of the folder may read.
    """
    check_study_folder(folder)
    stored = replace(study, database=without_password(study.database)) if study.database else study
    tokens = {secrets.token_urlsafe(TOKEN_BYTES): person for person in study.plans}
    admin = secrets.token_urlsafe(TOKEN_BYTES)
    keys = StudyKeys(
        {token_digest(token): person for token, person in tokens.items()}, token_digest(admin), secrets.token_hex(32)
    )
    address = address.rstrip("/")
    links = [
        "# One line per person. Whoever has a link can answer as that person; give each to one person only.",
        *(f"{person}\t{address}/s/{token}" for token, person in tokens.items()),
        "# For you alone: progress, drop-outs and export.",
        f"admin\t{address}/admin/{admin}",
    ]
    documents = {
        CONSENT_FILE: template_text(CONSENT_FILE),
        INSTRUCTIONS_FILE: instructions_text(study),
        THANKS_FILE: template_text(THANKS_FILE),
        KEYS_FILE: add_checksum(_KEYS.dump_json(keys, indent=1).decode()) + "\n",
        LINKS_FILE: "\n".join(links) + "\n",
        # Last: a folder without it is not a study.
        STUDY_FILE: add_checksum(_STUDY.dump_json(stored).decode()) + "\n",
    }
    with translate_write_errors(folder):
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chmod(folder, 0o700)
        for name, text in documents.items():
            if name.endswith(".md") and (folder / name).exists():
                continue  # the owner has written it already
            with atomic_path(folder / name) as draft:
                draft.touch(mode=0o600)
                draft.write_text(text, encoding="utf-8")
                flush_to_disk(draft)
    return keys


def read_study(folder: Path) -> Study:
    """The study of a folder; UserError if there is none."""
    return _read(folder / STUDY_FILE, _STUDY)


def read_keys(folder: Path) -> StudyKeys:
    """The digests of the tokens of a study."""
    return _read(folder / KEYS_FILE, _KEYS)


def _read(path: Path, adapter: TypeAdapter[_File]) -> _File:
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise FileNotFoundError
        text = path.read_bytes()
        content = adapter.validate_json(text)
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}: make a study with heedful study build") from None
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"][:3]))
        raise UserError(f"{path} is damaged ({location or 'JSON'}: {first['msg']}): {_RESTORE}") from error
    if damage := find_damage(text, [field.name for field in fields(type(content))]):
        hint = f"; if you edited it, delete its entry {CHECKSUM!r}"
        raise UserError(f"{path} is damaged ({damage}): {_RESTORE}{hint}")
    return content


def instructions_text(study: Study) -> str:
    """The first version of the instructions, which the owner edits."""
    words = (
        {
            "a_noun": "an image",
            "parts": "parts of the image",
            "strength": "the stronger the colour of a square and the thicker its frame",
        }
        if study.noun == "image"
        else {
            "a_noun": "a text",
            "parts": "words",
            "strength": "the darker the background of a word and the thicker its underline",
        }
    )
    names = ["guessing.md"] * (study.task != "rank") + ["ranking.md"] * (study.task != "simulate") + ["closing.md"]
    return "\n".join(["# Instructions\n", *(template_text(name).format(**words) for name in names)])


def template_text(name: str) -> str:
    """A file of the package's templates of studies."""
    return resources.files("heedful.study").joinpath("templates", name).read_text(encoding="utf-8")
