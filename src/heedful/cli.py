"""The command: `heedful explain | audit | models | demo | list | run | attefa | learn | report | study | fetch`.

Errors are one line with exit code 2. An interrupt keeps what is finished and exits with 130, at any moment. A recipe
that fails is listed at the end with its traceback file, and the exit code is 1. Heavy modules are imported inside the
commands, so that `--help` and `--version` do not wait for torch.
"""

from __future__ import annotations

import functools
import json
import math
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

try:
    import typer

    from heedful import __version__
    from heedful.command_line import (
        DEFAULT_BATCH_SIZE,
        DEFAULT_DEVICE,
        DEFAULT_PRECISION,
        DEFAULT_WORKSPACE,
        MAX_SEED,
        STANDARD_OUTPUT,
        BatchSizeOption,
        DebugOption,
        DeviceOption,
        PrecisionOption,
        QuietOption,
        WorkspaceOption,
        check_files,
        check_folder,
        command,
        complain,
        open_workspace,
        print_text,
        progress_display,
        progress_of,
        run_app,
        say,
        screen,
        silent,
        write_file,
    )
    from heedful.study.commands import study_app
except KeyboardInterrupt:
    sys.stderr.write("heedful: interrupted\n")
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from heedful.outcome import Outcome
    from heedful.papers._options import PaperOptions
    from heedful.store.recipe import Json, Recipe
    from heedful.store.workspace import Workspace
    from heedful.trials._trial import Trial
    from heedful.types import Corpus

