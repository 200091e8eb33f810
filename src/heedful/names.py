"""Names that a user writes: any case, lists with commas, and what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from heedful.types import UserError, shorten

_LIKENESS = 0.5
"""How alike two names must be for one to be suggested for the other."""


def choose_name(
    kind: str, name: str, available: Iterable[str], *, aliases: Mapping[str, str] | None = None, remedy: str = ""
) -> str:
    """The name that is meant, whatever its case; UserError with the nearest name if there is none.

    Args:
        kind: what is named, for the message.
        aliases: other names, each with the one that is used.
        remedy: where to find the names; by default they are listed.

    >>> choose_name("corpus", "SST", ("sst", "imdb")), choose_name("encoder", "mlp", ["gru"], aliases={"mlp": "gru"})
    ('sst', 'gru')
    >>> choose_name("corpus", "sst2", ("sst", "imdb"))
    Traceback (most recent call last):
    heedful.types.UserError: unknown corpus 'sst2': did you mean sst? choose from sst, imdb
    """
    names = list(available)
    known = {other: meant for other, meant in (aliases or {}).items() if meant in names}
    known |= {name: name for name in names}
    spelled = {_plain(other): meant for other, meant in known.items()}
    meant = known.get(name) or spelled.get(_plain(name))
    if meant is not None:
        return meant
    near = difflib.get_close_matches(_plain(name), spelled, n=1, cutoff=_LIKENESS)
    hint = f"did you mean {spelled[near[0]]}? " if near else ""
    raise UserError(f"unknown {kind} {shorten(name)}: {hint}{remedy or 'choose from ' + ', '.join(names)}")


def _plain(name: str) -> str:
    """A name in lower case, with hyphens.

    >>> _plain(" Jain_Wallace")
    'jain-wallace'
    """
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def split_names(values: Iterable[str]) -> tuple[str, ...]:
    """The names of a list that may have commas; those within brackets belong to a name.

    >>> split_names(["sst,imdb", " 20news "]), split_names(["lime(error=0.05, seed=3),gradient"])
    (('sst', 'imdb', '20news'), ('lime(error=0.05, seed=3)', 'gradient'))
    >>> split_names(["sst,"]), split_names([""])
    (('sst',), ('',))
    """
    written = tuple(values)
    parts = (part.strip() for value in written for part in re.split(r",(?![^(]*\))", value))
    return tuple(part for part in parts if part) or written  # no name at all is a mistake, not a choice of all
