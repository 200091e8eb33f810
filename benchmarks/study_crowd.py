"""A whole study: build, serve, a crowd with known preferences over real HTTP, rate: does the planted order come out?

Run `python -m benchmarks.study_crowd [--people 24] [--from PAGE --methods A,B,C]`: without a source, the study is about
invented texts. The crowd prefers the methods in the order in which they are named, with ties, differences between
people and items, and noise; the first helps most to guess. Every eighth person answers at random. Exit code 1 if the
order that `heedful study rate` decides contradicts the planted one, or a careless person is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.study_load import HIDDEN, Connection, Results, Server, insist
from heedful.study.answers import Occasion
from heedful.study.design import CONTROL, Slot, Study, StudyOptions, StudyTask, write_study
from heedful.study.items import build_study
from heedful.study.plackett_luce import draw_ranks
from tests.invented_studies import METHODS, free_port, read_links, text_page

SPAN, SPREAD = 1.5, 0.4
"""The log worths of the methods lie between plus and minus SPAN; people and items shift them with this deviation."""
CARELESS = 8
LOG_DELTAS = {2: -1.5}


@dataclass(frozen=True)
class Member:
    """One person of the crowd, who knows which map is of which method, as the pages do not."""

    study: Study
    number: int

    @property
    def is_careless(self) -> bool:
        return self.number % CARELESS == CARELESS - 1

    def answer(self, slot: Slot, page: int) -> dict[str, str]:
        """The fields of the form."""
        rng = np.random.default_rng([self.number, page])
        item = next(each for each in self.study.items if each.uid == slot.item)
        if slot.task is StudyTask.RANK:
            worths = np.zeros(len(slot.maps)) if self.is_careless else self._worths(slot)
            ranks = draw_ranks(worths[None], LOG_DELTAS, rng)[0].tolist()
            return {f"a{place}": str(rank) for place, rank in enumerate(ranks)}
        if slot.asked is not None and not self.is_careless:
            return {"guess": str(item.choices.index(slot.asked))}
        place = 0 if slot.maps[0] is None else len(self.study.methods) - self.study.methods.index(str(slot.maps[0]))
        knows = not self.is_careless and rng.random() < 0.2 + 0.6 * place / len(self.study.methods)
        return {"guess": str(item.choices.index(item.predicted) if knows else rng.integers(len(item.choices)))}

    def _worths(self, slot: Slot) -> np.ndarray:
        line = np.linspace(SPAN, -SPAN, len(self.study.methods))
        numbers = [CONTROL if name == CONTROL else self.study.methods.index(str(name)) for name in slot.maps]
        of_person = np.random.default_rng([1, self.number]).normal(0, SPREAD, len(line))
        of_item = np.random.default_rng([2, *slot.item.encode()]).normal(0, SPREAD, len(line))
        return np.array(
            [-9.0 if number == CONTROL else (line + of_person + of_item)[int(number)] for number in numbers]
        )


async def take_part(member: Member, person: str, link: str, port: int, results: Results) -> None:
    """One person from consent to the last page."""
    connection = Connection(port)
    body, _ = await insist(connection, results, "GET", link)
    await insist(connection, results, "POST", f"{link}/consent", {**dict(HIDDEN.findall(body)), "agree": "yes"})
    for number, slot in enumerate(member.study.plans[person], 1):
        body, _ = await insist(connection, results, "GET", f"{link}/{number}")
        fields = {**dict(HIDDEN.findall(body)), **member.answer(slot, number)}
        await insist(connection, results, "POST", f"{link}/{number}", fields)
    connection.close()


async def serve_to_crowd(study: Study, folder: Path) -> None:
    """Everybody takes part at once."""
    write_study(study, folder, "")
    links, port = read_links(folder), free_port()
    server, results = Server(folder, port), Results()
    try:
        await server.wait()
        people = [Member(study, number) for number in range(len(study.plans))]
        await asyncio.gather(
            *(
                take_part(each, person, links[person], port, results)
                for each, person in zip(people, study.plans, strict=True)
            )
        )
    finally:
        server.kill()


def main(people: int, source: Path | None, methods: tuple[str, ...], folder: Path) -> int:
    options = StudyOptions(24, 24, people, "both", checks=4, repeats=2, max_failed_checks=1)
    study = build_study(source or text_page(folder / "page.html"), methods, options)
    begun = time.perf_counter()
    asyncio.run(serve_to_crowd(study, folder / "study"))
    print(
        f"{people} people answered {sum(map(len, study.plans.values()))} pages in {time.perf_counter() - begun:.0f} s"
    )
    words = ["study", "rate", folder / "study", "-w", folder / "workspace", "--json", folder / "out.json"]
    subprocess.run([sys.executable, "-c", "from heedful.cli import main; main()", *map(str, words)], check=True)
    rows = json.loads((folder / "out.json").read_text())["summary"]
    ranks = {row["method"]: row for row in rows if row["metric"] == "rank"}
    left_out = next(row["value"] for row in rows if row["metric"] == "people_left_out")
    careless = sum(Member(study, number).is_careless for number in range(people))
    allowed = all(ranks[name]["low"] <= place <= ranks[name]["high"] for place, name in enumerate(methods, 1))
    same = all(ranks[one]["value"] < ranks[other]["value"] for one, other in pairwise(methods))
    print(f"planted: {', '.join(methods)}; estimated order the same: {same}; allowed by the intervals: {allowed}")
    print(f"careless people: {careless}, left out: {left_out:.0f}")
    main_pages = [slot for plan in study.plans.values() for slot in plan if slot.occasion is Occasion.MAIN]
    counted = sum(row["value"] for row in rows if row["metric"] == "answers")
    print(f"pages that count: {len(main_pages)}; answers of people who count: {counted:.0f}")
    return 0 if allowed and left_out == careless else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=24)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        names = tuple(re.split(r",(?![^(]*\))", given.methods))
        sys.exit(main(given.people, given.source, names, Path(temporary)))
