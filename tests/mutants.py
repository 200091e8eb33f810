"""Change one operator or number of the package at a time and see whether a test fails (`make mutants`).

A seeded sample of the mutations of cosmic-ray is taken from the modules whose numbers matter. Each mutant meets the
fast tests of the file that mirrors its module, then those of the files that import the module, nearest first and up to
a budget, then the slow tests of its own file. The first failure kills it, and so does a test that takes several times
as long as without the change. Every test file is first run without a change: one that fails then is left out.

A process that has imported the libraries, but nothing of heedful, forks for each run. Results are appended to a file of
JSON lines. Survivors that no test could kill are listed, with the reason, in equivalent_mutants.json beside this file
and are left out of the rate.

    python tests/mutants.py --sample 600 --seed 0 --minutes 45       goes on where a result file ends
    python tests/mutants.py --again mutants.jsonl       runs the survivors of a file again
    python tests/mutants.py --table mutants.jsonl       prints the table of a file
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import pytest
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from parso.tree import NodeOrLeaf as Node

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src/heedful"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
PACKAGES = ("measures", "attributions", "store", "trials")
MODULES = ("training/hypergradient.py", "training/smat.py", "training/objectives.py")
_PAIRS = {
    "ReplaceBinaryOperator": "Add_Sub Sub_Add Mul_Div Div_Mul Pow_Mul FloorDiv_Mul BitOr_BitAnd BitAnd_BitOr",
    "ReplaceComparisonOperator": (
        "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_Gt Gt_Lt LtE_GtE GtE_LtE Is_IsNot IsNot_Is"
    ),
    "ReplaceUnaryOperator": "Delete_USub Delete_Invert Delete_Not",
}
OPERATORS = (
    *(f"core/{name}_{pair}" for name, pairs in _PAIRS.items() for pair in pairs.split()),
    "core/AddNot",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceBreakWithContinue",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)
PRELOADED = (
    "torch",
    "pandas",
    "scipy.stats",
    "sklearn.metrics",
    "networkx",
    "transformers",
    "captum.attr",
    "hypothesis",
    "pytest",
)
"""Libraries that tests import, but nothing of heedful."""
FAST, SLOW = "not slow and not browser", "slow"


@dataclass(frozen=True)
class Mutant:
    """One change: `operator` at its `occurrence` in a module, and the changed line."""

    module: str
    operator: str
    occurrence: int
    line: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """Names the mutant independently of line numbers."""
        return f"{self.module}: {self.before} -> {self.after}"

    @property
    def package(self) -> str:
        """The package of the module."""
        return self.module.split("/")[0]


class _Count(Visitor):  # type: ignore[misc]
    """Counts the places that an operator can change."""

    def __init__(self, operator: str) -> None:
        self.operator, self.count = get_operator(operator)(), 0

    def visit(self, node: Node) -> Node:
        self.count += len(list(self.operator.mutation_positions(node)))
        return node


Position = tuple[str, str, int]
"""Module, operator and occurrence."""


def shuffled_positions(sources: Sequence[Path], seed: int) -> list[Position]:
    """All possible mutations in random order."""
    positions = []
    for source in sources:
        tree = get_ast(source.read_text(encoding="utf-8"))
        for operator in OPERATORS:
            (counter := _Count(operator)).walk(tree)
            module = source.relative_to(SOURCES).as_posix()
            positions += [(module, operator, occurrence) for occurrence in range(counter.count)]
    random.Random(seed).shuffle(positions)
    print(f"{len(positions)} possible mutations of {len(sources)} modules", flush=True)
    return positions


def _describe(sources: Path, module: str, operator: str, occurrence: int) -> Mutant | None:
    code = (sources / module).read_text(encoding="utf-8")
    changed = mutate_code(code, get_operator(operator)(), occurrence)
    lines = zip(code.splitlines(), (changed or code).splitlines(), strict=False)
    number, before, after = next(((i, a, b) for i, (a, b) in enumerate(lines, 1) if a != b), (0, "", ""))
    # Not those of annotations and texts of errors, which do not run.
    if not number or number in _inert_lines(code):
        return None
    return Mutant(module, operator, occurrence, number, before.strip(), after.strip())


@lru_cache(maxsize=64)
def _inert_lines(code: str) -> frozenset[int]:
    """Lines of annotations, assertions for the type checker, and errors."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        parts: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, ast.FunctionDef):
            parts = [node.returns, *(each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg))]
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            parts = [node.annotation]
        elif isinstance(node, ast.Assert | ast.Raise):
            parts = [node]
        for part in parts:
            if part is not None:
                lines.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return frozenset(lines)


