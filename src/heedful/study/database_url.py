"""URLs of databases: which are accepted, and what of them may be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.types import UserError

if TYPE_CHECKING:
    from sqlalchemy import URL

_SECRETS = ("password", "sslpassword")
"""Parameters of a URL of PostgreSQL that are secrets."""


def parse_database_url(url: str) -> URL:
    """The URL of a SQLite or PostgreSQL database; UserError, which does not repeat it, for any other."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise UserError("--database: this is not the URL of a database; write postgresql://user@host/name") from error
    if parsed.drivername == "postgres":
        parsed = parsed.set(drivername="postgresql")
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UserError(f"--database {parsed.drivername}: only sqlite and postgresql are supported")
    if backend == "sqlite" and (parsed.database in (None, "", ":memory:") or parsed.query.get("mode") == "memory"):
        raise UserError("--database: answers in memory would be lost; name a file, sqlite:///answers.sqlite")
    return parsed


def without_password(url: str) -> str:
    """The URL as it may be stored.

    >>> without_password("postgresql://me:secret@host/studies?sslmode=require&password=secret")
    'postgresql://me@host/studies?sslmode=require'
    """
    parsed = parse_database_url(url)
    if not (parsed.password or parsed.query.keys() & set(_SECRETS)):
        return url
    query = {name: value for name, value in parsed.query.items() if name not in _SECRETS}
    # Only `_replace` can remove a part of a URL, as the documentation of SQLAlchemy says.
    return parsed.set(query=query)._replace(password=None).render_as_string(hide_password=False)
