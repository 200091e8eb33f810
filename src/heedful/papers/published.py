"""The published numbers of the papers, under the names of our summaries.

Jain & Wallace released more than they printed: tables and figures of all 72 combinations are in
`published_tables/jw_online_*.json`, decoded from the files of their repository. The numbers of Wiegreffe & Pinter
(`wp_*`), AtteFa (`attefa_*`), Neely et al. (`disagreement_*`) and Fernandes et al. (`scaffold_*`) are those of their
printed tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

Key = tuple[str, str, str]
"""Metric, method and subset of a number, as in a summary."""
_JAIN_CORPORA = {
    "20news": "20News_sports",
    "adr": "tweet",
    "babi-1": "babi_1",
    "babi-2": "babi_2",
    "babi-3": "babi_3",
    "diabetes": "diab",
}
_JAIN_ENCODERS = {"bilstm": "lstm", "convolution": "cnn(1,3,5,7)", "average": "average"}
_JAIN_ATTENTIONS = {"additive": "tanh", "dot": "dot"}
_SCORES = {
    "f1": "1/f1-score",
    "f1_micro": "micro avg/f1-score",
    "f1_macro": "macro avg/f1-score",
    "accuracy": "accuracy",
    "roc_auc": "roc_auc",
}
_TAUS = {"attention~gradient": "tau_attn_grad", "attention~leave-one-out": "tau_attn_loo"}
_STATISTICS = {"mean": "mean", "std": "std", "significant": "pval_sig"}
_GRADIENT_LOO_PAIR = "gradient~leave-one-out"
_EXCESSES = {"attention~leave-one-out": "gl_minus_attnloo", "attention~gradient": "gl_minus_attngrad"}
_CLASS_BY_CENTER = {0.3: 0, 0.7: 1}
"""Violins of class 0 are drawn at .3 of their bin, those of class 1 at .7."""
FAR_BIN = 34
"""The first bin of figure 4 that counts as far: from .595 on."""
DISAGREEMENT_PAPER = "disagreement"


def published_numbers(trial: str, about: Mapping[str, str], paper: str = "") -> dict[Key, float]:
    """The published numbers of a trial; empty where there are none.

    Args:
        about: corpus, encoder, attention, and `measure` of an agreement trial: only Kendall's tau is published.
        paper: the paper whose chapter shows the trial; Neely et al. repeat trials of earlier papers.
    """
    if about.get("measure", "kendall") != "kendall":
        return {}
    if paper == DISAGREEMENT_PAPER:
        return _disagreement_numbers(trial, about)
    if trial in _ADVERSARY_TRIALS:
        return _ADVERSARY_TRIALS[trial](about) if about["attention"] == "additive" else {}
    corpus = _JAIN_CORPORA.get(about["corpus"], about["corpus"])
    encoder = _JAIN_ENCODERS.get(about["encoder"], about["encoder"])
    model = f"{corpus}+{encoder}+{_JAIN_ATTENTIONS.get(about['attention'], about['attention'])}"
    tables, figures = _load_json("jw_online_tables").get(model, {}), _load_json("jw_online_figures").get(model, {})
    if trial == "performance":
        # Jain & Wallace have no synthetic corpora; those are AtteFa's.
        return _keyed(_select(tables.get("evaluate", {}), _SCORES)) or _keyed(_attefa_base_f1(about))
    if trial == "permutation":
        return _violin_medians(figures.get("fig3_permutation_violin", {}), "median_change")
    if trial == "adversarial-attention":
        histograms = figures.get("fig4_emaxjsd_hist", [])
        return _violin_medians(figures.get("fig5_emaxjsd_violin", {}), "epsilon_max") | _histogram_means(histograms)
    return _jain_agreement(tables) if trial == "agreement" else {}


def provenance(trial: str, paper: str = "") -> str:
    """How the published numbers of a trial were made, in a sentence."""
    if paper == DISAGREEMENT_PAPER:
        return (
            "Published numbers are means over three seeds, for agreement over 500 texts each, with special tokens; "
            "where our model is a transformer, theirs is DistilBERT."
        )
    if trial == "attefa":
        return (
            "Published numbers are means over nine adversaries of one base model, with population standard "
            "deviations; the epoch was chosen on the test split."
        )
    if trial in _ADVERSARY_TRIALS:
        return "Published numbers are one training each, whose epoch was chosen on the test split."
    return "Published numbers are one run of the authors' code, which set no seed."


@cache
def _load_json(name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    text = files("heedful.papers").joinpath("published_tables", f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, dict] = json.loads(text)  # type: ignore[type-arg]
    return content


def published_table(name: str) -> list[dict]:  # type: ignore[type-arg]
    """The rows of a published table."""
    rows: list[dict] = _load_json(name)["rows"]  # type: ignore[type-arg, assignment]
    return rows


def published_cells(name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    """A published table as rows of named cells."""
    return _load_json(name)["values"]


def _select(values: Mapping[str, float | None], names: Mapping[str, str]) -> dict[str, float]:
    """The defined numbers under our names; cells that are empty in the paper are left out."""
    return {ours: float(values[theirs]) for ours, theirs in names.items() if values.get(theirs) is not None}  # type: ignore[arg-type]


def _keyed(numbers: Mapping[str, float], method: str = "", subset: str = "") -> dict[Key, float]:
    return {(metric, method, subset): value for metric, value in numbers.items()}


def _jain_agreement(tables: Mapping[str, dict]) -> dict[Key, float]:  # type: ignore[type-arg]
    found: dict[Key, float] = {}
    for pair, name in _TAUS.items():
        for group, numbers in tables.get(name, {}).items():
            found |= _keyed(_select(numbers, _STATISTICS), pair, "" if group == "Overall" else f"class {group}")
    between = tables.get("corr_stats", {}).get("grad_loo(file label gl)", {})
    found |= _keyed(_select(between, _STATISTICS), _GRADIENT_LOO_PAIR)
    for pair, name in _EXCESSES.items():
        overall = tables.get(name, {}).get("Overall", {})
        found |= _keyed(_select(overall, {"excess": "mean"}), f"{_GRADIENT_LOO_PAIR} over {pair}")
    return found


def _violin_medians(bins: Mapping[str, list[dict]], metric: str) -> dict[Key, float]:  # type: ignore[type-arg]
    """Medians of the violins in each bin of maximum attention."""
    found: dict[Key, float] = {}
    for label, violins in bins.items():
        low, high = label.strip("[)").split(",")
        for violin in violins:
            predicted = _CLASS_BY_CENTER.get(violin["centre"])
            if predicted is not None:
                subset = f"class {predicted}, attention {low} to {high}"
                found[metric, "", subset] = float(violin["q25_q50_q75"][1])
    return found


def _histogram_means(histograms: list[dict]) -> dict[Key, float]:  # type: ignore[type-arg]
    """Means of the histograms of figure 4: 40 bins on [0, .7], each counted at its center."""
    found: dict[Key, float] = {}
    for predicted, histogram in enumerate(histograms):
        shares = histogram["frac"]
        if sum(shares) > 0:
            mean = sum(share * (place + 0.5) * 0.0175 for place, share in enumerate(shares)) / sum(shares)
            numbers = {"mean_epsilon_max": mean, "far": sum(shares[FAR_BIN:]) / sum(shares)}
            found |= _keyed(numbers, subset=f"class {predicted}")
    return found


def recomputed_figure(name: str) -> dict[str, float]:
    """Figures 6 to 8 of Jain & Wallace by dataset, recomputed from the authors' released rows."""
    found: dict[str, float] = _load_json("jw_fig6_7_8")["recomputed"][name]
    return found