MAX_SEEDS = 100
MAX_WORKERS = 100_000
OutOption = Annotated[Path, typer.Option("--out", help="Folder of the report.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all summaries to this file; - prints it.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="A small version that takes minutes; the report says so.")]
WhereOption = Annotated[
    str, typer.Option("--where", help="pool: processes here; here: in this process; ray or ray://HOST:PORT: a cluster.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, max=MAX_WORKERS, help="Recipes at a time; default: one per core.")
]
TextColumnOption = Annotated[str, typer.Option("--text-column", help="Column of the texts.")]
LabelColumnOption = Annotated[str, typer.Option("--label-column", help="Column of the classes.")]
SecondColumnOption = Annotated[str | None, typer.Option("--second-column", help="Column of a second text, for pairs.")]
PromptOption = Annotated[
    str | None, typer.Option("--prompt", help="Prompt of a language model, with {text} where the text stands.")
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", help="CLASS=WORD: the label word of a class, for each class.")
]
ChatOption = Annotated[bool, typer.Option("--chat", help="The prompt is a user's turn in the chat template.")]
EMBEDDINGS_HELP = "Word embeddings: auto, random, packaged, a name in the data folder, or a file."
START_HELP = "Adversaries start fresh, as in the papers, or from the base, which takes fewer epochs."
METHOD_HELP = "Method (see `heedful list`), 'lime(error=0.05)' with options; default: what the best audit recommends."
ERROR_HELP = "Standard error of a text's normalized infidelity or change under permutation, not a number of samples."
SELECT_HELP = (
    "How epochs are chosen: code (base: test score; adversaries: training loss; default of wiegreffe-pinter), paper "
    "(test split; default of attefa) or dev."
)
SAMPLING_HELP = "Examples of students: fixed for all seeds, as in the paper (default), or redrawn for each."
DIVIDE_DEV_HELP = "Train explainers on one half of dev and stop students on the other; the paper uses all for both."
SEEDS_HELP = "How many seeds; default: the paper's."
BASES_HELP = "Base models, for the noise floor."
some_papers = functools.partial(typer.Option, rich_help_panel="Options of some papers (lists: repeat the option)")
OPTION_FLAGS = {
    "corpora": "--only",
    "n_seeds": "--seeds",
    "limit": "--limit",
    "error": "--error",
    "quick": "--quick",
    "user_data": "--data",
    "encoders": "--encoder",
    "attentions": "--attention",
    "embeddings": "--embeddings",
    "lambdas": "--lambda",
    "select": "--select",
    "start": "--start",
    "n_bases": "--bases",
    "student_sizes": "--size",
    "checkpoints": "--checkpoint",
    "normalizers": "--normalizer",
    "sampling": "--sampling",
    "divide_dev": "--divide-dev",
}
"""The flag of each field that the options of a paper may have."""
MAX_ATTEFA_SEEDS = 9
DEMO_MINUTES, DEMO_TEXTS = 2.0, 76
REQUIREMENT_CODE = 3
"""Exit code of an audit that does not support what --require asks for."""
AUDIT_METHOD_HELP = "A method to audit (see `heedful list`); default: nine common ones."
LEARN_AUDIT_TEXTS = 60
AUDIT_MINUTES_HELP = "Time for an audit of the learned explainer; 0 leaves it out."
REQUIRE_HELP = "'METHOD: faithful, stable' ends with exit code 3 if the audit does not support it."
RATIONALE_FORM_HELP = "How rationales mark words: flags, grades, indices ... (default: detected)."
MODEL_FACTS = ("corpus", "encoder", "attention", "seed", "training")
"""What a printed result says of its model; a model that was trained elsewhere has no seed."""

DEFAULT_REPORT = Path("report")

app = typer.Typer(
    name="heedful",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(study_app, name="study")


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def heedful(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Does a model's attention, or any other token attribution, explain it?"""


@app.command()
@command
def explain(
    model: Annotated[str, typer.Argument(help="Folder of a fine-tuned model with its tokenizer, or a hub id.")],
    text: Annotated[str, typer.Argument(help="A text; - reads one per line from standard input; or a table file.")],
    second: Annotated[str | None, typer.Argument(help="The second text of a pair.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", "-m", help=METHOD_HELP)] = None,
    target: Annotated[str | None, typer.Option("--target", help="Class to explain; default: the predicted.")] = None,
    contrast: Annotated[str | None, typer.Option("--contrast", help="Explain the target against this class.")] = None,
    prompt: PromptOption = None,
    label: LabelOption = None,
    chat: ChatOption = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show the tokens of the model, not words.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file; - prints it.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - prints it.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write a table (CSV) of all scores; - prints it.")] = None,
    text_column: TextColumnOption = "text",
    second_column: SecondColumnOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
    precision: PrecisionOption = DEFAULT_PRECISION,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show which words a model's prediction rests on, according to one or more methods."""
    from heedful.data.io import is_table
    from heedful.devices import check_device, check_precision
    from heedful.explainer import load, method_for_words
    from heedful.explanation import explanations_frame, explanations_page
    from heedful.store.csv_text import csv_text

    check_device(device)
    kind = check_precision(precision)
    is_file = is_table(text) and (Path(text).exists() or len(text.split()) < 2)
    texts, seconds, numbers = _read_texts(text, second, is_file, text_column, second_column)
    methods = [method_for_words(name) for name in method] if method else None
    check_files({"--html": html, "--out": out, "--json": json_file})
    words, explained = _read_labels(label), []
    explainer = load(model, prompt=_read_prompt(prompt), labels=words, chat=chat, device=device, precision=kind)
    with progress_display(quiet=quiet or len(texts) < 2) as progress, progress.task("texts", len(texts)) as step:
        for each in explainer.explain_each(
            texts, seconds, methods=methods, target=target, contrast=contrast, workspace=workspace
        ):
            explained.append(each)
            step()
    if json_file is not None:
        records = [each.to_record() for each in explained]
        content = json.dumps(records if is_file or text == "-" else records[0], indent=1) + "\n"
        write_file(json_file, content)
    if html is not None:
        write_file(html, explanations_page(explained, pieces=pieces), "--html")
    if out is not None or (is_file and html is json_file is None):
        table = csv_text(explanations_frame(explained, numbers, pieces=pieces))
        write_file(out, table, "--out") if out is not None else print_text(table)
    elif not is_file and not quiet and STANDARD_OUTPUT not in (html, json_file):
        if not method:
            say(f"Method: {explained[0].rows[0].method} ({explained[0].chosen_because}).")
        for number, each in enumerate(explained):
            if number:
                say("")
            each.show(pieces=pieces)


@app.command()
@command
def audit(
    model: Annotated[str, typer.Argument(help="Folder of a fine-tuned model with its tokenizer, or a hub id.")],
    data: Annotated[str, typer.Argument(help="Texts: CSV, TSV, JSONL, JSON or Parquet; labels are optional.")],
    minutes: Annotated[float, typer.Option("--minutes", help="Time for this call; a later one goes on.")] = 5.0,
    texts: Annotated[
        int | None, typer.Option("--texts", min=1, help="Stop at this many texts, rounded up to a whole block.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option("--method", "-m", help=AUDIT_METHOD_HELP)] = None,
    attributions: Annotated[str | None, typer.Option("--attributions", help="Scores made elsewhere.")] = None,
    train_data: Annotated[str | None, typer.Option("--train-data", help="Texts to train students on.")] = None,
    text_column: Annotated[str | None, typer.Option("--text-column", help="Default: found.")] = None,
    second_column: Annotated[str | None, typer.Option("--second-column", help="Second text of pairs.")] = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Classes; 'none' for none.")] = None,
    rationale_column: Annotated[str | None, typer.Option("--rationale-column", help="Words people marked.")] = None,
    rationale_form: Annotated[str | None, typer.Option("--rationale-form", help=RATIONALE_FORM_HELP)] = None,
    id_column: Annotated[str | None, typer.Option("--id-column", help="Ids of the texts.")] = None,
    require: Annotated[list[str] | None, typer.Option("--require", help=REQUIRE_HELP)] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the pages.")] = Path("audit"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - prints it.")] = None,
    card: Annotated[Path | None, typer.Option("--card", help="Write a section for a model card; - prints it.")] = None,
    prompt: PromptOption = None,
    label: LabelOption = None,
    chat: ChatOption = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the draw of texts.")] = 0,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
    precision: PrecisionOption = DEFAULT_PRECISION,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Which explanations of this model may be shown? Test several methods and write one page with the answer."""
    from heedful.audits.audit_result import Requirement
    from heedful.audits.model_card import model_card
    from heedful.audits.schedule import AuditOptions
    from heedful.audits.schedule import audit as run_audit
    from heedful.data.evaluation_table import GivenColumns
    from heedful.devices import check_precision
    from heedful.explainer import load

    kind, store = check_precision(precision), open_workspace(workspace, device, batch_size)
    requirements = [Requirement.parse(text) for text in require or ()]
    columns = GivenColumns(text_column, second_column, label_column, rationale_column, id_column, rationale_form)
    options = AuditOptions(
        minutes, tuple(method or ()), attributions, columns, seed, workers, texts, train_data,
        tuple(requirement.method for requirement in requirements), where,
    )  # fmt: skip
    _check_report(out)
    check_files({"--json": json_file, "--card": card})
    with progress_of(store, quiet=quiet):
        words = _read_labels(label)
        subject = load(model, prompt=_read_prompt(prompt), labels=words, chat=chat, device=device, precision=kind)
        result = run_audit(subject, data, options=options, workspace=store, out=out, say=silent if quiet else say)
    if json_file is not None:
        write_file(json_file, result.to_json() + "\n")
    if card is not None:
        write_file(card, model_card(result), "--card")
    if not quiet:
        result.show()
        say(f"The answer page is {(out / 'index.html').resolve()}")
    unmet = [line for requirement in requirements for line in requirement.unmet(result)]
    for line in unmet:
        complain(f"required, but {line}")
    if not result.finished:
        complain("interrupted; finished work is kept, run the same command to continue")
        return 128 + signal.SIGINT
    return REQUIREMENT_CODE if unmet else 0


@app.command()
@command
def models(
    source: Annotated[str | None, typer.Argument(help="Folder of a model with its tokenizer, or a hub id.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every kind of network that transformers knows.")] = False,
    only: Annotated[
        str | None, typer.Option("--only", help="With --all: kinds like this, for instance '*bert*'.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --all: write the table here; - prints it.")] = None,
    prompt: PromptOption = None,
    label: LabelOption = None,
    chat: ChatOption = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - prints it.")] = None,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
    precision: PrecisionOption = DEFAULT_PRECISION,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what heedful can do with a network: attention, every method with the reason why not, and its speed."""
    from tempfile import TemporaryDirectory

    from heedful.devices import check_device, check_precision
    from heedful.explainer import load
    from heedful.model_support import examine_explainer, examine_kinds, matching_kinds, summary_lines, support_page
    from heedful.types import UserError

    check_device(device)
    kind = check_precision(precision)
    if (source is None) != every or (not every and (only is not None or out is not None)):
        raise UserError("give a folder or hub id, or --all; --only and --out belong to --all")
    if every and (prompt is not None or label or chat):
        raise UserError("--prompt, --label and --chat are for one language model: give its folder in place of --all")
    if every and kind != DEFAULT_PRECISION:
        raise UserError("--precision is for one model; leave it out with --all")
    check_files({"--out": out, "--json": json_file})
    if source is not None:
        explainer = load(
            source,
            prompt=_read_prompt(prompt),
            labels=_read_labels(label),
            chat=chat,
            device=device,
            precision=kind,
        )
        rows = [examine_explainer(explainer)]
        lines = list(rows[0].lines())
    else:
        kinds = matching_kinds(only or "*")
        with TemporaryDirectory() as folder:
            store = open_workspace(folder, device, DEFAULT_BATCH_SIZE)
            with progress_of(store, quiet=quiet):
                rows = examine_kinds(kinds, store, where=where, workers=workers)
        lines = [f"{row.name} ({row.units}): {row.status}{f', {row.reason}' if row.reason else ''}" for row in rows]
        lines += summary_lines(rows)
    if json_file is not None:
        records = [row.to_record() for row in rows]
        content = json.dumps(records if every else records[0], indent=1) + "\n"
        write_file(json_file, content)
    if out is not None:
        write_file(out, support_page(rows), "--out")
    if not quiet and STANDARD_OUTPUT not in (out, json_file):
        for line in lines:
            say(line)


def _read_prompt(prompt: str | None) -> str | None:
    """A prompt in which \\n stands for a new line, which a shell has no simple way to write."""
    return None if prompt is None else prompt.replace("\\n", "\n")


def _read_labels(given: Sequence[str] | None) -> dict[str, str] | None:
    """The label word of each class from CLASS=WORD."""
    from heedful.types import UserError

    labels: dict[str, str] = {}
    for each in given or ():
        name, sign, word = each.partition("=")
        if not sign or not name.strip() or name in labels:
            raise UserError(
                f"--label {each!r}: give each class once as CLASS=WORD, for instance --label 'positive= good'"
            )
        labels[name] = word
    return labels or None


def _read_texts(
    text: str, second: str | None, is_file: bool, text_column: str, second_column: str | None
) -> tuple[list[str], list[str] | None, list[int]]:
    """The texts, the second texts of pairs, and the line or row of each."""
    from heedful.data.io import read_rows
    from heedful.types import UserError

    if is_file:
        if second is not None:
            raise UserError(f"{text} is a table: name the column of second texts with --second-column")
        rows = read_rows(Path(text))
        seconds = None if second_column is None else [row.text(second_column) for row in rows]
        return [row.text(text_column) for row in rows], seconds, [row.line for row in rows]
    if (text_column, second_column) != ("text", None):
        raise UserError("--text-column and --second-column are for a table of texts: give a file")
    lines = [text]
    if text == "-":
        try:
            lines = [line.strip() for line in sys.stdin]
        except UnicodeDecodeError as error:
            raise UserError("standard input is not in the encoding of this terminal: convert it to UTF-8") from error
    numbers = [number for number, line in enumerate(lines, start=1) if line or text != "-"]
    if not numbers:
        raise UserError("there is no text on standard input: give one text per line")
    texts = [lines[number - 1] for number in numbers]
    return texts, None if second is None else [second] * len(texts), numbers


@app.command()
@command
def demo(
    planted: Annotated[bool, typer.Option("--planted", help="Use a generated corpus instead of real text.")] = False,
    device: DeviceOption = DEFAULT_DEVICE,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: OutOption = DEFAULT_REPORT,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Train a small model, audit its explanations, test the papers' claims, write both pages."""
    from heedful import papers
    from heedful.audits.schedule import AuditOptions
    from heedful.audits.schedule import audit as run_audit

    store = open_workspace(workspace, device, batch_size)
    _check_report(out)
    _check_report(out / "audit")
    recipes = papers.demo(synthetic=planted)
    if not quiet:
        text = "a generated corpus" if planted else "real film reviews"
        say(f"Training a BiLSTM with attention on {text}, then testing which explanations of it may be shown.")
    code = _run_recipes(recipes, store, quiet=True)
    if code == 0:
        _write_report(workspace, out, quiet=True)
        subject = papers.demo_model(synthetic=planted)
        options = AuditOptions(minutes=DEMO_MINUTES, texts=DEMO_TEXTS)
        with progress_of(store, quiet=quiet):
            result = run_audit(
                (subject, store), subject.corpus, options=options, workspace=store, out=out / "audit",
                say=silent if quiet else say,
            )  # fmt: skip
        if not quiet:
            result.show()
            say(f"Which explanations may be shown: {(out / 'audit' / 'index.html').resolve()}")
            say(f"Does attention explain this model: {(out / 'index.html').resolve()}")
    return code


@app.command("list")
@command
def list_names(debug: DebugOption = False) -> None:
    """List every paper, corpus, encoder, attention, method and trial."""
    from heedful import catalogue, papers

    titles = {name: paper.title for name, paper in papers.PAPERS.items()}
    for kind, names in {"papers": titles, **catalogue.descriptions()}.items():
        screen.print(f"[bold]{kind}[/bold]")
        for name, meaning in names.items():
            say(f"  {name:22} {meaning}")


@app.command()
@command
def run(
    what: Annotated[str, typer.Argument(help="A paper (see `heedful list`) or a Python file with recipes().")],
    only: Annotated[list[str] | None, typer.Option("--only", help="This corpus only; may be repeated.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Your own texts: CSV, TSV, JSONL or Parquet.")] = None,
    text_column: TextColumnOption = "text",
    label_column: LabelColumnOption = "label",
    second_column: SecondColumnOption = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, max=MAX_SEEDS, help=SEEDS_HELP)] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many test instances.")] = None,
    quick: QuickOption = False,
    encoder: Annotated[list[str] | None, some_papers("--encoder", help="This encoder only.")] = None,
    attention: Annotated[list[str] | None, some_papers("--attention", help="This attention only.")] = None,
    embeddings: Annotated[str | None, some_papers("--embeddings", help=EMBEDDINGS_HELP)] = None,
    error: Annotated[float | None, some_papers("--error", help=ERROR_HELP)] = None,
    lambdas: Annotated[list[float] | None, some_papers("--lambda", help="A lambda of trained adversaries.")] = None,
    select: Annotated[str | None, some_papers("--select", help=SELECT_HELP)] = None,
    start: Annotated[str | None, some_papers("--start", help=START_HELP)] = None,
    bases: Annotated[int | None, some_papers("--bases", min=1, max=MAX_ATTEFA_SEEDS, help=BASES_HELP)] = None,
    sizes: Annotated[list[int] | None, some_papers("--size", min=1, help="Training examples of a student.")] = None,
    checkpoint: Annotated[list[str] | None, some_papers("--checkpoint", help="minilm, or a model folder.")] = None,
    normalizer: Annotated[list[str] | None, some_papers("--normalizer", help="Normalizer of SMaT's heads.")] = None,
    sampling: Annotated[str | None, some_papers("--sampling", help=SAMPLING_HELP)] = None,
    divide_dev: Annotated[bool, some_papers("--divide-dev", help=DIVIDE_DEV_HELP)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what is to make; make nothing.")] = False,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Reproduce a paper on its corpora or on your own texts, or run the recipes of a Python file."""
    from heedful import papers, runner
    from heedful.data.table import TableColumns
    from heedful.types import UserError

    store = open_workspace(workspace, device, batch_size)
    if data is None and (text_column, label_column, second_column) != ("text", "label", None):
        raise UserError("--text-column, --label-column and --second-column are for --data; give a file")
    if data is not None and only:
        raise UserError("--only chooses corpora of the paper, --data your own texts: leave one of them out")
    given: dict[str, object] = {
        "corpora": only,
        "n_seeds": seeds,
        "limit": limit,
        "error": error,
        "quick": quick,
        "user_data": None
        if data is None
        else papers.UserData(data, TableColumns(text_column, label_column, second_column)),
        "encoders": encoder,
        "attentions": attention,
        "embeddings": embeddings,
        "lambdas": lambdas,
        "select": select,
        "start": start,
        "n_bases": bases,
        "student_sizes": sizes,
        "checkpoints": checkpoint,
        "normalizers": normalizer,
        "sampling": sampling,
        "divide_dev": divide_dev,
    }
    present = {name: value for name, value in given.items() if value is not None and value is not False}
    options = _check_options(
        what, {name: tuple(value) if isinstance(value, list) else value for name, value in present.items()}
    )
    recipes = runner.recipes_from_file(what) if options is None else papers.paper_recipes(options)
    if options is not None and options.user_data is not None and not quiet:
        _say_what_is_unread(options.user_data.corpus)
    if options is not None and not quiet and (missing := options.missing_corpora()):
        say(f"Left out, because they are not in {options.data_dir}: {', '.join(missing)}.")
    runner.check_where(where, workers)
    if not quiet:
        _print_plan(recipes, store)
    if dry_run:
        return 0
    return _run_recipes(recipes, store, where, workers, quiet=quiet, json_file=json_file)


@app.command()
@command
def attefa(
    data: Annotated[str, typer.Option("--data", help="A CSV, TSV, JSONL or Parquet file with a row per text.")],
    text_column: TextColumnOption = "text",
    label_column: LabelColumnOption = "label",
    second_column: SecondColumnOption = None,
    dev: Annotated[str | None, typer.Option("--dev", help="File of the dev split; else it is split off.")] = None,
    test: Annotated[str | None, typer.Option("--test", help="File of the test split; else it is split off.")] = None,
    encoder: Annotated[str, typer.Option("--encoder", help="bilstm, gru, convolution or perceptron.")] = "bilstm",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MAX_ATTEFA_SEEDS, help="How many adversaries.")] = 3,
    bases: Annotated[int, typer.Option("--bases", min=1, max=MAX_ATTEFA_SEEDS, help=BASES_HELP)] = 2,
    embeddings: Annotated[str, typer.Option("--embeddings", help=EMBEDDINGS_HELP)] = "auto",
    start: Annotated[str, typer.Option("--start", help=START_HELP)] = "fresh",
    quick: QuickOption = False,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: OutOption = DEFAULT_REPORT,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Measure in one number how faithful attention is on your own texts; epochs are chosen on the dev split."""
    from heedful.data.table import TableColumns
    from heedful.papers import paper_recipes
    from heedful.papers._options import UserData
    from heedful.papers.attefa import data_warnings
    from heedful.runner import check_where
    from heedful.trials._trial import value_of
    from heedful.trials.adversarial_training import AtteFa

    store = open_workspace(workspace, device, batch_size)
    texts = UserData(data, TableColumns(text_column, label_column, second_column), dev, test)
    given: dict[str, object] = {"user_data": texts, "encoders": (encoder,), "n_seeds": seeds, "n_bases": bases}
    # A user's own texts are measured and not a paper reproduced: the test split chooses nothing.
    given |= {"select": "dev", "embeddings": embeddings, "quick": quick, "start": start}
    options = _check_options("attefa", given)
    assert options is not None
    recipes = paper_recipes(options)
    if not quiet:
        _say_what_is_unread(texts.corpus)
    check_where(where, workers)
    _check_report(out)
    if not quiet:
        _print_plan(recipes, store)
    code = _run_recipes(recipes, store, where, workers, quiet=quiet, json_file=json_file)
    if code == 0:
        trial = next(each for each in recipes if isinstance(each, AtteFa))
        if not quiet and store.has(trial):
            accuracy = value_of(store.get(trial).summary, "base_accuracy")
            for sentence in data_warnings(trial.subject.corpus.read(store.data_dir), accuracy):
                say(sentence)
        _write_report(workspace, out, quiet=quiet)
    return code


@app.command()
@command
def learn(
    teacher: Annotated[str, typer.Option("--teacher", help="Folder of a fine-tuned model with its tokenizer.")],
    data: Annotated[str, typer.Option("--data", help="A CSV, TSV, JSONL or Parquet file; labels are not needed.")],
    text_column: TextColumnOption = "text",
    second_column: SecondColumnOption = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Classes, to score the model.")] = None,
    size: Annotated[int | None, typer.Option("--size", min=1, help="Texts that a student learns from.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the first student.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MAX_SEEDS, help="Students of each kind.")] = 3,
    quick: QuickOption = False,
    audit_minutes: Annotated[float, typer.Option("--audit-minutes", min=0, help=AUDIT_MINUTES_HELP)] = 3.0,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: Annotated[Path, typer.Option("--out", help="Folder of the explainer.")] = Path("explainer"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Learn which attention heads explain your model to a student, and save the explainer."""
    from heedful.attributions.head_mix import check_explainer_folder
    from heedful.audits.schedule import AuditOptions
    from heedful.audits.schedule import audit as run_audit
    from heedful.data.evaluation_table import NO_COLUMN, GivenColumns
    from heedful.learn import describe_result, explainer_trial, learned_explainer, open_teacher
    from heedful.runner import check_where
    from heedful.trials.performance import Performance

    store = open_workspace(workspace, device, batch_size)
    model = open_teacher(teacher, data, text_column, second_column, label_column)
    if not quiet:
        _say_what_is_unread(model.corpus)
    trial = explainer_trial(model, _data_folder(), size=size, seeds=range(seed, seed + seeds), quick=quick)
    check_where(where, workers)
    check_folder(out)
    store.get(model)  # errors in the model or the output folder come before any training
    check_explainer_folder(out)
    recipes = [trial] if label_column is None else [Performance(model), trial]
    code = _run_recipes(recipes, store, where, workers, quiet=quiet, json_file=json_file)
    if code == 0:
        explainer = learned_explainer(trial, store)
        explainer.save(out)
        for sentence in () if quiet else (*describe_result(trial, store), f"The explainer is in {out.resolve()}"):
            say(sentence)
        if audit_minutes:
            columns = GivenColumns(text_column, second_column, label_column or NO_COLUMN)
            methods = (explainer, "raw-attention", "integrated-gradients")
            options = AuditOptions(
                audit_minutes, methods, columns=columns, workers=workers, texts=LEARN_AUDIT_TEXTS, where=where
            )
            if not quiet:
                say("Is it faithful? An audit of it beside plain attention and integrated gradients.")
            with progress_of(store, quiet=quiet):
                result = run_audit(
                    teacher, data, options=options, workspace=store, out=out / "audit", say=silent if quiet else say
                )
            if not quiet:
                result.show()
                say(f"The answer page is {(out / 'audit' / 'index.html').resolve()}")
    return code


@app.command()
@command
def report(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: OutOption = DEFAULT_REPORT,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a self-contained page about all finished work."""
    _write_report(workspace, out, quiet=quiet)


@app.command()
@command
def fetch(
    corpus: Annotated[str, typer.Argument(help="Name of a public corpus (see `heedful list`).")],
    source: Annotated[str | None, typer.Option("--source", help="Another hub id, or a saved dataset folder.")] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Download a public corpus into the data folder."""
    from heedful.data import download

    folder = download.fetch(corpus, _data_folder(), source=source)
    if not quiet:
        say(f"written to {folder}")


def _data_folder() -> Path:
    from heedful.store.workspace import Workspace

    return Workspace(DEFAULT_WORKSPACE).data_dir


def _say_what_is_unread(corpus: Corpus) -> None:
    """Say that a column of a user's table is passed over, where its name promises that it is not."""
    from heedful.data.table import UNREAD

    column = corpus.read(_data_folder()).notes.get(UNREAD)
    if column is not None:
        say(f"The column {column!r} of {corpus.name} is not read: the rationales of own tables are not used.")


def _check_options(what: str, given: Mapping[str, object]) -> PaperOptions | None:
    """The options of a paper, None for a Python file; UserError for an option that it does not have."""
    from dataclasses import fields

    from heedful import papers
    from heedful.types import UserError

    flags = [OPTION_FLAGS[name] for name in given]
    if what.endswith(".py"):
        if flags:
            raise UserError(f"{', '.join(flags)}: not for a Python file; write it in the recipes() of {what}")
        return None
    options = papers.find_paper(what).options
    known = [name for name in OPTION_FLAGS if name in {field.name for field in fields(options)}]
    unknown = [OPTION_FLAGS[name] for name in given if name not in known]
    if unknown:
        has = ", ".join(OPTION_FLAGS[name] for name in known)
        raise UserError(f"{what} has no option {', '.join(unknown)}; it has {has}")
    build: Callable[..., PaperOptions] = options
    return build(**given, data_dir=_data_folder())


def _print_plan(recipes: Sequence[Recipe], workspace: Workspace) -> None:
    """Print how many recipes of each kind there are to make."""
    from collections import Counter

    from heedful import runner
    from heedful.devices import arithmetic_notes

    for note in arithmetic_notes(workspace.device):
        say(f"Arithmetic: {note}.")
    plan = runner.topological_order(recipes)
    waiting = Counter(recipe.kind for recipe in plan if not workspace.has(recipe))
    if not waiting:
        say(f"Everything is finished already ({len(plan)} recipes).")
        return
    kinds = ", ".join(_counted(count, kind) for kind, count in waiting.items())
    say(f"To make: {kinds}; finished already: {len(plan) - waiting.total()} of {len(plan)} recipes.")


def _counted(count: int, kind: str) -> str:
    """A number of recipes of a kind.

    >>> _counted(1, "attributions"), _counted(2, "model"), _counted(3, "head plausibility")
    ('1 attribution', '2 models', '3 head plausibilities')
    """
    one = kind.removesuffix("s")
    several = f"{one.removesuffix('y')}ies" if one.endswith("y") else f"{one}s"
    return f"{count} {one if count == 1 else several}"


def _run_recipes(
    recipes: Sequence[Recipe],
    workspace: Workspace,
    where: str = "pool",
    workers: int | None = None,
    *,
    quiet: bool,
    json_file: Path | None = None,
) -> int:
    """Run the recipes, write the JSON file, print results and failures; the exit code."""
    from heedful import runner
    from heedful.trials._trial import Trial

    check_files({"--json": json_file})
    with progress_of(workspace, quiet=quiet):
        outcomes = runner.run(recipes, workspace, where=where, workers=workers)
    trials = [each.recipe for each in outcomes if each.error is None and isinstance(each.recipe, Trial)]
    if json_file is not None:
        results = {"results": [summary_record(trial, workspace) for trial in trials]}
        write_file(json_file, json.dumps(results, indent=1) + "\n")
    for trial in () if quiet else trials:
        facts = trial.describe()
        names = [f"{'seed ' * (name == 'seed')}{facts[name]}" for name in MODEL_FACTS if name in facts]
        where = ", ".join(names)
        say(f"{trial.name} ({where}): {trial.interpretation(workspace.get(trial).summary)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for line in failure_lines(failed, workspace):
        complain(f"failed: {line}")
    return 1 if failed else 0


def failure_lines(failed: Sequence[Outcome], workspace: Workspace) -> list[str]:
    """One line for each cause: the first recipe that failed of it, how many others did, how many were skipped."""
    causes: dict[str, list[Outcome]] = {}
    for outcome in failed:
        if outcome.cause is None:
            name = workspace.artefact_name(outcome.recipe)
            causes.setdefault(" ".join(str(outcome.error).replace(name, "it").split()), []).append(outcome)
    lines = []
    for error, outcomes in causes.items():
        recipes = [outcome.recipe for outcome in outcomes]
        skipped = sum(outcome.cause in recipes for outcome in failed)
        more = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
        file = outcomes[0].traceback_file
        where = f" (traceback: {file})" if file else ""
        after = f"; skipped because of it: {skipped}" if skipped else ""
        lines.append(f"{workspace.artefact_name(recipes[0])}{more}: {error}{where}{after}")
    return lines


def _check_report(out: Path) -> None:
    from heedful.report.html import check_report_folder

    check_folder(out)
    check_report_folder(out)


def summary_record(trial: Trial, workspace: Workspace) -> dict[str, Json]:
    """A finished trial for `--json`: its facts and settings, and the tidy rows of its summary; undefined is null."""
    from heedful.store.recipe import plain_settings
    from heedful.store.shown_path import shown_settings

    artefact = workspace.get(trial)
    rows: list[Json] = [
        {str(name): None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in artefact.summary.to_dict("records")
    ]
    return {
        **trial.describe(),
        "n": artefact.notes["n"],
        "settings": shown_settings(plain_settings(trial)),
        "summary": rows,
    }


def _write_report(root: str, out: Path, *, quiet: bool) -> None:
    from heedful.report import write_report
    from heedful.store.workspace import Workspace

    _check_report(out)
    path = write_report(Workspace(root), out)
    if not quiet:
        say(f"The report is in {path.resolve()}")


def main() -> None:
    """The entry point of the command."""
    run_app(app)
