"""Configuration of Sphinx for the site; `python -m docs.builder` writes the sources that it reads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from heedful import __version__

_SOURCE = Path(os.environ.get("HEEDFUL_SITE_SOURCE", Path(__file__).parent))

project = "heedful"
author = "the heedful developers"
copyright = "the heedful developers, Apache-2.0"
version = release = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
html_theme = "furo"
html_title = f"heedful {__version__}"
# Relative to this file; `docs.builder` copies `_static` and adds the files that it makes.
html_static_path = [str(_SOURCE / "_static")]
html_extra_path = [str(_SOURCE / "_gallery")]
exclude_patterns = ["_gallery"]
html_css_files = ["site.css"]
html_copy_source = False
smartquotes = False  # they turn the hyphens of options into dashes
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nitpicky = True
# Names of other libraries: their inventories are on the internet, and the build needs none.
nitpick_ignore_regex = [("py:.*", ".*")]

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_use_ivar = True
default_role = "literal"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_MARKUP = re.compile(r"([|*\\])|(?<=\w)(_)(?!\w)")


def escape_markup(app: object, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup: docstrings are plain text with code in backticks."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")) and not _follows_prompt(lines, number):
            parts = _CODE.split(line)
            lines[number] = "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\g<0>", part) for part in parts)


def _follows_prompt(lines: Sequence[str], number: int) -> bool:
    """Whether a line is part of the output of an example."""
    for line in reversed(lines[:number]):
        if not line.strip():
            return False
        if line.lstrip().startswith((">>>", "...")):
            return True
    return False


class _Application:
    """What this file uses of Sphinx's application."""

    def connect(self, event: str, callback: object, priority: int = 500) -> int: ...


def setup(app: _Application) -> None:
    """Register the escape, before napoleon reads the sections of a docstring."""
    app.connect("autodoc-process-docstring", escape_markup, priority=400)
