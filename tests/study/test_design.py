"""Designs: balance as a law over tasks and sizes, and what a person must never see."""

from __future__ import annotations

import json
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heedful.study.answers import Occasion
from heedful.study.design import (
    CONTROL,
    KEYS_FILE,
    LINKS_FILE,
    Slot,
    Study,
    StudyItem,
    StudyOptions,
    StudyTask,
    control_map,
    describe_study,
    form_code,
    make_plans,
    read_keys,
    read_study,
    strengths,
    token_digest,
    write_study,
)
from heedful.types import UserError

METHODS = ("a", "b", "c")


def items(n: int, prefix: str = "i") -> list[StudyItem]:
    maps = dict.fromkeys((*METHODS, CONTROL), (1.0, 0.5, 0.0))
    return [
        StudyItem(f"{prefix}{place}", ("x", "y", "z"), (), 0, "no", ("no", "yes", "maybe"), maps) for place in range(n)
    ]


def plans(options: StudyOptions) -> dict[str, tuple[Slot, ...]]:
    return make_plans(items(options.items), items(options.reserved, "r"), METHODS, options)


@pytest.mark.parametrize("task", ["rank", "simulate", "both"])
@pytest.mark.parametrize(
    ("n_items", "per_person", "people"), [(50, 20, 30), (7, 5, 11), (18, 20, 9), (30, 12, 1), (20, 15, 30), (13, 10, 9)]
)
def test_every_item_is_shown_equally_often_and_to_nobody_twice(
    task: str, n_items: int, per_person: int, people: int
) -> None:
    options = StudyOptions(n_items, per_person, people, task)
    found = plans(options)
    assert len(found) == people
    for tasked, share in options.shares.items():
        shown: Counter[str] = Counter({item.uid: 0 for item in items(n_items)})
        for plan in found.values():
            main = [slot.item for slot in plan if (slot.task, slot.occasion) == (tasked, Occasion.MAIN)]
            assert len(set(main)) == len(main) == share.main
            shown.update(main)
        assert max(shown.values()) - min(shown.values()) <= 1, shown
    if len(options.shares) > 1 and sum(share.main for share in options.shares.values()) <= n_items:
        for plan in found.values():
            main = [slot.item for slot in plan if slot.occasion is Occasion.MAIN]
            assert len(set(main)) == len(main), "nobody ranks what they guessed"
    assert all(
        sum(slot.occasion is not Occasion.PRACTICE for slot in plan) == options.per_person for plan in found.values()
    )


def test_every_item_has_every_condition_equally_often() -> None:
    found = plans(StudyOptions(20, 10, 40, "simulate"))
    counts = Counter(
        (slot.item, slot.maps[0]) for plan in found.values() for slot in plan if slot.occasion is Occasion.MAIN
    )
    for item in items(20):
        own = [counts[item.uid, condition] for condition in (None, *METHODS)]
        assert max(own) - min(own) <= 1
        assert sum(own) == 16


def test_repeats_come_back_later_and_checks_have_one_known_answer() -> None:
    for plan in plans(StudyOptions(30, 20, 40, "both")).values():
        for place, slot in enumerate(plan):
            if slot.occasion is Occasion.REPEAT:
                first = [n for n, each in enumerate(plan) if (each.item, each.occasion) == (slot.item, Occasion.MAIN)]
                assert len(first) == 1
                assert first[0] < place - 1
                assert sorted(map(str, slot.maps)) == sorted(map(str, plan[first[0]].maps))
            elif slot.occasion is Occasion.CHECK and slot.task is StudyTask.RANK:
                assert slot.maps.count(CONTROL) == 1
                assert len(set(slot.maps)) == len(METHODS)
            elif slot.occasion is Occasion.CHECK:
                assert slot.asked in ("yes", "maybe")
            else:
                assert CONTROL not in slot.maps
        assert [slot.task for slot in plan] == sorted((slot.task for slot in plan), reverse=True)  # guesses first


def test_the_order_of_maps_is_uniform() -> None:
    found = plans(StudyOptions(50, 20, 600))
    first = Counter(slot.maps[0] for plan in found.values() for slot in plan if slot.occasion is Occasion.MAIN)
    total = sum(first.values())
    # Three cells, 9600 pages: chi-squared above 13.8 has probability .001.
    assert sum((first[name] - total / 3) ** 2 / (total / 3) for name in METHODS) < 13.8


def test_a_design_depends_on_its_seed_and_on_the_maps() -> None:
    assert plans(StudyOptions(seed=3)) == plans(StudyOptions(seed=3)) != plans(StudyOptions(seed=4))
    options = StudyOptions(seed=3)
    other = [replace(item, maps={**item.maps, "a": (0.9, 0.5, 0.0)}) for item in items(options.items)]
    assert make_plans(other, items(options.reserved, "r"), METHODS, options) != plans(options), "nobody can repeat it"


