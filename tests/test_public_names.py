"""Public names: every stub name resolves, every catalogue class is exported, and nothing heavy is imported early."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import heedful
from heedful import catalogue

SOURCE = Path(heedful.__file__).parent
STUBS = sorted(SOURCE.rglob("*.pyi"))


def package_name(stub: Path) -> str:
    return ".".join(("heedful", *stub.parent.relative_to(SOURCE).parts))


def stub_names(stub: Path) -> list[str]:
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    return [alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]


def test_every_name_of_every_stub_resolves_and_is_listed_once() -> None:
    missing = []
    for stub in STUBS:
        package, names = import_module(package_name(stub)), stub_names(stub)
        assert sorted(names) == package.__all__
        missing += [f"{package.__name__}.{name}" for name in names if not _resolves(package.__name__, name)]
    assert not missing, "\n".join(missing)


def _resolves(package: str, name: str) -> bool:
    try:
        getattr(import_module(package), name)
    except (AttributeError, ImportError):
        return False
    return True


def test_every_package_has_a_stub_and_the_top_names_every_package() -> None:
    # `cli` is a program, not a library.
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"cli"}
    assert packages <= set(stub_names(SOURCE / "__init__.pyi"))
    assert packages - {"papers"} <= {stub.parent.name for stub in STUBS}


def test_methods_trials_encoders_and_corpora_are_exported_by_their_package() -> None:
    classes = {
        *(type(make()) for make in catalogue.METHODS.values()),
        *catalogue.TRIALS.values(),
        *(type(corpus) for corpus in catalogue.CORPORA.values()),
    }
    missing = [
        each.__qualname__
        for each in classes
        if getattr(import_module(".".join(each.__module__.split(".")[:2])), each.__name__, None) is not each
    ]
    assert not missing, "\n".join(sorted(missing))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        vars(heedful)["__getattr__"]("Nonsense")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import heedful, heedful.attributions, heedful.trials", ("torch", "pandas", "transformers")),
        pytest.param(
            "from heedful.models import BiLSTM; from heedful.attributions import Lime; "
            "from heedful.training import TrainedModel; from heedful.trials import Permutation",
            ("transformers",),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_importing_light_names_imports_nothing_heavy(code: str, absent: tuple[str, ...]) -> None:
    asked = f"import sys; {code}; print([name for name in {absent!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
