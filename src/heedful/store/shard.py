"""Blocks and shards: consecutive examples of a large corpus, made one after the other or side by side.

A block is part of the definition of a result: batches are formed within blocks of `BLOCK_ROWS` examples, because the
last bits of a score depend on the other texts of its batch. A shard, one or more blocks, is a way of execution: a
recipe of its own, whose artefact is kept until that of the whole exists. The table of the whole is the same, bit for
bit, whatever the size of the shards, whoever makes them in which order, and without shards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from heedful.store.recipe import Artefact, Json, Recipe, Resources
from heedful.types import UserError

if TYPE_CHECKING:
    import pandas

    from heedful.store.workspace import Workspace

BLOCK_ROWS = 4096
"""Examples among which batches are formed: part of the definition of results."""
SHARD_ROWS = BLOCK_ROWS
"""Examples of a shard, a multiple of `BLOCK_ROWS`; results do not depend on it."""
SHARD_CLASS = "Shard"
"""The class name of the recipes of shards, with which the names of their artefacts begin."""


class ShardedRecipe(Recipe):
    """A recipe whose table is that of its blocks, one below the other, each computed from its own examples alone."""

    if TYPE_CHECKING:  # a field

        @property
        def limit(self) -> int | None: ...

    @abstractmethod
    def count_examples(self, workspace: Workspace) -> int:
        """The number of examples of all blocks, from the data alone: the dependencies may not be made yet."""

    @abstractmethod
    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        """The table of the examples at the places of one block, as far as there are so many, and notes for `make`.

        The note `n` is the number of these examples.
        """

    @property
    def may_have_blocks(self) -> bool:
        """False where the limit leaves one block at most: the corpus need not be read to know it."""
        return self.limit is None or self.limit > BLOCK_ROWS

    def shards(self, workspace: Workspace) -> tuple[Shard, ...]:
        """The recipes of the shards in order; none where all examples fit into one."""
        assert SHARD_ROWS % BLOCK_ROWS == 0
        if self.limit is not None and self.limit <= SHARD_ROWS:
            return ()
        count = self.count_examples(workspace)
        starts = range(0, count, SHARD_ROWS) if count > SHARD_ROWS else ()
        return tuple(Shard(self, number, count, SHARD_ROWS) for number in range(len(starts)))

    def find_missing_shards(self, workspace: Workspace) -> tuple[Shard, ...]:
        """The recipes of the shards that are not stored yet; none where the whole is stored."""
        shards = self.shards(workspace)
        missing = set(workspace.find_missing((self, *shards)) if shards else ())
        return tuple(shard for shard in shards if shard in missing) if self in missing else ()

    def tabulate_blocks(self, workspace: Workspace, rows: range) -> Artefact:
        """The tables of the blocks of these examples, one below the other; UserError if there are none."""
        if not rows:
            raise UserError(f"{type(self).__name__} has no texts: its split of the corpus is empty; choose another one")
        blocks = (range(start, start + BLOCK_ROWS) for start in rows[::BLOCK_ROWS])
        return join_tables([self.tabulate(workspace, block) for block in blocks])

    def read_block(self, workspace: Workspace, block: range) -> pandas.DataFrame:
        """The rows of the stored table that come from the examples of one block."""
        return workspace.read_block(self, block.start // len(block))

    def parts(self, workspace: Workspace, shards: Sequence[Shard]) -> Iterator[Artefact]:
        """The artefacts of these shards in order, made where they are missing; without shards the one of the whole."""
        cache = workspace.model_cache
        workspace.model_cache = {} if cache is None else cache  # the model is loaded once for all
        try:
            if not shards:
                count = self.count_examples(workspace) if self.may_have_blocks else BLOCK_ROWS
                yield self.tabulate_blocks(workspace, range(count))
            for shard in shards:
                yield workspace.get(shard)
        finally:
            workspace.model_cache = cache


def join_tables(artefacts: Sequence[Artefact]) -> Artefact:
    """Tables one below the other, with the notes of the first, and in `n` the number of all examples."""
    if len(artefacts) == 1:
        return artefacts[0]
    import pandas

    blocks = tuple(size for artefact in artefacts for size in artefact.blocks or (len(artefact.table),))
    table = pandas.concat([artefact.table for artefact in artefacts], ignore_index=True)
    n = sum(int(str(artefact.notes["n"])) for artefact in artefacts)
    return Artefact(table=table, notes={**artefacts[0].notes, "n": n}, blocks=blocks)


def join_columns(tables: Iterable[pandas.DataFrame], columns: Sequence[str]) -> pandas.DataFrame:
    """Those of the columns that exist, of tables one below the other, in little memory.

    The tables are taken one at a time. Words that repeat, all but those of `uid`, are categories.

    >>> import pandas
    >>> parts = [pandas.DataFrame({"uid": [uid], "method": ["gradient"], "curve": [[0.5]]}) for uid in ("a", "b")]
    >>> joined = join_columns(parts, ("uid", "method", "removals"))
    >>> joined.columns.tolist(), joined["method"].dtype.name
    (['uid', 'method'], 'category')
    """
    import pyarrow

    arrow_tables = []
    for table in tables:
        present = table[[name for name in columns if name in table]]
        arrow_table = pyarrow.Table.from_pandas(present, preserve_index=False)
        for position, field in enumerate(arrow_table.schema):
            is_text = pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
            if is_text and field.name != "uid":
                encoded = arrow_table.column(position).dictionary_encode()
                arrow_table = arrow_table.set_column(position, field.name, encoded)
        arrow_tables.append(arrow_table.replace_schema_metadata())
    whole = pyarrow.concat_tables(arrow_tables, promote_options="permissive").unify_dictionaries()
    del arrow_tables
    frame: pandas.DataFrame = whole.to_pandas(use_threads=False, split_blocks=True, self_destruct=True)
    return frame


def block_label(block: range, count: int) -> str:
    """Which block of how many the examples at these places are, for a progress bar; nothing where there is only one.

    >>> block_label(range(100, 200), 250), block_label(range(100), 80)
    (', part 2 of 3', '')
    """
    return f", part {block.start // len(block) + 1} of {-(-count // len(block))}" if count > len(block) else ""


@dataclass(frozen=True)
class Shard(Recipe):
    """The part of a recipe's table that comes from one run of consecutive examples.

    Its artefact exists only as long as that of the whole does not.

    Args:
        number: counted from 0.
        count: examples of all shards.
        size: examples of every shard but the last.
    """

    kind: ClassVar[str] = "shard"

    whole: ShardedRecipe
    number: int
    count: int
    size: int

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return self.whole.dependencies

    @property
    def resources(self) -> Resources:
        return self.whole.resources

    def describe(self) -> dict[str, Json]:
        return {**self.whole.describe(), "shard": self.number, "shards": -(-self.count // self.size)}

    def make(self, workspace: Workspace) -> Artefact:
        """The whole's table of these examples."""
        start = self.number * self.size
        return self.whole.tabulate_blocks(workspace, range(start, min(start + self.size, self.count)))
