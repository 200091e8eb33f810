"""HTML documents that are complete in themselves: styles, script and data are inside, nothing is loaded.

A document's security policy lets only its own style and its own script work, so that even a fault in escaping could
not run a text that came from data.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from heedful.core.figures import Heatmap
from heedful.core.types import UserError
from heedful.report.heat import heat
from heedful.report.ink import printable
from heedful.report.numbers import number
from heedful.report.spoken import sentences
from heedful.report.tables import grid


@dataclass(frozen=True)
class Document:
    """A kind of document: its template, and the files that its one style and its one script are made of."""

    template: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    def html(self, values: Mapping[str, object]) -> str:
        """The document that says these values, as text."""
        style, script = ("\n".join(map(_asset, names)) for names in (self.styles, self.scripts))
        own = {
            "style": Markup(style),
            "script": Markup(script),
            "style_hash": _hash(style),
            "script_hash": _hash(script),
        }
        text = _environment().get_template(self.template).render({**values, **own})
        return printable(text.strip() + "\n")


def placed(text: str, target: Path) -> Path:
    """Writes the file (all of it or nothing) and gives back its path."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8", newline="\n")
        aside.replace(target)
    except OSError as error:
        if aside.is_file():
            aside.unlink()
        raise UserError(f"cannot write the report to {target}: {error.strerror}; choose another folder") from error
    return target


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = lambda value: value if isinstance(value, str) else number(value)
    environment.tests["text_figure"] = lambda figure: isinstance(figure, Heatmap)
    environment.globals.update(grid=grid, heat=heat, sentences=sentences)
    return environment


def _asset(name: str) -> str:
    return resources.files("heedful.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy wants it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
