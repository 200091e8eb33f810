"""Documentation: every block runs, and every command, option, make target, extra, link and name exists.

Blocks of a document run in order in one Python session and one working directory, without a network. A `text` block is
the output of the block before it. Long commands are run up to the work itself.
"""

from __future__ import annotations

import doctest
import io
import json
import re
import shlex
import shutil
import socket
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from heedful import catalogue, cli, papers
from heedful.audits import audit_run
from heedful.audits.time_budget import TimeBudget
from heedful.cli import attefa_command, reproduce_command, run_command
from heedful.cli.audit_command import REQUIREMENT_CODE
from heedful.data import download
from heedful.data.download import FETCHABLE
from heedful.execution import runner
from heedful.study import app as study_app
from heedful.types import UserError
from tests.given import save_untrained
from tests.language_models import bert_tokenizer, gpt2, gpt2_tokenizer, masked_bert, save

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r" *(```+|~~~+) *([^\s`]*)[^`]*$")
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)|(?:src|href)=\"([^\"]+)\"|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\bN\b")
SHELLS = ("bash", "sh", "console")
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line on which the text begins."""

    language: str
    text: str
    line: int


def split_blocks(markdown: str) -> tuple[list[Block], str]:
    """The fenced blocks of a document, in order, and what is left of it: the running text."""
    found: list[Block] = []
    running: list[str] = []
    body: list[str] = []
    fence = language = ""
    for number, line in enumerate(markdown.splitlines(), start=1):
        mark = FENCE.match(line)
        if fence and line.strip() == fence:
            found.append(Block(language, textwrap.dedent("\n".join(body)) + "\n", number - len(body)))
            fence = ""
        elif mark and not fence:
            fence, language, body = mark[1], mark[2], []
        else:
            (body if fence else running).append(line)
    assert not fence, "a block is never closed"
    return found, "\n".join(running)


def blocks(markdown: str) -> list[Block]:
    """Every fenced block of a document."""
    return split_blocks(markdown)[0]


def prose(markdown: str) -> str:
    """A document without its blocks."""
    return split_blocks(markdown)[1]


def spans(markdown: str) -> list[str]:
    """Every piece of code in the running text."""
    return [" ".join(span.split()) for span in SPAN.findall(prose(markdown))]


@dataclass
class Session:
    """A run of one document: its Python namespace and the output of its last block."""

    name: str
    output: str | None = None
    module: ModuleType = field(default_factory=lambda: ModuleType("session"))

    def run(self, block: Block) -> None:
        """Run or check one block; AssertionError names its fault."""
        if block.language == "python":
            self.output = self._python(block)
        elif block.language in SHELLS:
            self.output = "".join(shell(line) for line in commands(block))
        elif block.language == "yaml":  # the steps of a workflow
            steps = re.findall(r"^- run: (.*)$", block.text, re.MULTILINE)
            assert steps, f"line {block.line}: no step"
            self.output = "".join(shell(shlex.split(step)) for step in steps)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language == "text", f"line {block.line}: no check for {block.language!r} blocks"
            self._expect(block)

    def _python(self, block: Block) -> str:
        # Empty lines in front let a traceback name the line of the document.
        code = compile("\n" * (block.line - 1) + block.text, self.name, "exec")
        with redirect_stdout(io.StringIO()) as said:
            exec(code, vars(self.module))
        return said.getvalue()

    def _expect(self, block: Block) -> None:
        assert self.output is not None, f"line {block.line}: this output follows no block"
        message = f"line {block.line}: the document shows\n{block.text}but the block before it prints\n{self.output}"
        assert doctest.OutputChecker().check_output(block.text, self.output, LOOSE), message
        self.output = None


def run_document(markdown: str, session: Session) -> None:
    """Run all blocks of a document in order."""
    for block in blocks(markdown):
        session.run(block)


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a shell block, without comments; in a console those after a dollar sign."""
    for line in block.text.replace("\\\n", " ").splitlines():
        prompt, _, rest = line.partition("$ ")
        if block.language != "console":
            words = shlex.split(line, comments=True)
        else:
            words = [] if prompt.strip() else shlex.split(rest, comments=True)
        if words:
            yield words


