"""Change one operator or number of the package at a time and see whether a test fails (`make mutants`).

A seeded sample of the mutations of cosmic-ray is taken from the modules whose numbers matter. Each mutant runs the
tests that mirror its module, then the tests of its package. A process that has imported the libraries, but nothing of
heedful, forks for each mutant. Results go to a JSON file; survivors that no test could kill are listed, with the
reason, in equivalent_mutants.json beside this file and are left out of the rate.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from parso.tree import NodeOrLeaf as Node

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")
PACKAGES = ("measures", "attributions", "store", "trials")
MODULES = ("training/hypergradient.py", "training/smat.py", "training/objectives.py")
OPERATORS = tuple(
    f"core/{name}"
    for name in (
        *(
            f"ReplaceBinaryOperator_{pair}"
            for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Mul")
        ),
        *(f"ReplaceBinaryOperator_{pair}" for pair in ("BitOr_BitAnd", "BitAnd_BitOr")),
        *(
            f"ReplaceComparisonOperator_{pair}"
            for pair in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")
        ),
        *(
            f"ReplaceComparisonOperator_{pair}"
            for pair in ("Lt_Gt", "Gt_Lt", "LtE_GtE", "GtE_LtE", "Is_IsNot", "IsNot_Is")
        ),
        *(f"ReplaceUnaryOperator_{pair}" for pair in ("Delete_USub", "Delete_Invert", "Delete_Not")),
        "AddNot",
        "ReplaceTrueWithFalse",
        "ReplaceFalseWithTrue",
        "ReplaceAndWithOr",
        "ReplaceOrWithAnd",
        "ReplaceBreakWithContinue",
        "NumberReplacer",
        "ZeroIterationForLoop",
    )
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
        """Names the mutant independently of line numbers elsewhere in the file."""
        return f"{self.module}: {self.before} -> {self.after}"


class _Count(Visitor):  # type: ignore[misc]
    """Counts the places that an operator can change."""

    def __init__(self, operator: str) -> None:
        self.operator, self.count = get_operator(operator)(), 0

    def visit(self, node: Node) -> Node:
        self.count += len(list(self.operator.mutation_positions(node)))
        return node


def sample_mutants(sources: Sequence[Path], size: int, seed: int) -> list[Mutant]:
    """A sample of all mutants whose changed code runs (no annotations, no texts of errors), in random order."""
    places = []
    for source in sources:
        tree = get_ast(source.read_text(encoding="utf-8"))
        for operator in OPERATORS:
            (counter := _Count(operator)).walk(tree)
            places += [(source, operator, occurrence) for occurrence in range(counter.count)]
    random.Random(seed).shuffle(places)
    print(f"{len(places)} places in {len(sources)} modules", flush=True)
    return list(islice((mutant for place in places if (mutant := _describe(*place))), size))


def _describe(source: Path, operator: str, occurrence: int) -> Mutant | None:
    code = source.read_text(encoding="utf-8")
    changed = mutate_code(code, get_operator(operator)(), occurrence)
    lines = zip(code.splitlines(), changed.splitlines(), strict=False)
    number, before, after = next((i, a, b) for i, (a, b) in enumerate(lines, 1) if a != b)
    module = source.relative_to(ROOT / "src/heedful").as_posix()
    inert = number in set(_inert_lines(code))
    return None if inert else Mutant(module, operator, occurrence, number, before.strip(), after.strip())


def _inert_lines(code: str) -> Iterator[int]:
    """Lines of annotations, assertions for the type checker, and errors."""
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
                yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)


def suites(module: str) -> list[list[str]]:
    """Tests of a module from near to far: those that mirror it with its doctests, then its package's."""
    package, name = module.removesuffix(".py").split("/")
    near = sorted(str(path) for path in Path("tests", package).glob(f"test_{name.lstrip('_')}*.py"))
    return [[*near, f"src/heedful/{module}"], ["-m", "not slow and not browser", f"tests/{package}"]]


def run(mutant: Mutant, place: Path, seconds: int) -> str:
    """`killed`, `survived` or `timeout`, in a copy of the project."""
    target = place / "src/heedful" / mutant.module
    original = target.read_text(encoding="utf-8")
    changed = mutate_code(original, get_operator(mutant.operator)(), mutant.occurrence)
    assert changed is not None
    target.write_text(changed, encoding="utf-8")
    try:
        for suite in suites(mutant.module):
            outcome = _fork_pytest(place, suite, seconds)
            if outcome != "survived":
                return outcome
        return "survived"
    finally:
        target.write_text(original, encoding="utf-8")


def _fork_pytest(place: Path, suite: list[str], seconds: int) -> str:
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(place)
        sys.path.insert(0, str(place / "src"))
        sys.path.insert(0, str(place))
        os.environ["PYTHONPATH"] = str(place / "src")
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
        import pytest

        sys.dont_write_bytecode = True
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
        os._exit(int(pytest.main([*options, *suite])))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) in {0, 5} else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def main() -> None:
    """Sample, run in as many processes as asked, write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=240, help="for one suite of one mutant")
    parser.add_argument("--only", nargs="*", help="parts of module paths")
    parser.add_argument("--out", type=Path, default=ROOT / "mutants.json")
    settings = parser.parse_args()
    sources = [path for package in PACKAGES for path in sorted((ROOT / "src/heedful" / package).glob("*.py"))]
    sources += [ROOT / "src/heedful" / module for module in MODULES]
    sources = [path for path in sources if path.name != "__init__.py"]
    if settings.only:
        sources = [path for path in sources if any(part in path.as_posix() for part in settings.only)]
    sample = sample_mutants(sources, settings.sample, settings.seed)
    for name in PRELOADED:
        __import__(name)
    sys.modules["torch"].set_num_threads(1)
    results: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for worker in range(settings.workers):
            place = Path(folder, str(worker))
            shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", place)
        children = []
        for worker in range(settings.workers):
            child = os.fork()
            if child == 0:
                with Path(folder, f"{worker}.jsonl").open("w", encoding="utf-8") as file:
                    for index in range(worker, len(sample), settings.workers):
                        outcome = run(sample[index], Path(folder, str(worker)), settings.seconds)
                        print(
                            f"{outcome:9} {sample[index].module}:{sample[index].line} {sample[index].after}", flush=True
                        )
                        file.write(json.dumps([index, outcome]) + "\n")
                        file.flush()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        for worker in range(settings.workers):
            results |= dict(json.loads(line) for line in Path(folder, f"{worker}.jsonl").read_text().splitlines())
    equivalent = json.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    rows = [
        asdict(sample[index]) | {"outcome": outcome, "equivalent": equivalent.get(sample[index].key)}
        for index, outcome in sorted(results.items())
    ]
    settings.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for package in sorted({row["module"].split("/")[0] for row in rows}):
        _print_rate(package, [row for row in rows if row["module"].startswith(package + "/")])
    _print_rate("all", rows)


def _print_rate(name: str, rows: list[dict[str, object]]) -> None:
    judged = [row for row in rows if row["outcome"] != "survived" or row["equivalent"] is None]
    killed = sum(row["outcome"] != "survived" for row in judged)
    share = killed / max(1, len(judged))
    print(f"{name}: {killed} of {len(judged)} killed ({share:.1%}), {len(rows) - len(judged)} equivalent left out")


if __name__ == "__main__":
    main()
