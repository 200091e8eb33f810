"""The outcome of one recipe: its artefact exists, or an error says why not."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heedful.progress import find_interrupt
from heedful.store.atomic_write import WriteError
from heedful.store.recipe import Recipe
from heedful.store.shard import Shard, ShardedRecipe
from heedful.store.workspace import Workspace
from heedful.types import NotApplicable, UserError

MAX_ATTEMPTS = 2
"""A recipe whose worker process died so often is not tried again: it probably takes too much memory."""
WORKER_DIED = (
    "its worker process died twice, perhaps out of memory; run again with --workers 1, or on Ray let its `resources` "
    "ask for the memory that it needs"
)


@dataclass(frozen=True)
class Outcome:
    """The result of one recipe: `error` is None where its artefact exists.

    Args:
        refusal: why it does not apply to the model, if that is the error.
        cause: the failed recipe for which this one was skipped; None if it was tried.
        shards: recipes that are to be made before this one, side by side; it was not tried.
    """

    recipe: Recipe
    error: str | None = None
    traceback_file: Path | None = None
    cause: Recipe | None = None
    shards: tuple[Shard, ...] = ()
    refusal: NotApplicable | None = None


def attempt(recipe: Recipe, workspace: Workspace, *, split: bool = False) -> Outcome:
    """Make one recipe; an exception becomes an outcome, an interrupt and a `WriteError` do not.

    Args:
        split: if several shards of the recipe are missing, name them and make nothing.
    """
    name = type(recipe).__name__
    try:
        name = workspace.artefact_name(recipe)
        shards = recipe.find_missing_shards(workspace) if split and isinstance(recipe, ShardedRecipe) else ()
        if len(shards) > 1:
            return Outcome(recipe, shards=shards)
        workspace.ensure(recipe)
    except WriteError:
        raise  # no other recipe could be stored either
    except (Exception, SystemExit) as error:  # noqa: BLE001 - other recipes go on, and the traceback is kept
        # Code of a recipe that calls sys.exit would end this process, or its worker, with an exit code of its own.
        if (stop := find_interrupt(error)) is not None:
            raise stop from None
        if isinstance(error, NotApplicable):
            return Outcome(recipe, str(error), refusal=error)
        if isinstance(error, UserError):
            return Outcome(recipe, str(error))
        path = workspace.write_failure(name, f"{_representation(recipe)}\n\n{traceback.format_exc()}")
        return Outcome(recipe, describe_exception(error), path)
    return Outcome(recipe)


def _representation(recipe: Recipe) -> str:
    try:
        return repr(recipe)
    except Exception as error:  # noqa: BLE001 - of a user's own field
        return f"a {type(recipe).__name__} whose representation fails: {describe_exception(error)}"


def describe_exception(error: BaseException) -> str:
    """Type and message of an exception in one line.

    >>> describe_exception(ValueError("not", "good"))
    "ValueError: ('not', 'good')"
    """
    try:
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    except Exception:  # noqa: BLE001 - an exception of the user's own that cannot be printed
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def check_sendable(recipe: Recipe, dumps: Callable[[Recipe], bytes], remedy: str) -> None:
    """UserError with the line of its code for a recipe that cannot be sent to another process."""
    try:
        dumps(recipe)
    except Exception as error:
        code = inspect.unwrap(type(recipe).make).__code__
        raise UserError(
            f"{code.co_filename}, line {code.co_firstlineno}: {type(recipe).__name__} cannot be sent to another "
            f"process ({describe_exception(error)}); {remedy}, or run with --where here"
        ) from error
