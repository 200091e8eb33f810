"""The published numbers of the papers, under the names of our summaries.

`published_tables/numbers.csv` has a row per number. Beside trials it has the sizes of corpora ("corpus"), the printed
digits of Jain & Wallace's table 2 ("agreement-table-2") and every adversary of AtteFa ("attefa-seeds"). It is derived
from printed tables and released files, which are in `tests/papers/published_tables`. The tables of Fernandes et al.
(`scaffold_*`) have no such names.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from heedful.store.recipe import Json
from heedful.training.trainer import TRAINING_LOSS

NumberKey = tuple[str, str, str]
"""Metric, method and subset of a number, as in a summary."""
_PROVENANCE = {
    "jain-wallace": "Published numbers are one run of the authors' code, which set no seed.",
    "wiegreffe-pinter": "Published numbers are from one training run each. Epochs of base models were chosen on the "
    "test split, those of adversaries by the training loss (released code) or on the test split (text).",
    "attefa": "Published numbers are those of one base model, and means over nine adversaries with population standard "
    "deviations; epochs were chosen on the test split.",
    "disagreement": "Published numbers are means over three seeds, for agreement over 500 texts each, with special "
    "tokens; where our model is a transformer, theirs is DistilBERT.",
}
_ADVERSARY_METRIC, _ADVERSARY_SPLIT = "adversary_training.selection.metric", "adversary_training.selection.split"
_PROTOCOLS: Mapping[tuple[str, str], tuple[Mapping[str, Json], ...]] = {
    ("jain-wallace", ""): ({"subject.training.selection.split": "dev", "subject.training.selection.first_epoch": 2},),
    ("jain-wallace", "adversarial-attention"): ({"epsilon": 0.05, "solver": "search"},),
    ("jain-wallace", "permutation"): ({"permutations": 100, "error": None},),
    ("wiegreffe-pinter", ""): ({"subject.training.selection.split": "test"},),
    ("wiegreffe-pinter", "adversarial-tradeoff"): (
        {_ADVERSARY_METRIC: TRAINING_LOSS},  # the released code
        {_ADVERSARY_METRIC: "deception", _ADVERSARY_SPLIT: "test"},  # the text
    ),
    ("attefa", ""): ({"subject.training.selection.split": "test"},),
    ("attefa", "attefa"): ({_ADVERSARY_METRIC: "deception", _ADVERSARY_SPLIT: "test"},),
    ("disagreement", ""): (
        {
            "subject.training.selection.split": "dev",
            "subject.training.selection.first_epoch": 1,
            "subject.training.reduction": "mean",
        },
    ),
}
"""The settings with which numbers were published, by paper and trial (empty: all of its trials), as alternatives."""


def _read(name: str) -> str:
    return files("heedful.papers").joinpath("published_tables", name).read_text(encoding="utf-8")


@cache
def _numbers() -> Mapping[tuple[str, ...], Mapping[NumberKey, float]]:
    """Numbers by paper, trial, corpus, encoder and attention."""
    numbers: dict[tuple[str, ...], dict[NumberKey, float]] = {}
    for *about, metric, method, subset, value in list(csv.reader(_read("numbers.csv").splitlines()))[1:]:
        numbers.setdefault(tuple(about), {})[metric, method, subset] = json.loads(value)
    return numbers


class CellName(NamedTuple):
    """What identifies a published number: its paper, its model, and its place in a summary."""

    paper: str
    trial: str
    corpus: str
    encoder: str
    attention: str
    metric: str
    method: str = ""
    subset: str = ""

    def __str__(self) -> str:
        """The id of the cell: its parts, without empty ones at the end.

        >>> str(CellName("attefa", "attefa", "sst", "bilstm", "additive", "tvd"))
        'attefa/attefa/sst/bilstm/additive/tvd'
        """
        return "/".join(self).rstrip("/")

    @property
    def model(self) -> dict[str, str]:
        """Corpus, encoder and attention, as `find_published` asks for them."""
        return {"corpus": self.corpus, "encoder": self.encoder, "attention": self.attention}

    @property
    def key(self) -> NumberKey:
        """Metric, method and subset."""
        return self.metric, self.method, self.subset


def all_numbers(paper: str) -> list[tuple[CellName, float]]:
    """Every row of a paper in the file of numbers, in its order."""
    return [
        (CellName(paper, trial, corpus, encoder, attention, *key), value)
        for (owner, trial, corpus, encoder, attention), numbers in _numbers().items()
        if owner == paper
        for key, value in numbers.items()
    ]


def find_published(
    trial: str, about: Mapping[str, str], paper: str, recipe: Mapping[str, Json] | None = None
) -> tuple[str, Mapping[NumberKey, float]]:
    """What a paper published about a trial, and how it was made in a sentence; empty where there is nothing.

    Args:
        about: corpus, encoder, attention, and `measure` of an agreement trial: only Kendall's tau is published.
        paper: the paper whose chapter shows the trial; a number of another paper is from another protocol.
        recipe: the flat recipe of our trial. Where it differs from the published protocol, the sentence says how, and
            there are no numbers. Settings that it does not have are not compared.
    """
    encoder = published_encoder(about["encoder"], about["attention"])
    numbers = _numbers().get((paper, trial, about["corpus"], encoder, about["attention"]))
    if not numbers or about.get("measure", "kendall") != "kendall":
        return "", {}
    differing = protocol_differences(trial, paper, recipe or {})
    if differing:
        return f"The published numbers are not shown because they were obtained with {', '.join(differing)}.", {}
    return _PROVENANCE[paper], numbers


def published_encoder(encoder: str, attention: str) -> str:
    """The name of an encoder in the published tables, where all transformers are one."""
    return "transformer" if attention == "self" else encoder


def lambda_of(method: str) -> float:
    """The lambda of an adversary by the name of its method.

    >>> lambda_of("lambda 0.000525")
    0.000525
    """
    return float(method.split()[-1])


def protocol_differences(trial: str, paper: str, recipe: Mapping[str, Json]) -> list[str]:
    """The published settings that a flat recipe does not have, for instance "epsilon 0.05"; empty if it has all."""
    differences: list[str] = []
    for name in dict.fromkeys(("", trial)):
        alternatives = _PROTOCOLS.get((paper, name), ())
        differing = [
            {path: value for path, value in settings.items() if recipe.get(path, value) != value}
            for settings in alternatives
        ]
        if differing and all(differing):
            differences += [setting_label(path, value) for path, value in differing[0].items()]
    return differences


def has_protocol(paper: str) -> bool:
    """Whether the training rules behind a paper's numbers are known here."""
    return (paper, "") in _PROTOCOLS


