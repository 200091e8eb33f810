"""The architecture as tests: floors, fences, names, sizes and the catalogue. Each test lists all offenders."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from heedful import catalogue
from heedful.trials.trial import Trial
from heedful.types import Corpus

SOURCE = Path(__file__).parents[1] / "src" / "heedful"
FILES = sorted(SOURCE.rglob("*.py"))
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
FLOORS = {
    name.removesuffix("/"): int(floor)
    for floor, names in re.findall(r"^\| (\d) \| ([^|]+) \|", CONTRIBUTING.read_text(encoding="utf-8"), re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", names)
}
"""The floor of each package and top-level module, from the table in CONTRIBUTING.md."""
ROOMS_APART = (1, 5)
"""Floors whose packages do not import each other."""
FENCES = {
    "captum": (),
    "choix": (),
    "datasets": ("data/",),
    "fsspec": ("store/object_store.py",),
    "jinja2": ("report/", "study/app.py"),
    "krippendorff": ("study/rating.py",),
    "matplotlib": (),
    "PIL": ("report/",),
    "pebble": ("execution/process_pool.py",),
    "ray": ("execution/ray_pool.py",),
    "rich": ("cli/console.py", "terminal.py"),
    "transformers": ("models/", "data/subwords.py", "data/patches.py", "data/_chat_template.py"),
    "trueskill": ("study/rating.py",),
    "typer": ("cli/",),
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
NOUNS = {"rating", "splitting", "training", "testing", "seeding", "formatting", "licensed", "published"}
"""Words that end like a gerund or a participle and are ordinary words of the field."""
SHARED_NAMES = {"tables", "figures", "section", "measure", "CLAIMS"}
"""What every paper defines: the parts of its chapter."""
LINE_BUDGETS = {
    "top level": 5760,
    "attributions": 4600,
    "audits": 8100,
    "cli": 2300,
    "data": 6000,
    "execution": 1550,
    "measures": 2080,
    "models": 5300,
    "papers": 5350,
    "report": 3250,
    "reproduction": 1150,
    "store": 3850,
    "study": 3850,
    "testing": 950,
    "training": 3700,
    "trials": 6150,
}
"""Lines of source that a package may have. Growth needs a larger budget in the same commit, with the reason."""
BUDGET_SLACK = 250
"""A budget that is further above the size than this no longer limits anything: lower it."""
SMALL_MODULE = 150
NOT_A_METHOD = {"LearnedMix", "HeadMix", "Infill", "WordPool"}
"""Public classes of `attributions` that are not in the catalogue: learned mixes, and what fills in words."""


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


def public_names(path: Path) -> set[str]:
    """The public classes, functions and constants that a file defines at its top level."""
    names = set()
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def private_imports(path: Path) -> Iterator[str]:
    """Imports of a private module, or of a private name, of another package."""
    for node in ast.walk(tree(path)):
        if not (isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "heedful"):
            continue
        parts = node.module.split(".")[1:]
        names = [name for name in (*parts, *(alias.name for alias in node.names)) if re.match(r"_[^_]", name)]
        if names and parts[:1] != [room(path)]:
            yield f"{label(path)}:{node.lineno} imports {', '.join(names)} from {node.module}"


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


def test_no_package_imports_what_is_private_to_another() -> None:
    offenders = [line for path in FILES for line in private_imports(path)]
    assert not offenders, "\n".join(offenders)


def test_no_two_files_and_no_two_public_names_are_the_same() -> None:
    files = Counter(path.name for path in FILES if path.name != "__init__.py")
    # A command has the name of the function that it runs.
    names = Counter(name for path in FILES if room(path) != "cli" for name in public_names(path) - SHARED_NAMES)
    offenders = [name for counter in (files, names) for name, count in counter.items() if count > 1]
    assert not offenders, "\n".join(sorted(offenders))


def test_packages_stay_within_their_line_budgets() -> None:
    sizes = Counter[str]()
    for path in FILES:
        name = room(path) if len(path.relative_to(SOURCE).parts) > 1 else "top level"
        sizes[name] += len(path.read_text(encoding="utf-8").splitlines())
    assert sizes.keys() == LINE_BUDGETS.keys()
    offenders = [
        f"{name}: {sizes[name]} lines, budget {budget}: delete first, or change the budget with the reason"
        for name, budget in LINE_BUDGETS.items()
        if not budget - BUDGET_SLACK <= sizes[name] <= budget
    ]
    assert not offenders, "\n".join(offenders)


def test_no_message_says_that_a_thing_is_no_other() -> None:
    offenders = [
        f"{label(path)}:{node.lineno} {node.value.strip()[:80]}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"(?<!there)(?<!There)\s(is|are)\sno\s(?!longer)", node.value)
    ]
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
    files = (path for path in (SOURCE / "attributions").glob("[!_]*.py") if path.name != "method.py")
    methods = {name for name, _ in public_classes(files)} - NOT_A_METHOD
    assert methods == {type(make()).__name__ for make in catalogue.METHODS.values()}


def test_catalogue_entries_have_the_names_they_are_listed_under() -> None:
    assert all(isinstance(corpus, Corpus) and corpus.name == name for name, corpus in catalogue.CORPORA.items())
    assert all(issubclass(trial, Trial) and trial.name == name for name, trial in catalogue.TRIALS.items())
