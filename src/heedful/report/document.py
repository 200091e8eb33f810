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

from heedful.figures import Heatmap
from heedful.report.heat import heatmap_view
from heedful.report.ink import replace_unprintable
from heedful.report.numbers import format_number
from heedful.report.spoken import describe_figure
from heedful.report.tables import display_table
from heedful.types import UserError


@dataclass(frozen=True)
class HtmlDocument:
    """A kind of document: its template, and the files that its one style and its one script are made of."""

    template: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    def render(self, values: Mapping[str, object]) -> str:
        """The document that says these values, as text."""
        style, script = ("\n".join(map(_read_asset, names)) for names in (self.styles, self.scripts))
        own = {
            "style": Markup(style),
            "script": Markup(script),
            "style_hash": _csp_hash(style),
            "script_hash": _csp_hash(script),
        }
        text = _jinja_environment().get_template(self.template).render({**values, **own})
        return replace_unprintable(text.strip() + "\n")


def write_atomically(text: str, target: Path) -> Path:
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
def _jinja_environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = lambda value: value if isinstance(value, str) else format_number(value)
    environment.tests["text_figure"] = lambda figure: isinstance(figure, Heatmap)
    environment.globals.update(grid=display_table, heat=heatmap_view, sentences=describe_figure)
    return environment


def _read_asset(name: str) -> str:
    return resources.files("heedful.report").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy wants it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