def setting_label(path: str, value: Json) -> str:
    """A setting of a flat recipe in a few words.

    >>> setting_label("subject.training.selection.split", "dev"), setting_label("epsilon", 0.05)
    ('epochs selected on dev', 'epsilon 0.05')
    """
    owner, _, name = path.rpartition(".")
    shown = "none" if value is None else str(value).replace("_", " ")
    if owner.endswith("selection"):
        whose = "adversaries' epochs" if owner.startswith("adversary") else "epochs"
        if name == "first_epoch":
            return f"{whose} from {shown} on"
        return f"{whose} selected {'on' if name == 'split' else 'by'} {shown}"
    return f"{name.replace('_', ' ')} {shown}"


class Distributions(NamedTuple):
    """Published distributions of a model, one per predicted class.

    Args:
        shares: of the instances in equal bins, by metric or pair of methods and class.
        quartiles: by metric, bin of maximum attention (in order) and class; empty where there is no violin.
    """

    shares: Mapping[str, tuple[tuple[float, ...], ...]]
    quartiles: Mapping[str, tuple[tuple[tuple[float, ...], ...], ...]]


_NO_DISTRIBUTIONS = Distributions({}, {})


@cache
def published_distributions(corpus: str, encoder: str, attention: str) -> Distributions:
    """What Jain & Wallace drew about a model of theirs in figures 2 to 5 and online; nothing for other models."""
    models = published_json("distributions")["models"]
    model = models.get(f"{corpus} {encoder} {attention}")
    if model is None:
        return _NO_DISTRIBUTIONS
    # Stored as ten-thousandths.
    shares = {name: tuple(tuple(n / 1e4 for n in row) for row in rows) for name, rows in model["shares"].items()}
    quartiles = {
        name: tuple(tuple(tuple(n / 1e4 for n in row) for row in rows) for rows in bins)
        for name, bins in model["quartiles"].items()
    }
    return Distributions(shares, quartiles)