@lru_cache(maxsize=512)
def _imports(path: Path) -> frozenset[str]:
    """Modules that a file imports, and names imported from packages as if they were modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _module_name(module: str) -> str:
    return "heedful." + module.removesuffix(".py").replace("/", ".")


@lru_cache(maxsize=128)
def tests_of(module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The test files that mirror a module; and the others by distance: those that import it, or an importer of it."""
    package, name = module.removesuffix(".py").split("/")
    mirrored = sorted((ROOT / "tests" / package).glob(f"test_{name.lstrip('_')}*.py"))
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path not in mirrored]
    importers = {
        _module_name(path.relative_to(SOURCES).as_posix())
        for path in SOURCES.rglob("*.py")
        if _module_name(module) in _imports(path)
    }
    direct = [path for path in files if _module_name(module) in _imports(path)]
    second = [path for path in files if path not in direct and importers & _imports(path)]
    # At each distance the tests of the package come first.
    far = [path for ring in (direct, second) for path in sorted(ring, key=lambda path: path.parent.name != package)]
    near, other = (tuple(path.relative_to(ROOT).as_posix() for path in paths) for paths in (mirrored, far))
    return near, other


class ShortestFirst:
    """A pytest plugin that measures tests, and runs those of a file in the order of their known durations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        self.measured: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files keep their order, and tests of equal duration too."""
        files = {item.path: place for place, item in reversed(list(enumerate(items)))}
        items.sort(key=lambda item: (files[item.path], self.known.get(item.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Fixtures count for the test that needs them first."""
        self.measured[report.nodeid] = self.measured.get(report.nodeid, 0.0) + report.duration

    def save(self) -> None:
        """Add what was measured to the file."""
        self.path.write_text(json.dumps(self.known | self.measured))


@dataclass
class Place:
    """A copy of the project in which one mutant at a time is tested.

    Args:
        budget: seconds that the tests of far files, or slow tests, may take without a change.
    """

    folder: Path
    budget: float
    durations: dict[tuple[str, str], float] = field(default_factory=dict)
    """Seconds of a test file and marker expression without a change; infinite if a test fails."""

    def __post_init__(self) -> None:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name)

    def run(self, mutant: Mutant) -> tuple[str, str]:
        """`killed`, `timeout` or `survived`, and the stage that ended it."""
        target = self.folder / "src/heedful" / mutant.module
        original, changed_at = target.read_text(encoding="utf-8"), target.stat().st_mtime_ns
        changed = mutate_code(original, get_operator(mutant.operator)(), mutant.occurrence)
        near, far = tests_of(mutant.module)
        near = (*near, f"src/heedful/{mutant.module}")
        for stage, files, marker in (("near", near, FAST), ("far", far, FAST), ("slow", near[:-1], SLOW)):
            chosen, limit = self.affordable(files, marker, math.inf if stage == "near" else self.budget)
            target.write_text(changed or original, encoding="utf-8")
            try:
                outcome = self.fork_pytest(chosen, marker, limit) if chosen else "passed"
            finally:
                # With its old time the file fits its bytecode again.
                target.write_text(original, encoding="utf-8")
                os.utime(target, ns=(changed_at, changed_at))
            if outcome != "passed":
                return outcome, stage
        return "survived", ""

    def affordable(self, files: Iterable[str], marker: str, budget: float) -> tuple[list[str], float]:
        """The first files that pass without a change within the budget, and the time limit of a run with one."""
        chosen, total = [], 0.0
        for name in files if budget > 0 else ():
            if (name, marker) not in self.durations:
                start = time.monotonic()
                outcome = self.fork_pytest([name], marker, 600, write_bytecode=True)
                passed = outcome == "passed"
                self.durations[name, marker] = time.monotonic() - start if passed else math.inf
                if not passed:
                    print(f"left out  {name} ({marker}): {outcome} without a change", flush=True)
            if self.durations[name, marker] == math.inf:
                continue
            if total + self.durations[name, marker] > budget:
                break
            chosen.append(name)
            total += self.durations[name, marker]
        return chosen, 30 + 4 * total

    def fork_pytest(self, files: Sequence[str], marker: str, seconds: float, *, write_bytecode: bool = False) -> str:
        """`passed`, `killed` or `timeout`."""
        child = os.fork()
        if child == 0:
            os.setsid()
            os.chdir(self.folder)
            own = {str(ROOT), str(ROOT / "src"), str(ROOT / "tests")}
            sys.path[:] = [str(self.folder), str(self.folder / "src"), *(p for p in sys.path if p not in own)]
            os.environ["PYTHONPATH"] = str(self.folder / "src")
            with Path(os.devnull).open("w") as null:
                os.dup2(null.fileno(), 1)
                os.dup2(null.fileno(), 2)
            # Bytecode of a mutant could be taken for that of the next one: both may have one size and second.
            sys.dont_write_bytecode = not write_bytecode
            os.environ["PYTHONDONTWRITEBYTECODE"] = "" if write_bytecode else "1"
            options = ["-x", "-q", "-p", "no:xdist", f"--basetemp={self.folder / 'tmp'}", "-m", marker]
            order = ShortestFirst(self.folder / "durations.json")
            code = int(pytest.main([*options, *files], plugins=[order]))
            if write_bytecode:
                order.save()
            os._exit(code)
        deadline, outcome = time.monotonic() + seconds, "timeout"
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                outcome = "passed" if os.waitstatus_to_exitcode(status) in {0, 5} else "killed"
                break
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if outcome == "timeout":
            os.waitpid(child, 0)
        return outcome


def run_mutants(positions: Sequence[Position], settings: argparse.Namespace) -> None:
    """Test mutants in as many processes as asked, until the sample is complete or the time is up."""
    for name in PRELOADED:
        __import__(name)
    sys.modules["torch"].set_num_threads(1)
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for worker in range(settings.workers):
            child = os.fork()
            if child == 0:
                place = Place(Path(folder, str(worker)), settings.budget)
                sources = place.folder / "src/heedful"
                own = (
                    mutant
                    for position in positions[worker :: settings.workers]
                    if (mutant := _describe(sources, *position))
                )
                _work(place, islice(own, settings.sample // settings.workers), settings)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


def _work(place: Place, mutants: Iterator[Mutant], settings: argparse.Namespace) -> None:
    """Append the outcome of each mutant to the file."""
    deadline, parent = time.monotonic() + 60 * settings.minutes, os.getppid()
    for mutant in mutants:
        if time.monotonic() > deadline or os.getppid() != parent:
            return
        start = time.monotonic()
        outcome, stage = place.run(mutant)
        seconds = round(time.monotonic() - start, 1)
        row = asdict(mutant) | {"key": mutant.key, "outcome": outcome, "stage": stage, "seconds": seconds}
        with settings.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{outcome:9} {seconds:5.1f} s {mutant.module}:{mutant.line} {mutant.after}", flush=True)


def read_equivalent() -> dict[str, str]:
    """The reasons of mutants that no test can kill, by their keys."""
    content: dict[str, str] = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return content


def print_table(rows: Sequence[dict[str, object]]) -> None:
    """Killed, equivalent and surviving mutants by package, and the share of the others that is killed."""
    equivalent = read_equivalent()
    print(f"{'package':14}{'sampled':>8}{'killed':>8}{'equivalent':>12}{'survived':>10}{'share':>8}")
    for package in (*sorted({str(row["module"]).split("/")[0] for row in rows}), "all"):
        own = [row for row in rows if package in ("all", str(row["module"]).split("/")[0])]
        killed = sum(row["outcome"] != "survived" for row in own)
        same = sum(row["outcome"] == "survived" and row["key"] in equivalent for row in own)
        share = killed / max(1, len(own) - same)
        print(f"{package:14}{len(own):8}{killed:8}{same:12}{len(own) - same - killed:10}{share:8.1%}")


def read_rows(path: Path) -> list[dict[str, object]]:
    """The last outcome of each mutant in a result file; none if there is no file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return list({(row["module"], row["operator"], row["occurrence"]): row for row in rows}.values())


def main() -> None:
    """Sample, run, write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=480, help="start no mutant after this time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", type=float, default=60, help="seconds of far, and of slow, tests for one mutant")
    parser.add_argument("--only", nargs="*", help="parts of module paths")
    parser.add_argument("--out", type=Path, default=ROOT / "mutants.jsonl")
    parser.add_argument("--again", type=Path, help="run the survivors of this file again")
    parser.add_argument("--table", type=Path, help="print the table of this file and end")
    settings = parser.parse_args()
    if settings.table:
        print_table(read_rows(settings.table))
        return
    if settings.again:
        known = read_equivalent()
        rows = [row for row in read_rows(settings.again) if row["outcome"] == "survived" and row["key"] not in known]
        positions = [(str(row["module"]), str(row["operator"]), int(str(row["occurrence"]))) for row in rows]
    else:
        sources = [path for package in PACKAGES for path in sorted((SOURCES / package).glob("*.py"))]
        sources += [SOURCES / module for module in MODULES]
        sources = [path for path in sources if path.name != "__init__.py"]
        if settings.only:
            sources = [path for path in sources if any(part in path.as_posix() for part in settings.only)]
        done = {(row["module"], row["operator"], row["occurrence"]) for row in read_rows(settings.out)}
        positions = [position for position in shuffled_positions(sources, settings.seed) if position not in done]
    run_mutants(positions, settings)
    print_table(read_rows(settings.out))


if __name__ == "__main__":
    main()