_WIEGREFFE_CORPORA = {
    "diabetes": "Diabetes",
    "anemia": "Anemia",
    "imdb": "IMDb",
    "sst": "SST",
    "agnews": "AgNews",
    "20news": "20News",
}
_MOCK_CORPORA = {f"mock-{kind}": f"Mock-{kind}" for kind in ("1", "2", "5", "10", "1q", "2q", "3q", "4q")}
_ATTEFA_CORPORA = _MOCK_CORPORA | _WIEGREFFE_CORPORA | {"imdb": "IMDB"}
ATTEFA_TABLE_CORPORA = tuple(_ATTEFA_CORPORA)
"""AtteFa's corpora under our names, in the order of its tables."""
_ATTEFA_ENCODERS = {"bilstm": "lstm", "average": "mlp"}
_GUIDES = {"uniform": "UNIFORM", "trained": "TRAINED MLP", "base": "BASE LSTM", "adversary": "ADVERSARY"}


def published_lambdas(corpus: str) -> tuple[float, ...]:
    """The lambdas of Wiegreffe & Pinter's table 5 for a corpus; empty where they have none."""
    return tuple(strength for strength, _, _, _ in published_tradeoff(corpus))


def published_tradeoff(corpus: str) -> tuple[tuple[float, float, float, float], ...]:
    """Lambda, F1, TVD and JSD of Wiegreffe & Pinter's table 5 for a corpus, by lambda; empty where they have none."""
    rows = _load_json("wp_table5")["rows"].get(_WIEGREFFE_CORPORA.get(corpus, ""), [])
    return tuple((float(strength), float(f1), float(tvd), float(jsd)) for strength, f1, tvd, jsd in rows)


