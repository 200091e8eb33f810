"""From a workspace to our numbers of published cells, each with the command that reproduces it."""

from __future__ import annotations

import datetime
import functools
import json
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from heedful.papers import PAPERS
from heedful.papers.chapter import Measurement, Result
from heedful.papers.paper_options import PaperOptions, find_embeddings
from heedful.papers.workspace_results import workspace_results
from heedful.reproduction.ledger import Measured, MeasuredRun, Settings
from heedful.store.artefact_files import IndexEntry
from heedful.store.workspace import Workspace
from heedful.training.trainer import TRAINING_LOSS
from heedful.types import UserError

FLAGS: Mapping[str, str] = {
    "corpora": "--only",
    "n_seeds": "--seeds",
    "limit": "--limit",
    "encoders": "--encoder",
    "attentions": "--attention",
    "embeddings": "--embeddings",
    "error": "--error",
    "lambdas": "--lambda",
    "select": "--select",
    "start": "--start",
    "n_bases": "--bases",
    "student_sizes": "--size",
    "checkpoints": "--checkpoint",
    "normalizers": "--normalizer",
    "sampling": "--sampling",
    "divide_dev": "--divide-dev",
    "without_control": "--no-control",
}
"""The options of `heedful run` by the names that `PaperOptions` and its subclasses give them."""


@dataclass(frozen=True)
class MeasuredCells:
    """Our numbers of one paper by cell id, the results that its command gives, and those that it does not give."""

    cells: Mapping[str, tuple[Measured, MeasuredRun]]
    results: tuple[Result, ...] = ()
    unexplained: tuple[Result, ...] = ()


def paper_command(paper: str, settings: Settings) -> str:
    """The command that runs a paper with these settings.

    >>> paper_command("attefa", {"corpora": ["sst"], "limit": 5})
    'heedful run attefa --only sst --limit 5'
    """
    words = ["heedful", "run", paper]
    for name, value in settings.items():
        if value is True:
            words.append(FLAGS[name])
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [FLAGS[name], str(one)]
    return shlex.join(words)


def make_options(paper: str, settings: Settings, data_dir: Path) -> PaperOptions:
    """The options of a paper from settings as they are in a record."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    options: Callable[..., PaperOptions] = PAPERS[paper].options
    return options(data_dir=data_dir, **values)


def measure_cells(
    paper: str, workspace: Workspace, known: Settings | None = None, names: Collection[str] | None = None
) -> MeasuredCells:
    """Our numbers of a paper's published cells from the finished trials of a workspace.

    Of several results for one cell, the one with the paper's default settings counts, then that with most seeds, then
    with most texts.

    Args:
        known: the settings of the command that made them; by default they are derived from each result, and tried:
            a result that the derived command would not give is left out.
        names: the artefacts to read; by default all trials of the paper.
    """
    entries, _ = workspace.scan()
    papers = None if names is None else dict.fromkeys(names, paper)
    by_name = {entry.name: entry for entry in entries}
    best: dict[str, tuple[tuple[object, ...], Measured, MeasuredRun]] = {}
    explained, unexplained = [], []
    for result in workspace_results(entries, papers):
        if result.paper != paper or result.quick:
            continue
        measured, settings = PAPERS[paper].measure(result), _find_settings(result, workspace, known)
        if settings is None:
            unexplained += [result] if measured else []
            continue
        explained.append(result)
        if not measured:
            continue
        run = _describe_run(paper, settings, result, by_name)
        for name, ours in measured.items():
            rank = (-len(settings.keys() - _SIZE_SETTINGS), ours.seeds, ours.n or 0.0, run.artefacts)
            if str(name) not in best or rank > best[str(name)][0]:
                best[str(name)] = rank, round_number(ours), run
    cells = {name: (ours, run) for name, (_, ours, run) in best.items()}
    return MeasuredCells(cells, tuple(explained), tuple(unexplained))


def _find_settings(result: Result, workspace: Workspace, known: Settings | None) -> Settings | None:
    """The settings of the paper's command that gives a result; None if none does."""
    settings = derive_settings(result, workspace.data_dir)
    if known is not None:
        settings = {**known, **{name: settings[name] for name in _MODEL_SETTINGS if name in settings}}
    # The lambdas of a trade-off and the limit of a trial may be the paper's own.
    for optional in ("lambdas", "limit"):
        shorter = {name: value for name, value in settings.items() if name != optional}
        settings = shorter if _gives(result.paper, shorter, result, workspace) else settings
    return settings if _gives(result.paper, settings, result, workspace) else None


def round_number(number: Measurement) -> Measured:
    """The numbers with nine digits, which is more than two machines agree on."""
    value, std, n, reference = (
        None if one is None else float(f"{one:.9g}") for one in (number.value, number.std, number.n, number.reference)
    )
    return Measured(value=value, std=std, seeds=number.seeds, n=n, reference=reference)


_SIZE_SETTINGS = {"n_seeds", "limit", "lambdas"}
"""Settings that make a number more or less exact, and not another one."""
_MODEL_SETTINGS = ("corpora", "encoders", "attentions")
"""The settings that name one model of a paper; checkpoints stay those of the command."""