def published_sizes(paper: str, corpus: str) -> Mapping[NumberKey, float]:
    """Sizes of a corpus; AtteFa has one row for all synthetic corpora."""
    return _numbers().get((paper, "corpus", published_corpus(corpus), "", ""), {})


def published_corpus(corpus: str) -> str:
    """The row of a corpus in a table of sizes."""
    return "mock-*" if corpus.startswith("mock-") else corpus


def published_tradeoff(corpus: str) -> list[tuple[float, float, float, float]]:
    """Lambda, F1, TVD and JSD of Wiegreffe & Pinter's table 5 for a corpus, by lambda; empty where they have none."""
    about = {"corpus": corpus, "encoder": "bilstm", "attention": "additive"}
    _, numbers = find_published("adversarial-tradeoff", about, "wiegreffe-pinter")
    methods = [method for metric, method, _ in numbers if metric == "jsd"]
    return [
        (lambda_of(method), numbers["f1", method, ""], numbers["tvd", method, ""], numbers["jsd", method, ""])
        for method in methods
    ]


def attefa_seed_rows(corpus: str, encoder: str) -> list[dict[str, float]]:
    """Tables 4 and 5 of AtteFa: seed, epoch, F1, TVD, JSD and AtteFa of each adversary; empty where there is none."""
    rows: dict[str, dict[str, float]] = {}
    about = {"corpus": corpus, "encoder": encoder, "attention": "additive"}
    _, numbers = find_published("attefa-seeds", about, "attefa")
    for (metric, _, seed), value in numbers.items():
        rows.setdefault(seed, {"seed": int(seed.split()[-1])})[metric] = value
    return list(rows.values())


@cache
def published_json(name: str) -> dict:  # type: ignore[type-arg]
    """A JSON file beside the numbers."""
    content: dict = json.loads(_read(f"{name}.json"))  # type: ignore[type-arg]
    return content


class Spread(NamedTuple):
    """Median and quartiles over five seeds."""

    median: float
    q25: float
    q75: float


@cache
def published_simulability(number: int) -> Mapping[str, Mapping[str, Spread]]:
    """Table 1, 3, 5 or 7 of Fernandes et al. by row and training size (or normalizer); percentages as shares."""
    table = published_json(f"scaffold_table{number}")
    scale = 100.0 if "%" in table["metric"] else 1.0
    return {
        row: {
            column: Spread(*(float(cell[part]) / scale for part in ("median", "q25", "q75")))
            for column, cell in cells.items()
        }
        for row, cells in table["values"].items()
    }


def published_plausibility(corpus: str, part: str) -> dict[str, float]:
    """AUC by row of Fernandes et al.: table 2 for film reviews, table 6 for translations; else empty."""
    if corpus == "eraser-movies" and not part:
        cells: dict[str, float] = published_json("scaffold_table2")["values"]
        return cells
    side = {"source": "src", "target": "tgt"}.get(part)
    if side is None or not corpus.startswith("mlqe"):
        return {}
    pair = corpus.removeprefix("mlqe").lstrip("-").upper() or "OVERALL"
    rows = published_json("scaffold_table6")["values"]
    return {row: by_pair[pair][side] for row, by_pair in rows.items() if pair in by_pair}