def shell(words: list[str]) -> str:
    """What a command says, once it is certain that it is there and takes these options."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        known_variable(words[0].partition("=")[0])
        words = words[1:]
    program, rest = words[0], words[1:]
    if program == "heedful":
        return heedful(rest)
    if program == "make":
        assert set(rest) <= targets(), f"the Makefile has no target for {rest}"
    elif program == "pip":
        assert rest[:1] == ["install"], rest
        assert extras_of(rest) <= extras(), f"{rest}: pyproject.toml has only the extras {sorted(extras())}"
    elif program == "ray":
        assert rest[0] in ("start", "stop", "job"), rest
    elif program == "export":
        known_variable(rest[0].partition("=")[0])
    else:
        raise AssertionError(f"no check for the command {program!r}")
    return ""


def heedful(words: list[str]) -> str:
    """What the command says; a paper is chosen but not run, a corpus named but not fetched."""
    own_file = words[:1] == ["run"] and any(word.endswith(".py") for word in words)
    with pytest.MonkeyPatch.context() as patch:
        if not own_file:
            if words[:1] != ["audit"]:
                patch.setattr(runner, "run", lambda recipes, workspace, where, workers: [])
            patch.setattr(runner, "find_spec", lambda name: name)  # Ray is not used
            patch.setattr(papers, "paper_recipes", lambda options: options.recipes())
            for command in (attefa_command, run_command):
                patch.setattr(command, "print_plan", lambda recipes, workspace, in_detail=False: None)
            patch.setattr(reproduce_command, "run_cell", lambda *_, update: 0)
            patch.setattr(download, "fetch", fetchable)
            patch.setattr(study_app, "serve", lambda *_, per_address: None)
        result = CliRunner().invoke(cli.app, words)
    # Two texts decide nothing: what a gate requires is not supported.
    expected = REQUIREMENT_CODE if "--require" in words else 0
    assert result.exit_code == expected, f"heedful {shlex.join(words)}\n{result.output}\n{result.exception!r}"
    return result.output


def fetchable(corpus: str, data: Path, *, source: str | None = None) -> Path:
    """The folder of a corpus that could be fetched."""
    if corpus not in FETCHABLE:
        raise UserError(f"cannot fetch {corpus!r}")
    return data / corpus


def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def extras() -> set[str]:
    """The extras of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def extras_of(words: list[str]) -> set[str]:
    """The extras of heedful that a pip command asks for."""
    asked = [re.fullmatch(r"(?:heedful|\.)(?:\[(.*)\])?", word) for word in words]
    return {extra.strip() for match in asked if match and match[1] for extra in match[1].split(",")}