def test_per_person_includes_checks_and_repeats() -> None:
    share = StudyOptions(50, 20).shares[StudyTask.RANK]
    assert (share.main, share.checks, share.repeats, StudyOptions(50, 20).allowed_failures) == (16, 2, 2, 1)
    both = StudyOptions(50, 21, task="both").shares
    assert [each.main + each.checks + each.repeats for each in both.values()] == [10, 11]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"task": "rate"}, "choose rank"),
        ({"items": 0}, "--items 0"),
        ({"per_person": 0}, "--per-person 0"),
        ({"people": 100_000}, "--people"),
        ({"items": 5}, "increase --items"),
        ({"checks": 10, "repeats": 10}, "decrease --checks"),
        ({"checks": -1}, "--checks -1"),
    ],
)
def test_impossible_designs_are_one_line(options: dict[str, int | str], remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        StudyOptions(**options)  # type: ignore[arg-type]


def test_strengths_are_the_same_for_all_multiples_of_scores() -> None:
    scores = [0.3, -1.0, 0.0, 0.1]
    for kind in ("positive", "size"):
        for scale in ("share", "rank"):
            assert strengths([7 * s for s in scores], kind=kind, scale=scale) == strengths(
                scores, kind=kind, scale=scale
            )
    assert strengths([0.0, -2.0]) == (0.0, 0.0)
    assert strengths([float("nan"), 2.0, float("inf")]) == (0.0, 1.0, 0.0)
    assert strengths([3.0, 3.0], scale="rank") == (1.0, 1.0)


def test_the_control_is_the_opposite_of_the_mean_map() -> None:
    rng = np.random.default_rng(0)
    maps = rng.random((3, 12))
    control = np.array(control_map(maps.tolist(), rng))
    assert (np.argsort(control) == np.argsort(-maps.mean(0))).all()
    assert sorted(control) == sorted(maps[0])


def study(options: StudyOptions) -> Study:
    main, rest = items(options.items), items(options.reserved, "r")
    return Study("T", "S", options.task, METHODS, 0, 1, (*main, *rest), make_plans(main, rest, METHODS, options))


def test_a_study_is_read_back_and_its_secrets_are_private(tmp_path: Path) -> None:
    made = study(StudyOptions(20, 10, 5, "both"))
    folder = tmp_path / "study"
    keys = write_study(made, folder, "https://example.org/")
    assert read_study(folder) == made
    assert read_keys(folder) == keys
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    links = dict(line.split("\t") for line in (folder / LINKS_FILE).read_text().splitlines() if "\t" in line)
    assert links.keys() == {*made.plans, "admin"}
    for person in made.plans:
        token = links[person].removeprefix("https://example.org/s/")
        assert len(token) >= 24
        assert keys.people[token_digest(token)] == person
        assert token not in (folder / KEYS_FILE).read_text()
    with pytest.raises(UserError, match="has a study"):
        write_study(made, folder, "http://127.0.0.1:8000")


def test_the_owners_documents_are_kept(tmp_path: Path) -> None:
    (tmp_path / "consent.md").write_text("# Mine")
    write_study(study(StudyOptions(20, 10, 5)), tmp_path, "http://x")
    assert (tmp_path / "consent.md").read_text() == "# Mine"


def test_a_missing_or_damaged_study_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="heedful study build"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text('{"title": 3}')
    with pytest.raises(UserError, match="damaged"):
        read_study(tmp_path)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("study.json", '["c","a","b"]', '["c","a","a"]'),
        ("study.json", '"max_failed_checks":', '"max_failed_bhecks":'),
        ("keys.json", '"p1"', '"p3"'),
        ("keys.json", '"form_key": "', '"form_key": "0'),
        ("keys.json", '"checksum":"', '"bhecksum":"'),
    ],
)
def test_flipped_bits_in_the_files_of_a_study_are_noticed(name: str, before: str, after: str, tmp_path: Path) -> None:
    write_study(study(StudyOptions(20, 10, 5)), tmp_path, "http://x")
    path = tmp_path / name
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(UserError, match="backup") as error:
        (read_study if name == "study.json" else read_keys)(tmp_path)
    assert "\n" not in str(error.value)


def test_every_flipped_bit_of_the_keys_is_noticed(tmp_path: Path) -> None:
    write_study(study(StudyOptions(20, 10, 1)), tmp_path, "http://x")
    data, right = bytearray((tmp_path / "keys.json").read_bytes()), read_keys(tmp_path)
    missed = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 7
        (tmp_path / "keys.json").write_bytes(damaged)
        with suppress(UserError):
            assert read_keys(tmp_path) == right, "a change of spaces"
            missed += 1
    assert missed <= data.count(b" ") + data.count(b"\n")


def test_files_of_earlier_versions_have_no_checksum(tmp_path: Path) -> None:
    made = study(StudyOptions(20, 10, 5))
    keys = write_study(made, tmp_path, "http://x")
    for name in ("study.json", "keys.json"):
        content = json.loads((tmp_path / name).read_text())
        del content["checksum"]
        (tmp_path / name).write_text(json.dumps(content))
    assert (read_study(tmp_path), read_keys(tmp_path)) == (made, keys)


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("postgresql://me:secret@host:5432/x?sslmode=require", "postgresql://me@host:5432/x?sslmode=require"),
        ("postgresql://host/x?user=me&password=secret", "postgresql://host/x?user=me"),
        ("postgresql://me:se%2Fcret@/x?host=/tmp&sslpassword=secret", "postgresql://me@/x?host=%2Ftmp"),
        ("sqlite:///file:x?uri=true", "sqlite:///file:x?uri=true"),
        ("postgresql://me@host/x", "postgresql://me@host/x"),
    ],
)
def test_passwords_of_a_database_are_not_stored(url: str, stored: str, tmp_path: Path) -> None:
    write_study(replace(study(StudyOptions(20, 10, 5)), database=url), tmp_path, "http://x")
    assert read_study(tmp_path).database == stored
    assert all("cret" not in path.read_text() for path in tmp_path.iterdir())


def test_the_description_counts_what_is_shown() -> None:
    lines = " ".join(describe_study(study(StudyOptions(20, 10, 40, "simulate"))))
    assert "20 texts that count" in lines
    assert "guessed 4 times" in lines


def test_form_codes_depend_on_every_part(tmp_path: Path) -> None:
    keys = write_study(study(StudyOptions(20, 10, 5)), tmp_path, "http://x")
    assert len({form_code(keys, "p1", 2), form_code(keys, "p1", 3), form_code(keys, "p12", ""), form_code(keys)}) == 4
