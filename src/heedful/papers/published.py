"""The numbers that papers printed, under the names of our summaries.

Jain & Wallace released far more than they printed: the tables and figures of all 72 combinations stand in
`published/jw_online_*.json`, decoded from the files of their repository. Wiegreffe & Pinter (`wp_*`) and AtteFa
(`attefa_*`) are taken from their printed tables, as is the Song of (Dis)agreement (`court_*`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

_JAIN_CORPORA = {"20news": "20News_sports", "babi-1": "babi_1", "babi-2": "babi_2", "babi-3": "babi_3", "adr": "tweet"}
_JAIN_CORPORA |= {"diabetes": "diab"}
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
"""Violins of class 0 stand at .3 of their bin, those of class 1 at .7."""


FAR_BIN = 34
"""Bins from .595 on are called far."""


def published_numbers(trial: str, about: Mapping[str, str], paper: str = "") -> dict[str, float]:
    """The authors' numbers for this trial, under the names of our summary; empty where they have none.

    Args:
        about: corpus, encoder and attention; `measure` where a trial has one: print has Kendall's tau alone.
        paper: the one that the trial is told under. The Song has trials of earlier papers with numbers of its own;
            for every other paper the trial itself says whose numbers they are.
    """
    if about.get("measure", "kendall") != "kendall":
        return {}
    if paper == DISAGREEMENT_PAPER:
        return _disagreement_numbers(trial, about)
    if trial in _LATER_TRIALS:
        return _LATER_TRIALS[trial](about) if about["attention"] == "additive" else {}
    corpus = _JAIN_CORPORA.get(about["corpus"], about["corpus"])
    encoder = _JAIN_ENCODERS.get(about["encoder"], about["encoder"])
    key = f"{corpus}+{encoder}+{_JAIN_ATTENTIONS.get(about['attention'], about['attention'])}"
    tables, figures = _load_json("jw_online_tables").get(key, {}), _load_json("jw_online_figures").get(key, {})
    if trial == "performance":
        # Only where Jain & Wallace have none: planted corpora are AtteFa's.
        return _select_numbers(tables.get("evaluate", {}), _SCORES) or _attefa_base_f1(about)
    if trial == "permutation":
        return _violin_medians(figures.get("fig3_permutation_violin", {}), "median_change")
    if trial == "adversary":
        histograms = figures.get("fig4_emaxjsd_hist", [])
        return _violin_medians(figures.get("fig5_emaxjsd_violin", {}), "epsilon_max") | _histogram_means(histograms)
    return _agreement(tables) if trial == "agreement" else {}


def _agreement(tables: Mapping[str, dict]) -> dict[str, float]:  # type: ignore[type-arg]
    found: dict[str, float] = {}
    for pair, key in _TAUS.items():
        for group, numbers in tables.get(key, {}).items():
            place = pair if group == "Overall" else f"{pair}.class_{group}"
            found |= {f"{name}.{place}": value for name, value in _select_numbers(numbers, _STATISTICS).items()}
    between = tables.get("corr_stats", {}).get("grad_loo(file label gl)", {})
    found |= {f"{name}.{_GRADIENT_LOO_PAIR}": value for name, value in _select_numbers(between, _STATISTICS).items()}
    for pair, key in _EXCESSES.items():
        overall = tables.get(key, {}).get("Overall", {})
        found |= {
            f"{name}.{_GRADIENT_LOO_PAIR} over {pair}": v
            for name, v in _select_numbers(overall, {"excess": "mean"}).items()
        }
    return found


def _select_numbers(values: Mapping[str, float | None], names: Mapping[str, str]) -> dict[str, float]:
    """The numbers under our names; an empty cell of the authors' (an undefined tau spoilt their mean) is left out."""
    return {ours: float(values[theirs]) for ours, theirs in names.items() if values.get(theirs) is not None}  # type: ignore[arg-type]


def _violin_medians(bins: Mapping[str, list[dict]], name: str) -> dict[str, float]:  # type: ignore[type-arg]
    """Medians of the violins in each bin of maximum attention."""
    found: dict[str, float] = {}
    for label, violins in bins.items():
        low, high = label.strip("[)").split(",")
        for violin in violins:
            predicted = _CLASS_BY_CENTER.get(violin["centre"])
            if predicted is not None:
                found[f"{name}.class_{predicted}.attention_{low}_to_{high}"] = float(violin["q25_q50_q75"][1])
    return found


def _histogram_means(series: list[dict]) -> dict[str, float]:  # type: ignore[type-arg]
    """Means of the histograms of figure 4: 40 bins on [0, .7], so each bin counts at its centre."""
    found: dict[str, float] = {}
    for predicted, histogram in enumerate(series):
        shares = histogram["frac"]
        if sum(shares) > 0:
            mean = sum(share * (place + 0.5) * 0.0175 for place, share in enumerate(shares)) / sum(shares)
            found[f"mean_epsilon_max.class_{predicted}"] = mean
            found[f"far.class_{predicted}"] = sum(shares[FAR_BIN:]) / sum(shares)
    return found


