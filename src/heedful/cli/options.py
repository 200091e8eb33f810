"""The options that several commands share, each declared once, and the groups of options that belong together.

A command takes a group as one parameter; `heedful.cli.guard.command` turns its fields into options.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heedful.data.columns import TableColumns
    from heedful.explainer import Explainer
    from heedful.store.workspace import Workspace

MAX_SEED = 2**32 - 1
MAX_SEEDS = 100
MAX_ATTEFA_SEEDS = 9
MAX_WORKERS = 100_000
DEFAULT_WORKSPACE = "workspace"
DEFAULT_REPORT = Path("report")
TO_STDOUT = "(- for standard output)"
columns_option = functools.partial(typer.Option, rich_help_panel="Columns of the table")
execution_option = functools.partial(typer.Option, rich_help_panel="Execution")
language_option = functools.partial(typer.Option, rich_help_panel="Language models")
output_option = functools.partial(typer.Option, rich_help_panel="Output")

ModelArgument = Annotated[str, typer.Argument(help="Model folder with its tokenizer, or a Hugging Face hub id.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Random seed.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Run a small version that takes minutes; the report says so.")
]
EMBEDDINGS_HELP = "Word embeddings: auto, random, packaged, a name in the data folder, or a file."
START_HELP = "Initial weights of adversaries: fresh (as in the papers) or base (the base model's; faster)."
BASES_HELP = "Number of base models, to estimate the noise floor."

TextColumnOption = Annotated[
    str | None, columns_option("--text-column", help="Column with the text (default: detected).")
]
SecondColumnOption = Annotated[
    str | None, columns_option("--second-column", help="Column with the second text of a pair; 'none' for none.")
]
LABEL_HELP = "Column with the label; 'none' for none."
RATIONALE_HELP = "Column with the words that people marked; 'none' for none."
FORM_HELP = "Format of the marked words: flags, grades, indices and others (default: detected)."
ID_HELP = "Column with text ids; 'none' for none."
JsonOption = Annotated[Path | None, output_option("--json", help=f"Write the results to this JSON file {TO_STDOUT}.")]
LedgerOption = Annotated[Path, output_option("--ledger", help="Folder of the ledger of published numbers.")]
ReportOption = Annotated[Path, output_option("--out", help="Folder for the report.")]
WORKSPACE_HELP = "Folder or s3://bucket/folder where finished work is stored."
WorkspaceOption = Annotated[str, execution_option("--workspace", "-w", envvar="HEEDFUL_WORKSPACE", help=WORKSPACE_HELP)]
DeviceOption = Annotated[str, execution_option("--device", help="Device for the network: cpu, cuda, cuda:1 or mps.")]
DEFAULT_DEVICE = "cpu"
BATCH_SIZE_HELP = 'Batch size, or "auto" (256, halved when memory runs out).'
WHERE_HELP = "Where to run: pool (local processes), here (this process), ray or ray://HOST:PORT (a cluster)."
WORKERS_HELP = "Number of recipes to run in parallel (default: one per core)."
PROMPT_HELP = "Prompt with {text} in place of the text; \\n is a new line."
PRECISION_HELP = "float32, bfloat16 or float16. Half precision halves memory; results differ slightly."


@dataclass(frozen=True)
class CommonOptions:
    """What every command has."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False


@dataclass(frozen=True)
class WorkspaceOptions:
    """Where finished work is stored, and how networks run."""

    workspace: WorkspaceOption = DEFAULT_WORKSPACE
    device: DeviceOption = DEFAULT_DEVICE
    batch_size: Annotated[str, execution_option("--batch-size", help=BATCH_SIZE_HELP)] = "256"

    def open(self) -> Workspace:
        """The workspace with this device and batch size."""
        from heedful.devices import read_batch_size
        from heedful.store.workspace import Workspace

        size = read_batch_size(self.batch_size)
        if size is None:
            return Workspace(self.workspace, device=self.device, automatic_batch_size=True)
        return Workspace(self.workspace, device=self.device, batch_size=size)


@dataclass(frozen=True)
class PoolOptions:
    """Which processes run the recipes."""

    where: Annotated[str, execution_option("--where", help=WHERE_HELP)] = "pool"
    workers: Annotated[int | None, execution_option("--workers", min=1, max=MAX_WORKERS, help=WORKERS_HELP)] = None


@dataclass(frozen=True)
class TableOptions:
    """The columns of a user's table; those that are not named are detected."""

    text_column: TextColumnOption = None
    second_column: SecondColumnOption = None
    label_column: Annotated[str | None, columns_option("--label-column", help=LABEL_HELP)] = None
    rationale_column: Annotated[str | None, columns_option("--rationale-column", help=RATIONALE_HELP)] = None
    rationale_form: Annotated[str | None, columns_option("--rationale-form", help=FORM_HELP)] = None
    id_column: Annotated[str | None, columns_option("--id-column", help=ID_HELP)] = None

    def columns(self) -> TableColumns:
        """The columns by their meaning."""
        from heedful.data.columns import TableColumns

        return TableColumns(
            text=self.text_column,
            second_text=self.second_column,
            label=self.label_column,
            rationale=self.rationale_column,
            uid=self.id_column,
            rationale_form=self.rationale_form,
        )


@dataclass(frozen=True)
class ModelOptions:
    """How a model is opened, and how a language model classifies texts."""

    prompt: Annotated[str | None, language_option("--prompt", help=PROMPT_HELP)] = None
    label: Annotated[
        list[str] | None, language_option("--label", help="Label word of a class, as CLASS=WORD (repeatable).")
    ] = None
    chat: Annotated[bool, language_option("--chat", help="Send the prompt as a user message in the chat template.")] = (
        False
    )
    precision: Annotated[str, execution_option("--precision", help=PRECISION_HELP)] = "float32"

    def load(self, source: str, device: str) -> Explainer:
        """Open a model from a folder or the hub."""
        from heedful.devices import check_precision
        from heedful.explainer import load

        prompt = None if self.prompt is None else self.prompt.replace("\\n", "\n")
        return load(
            source,
            prompt=prompt,
            labels=self._label_words(),
            chat=self.chat,
            device=device,
            precision=check_precision(self.precision),
        )

    def _label_words(self) -> dict[str, str] | None:
        """The label word of each class from CLASS=WORD."""
        from heedful.types import UserError

        words: dict[str, str] = {}
        for entry in self.label or ():
            name, sign, word = entry.partition("=")
            if not sign or not name.strip() or name in words:
                raise UserError(
                    f"--label {entry!r}: give each class once as CLASS=WORD, for instance --label 'positive= good'"
                )
            words[name] = word
        return words or None
