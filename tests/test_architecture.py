"""The architecture as tests: floors, fences, names, sizes and the catalogue. Each test lists all offenders."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from heedful import catalogue
from heedful.trials._trial import Trial
from heedful.types import Corpus

SOURCE = Path(__file__).parents[1] / "src" / "heedful"
FILES = sorted(SOURCE.rglob("*.py"))
FLOORS = {
    "types": 0, "tasks": 0, "figures": 0, "devices": 0, "seeding": 0, "progress": 0, "measures": 0, "store": 0,
    "scored_text": 0,
    "data": 1, "models": 1, "attributions": 1,
    "training": 2,
    "trials": 3,
    "papers": 4, "catalogue": 4, "runner": 4, "learn": 4, "outcome": 4, "_process_pool": 4, "_ray_pool": 4,
    "report": 5, "testing": 5, "terminal": 5,
    "explanation": 6, "explainer": 6, "command_line": 6,
    "audits": 7, "study": 7, "model_support": 7,
    "cli": 8,
    "__init__": 9,
}  # fmt: skip
ROOMS_APART = (1, 5)
"""Floors whose packages do not import each other."""
FENCES = {
    "captum": (),
    "choix": (),
    "datasets": ("data/",),
    "fsspec": ("store/object_store.py",),
    "jinja2": ("report/", "study/app.py"),
    "krippendorff": ("study/rating.py",),
    "matplotlib": ("report/",),
    "pebble": ("_process_pool.py",),
    "ray": ("_ray_pool.py",),
    "rich": ("command_line.py", "terminal.py"),
    "transformers": ("models/", "data/tokenization.py", "data/_chat_template.py"),
    "trueskill": ("study/rating.py",),
    "typer": ("cli.py", "command_line.py", "study/commands.py"),
}
FORBIDDEN_CALLS = {
    "hasattr",
    "object.__setattr__",
    "torch.load",
    "pickle.load",
    "pickle.loads",
    "eval",
    "exec",
    "print",
}
NOUNS = {"rating", "splitting", "training", "testing", "seeding", "licensed", "published"}
"""Words that end like a gerund or a participle and are ordinary words of the field."""
SMALL_MODULE = 150
NOT_A_METHOD = {"LearnedMix", "CompleteAttribution", "HeadMix"}
"""Public classes of `attributions` that are not in the catalogue: a result, and a mix learned for one model."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def label(path: Path) -> str:
    """The path below the package."""
    return path.relative_to(SOURCE).as_posix()


def module_name(path: Path) -> str:
    return ".".join(("heedful", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


@cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Every module that a file imports at run time, with its line; `from package import module` names the module."""
    found = []
    hidden = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append((inner if inner in MODULES else node.module, node.lineno))
    return tuple(dict.fromkeys(found))


def our_imports(path: Path) -> set[Path]:
    return {MODULES[name] for name, _ in imports(path) if name in MODULES} - {path}


def room(path: Path) -> str:
    """The first part of a module's name below the package."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def public_classes(paths: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for path in paths:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def test_imports_go_down_only_and_not_across_rooms() -> None:
    unknown = [label(path) for path in FILES if room(path) not in FLOORS]
    assert not unknown, f"give these a floor: {unknown}"
    offenders = []
    for path in FILES:
        floor = FLOORS[room(path)]
        for name, line in imports(path):
            if name not in MODULES or name == "heedful":
                continue
            other = FLOORS[room(MODULES[name])]
            across = other == floor and floor in ROOMS_APART and room(MODULES[name]) != room(path)
            if other > floor or across:
                offenders.append(f"{label(path)}:{line} imports {name}")
    assert not offenders, "\n".join(offenders)


def test_no_import_cycles() -> None:
    order: dict[Path, int] = {}
    cycles: list[str] = []

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        if path in trail:
            cycles.append(" -> ".join(label(each) for each in (*trail[trail.index(path) :], path)))
        elif path not in order:
            for other in sorted(our_imports(path)):
                visit(other, (*trail, path))
            order[path] = len(order)

    for path in FILES:
        visit(path, ())
    assert not cycles, "\n".join(cycles)


def test_third_party_packages_stay_behind_their_fences() -> None:
    offenders = [
        f"{label(path)}:{line} imports {name}"
        for path in FILES
        for name, line in imports(path)
        if not label(path).startswith(FENCES.get(name.split(".")[0], ("",)))
    ]
    assert not offenders, "\n".join(offenders)


def test_nothing_forbidden_is_called() -> None:
    offenders = [
        f"{label(path)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS
    ]
    assert not offenders, "\n".join(offenders)


def test_every_module_has_a_docstring() -> None:
    offenders = [label(path) for path in FILES if path.stat().st_size and not ast.get_docstring(tree(path))]
    assert not offenders, "\n".join(offenders)


def test_no_two_files_and_no_two_public_classes_have_one_name() -> None:
    files = Counter(path.name for path in FILES if path.name != "__init__.py")
    classes = Counter(name for name, _ in public_classes(FILES))
    offenders = [name for counter in (files, classes) for name, count in counter.items() if count > 1]
    assert not offenders, "\n".join(offenders)


def test_file_names_are_nouns() -> None:
    offenders = [
        label(path)
        for path in FILES
        if re.search(r"(ing|ed)$", path.stem.split("_")[-1]) and path.stem.split("_")[-1] not in NOUNS
    ]
    assert not offenders, "\n".join(offenders)


def test_a_small_module_with_one_importer_in_its_folder_is_merged_into_it() -> None:
    offenders = []
    for path in FILES:
        importers = [each for each in FILES if path in our_imports(each)]
        small = len(path.read_text(encoding="utf-8").splitlines()) < SMALL_MODULE
        # A package's __init__ registers its modules.
        alone = len(importers) == 1 and importers[0].parent == path.parent and importers[0].name != "__init__.py"
        if path.name != "__init__.py" and small and alone:
            offenders.append(f"{label(path)} is imported by {label(importers[0])} only")
    assert not offenders, "\n".join(offenders)


def test_the_catalogue_has_every_trial_and_every_method() -> None:
    trials = {
        node.name
        for path in (SOURCE / "trials").glob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and {"Trial", "ShardedTrial"} & {ast.unparse(base) for base in node.bases}
    } - {"ShardedTrial"}
    assert trials == {trial.__name__ for trial in catalogue.TRIALS.values()}
    methods = {name for name, _ in public_classes((SOURCE / "attributions").glob("[!_]*.py"))} - NOT_A_METHOD
    assert methods == {type(make()).__name__ for make in catalogue.METHODS.values()}


def test_catalogue_entries_have_the_names_they_are_listed_under() -> None:
    assert all(isinstance(corpus, Corpus) and corpus.name == name for name, corpus in catalogue.CORPORA.items())
    assert all(issubclass(trial, Trial) and trial.name == name for name, trial in catalogue.TRIALS.items())