def derive_settings(result: Result, data_dir: Path) -> Settings:
    """The options of the paper that most likely made a result, without those that have their default value."""
    settings: Settings = {"corpora": [result.corpus]}
    known = {entry.name for entry in fields(PAPERS[result.paper].options)}
    if result.is_transformer:
        settings["checkpoints"] = ["minilm"]
    elif "encoders" in known and result.trial != "guided-model":
        settings["encoders"] = [result.encoder]
        if "attentions" in known:
            settings["attentions"] = [result.attention]
    seeds = _seed_count(result)
    if seeds is not None and seeds != _DEFAULT_SEEDS.get(
        (result.paper, result.trial), _DEFAULT_SEEDS[result.paper, ""]
    ):
        settings["n_seeds"] = seeds
    limit = result.settings.get("limit")
    if isinstance(limit, int) and (result.paper, limit) != ("disagreement", 500):
        settings["limit"] = limit
    default = "random" if result.corpus.startswith("babi") else find_embeddings(data_dir)
    if "embeddings" in known and result.embeddings and result.embeddings != default:
        settings["embeddings"] = result.embeddings
    if "error" in known and isinstance(error := result.settings.get("error"), float):
        settings["error"] = error
    if "without_control" in known and "other_seed_model" in result.recipe:
        settings["without_control"] = True  # with a control, the recipe has its parts
    if "select" in known:
        settings |= _selection(result)
    lambdas = result.settings.get("lambdas")
    if "lambdas" in known and isinstance(lambdas, list):
        settings["lambdas"] = [float(str(strength)) for strength in lambdas]
    return settings


_DEFAULT_SEEDS: Mapping[tuple[str, str], int] = {
    ("jain-wallace", ""): 1,
    ("wiegreffe-pinter", ""): 9,
    ("wiegreffe-pinter", "guided-model"): 3,
    ("attefa", ""): 9,
    ("disagreement", ""): 3,
    ("scaffold", ""): 5,
}


def _seed_count(result: Result) -> int | None:
    """The number of seeds that the paper's command was given; None where the result does not tell."""
    if result.paper in ("jain-wallace", "disagreement") and result.trial != "uniform-baseline":
        return result.n_seeds
    seeds = result.settings.get("adversary_seeds" if result.trial == "attefa" else "seeds")
    if result.trial in ("adversarial-tradeoff", "seed-variance") and isinstance(seeds, list):
        return len(seeds) + 1
    return len(seeds) if isinstance(seeds, list) else None


def _selection(result: Result) -> Settings:
    """The option `select`, from how the epochs of base models and adversaries were chosen."""
    if result.recipe.get("subject.training.selection.split") == "dev":
        return {"select": "dev"}
    # Guides have the training of their adversary somewhere inside.
    metrics = {value for path, value in result.recipe.items() if path.endswith("selection.metric")}
    rule = "code" if TRAINING_LOSS in metrics else "paper" if "deception" in metrics else None
    default = {"wiegreffe-pinter": "code", "attefa": "paper"}[result.paper]
    return {} if rule in (None, default) else {"select": rule}


def _gives(paper: str, settings: Settings, result: Result, workspace: Workspace) -> bool:
    """Whether the recipes of these settings include all artefacts of a result; not if they cannot be made here."""
    try:
        names = _recipe_names(paper, json.dumps(settings), str(workspace), workspace.data_dir)
    except UserError:
        return False
    return {entry.name for entry in result.entries} <= names


@functools.cache
def _recipe_names(paper: str, settings: str, location: str, data_dir: Path) -> frozenset[str]:
    """The artefact names of the recipes of a paper with these settings, given as JSON."""
    workspace, values = Workspace(location, data_dir=data_dir), json.loads(settings)
    return frozenset(workspace.artefact_name(recipe) for recipe in make_options(paper, values, data_dir).recipes())


def _describe_run(paper: str, settings: Settings, result: Result, by_name: Mapping[str, IndexEntry]) -> MeasuredRun:
    entries = [*_with_dependencies(result.entries, by_name)]
    made = [entry.made for entry in entries]
    seconds = [one.seconds for one in made if one is not None]
    known = result.entries[0].made
    written = (result.entries[0].path / "manifest.json").stat().st_mtime
    date = datetime.datetime.fromtimestamp(written, datetime.UTC).isoformat() if known is None else known.date
    digests = (value for path, value in result.recipe.items() if path.endswith("corpus.content"))
    return MeasuredRun(
        command=paper_command(paper, settings),
        settings=settings,
        trial=result.trial,
        artefacts=tuple(entry.name for entry in result.entries),
        commit=current_commit(),
        data=next((str(value)[:12] for value in digests), None),
        embeddings=result.embeddings or None,
        minutes=round(sum(seconds) / 60, 2) if len(seconds) == len(entries) else None,
        date=date[:10],
        heedful=None if known is None else known.heedful,
        torch=None if known is None else known.torch,
    )


def _with_dependencies(entries: Iterable[IndexEntry], by_name: Mapping[str, IndexEntry]) -> Iterator[IndexEntry]:
    """The artefacts and everything that they were made from, each once."""
    waiting: list[IndexEntry] = [*entries]
    taken: set[str] = set()
    while waiting:
        entry = waiting.pop()
        if entry.name in taken:
            continue
        taken.add(entry.name)
        yield entry
        names: Sequence[str] = [name for linked in entry.links.values() for name in linked]
        waiting += [by_name[name] for name in names if name in by_name]


@functools.cache
def current_commit() -> str | None:
    """The commit of the checkout that this package runs from; None where it is installed."""
    folder = Path(__file__).parents[3]
    if not (folder / ".git").exists():
        return None

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+changes" if commit and git("status", "--porcelain", "--", "src") else commit
