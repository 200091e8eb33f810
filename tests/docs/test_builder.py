"""The parts of the site: facts from objects, notebooks that run, and checks that find what they look for."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from docs.builder.api_pages import MODULES, PACKAGES, public_names
from docs.builder.badges import badge
from docs.builder.checks import check_site
from docs.builder.examples import Passes, count_passes, example_explainer
from docs.builder.markdown import describe_type, option_rows, paragraphs
from docs.builder.notebooks import notebook_page, run_notebook
from docs.builder.reference_pages import describe_passes, kinds_without
from heedful.attributions import Lime
from heedful.attributions.registry import METHODS
from heedful.option_bounds import Bounds

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PAGE = '<html lang="en"><body><h1 id="top">A</h1>{}</body></html>'


def faults_of(tmp_path: Path, body: str, style: str = "") -> list[str]:
    (tmp_path / "index.html").write_text(PAGE.format(body), encoding="utf-8")
    (tmp_path / "other.html").write_text(PAGE.format('<p id="there">x</p>'), encoding="utf-8")
    (tmp_path / "style.css").write_text(style, encoding="utf-8")
    return check_site(tmp_path)


def test_a_page_without_faults_has_none(tmp_path: Path) -> None:
    body = (
        '<h2>B</h2><h3>C</h3><h2>D</h2><a href="other.html#there">x</a><a href="#top">y</a>'
        '<script type="application/json">{"uid": "made"}</script><a href="#made">made by a script</a>'
        '<a href="https://example.org">z</a><img src="style.css" alt="a"><img src="style.css" alt="">'
    )
    assert faults_of(tmp_path, body, "p { background: url(data:image/png;base64,AA) }") == []


@pytest.mark.parametrize(
    "body",
    [
        '<a href="absent.html">x</a>',
        '<a href="other.html#absent">x</a>',
        '<a href="#absent">x</a>',
        '<img src="absent.png" alt="a">',
        '<img src="style.css">',
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<iframe src="other.html"></iframe>',
        "<h3>skipped</h3>",
        '<p tabindex="2">x</p>',
        '<p style="background: url(https://example.org/a.png)">x</p>',
        "<style>@import 'a.css'</style>",
    ],
)
def test_every_kind_of_fault_is_found(tmp_path: Path, body: str) -> None:
    assert len(faults_of(tmp_path, body)) == 1


def test_a_style_sheet_that_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    assert len(faults_of(tmp_path, "", "@font-face { src: url(https://example.org/a.woff) }")) == 1


def test_kinds_of_networks_are_counted_from_the_table() -> None:
    page = (
        "text\n| kind | methods | without |\n|---|---|---|\n| a | 2/3 | lime |\n| b | 1/3 | lime, flow |\n| c |  |  |\n"
    )
    assert kinds_without(page) == (2, {"lime": 2, "flow": 1})
    kinds, without = kinds_without((ROOT / "docs" / "models.md").read_text(encoding="utf-8"))
    assert kinds > 300
    assert without.keys() <= METHODS.keys()


def test_types_are_described_with_their_choices_and_bounds() -> None:
    assert describe_type(Literal["pad", "unk"]) == "`pad`, `unk`"
    assert describe_type(Annotated[int, Bounds(1, 9)] | None) == "whole number of at least 1 and at most 9 or None"
    assert describe_type(bool) == "yes or no"


@dataclass(frozen=True)
class Options:
    """One sentence.

    Further text.

    Args:
        width: of the kernel,
            in tokens.

    The end.
    """

    width: int = 3


def test_options_come_from_fields_and_the_docstring() -> None:
    assert paragraphs(Options) == ("One sentence.", "Further text.\n\nThe end.", {"width": "of the kernel, in tokens."})
    assert option_rows(Options(), Options) == [("`width`", "`3`", "whole number", "of the kernel, in tokens.")]
    assert "n_samples" in paragraphs(Lime)[2]


@pytest.mark.slow
def test_passes_are_counted(tmp_path: Path) -> None:
    explainer = example_explainer(tmp_path)
    expected = {
        "random": (0, 0),
        "raw-attention": (1, 0),
        "input-x-gradient": (1, 1),
        "occlusion": (10, 0),  # the text, and the text without each of its nine words
        "leave-one-out": (10, 0),
        "shapley": (2**9, 0),
    }
    assert {name: count_passes(explainer, name) for name in expected} == {
        name: Passes(*counts) for name, counts in expected.items()
    }
    assert "10" in describe_passes(Passes(10, 0))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_outputs_only_then(path: Path, tmp_path: Path) -> None:
    assert '"output_type"' not in path.read_text(encoding="utf-8")
    page = notebook_page(run_notebook(path, tmp_path), "here.ipynb")
    assert page.startswith("# ")
    assert "{raw} html" in page
    assert str(tmp_path) not in page


def test_every_message_of_the_faq_is_one_of_heedful() -> None:
    texts = [
        " ".join(re.sub(r"\{[^}]*\}", "{}", text).split())
        for path in (ROOT / "src" / "heedful").rglob("*.py")
        for text in strings_of(ast.parse(path.read_text(encoding="utf-8")))
    ]
    messages = re.findall(r"^### `(.+)`$", (ROOT / "docs" / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(messages) > 10
    assert [message for message in messages if not any(message in text for text in texts)] == []


def strings_of(tree: ast.AST) -> list[str]:
    """The strings of a module; values that are filled in are `{}`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_public_names_are_those_of_the_stubs() -> None:
    assert {"Lime", "Shapley"} <= set(public_names("heedful.attributions"))
    assert {"audit", "explain", "load", "run"} <= set(public_names("heedful"))
    assert all(public_names(package) for package in (*PACKAGES, *MODULES))


def test_badges_say_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = ROOT / "docs" / "badges"
    for label, value in (("version", "version"), ("license", "license"), ("python", "requires-python")):
        assert (folder / f"{label}.svg").read_text(encoding="utf-8") == badge(label, project[value])
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