def known_variable(name: str) -> None:
    """An environment variable that the code reads."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "heedful").rglob("*.py"))
    assert any(f'"{name}"' in source for source in sources), f"nothing in heedful reads the variable {name}"


def options() -> set[str]:
    """Every option of every command."""
    group = cast(TyperGroup, get_command(cli.app))
    nested = [
        command for one in group.commands.values() if isinstance(one, TyperGroup) for command in one.commands.values()
    ]
    everything = [group, *group.commands.values(), *nested]
    return {name for each in everything for option in each.params for name in option.opts} | {"--help", "-h"}


def check_span(span: str) -> None:
    """A command, an option or a variable in the running text.

    A command that is only named, or has a placeholder in capitals, is asked for its help: its options must exist.
    """
    words = span.split()
    if words[0] == "heedful" and len(words) > 1:
        named_only = len(words) == 2 + (words[1] == "study") or PLACEHOLDER.search(span)
        heedful([*words[1:], "--help"] if named_only else words[1:])
    elif words[0] in ("make", "pip") and len(words) > 1:
        shell(words)
    elif span.startswith("--"):
        assert words[0] in options(), f"no command has the option {words[0]}"
    elif span.startswith("HEEDFUL_"):
        known_variable(span.partition("=")[0])


def check_link(link: str, document: Path) -> None:
    """A link leads to a file of the project, and to a heading where it names one; the web is not asked."""
    if re.match(r"(https?|mailto):", link):
        return
    name, _, heading = link.partition("#")
    target = (document.parent / name).resolve() if name else document
    assert target.is_relative_to(ROOT), f"{link} leads out of the project"
    assert target.exists(), f"{link} leads nowhere"
    assert not heading or heading in headings(target.read_text(encoding="utf-8")), f"no heading for {link}"


def headings(markdown: str) -> set[str]:
    """The anchors of a document, as GitHub makes them from headings."""
    titles = re.findall(r"^#+ +(.*?) *$", prose(markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(markdown: str) -> list[str]:
    """Every target of a link or picture."""
    return ["".join(found) for found in LINK.findall(SPAN.sub("", prose(markdown)))]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, an empty data folder, no network."""

    def refused(*args: object) -> None:
        raise OSError("documents are read without a network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEEDFUL_WORKSPACE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def named(document: Path) -> str:
    """A document's name in the project."""
    return document.relative_to(ROOT).as_posix()


def new_session(document: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose classes can be found again by the name of their module."""
    session = Session(named(document))
    monkeypatch.setitem(sys.modules, session.module.__name__, session.module)
    return session


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_block_of_a_document_does_what_it_says(
    document: Path, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The table of reviews that the documents use.
    rows = [f"{'fine' if number % 2 else 'dull'} film number {number},{number % 2}" for number in range(60)]
    Path("reviews.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    words = ("fine", "dull", "film", "number", "a", "quiet", "with", "ending", *map(str, range(60)))
    for folder in ("my-model", "model"):
        save_untrained(Path(folder), words, ("LABEL_0", "LABEL_1"))
    save(Path("my-lm"), gpt2(), gpt2_tokenizer())
    save(Path("my-masked-lm"), masked_bert(), bert_tokenizer())
    Path("eval").mkdir()
    shutil.copy("reviews.csv", "eval")
    shutil.copytree(ROOT / "reproduction", "reproduction")  # as in a folder of the repository
    # Audits are short, and run in this process.
    monkeypatch.setattr(audit_run, "CORE_METHODS", ("raw-attention", "leave-one-out"))
    monkeypatch.setattr(audit_run, "FURTHER_METHODS", {})
    monkeypatch.setattr(TimeBudget, "text_limit", 2)
    monkeypatch.setattr(TimeBudget, "place", lambda budget: ("here", None))
    run_document(document.read_text(encoding="utf-8"), new_session(document, monkeypatch))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_command_option_and_variable_in_the_running_text_exists(document: Path, apart: Path) -> None:
    for span in spans(document.read_text(encoding="utf-8")):
        check_span(span)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_and_picture_leads_to_something(document: Path) -> None:
    for link in links(document.read_text(encoding="utf-8")):
        check_link(link, document)


def test_the_readme_claims_no_name_that_heedful_has_not() -> None:
    group = cast(TyperGroup, get_command(cli.app))
    kinds: Mapping[str, set[str]] = {
        "papers": set(papers.PAPERS),
        "commands": set(group.commands),
        **{kind: set(names) for kind, names in catalogue.descriptions().items()},
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    bullets = dict(re.findall(r"^- \*\*(\w+)\*\*(.*(?:\n +.*)*)", readme, re.MULTILINE))
    assert kinds.keys() <= bullets.keys()
    for kind, names in kinds.items():
        claimed = set(SPAN.findall(bullets[kind]))
        assert claimed, f"the README names no {kind}"
        assert claimed <= names, f"{kind} that do not exist: {sorted(claimed - names)}"


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("```\nx\n```", "no check for '' blocks"),
        ("```toml\nx = 1\n```", "no check for 'toml' blocks"),
        ("```yaml\nx: 1\n```", "no step"),
        ("```python\nx = 1\n", "never closed"),
        ("```python\nassert 1 > 2, 3\n```", "3"),
        ("```text\n1\n```", "follows no block"),
        (
            "```python\nprint(1)\n```\n```text\n2\n```",
            r"line 5: the document shows\s+2\s+but the block before it prints\s+1",
        ),
        ("```python\nprint(1)\n```\n```text\n1\n```\n```text\n1\n```", "follows no block"),
        ("```bash\nheedful run jain-wallace --sedes 3\n```", "No such option"),
        ("```bash\nheedful run jain-wallace --seeds three\n```", "three"),
        ("```bash\nheedful run jain-wallace --only sst2\n```", "unknown corpus of this paper 'sst2'"),
        ("```bash\nheedful run unknown\n```", "unknown paper 'unknown'"),
        ("```bash\nheedful run absent.py\n```", "absent.py: no such file"),
        ("```bash\nheedful judge\n```", "No such command"),
        ("```bash\nheedful fetch nothing\n```", "cannot fetch 'nothing'"),
        ("```console\n$ heedful list \\\n  --verbose\n```", "No such option"),
        ("```bash\nHEEDFUL_DATUM=x heedful list\n```", "reads the variable HEEDFUL_DATUM"),
        ("```sh\nexport HEEDFUL_DATUM=x\n```", "reads the variable HEEDFUL_DATUM"),
        ("```bash\nmake coffee\n```", "no target"),
        ("```bash\npip install 'heedful[demo,tea]'\n```", "only the extras"),
        ("```bash\npip install '.[tea]'\n```", "only the extras"),
        ("```bash\ncurl example.org\n```", "the command 'curl'"),
    ],
)
def test_a_broken_block_is_found(document: str, complaint: str, apart: Path) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run_document(document, Session("broken"))


def test_blocks_share_one_namespace_and_output_may_be_loose(apart: Path) -> None:
    text = "```python\nx = 2\n```\n- list\n  ```python\n  print(x, 0.1234)\n  ```\n```text\n2   0.1...\n```\n"
    text += "```console\n$ heedful --version  # short\nheedful 0\n$ make test\n```\n```text\nheedful ...\n```\n"
    assert [block.line for block in blocks(text)] == [2, 6, 9, 12, 17]
    run_document(text, Session("fine"))


@pytest.mark.parametrize(
    "span", ["make tea", "heedful judge MODEL", "heedful run FILE.py --fast", "--fast", "HEEDFUL_X"]
)
def test_a_broken_command_in_the_running_text_is_found(span: str, apart: Path) -> None:
    assert spans(f"one `{span}` two\n```text\n`no`\n```") == [span]
    with pytest.raises(AssertionError):
        check_span(span)


def test_a_broken_link_is_found_in_every_way_of_writing_one() -> None:
    text = 'A [one](a.md), ![two](b.png), `[no](c.md)`, <img src="d.png">.\n\n```text\n[no](e.md)\n```\n[three]: f.md\n'
    assert links(text) == ["a.md", "b.png", "d.png", "f.md"]
    for link in ("absent.md", "README.md#absent", "../outside.md"):
        with pytest.raises(AssertionError):
            check_link(link, ROOT / "README.md")
    check_link("README.md#what-is-inside", ROOT / "README.md")