def corpus_row(table: str, corpus: str) -> dict:  # type: ignore[type-arg]
    """The row of a corpus in a table of Wiegreffe & Pinter or AtteFa; empty where it has none."""
    names = _ATTEFA_CORPORA if table.startswith("attefa") else _WIEGREFFE_CORPORA
    rows = {row["dataset"]: row for row in published_table(table)}
    # The table of sizes has one row for all synthetic corpora.
    shared = "Mock-*" if corpus.startswith("mock-") else ""
    row: dict = rows.get(names.get(corpus, ""), rows.get(shared, {}))  # type: ignore[type-arg]
    return row


def attefa_seed_rows(corpus: str, encoder: str) -> list[dict[str, float]]:
    """Tables 4 and 5 of AtteFa: seed, epoch, F1, TVD, JSD and AtteFa of each adversary; empty where there is none."""
    model = _ATTEFA_ENCODERS.get(encoder, "")
    rows = _load_json("attefa_table4_5")["rows"].get(_ATTEFA_CORPORA.get(corpus, ""), [])
    return [{"seed": row["seed"], **row[model]} for row in rows if model in row]


def _uniform_baseline(about: Mapping[str, str]) -> dict[Key, float]:
    """Table 2 of Wiegreffe & Pinter."""
    row = corpus_row("wp_table2", about["corpus"]) if about["encoder"] == "bilstm" else {}
    arms = _select(row, {"learned": "reproduced", "uniform": "uniform"})
    return {("f1", arm, ""): value for arm, value in arms.items()}


def _guided_model(about: Mapping[str, str]) -> dict[Key, float]:
    """Table 3 of Wiegreffe & Pinter."""
    corpus = _WIEGREFFE_CORPORA.get(about["corpus"], "")
    rows = {row["guide"]: row for row in published_table("wp_table3")} if about["encoder"] == "average" else {}
    return {
        ("f1", ours, ""): float(rows[theirs][corpus])
        for ours, theirs in _GUIDES.items()
        if corpus in rows.get(theirs, {})
    }


def _tradeoff(about: Mapping[str, str]) -> dict[Key, float]:
    """Tables 4 and 5 of Wiegreffe & Pinter, and the F1 of uniform attention from table 2."""
    if about["encoder"] != "bilstm":
        return {}
    found = _keyed(_select(corpus_row("wp_table4", about["corpus"]), {"chosen_lambda": "lambda"}))
    found |= _keyed(_select(corpus_row("wp_table2", about["corpus"]), {"f1": "uniform"}), "uniform")
    for strength, f1, tvd, jsd in published_tradeoff(about["corpus"]):
        found |= _keyed({"f1": f1, "tvd": tvd, "jsd": jsd}, f"lambda {strength:g}")
    return found


def _attefa(about: Mapping[str, str]) -> dict[Key, float]:
    """Table 3 of AtteFa with its population standard deviations, and the F1 of the base from table 2."""
    cells = corpus_row("attefa_table3", about["corpus"]).get(_ATTEFA_ENCODERS.get(about["encoder"], ""), {})
    found = {name: float(cell["mean"]) for name, cell in cells.items()}
    found |= {f"population_std_{name}": float(cell["std"]) for name, cell in cells.items()}
    return _keyed(found | {f"base_{name}": score for name, score in _attefa_base_f1(about).items()})


def _attefa_base_f1(about: Mapping[str, str]) -> dict[str, float]:
    """The F1 of AtteFa's base models, from its table 2."""
    encoder = _ATTEFA_ENCODERS.get(about["encoder"])
    row = corpus_row("attefa_table2", about["corpus"]) if about["attention"] == "additive" else {}
    return _select(row, {"f1": f"{encoder}_reproduced"})


