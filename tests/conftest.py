"""One torch thread per test process, and no garbage collection of what was imported.

Two workers with two threads each are slower on two cores. Collecting among the objects of torch, transformers and the
tests themselves, which live until the end, would cost a second of the imports and a twentieth of the tests.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from heedful.store.workspace import Workspace

# By the environment, because the controller of pytest-xdist needs no torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()

collect_ignore = ["mutants.py"]
"""Needs cosmic-ray, which only `make mutants` installs."""


settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile("repeatable")
"""The same examples at every run; `pytest --hypothesis-profile=random` draws others."""


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One workspace for all tests of a file, so that they share their trainings."""
    from heedful.store.workspace import Workspace

    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def s3_environment() -> Iterator[dict[str, str]]:
    """The environment in which s3:// means a server on this machine."""
    from tests.s3_server import PACKAGES, running_server

    for name in PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install -e '.[dev]'")
    with running_server() as environment:
        yield environment
