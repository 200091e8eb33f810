"""The house stands: floors, fences, sizes, names and the completeness of the catalogue, read from the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful import catalogue
from heedful.trials._trial import Trial
from heedful.types import Corpus, Method

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "heedful"
FILES = sorted(SOURCE.rglob("*.py"))
FLOORS = {
    "types": 0, "tasks": 0, "figures": 0, "seeding": 0, "progress": 0, "measures": 0, "store": 0, "core": 0,
    "data": 1, "models": 1, "attributions": 1,
    "training": 2,
    "trials": 3,
    "papers": 4, "catalogue": 4, "runner": 4, "estimating": 4, "learn": 4,
    "testing": 5, "report": 5,
    "cli": 6,
    "": 7,
}  # fmt: skip
FENCES = {
    "transformers": {"models/transformer.py", "models/_attention_hooks.py", "data/tokenization.py"},
    "captum": {"attributions/deeplift.py"},
    "ray": {"runner.py"},
    "datasets": {"data/download.py", "data/table.py"},
    "matplotlib": {"report/charts.py", "report/drawing.py", "report/ink.py"},
    "typer": {"cli.py"},
    "rich": {"cli.py"},
}
CLI = "cli.py"


def name_of(path: Path) -> str:
    """The path below the package, with forward slashes."""
    return path.relative_to(SOURCE).as_posix()


def floor_of(module: str) -> int:
    """The floor of a module named relative to the package, for instance `core.types`."""
    return FLOORS[module.split(".")[0].removesuffix("__init__")]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports at run time, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "heedful":
                yield from ((f"heedful.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_down_only_and_never_across_the_first_floor(path: Path) -> None:
    here = name_of(path).removesuffix(".py").replace("/", ".")
    for module, line in imports(path):
        if not module.startswith("heedful.") or module == "heedful.__version__":
            continue
        there = module.removeprefix("heedful.")
        room, other = here.split(".")[0], there.split(".")[0]
        assert floor_of(there) <= floor_of(here), f"{here}:{line} imports {there}, which is above it"
        across = room != other and floor_of(there) == floor_of(here)
        assert not (across and floor_of(here) in (1, 5)), f"{here}:{line} imports {there} across the floor"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_third_party_packages_stay_behind_their_fences(path: Path) -> None:
    for module, line in imports(path):
        fence = FENCES.get(module.split(".")[0])
        assert fence is None or name_of(path) in fence, f"{name_of(path)}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_tells_its_idea_and_nothing_forbidden_is_called(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or path.stat().st_size == 0, f"{name_of(path)} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("hasattr", "torch.load", "pickle.load", "pickle.loads", "eval", "exec"), called
            assert called != "print" or name_of(path) == CLI


def public_classes(folder: str, inheriting: str = "") -> Iterator[str]:
    """Names of the classes that a folder's files define, of all or of those with this class above them."""
    for path in (SOURCE / folder).glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if not inheriting or inheriting in [ast.unparse(above) for above in node.bases]:
                yield node.name


def test_every_trial_is_in_the_catalogue() -> None:
    assert set(public_classes("trials", "Trial")) == {trial.__name__ for trial in catalogue.TRIALS.values()}


def test_every_attribution_method_is_in_the_catalogue() -> None:
    # A HeadMix is learned for one model; its only default would be StaticAttention under another name.
    results = {"Explained", "HeadMix"}
    assert set(public_classes("attributions")) - results == {type(m()).__name__ for m in catalogue.METHODS.values()}


def test_catalogue_entries_are_what_they_say() -> None:
    assert all(isinstance(corpus, Corpus) and corpus.name == name for name, corpus in catalogue.CORPORA.items())
    assert all(issubclass(trial, Trial) for trial in catalogue.TRIALS.values())
    methods: list[Method] = [make() for make in catalogue.METHODS.values()]
    assert all(callable(method) for method in methods)
