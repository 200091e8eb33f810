"""Every attribution method by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heedful.attributions.method import registered_methods
from heedful.types import Method

METHODS: Mapping[str, Callable[[], Method]] = registered_methods()