def published_table(name: str) -> list[dict]:  # type: ignore[type-arg]
    """The rows of a published table."""
    rows: list[dict] = _load_json(name)["rows"]  # type: ignore[type-arg, assignment]
    return rows


@cache
def _load_json(name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    text = files("heedful.papers").joinpath("published_tables", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, dict] = json.loads(text)  # type: ignore[type-arg]
    return found


def recomputed_figure(name: str) -> dict[str, float]:
    """Figures 6 to 8 by dataset, recomputed from the authors' released rows."""
    found: dict[str, float] = _load_json("jw_fig6_7_8")["recomputed"][name]
    return found


_WIEGREFFE_CORPORA = {"diabetes": "Diabetes", "anemia": "Anemia", "imdb": "IMDb", "sst": "SST", "agnews": "AgNews"}
_WIEGREFFE_CORPORA |= {"20news": "20News"}
_ATTEFA_CORPORA = {ours: theirs.replace("IMDb", "IMDB") for ours, theirs in _WIEGREFFE_CORPORA.items()}
_ATTEFA_CORPORA |= {f"mock-{kind}": f"Mock-{kind}" for kind in ("1", "2", "5", "10", "1q", "2q", "3q", "4q")}
ATTEFA_TABLE_CORPORA = tuple(sorted(_ATTEFA_CORPORA, key=lambda corpus: not corpus.startswith("mock-")))
"""Our names of AtteFa's corpora, planted ones first, as in its tables."""
_ATTEFA_ENCODERS = {"bilstm": "lstm", "average": "mlp"}
_GUIDES = {"uniform": "UNIFORM", "trained": "TRAINED MLP", "base": "BASE LSTM", "adversary": "ADVERSARY"}


def published_lambdas(corpus: str) -> tuple[float, ...]:
    """The lambdas of Wiegreffe & Pinter's table 5 for a corpus; empty where they have none."""
    return tuple(strength for strength, _, _, _ in published_tradeoff(corpus))


def published_tradeoff(corpus: str) -> tuple[tuple[float, float, float, float], ...]:
    """Lambda, F1, TVD and JSD of Wiegreffe & Pinter's table 5 for a corpus, by lambda; empty where they have none."""
    rows = _load_json("wp_table5")["rows"].get(_WIEGREFFE_CORPORA.get(corpus, ""), [])
    return tuple((float(strength), float(f1), float(tvd), float(jsd)) for strength, f1, tvd, jsd in rows)


def corpus_row(name: str, corpus: str) -> dict:  # type: ignore[type-arg]
    """The row of a corpus in a table of the second or third paper; empty where it has none."""
    names = _ATTEFA_CORPORA if name.startswith("attefa") else _WIEGREFFE_CORPORA
    found = {row["dataset"]: row for row in published_table(name)}
    # The planted corpora have one row in the table of sizes.
    alike = "Mock-*" if corpus.startswith("mock-") else ""
    row: dict = found.get(names.get(corpus, ""), found.get(alike, {}))  # type: ignore[type-arg]
    return row


def attefa_seed_rows(corpus: str, encoder: str) -> list[dict[str, float]]:
    """AtteFa's tables 4 and 5: seed, epoch, F1, TVD, JSD and AtteFa of each adversary; empty where there is none."""
    key = _ATTEFA_ENCODERS.get(encoder, "")
    rows = _load_json("attefa_table4_5")["rows"].get(_ATTEFA_CORPORA.get(corpus, ""), [])
    return [{"seed": row["seed"], **row[key]} for row in rows if key in row]


def _uniform_baseline(about: Mapping[str, str]) -> dict[str, float]:
    """Table 2 of Wiegreffe & Pinter."""
    row = corpus_row("wp_table2", about["corpus"]) if about["encoder"] == "bilstm" else {}
    return _select_numbers(row, {"f1.learned": "reproduced", "f1.uniform": "uniform"})


def _guided_model(about: Mapping[str, str]) -> dict[str, float]:
    """Table 3 of Wiegreffe & Pinter."""
    corpus = _WIEGREFFE_CORPORA.get(about["corpus"], "")
    rows = {row["guide"]: row for row in published_table("wp_table3")} if about["encoder"] == "average" else {}
    return {f"f1.{ours}": rows[theirs][corpus] for ours, theirs in _GUIDES.items() if corpus in rows.get(theirs, {})}


def _tradeoff(about: Mapping[str, str]) -> dict[str, float]:
    """Tables 4 and 5 of Wiegreffe & Pinter, and the F1 of uniform attention from table 2."""
    corpus = about["corpus"]
    if about["encoder"] != "bilstm":
        return {}
    found = _select_numbers(corpus_row("wp_table4", corpus), {"chosen_lambda": "lambda"})
    found |= _select_numbers(corpus_row("wp_table2", corpus), {"f1.uniform": "uniform"})
    for strength, f1, tvd, jsd in published_tradeoff(corpus):
        place = f"lambda_{strength:g}"
        found |= {f"f1.{place}": f1, f"tvd.{place}": tvd, f"jsd.{place}": jsd}
    return found


def _attefa(about: Mapping[str, str]) -> dict[str, float]:
    """Table 3 of AtteFa, whose deviations are over the population, and the base's F1 from its table 2."""
    cells = corpus_row("attefa_table3", about["corpus"]).get(_ATTEFA_ENCODERS.get(about["encoder"], ""), {})
    found = {name: float(cell["mean"]) for name, cell in cells.items()}
    found |= {f"population_std_{name}": float(cell["std"]) for name, cell in cells.items()}
    return found | {f"base_{name}": score for name, score in _attefa_base_f1(about).items()}


def _attefa_base_f1(about: Mapping[str, str]) -> dict[str, float]:
    """The F1 of AtteFa's bases, from its table 2."""
    encoder = _ATTEFA_ENCODERS.get(about["encoder"])
    row = corpus_row("attefa_table2", about["corpus"]) if about["attention"] == "additive" else {}
    return _select_numbers(row, {"f1": f"{encoder}_reproduced"})


_LATER_TRIALS: Mapping[str, Callable[[Mapping[str, str]], dict[str, float]]] = {
    "necessity": _uniform_baseline,
    "guided": _guided_model,
    "tradeoff": _tradeoff,
    "attefa": _attefa,
}
"""The trials of the second and third paper."""


DISAGREEMENT_PAPER = "disagreement"
"""The paper of Neely et al."""
DISAGREEMENT_LABELS = {"sst": "SST-2", "imdb": "IMDb", "snli": "SNLI", "mnli": "MNLI", "qqp": "Quora"}
"""Our names of its corpora, single texts first, and its own."""
_DISAGREEMENT_METHOD_NAMES = {
    "LIME": "lime",
    "Int-Grad": "integrated-gradients",
    "DeepLIFT": "deep-lift",
    "Grad-SHAP": "gradient-shap",
    "Deep-SHAP": "deep-shap",
}
DISAGREEMENT_METHODS = tuple(_DISAGREEMENT_METHOD_NAMES.values())
"""Its methods beside attention, in the order of its tables."""


def _disagreement_numbers(trial: str, about: Mapping[str, str]) -> dict[str, float]:
    """Tables 3 to 6 of the Song; the last two repeat tables 1 and 2 with deviations. Self-attention is DistilBERT's."""
    corpus, recurrent = DISAGREEMENT_LABELS.get(about["corpus"], ""), about["encoder"] == "bilstm"
    if about["attention"] != ("additive" if recurrent else "self"):
        return {}
    if trial == "agreement":
        return _disagreement_taus(corpus, recurrent=recurrent)
    cells = _load_json("court_table3")["values"].get(corpus, {})
    model = "BiLSTM" if recurrent else "DistilBERT"
    arms = {"performance": {"accuracy": "softmax"}}
    arms["necessity"] = {"accuracy.learned": "softmax", "accuracy.uniform": "uniform"}
    found = {name: cells.get(f"{model}/{arm}", {}).get("mean") for name, arm in arms.get(trial, {}).items()}
    return _select_numbers(found, {name: name for name in found})


def _disagreement_taus(corpus: str, *, recurrent: bool) -> dict[str, float]:
    """What print calls attention is that of the BiLSTM, and rollout in transformers; flow has a table of its own."""
    names = {**_DISAGREEMENT_METHOD_NAMES, "Attn": "attention" if recurrent else "rollout"}
    found: dict[str, float] = {}
    for pair, cell in (
        _load_json("court_table6_std" if recurrent else "court_table5_std")["values"].get(corpus, {}).items()
    ):
        place = "~".join(names[each] for each in pair.split("|"))
        found |= {f"{name}.{place}": float(cell[name]) for name in ("mean", "std")}
    flow = {} if recurrent else _load_json("court_table4")["values"].get(corpus, {})
    return found | {f"mean.flow~{names[method]}": float(value) for method, value in flow.items()}


def provenance(trial: str, paper: str = "") -> str:
    """How the published numbers of a trial came about, in a sentence."""
    if paper == DISAGREEMENT_PAPER:
        return (
            "Published numbers are means over three seeds, for agreement over 500 texts of each, special symbols "
            "included; where our model is a transformer, theirs is DistilBERT."
        )
    if trial == "attefa":
        return (
            "Published numbers are means over nine adversaries of one base, with deviations over the population; the "
            "epoch was chosen on the test split."
        )
    if trial in _LATER_TRIALS:
        return "Published numbers are one training each, whose epoch was chosen on the test split."
    return "Published numbers are one run of the authors' code, which set no seed."
