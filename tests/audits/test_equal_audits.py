"""The same audit gives the same numbers, however often it runs, with how many processes, and in how many calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heedful.audits.audit_result import Audit
from heedful.audits.schedule import AuditOptions, audit
from tests.given import Verdicts, save_model

METHODS = ("lime", "raw-attention")
TEXTS = 28


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder and a file of texts."""
    root = tmp_path_factory.mktemp("equal")
    rows = [f"{example.parts[0]},{example.label}\n" for example in Verdicts(40).read(root).test]
    (root / "texts.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    return save_model(root / "model"), root / "texts.csv"


@pytest.fixture(scope="module")
def reference(sources: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return _numbers(*sources, tmp_path_factory.mktemp("reference"), TEXTS)


def _audit(model: Path, data: Path, workspace: Path, texts: int, workers: int) -> Audit:
    options = AuditOptions(minutes=60.0, texts=texts, methods=METHODS, workers=workers, only_methods=True)
    return audit(str(model), data, options=options, workspace=workspace, say=lambda line: None)


def _numbers(model: Path, data: Path, workspace: Path, texts: int, workers: int = 1) -> str:
    """Everything in the result of an audit that does not depend on the clock, the order of methods included."""
    result = _audit(model, data, workspace, texts, workers)
    methods = tuple(replace(method, seconds=0.0) for method in result.methods)
    return replace(result, methods=methods, seconds=0.0).to_json()


@pytest.mark.slow
def test_an_audit_that_runs_twice_gives_equal_numbers(
    sources: tuple[Path, Path], reference: str, tmp_path: Path
) -> None:
    assert _numbers(*sources, tmp_path, TEXTS) == reference


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(sources: tuple[Path, Path], reference: str, tmp_path: Path) -> None:
    assert _numbers(*sources, tmp_path, TEXTS, workers=2) == reference


@pytest.mark.slow
def test_an_audit_that_is_resumed_gives_the_numbers_of_one_call(
    sources: tuple[Path, Path], reference: str, tmp_path: Path
) -> None:
    assert _audit(*sources, tmp_path, 6, workers=1).data.texts < TEXTS
    assert _numbers(*sources, tmp_path, TEXTS) == reference
