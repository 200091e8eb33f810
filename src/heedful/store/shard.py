"""Shards: consecutive examples of a large corpus as recipes of their own, merged into the artefact of the whole.

A shard is a way of execution and not another result: the batches of a sharded recipe never cross the end of a shard,
so that its table is the same, bit for bit, whether its shards are made one after the other or side by side.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heedful.store.recipe import Artefact, Json, Recipe

if TYPE_CHECKING:
    import pandas

    from heedful.store.workspace import Workspace

SHARD_ROWS = 4096
"""Examples of a shard. Part of the definition of results: batches are formed within shards."""
SHARD_CLASS = "Shard"
"""The class name of the recipes of shards, with which the names of their artefacts begin."""


class ShardedRecipe(Recipe):
    """A recipe whose table is that of its shards, one below the other, each computed from its own examples alone."""

    if TYPE_CHECKING:  # a field

        @property
        def limit(self) -> int | None: ...

    @abstractmethod
    def count_examples(self, workspace: Workspace) -> int:
        """The number of examples of all shards; the artefacts of the dependencies exist."""

    @abstractmethod
    def tabulate(self, workspace: Workspace, rows: range) -> Artefact:
        """The table of the examples at these places, as far as there are so many, and notes for `make`."""

    @property
    def may_have_shards(self) -> bool:
        """False where the limit leaves one shard at most: the corpus need not be read to know it."""
        return self.limit is None or self.limit > SHARD_ROWS

    def shards(self, workspace: Workspace) -> tuple[Shard, ...]:
        """The recipes of the shards in order; none where all examples fit into one."""
        if not self.may_have_shards:
            return ()
        count = self.count_examples(workspace)
        numbers = range(-(-count // SHARD_ROWS)) if count > SHARD_ROWS else ()
        return tuple(Shard(self, number, len(numbers), SHARD_ROWS) for number in numbers)

    def read_shard(self, workspace: Workspace, rows: range) -> pandas.DataFrame:
        """The rows of the stored table that come from the examples at these places, a whole shard."""
        return workspace.read_part(self, rows.start // len(rows))

    def parts(self, workspace: Workspace, shards: Sequence[Shard]) -> Iterator[Artefact]:
        """The artefacts of these shards in order, made where they are missing; without shards the one of the whole."""
        if not shards:
            yield self.tabulate(workspace, range(SHARD_ROWS))
            return
        cache = workspace.model_cache
        workspace.model_cache = {} if cache is None else cache  # the model is loaded once for all shards
        try:
            for shard in shards:
                yield workspace.get(shard)
        finally:
            workspace.model_cache = cache


def shard_label(rows: range, count: int) -> str:
    """Which shard of how many the examples at these places are, for a progress bar; nothing where there is only one.

    >>> shard_label(range(100, 200), 250), shard_label(range(100), 80)
    (', shard 2 of 3', '')
    """
    return f", shard {rows.start // len(rows) + 1} of {-(-count // len(rows))}" if count > len(rows) else ""


@dataclass(frozen=True)
class Shard(Recipe):
    """The part of a recipe's table that comes from one run of consecutive examples.

    Its artefact exists only as long as that of the whole does not.

    Args:
        number: counted from 0.
        of: number of shards.
        size: examples of every shard but the last.
    """

    kind: ClassVar[str] = "shard"

    whole: ShardedRecipe
    number: int
    of: int
    size: int

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return self.whole.dependencies

    def describe(self) -> dict[str, Json]:
        return {**self.whole.describe(), "shard": self.number, "shards": self.of}

    def make(self, workspace: Workspace) -> Artefact:
        """The whole's table of these examples."""
        return self.whole.tabulate(workspace, range(self.number * self.size, (self.number + 1) * self.size))
