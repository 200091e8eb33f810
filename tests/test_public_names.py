"""The front door: every public name is found where the type checker believes it to be, and only when asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import heedful

BELIEVED = {
    alias.name: node.module
    for block in ast.parse(Path(heedful.__file__).read_text(encoding="utf-8")).body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def test_every_public_name_is_listed_once_for_readers_for_the_type_checker_and_for_python() -> None:
    found = [(name, f"heedful.{module}") for module, names in heedful._HOMES.items() for name in names.split()]
    assert len(found) == len(dict(found))
    assert dict(found) == BELIEVED
    assert set(heedful.__all__) == set(BELIEVED)


def test_every_public_name_can_be_fetched_and_no_other() -> None:
    assert all(getattr(heedful, name) is not None for name in heedful.__all__)
    with pytest.raises(AttributeError, match="Nonsense"):
        heedful.__getattr__("Nonsense")


def test_a_worker_that_trains_a_pooled_model_does_not_wait_for_the_transformers_library() -> None:
    asked = (
        "import sys; from heedful import BiLSTM, Pooled, Additive, Subject, Mock, Deceive; "
        "from heedful.training.trained_model import named; named(Pooled(BiLSTM(2), Additive())); "
        "print('transformers' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