_ADVERSARY_TRIALS: Mapping[str, Callable[[Mapping[str, str]], dict[Key, float]]] = {
    "uniform-baseline": _uniform_baseline,
    "guided-model": _guided_model,
    "adversarial-tradeoff": _tradeoff,
    "attefa": _attefa,
}
"""The trials of the second and third paper."""
DISAGREEMENT_LABELS = {"sst": "SST-2", "imdb": "IMDb", "snli": "SNLI", "mnli": "MNLI", "qqp": "Quora"}
"""Names of Neely et al. for their corpora, single texts first."""
_DISAGREEMENT_METHOD_NAMES = {
    "LIME": "lime",
    "Int-Grad": "integrated-gradients",
    "DeepLIFT": "deep-lift",
    "Grad-SHAP": "gradient-shap",
    "Deep-SHAP": "deep-shap",
}
DISAGREEMENT_METHODS = tuple(_DISAGREEMENT_METHOD_NAMES.values())
"""Methods of Neely et al. beside attention, in the order of their tables."""


def _disagreement_numbers(trial: str, about: Mapping[str, str]) -> dict[Key, float]:
    """Tables 3 to 6 of Neely et al.; the last two repeat tables 1 and 2 with standard deviations."""
    corpus, is_bilstm = DISAGREEMENT_LABELS.get(about["corpus"], ""), about["encoder"] == "bilstm"
    if about["attention"] != ("additive" if is_bilstm else "self"):
        return {}
    if trial == "agreement":
        return _disagreement_taus(corpus, is_bilstm=is_bilstm)
    by_arm = {"learned": "softmax", "uniform": "uniform"}
    arms = {"performance": {"": "softmax"}, "uniform-baseline": by_arm}.get(trial, {})
    cells = published_cells("disagreement_table3").get(corpus, {})
    found = {arm: cells.get(f"{'BiLSTM' if is_bilstm else 'DistilBERT'}/{name}") for arm, name in arms.items()}
    return {("accuracy", arm, ""): float(cell["mean"]) for arm, cell in found.items() if cell is not None}


def _disagreement_taus(corpus: str, *, is_bilstm: bool) -> dict[Key, float]:
    """Attention is that of the BiLSTM, and rollout in transformers; flow has a table of its own."""
    names = {**_DISAGREEMENT_METHOD_NAMES, "Attn": "attention" if is_bilstm else "rollout"}
    found: dict[Key, float] = {}
    for pair, cell in published_cells(f"disagreement_table{6 if is_bilstm else 5}_std").get(corpus, {}).items():
        numbers = {name: float(cell[name]) for name in ("mean", "std")}
        found |= _keyed(numbers, "~".join(names[each] for each in pair.split("|")))
    flow = {} if is_bilstm else published_cells("disagreement_table4").get(corpus, {})
    return found | {("mean", f"flow~{names[method]}", ""): float(value) for method, value in flow.items()}


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over five seeds."""

    median: float
    q25: float
    q75: float


@cache
def published_simulability(number: int) -> Mapping[str, Mapping[str, Spread]]:
    """Table 1, 3, 5 or 7 of Fernandes et al. by row and training size (or normalizer); percentages as shares."""
    name = f"scaffold_table{number}"
    scale = 100.0 if "%" in str(_load_json(name)["metric"]) else 1.0
    return {
        row: {
            column: Spread(*(float(cell[part]) / scale for part in ("median", "q25", "q75")))
            for column, cell in cells.items()
        }
        for row, cells in published_cells(name).items()
    }


def published_plausibility(corpus: str, part: str) -> dict[str, float]:
    """AUC by row of Fernandes et al.: table 2 for film reviews, table 6 for translations; else empty."""
    if corpus == "eraser-movies" and not part:
        return {row: float(value) for row, value in published_cells("scaffold_table2").items()}  # type: ignore[arg-type]
    side = {"source": "src", "target": "tgt"}.get(part)
    if side is None or not corpus.startswith("mlqe"):
        return {}
    pair = corpus.removeprefix("mlqe").lstrip("-").upper() or "OVERALL"
    cells = published_cells("scaffold_table6")
    return {row: float(by_pair[pair][side]) for row, by_pair in cells.items() if pair in by_pair}
