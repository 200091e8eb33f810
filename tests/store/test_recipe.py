"""Fingerprints: stable where nothing changed, different where anything did."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, make_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import ClassVar

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.words import Words
from heedful.store.code_digest import code_digest
from heedful.store.recipe import (
    Artefact,
    Recipe,
    canonical_json,
    derive_seed,
    describe_recipe,
    json_digest,
    to_json,
)
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.types import Corpus, Splits

DATA = Path("data")


def fingerprint(recipe: Recipe, data: Path) -> str:
    return json_digest(describe_recipe(recipe, data))


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Notebook(Corpus):
    name: ClassVar[str] = "notebook"
    tokenization: ClassVar[Words] = Words()
    lower: bool = True

    def read(self, data: Path) -> Splits:
        raise NotImplementedError

    def digest(self, data: Path) -> str:
        with (data / "asked").open("a") as file:
            file.write("x")
        return hashlib.sha256((data / "notebook.txt").read_bytes()).hexdigest()


@dataclass(frozen=True)
class Rate:
    start: float = 0.5
    floor: float | None = None


@dataclass(frozen=True)
class Grow(Recipe):
    seed: int = 1
    rate: Rate = Rate()

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


@dataclass(frozen=True)
class Borrowed:
    source: Recipe


@dataclass(frozen=True)
class Compare(Recipe):
    revision: ClassVar[int] = 3
    first: Recipe = Grow()
    rest: tuple[Recipe, ...] = ()
    loan: Borrowed | None = None
    note: object = None

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


@dataclass(frozen=True)
class Read(Recipe):
    corpora: tuple[Notebook, ...]

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


def test_fingerprint_is_the_hash_of_this_very_text() -> None:
    code = {kind: code_digest(kind) for kind in (Rate, Grow, Colour, Compare)}
    text = (
        f'{{"code":"{code[Compare]}","first":{{"code":"{code[Grow]}","rate":{{"code":"{code[Rate]}","floor":null,'
        f'"start":0.5,"type":"{__name__}.Rate"}},"revision":1,"seed":1,"type":"{__name__}.Grow"}},"loan":null,'
        f'"note":{{"code":"{code[Colour]}","member":"BLUE","type":"{__name__}.Colour"}},"rest":[],"revision":3,'
        f'"type":"{__name__}.Compare"}}'
    ).encode()
    assert fingerprint(Compare(note=Colour.BLUE), DATA) == hashlib.sha256(text).hexdigest()
    assert Workspace(DATA, data_dir=DATA).artefact_name(Compare(note=Colour.BLUE)) == (
        f"Compare-{hashlib.sha256(text).hexdigest()[:12]}"
    )


def test_classes_of_the_package_have_no_code_digest() -> None:
    assert canonical_json(BinaryClassification(), DATA) == {"type": "heedful.tasks.BinaryClassification"}


def test_order_in_which_fields_are_declared_does_not_matter() -> None:
    one = make_dataclass("Plan", [("a", int), ("b", str)], frozen=True)
    other = make_dataclass("Plan", [("b", str), ("a", int)], frozen=True)
    assert fingerprint(Compare(note=one(a=1, b="x")), DATA) == fingerprint(Compare(note=other(a=1, b="x")), DATA)


def test_every_nested_change_gives_another_fingerprint() -> None:
    start = Compare(rest=(Grow(2),), loan=Borrowed(Grow(3)), note=(1, "1", Path("a/b")))
    variants = [
        start,
        replace(start, first=Grow(5)),
        replace(start, first=Grow(1, Rate(0.25))),
        replace(start, first=Grow(1, Rate(0.5, 0.0))),
        replace(start, rest=(Grow(4),)),
        replace(start, rest=(Grow(2), Grow(2))),
        replace(start, loan=Borrowed(Grow(4))),
        replace(start, loan=None),
        *(replace(start, note=n) for n in [None, True, 1, 1.0, "1", (1,), (), "", 0, False, Colour.RED]),
        *(replace(start, note=n) for n in [float("inf"), float("-inf"), float("nan"), "inf", 0.1 + 0.2, 0.3]),
    ]
    assert len({fingerprint(variant, DATA) for variant in variants}) == len(variants)


def test_two_classes_with_the_same_fields_differ() -> None:
    twin = make_dataclass("Twin", [("start", float, 0.5), ("floor", float, None)], frozen=True)
    assert fingerprint(Compare(note=Rate()), DATA) != fingerprint(Compare(note=twin()), DATA)


def test_revision_of_a_nested_recipe_counts_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = Compare(loan=Borrowed(Compare(rest=(Grow(9),), first=Compare(first=Compare()))))
    before = fingerprint(deep, DATA)
    monkeypatch.setattr(Grow, "revision", 2)
    assert fingerprint(deep, DATA) != before
    monkeypatch.setattr(Grow, "revision", 1)
    assert fingerprint(deep, DATA) == before


def test_revision_of_something_that_is_no_recipe_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(Grow(), DATA)
    monkeypatch.setattr(Rate, "revision", 2, raising=False)
    assert fingerprint(Grow(), DATA) != before


def test_whole_number_in_a_float_field_means_the_float() -> None:
    assert fingerprint(Grow(rate=Rate(1)), DATA) == fingerprint(Grow(rate=Rate(1.0)), DATA)
    assert fingerprint(Grow(rate=Rate(floor=0)), DATA) == fingerprint(Grow(rate=Rate(floor=0.0)), DATA)
    assert fingerprint(Grow(rate=Rate(numpy.float64(0.5))), DATA) == fingerprint(Grow(rate=Rate(0.5)), DATA)
    assert fingerprint(Grow(rate=Rate(True)), DATA) != fingerprint(Grow(rate=Rate(1.0)), DATA)


def test_content_of_a_corpus_counts_and_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "notebook.txt").write_text("one fine day")
    recipe = Read((Notebook(), Notebook(), Notebook(lower=False)))
    before = fingerprint(recipe, tmp_path)
    assert (tmp_path / "asked").read_text() == "xx"
    (tmp_path / "notebook.txt").write_text("one fine dax")
    assert fingerprint(recipe, tmp_path) != before
    (tmp_path / "notebook.txt").write_text("one fine day")
    assert fingerprint(recipe, tmp_path) == before
    expected = hashlib.sha256(b"one fine day").hexdigest()
    assert canonical_json(Notebook(), tmp_path) == {
        "type": f"{__name__}.Notebook",
        "code": code_digest(Notebook),
        "lower": True,
        "content": expected,
    }


@pytest.mark.parametrize("alien", [[1], {"a": 1}, {1}, b"x", numpy.int64(1), object(), Grow, len])
def test_what_cannot_be_written_canonically_is_refused_by_field(alien: object) -> None:
    with pytest.raises(TypeError, match=r"^Compare\.note\[1\]: a recipe cannot hold a "):
        fingerprint(Compare(note=(0, alien)), DATA)


def test_recipe_that_is_not_frozen_is_refused_with_the_remedy(tmp_path: Path) -> None:
    @dataclass
    class Loose(Recipe):
        items: list[int] = field(default_factory=list)

        def make(self, workspace: Workspace) -> Artefact:
            return Artefact()

    class Bare(Recipe):
        def make(self, workspace: Workspace) -> Artefact:
            return Artefact()

    for recipe in (Loose(), Bare(), Compare(first=Loose()), Compare(rest=(Bare(),))):
        with pytest.raises(TypeError, match=r"(Loose|Bare) .*@dataclass\(frozen=True\)"):
            Workspace(tmp_path).get(recipe)
    for alien in (Rate(), Grow, None):
        with pytest.raises(TypeError, match=r"is not a recipe.*frozen dataclass that inherits from Recipe"):
            Workspace(tmp_path).get(alien)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_field_that_would_hide_the_class_name_is_refused() -> None:
    sly = make_dataclass("Sly", [("type", str)], frozen=True)
    with pytest.raises(TypeError, match=r"Compare\.note\.type: .*rename"):
        fingerprint(Compare(note=sly("Rate")), DATA)


def test_needs_are_the_recipes_in_fields_tuples_and_dataclasses_but_not_theirs() -> None:
    inner = Compare(first=Grow(7))
    recipe = Compare(first=inner, rest=(Grow(2), Grow(3)), loan=Borrowed(Grow(4)), note=((Grow(5),), "x"))
    assert recipe.dependencies == (inner, Grow(2), Grow(3), Grow(4), Grow(5))
    assert Grow().dependencies == ()


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
def test_derived_seeds_fit_a_generator_and_differ_with_any_part(one: list[int | str], two: list[int | str]) -> None:
    assert 0 <= derive_seed(*one) < 2**63
    assert (derive_seed(*one) == derive_seed(*two)) == (one == two)


def test_derived_seed_is_the_head_of_a_hash_written_out_here() -> None:
    assert derive_seed(3, "r-1") == int.from_bytes(hashlib.sha256(b'[3,"r-1"]').digest()[:8], "big") // 2


def test_values_become_json_with_undefined_numbers_as_null_and_others_are_refused() -> None:
    values = {"a": (1, 2.5, float("inf"), float("nan")), 3: [None, True, "x"]}
    assert to_json(values) == {"a": [1, 2.5, None, None], "3": [None, True, "x"]}
    for alien in (b"x", {1}, object()):
        with pytest.raises(TypeError, match="cannot be written as JSON"):
            to_json([alien])
