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

_CORPUS = {"20news": "20News_sports", "babi-1": "babi_1", "babi-2": "babi_2", "babi-3": "babi_3", "adr": "tweet"}
_CORPUS |= {"diabetes": "diab"}
_ENCODER = {"bilstm": "lstm", "convolution": "cnn(1,3,5,7)", "average": "average"}
_ATTENTION = {"additive": "tanh", "dot": "dot"}
_SCORES = {
    "f1": "1/f1-score",
    "f1_micro": "micro avg/f1-score",
    "f1_macro": "macro avg/f1-score",
    "accuracy": "accuracy",
    "roc_auc": "roc_auc",
}
_TAUS = {"attention~gradient": "tau_attn_grad", "attention~leave-one-out": "tau_attn_loo"}
_STATISTICS = {"mean": "mean", "std": "std", "significant": "pval_sig"}
_BETWEEN = "gradient~leave-one-out"
_EXCESSES = {"attention~leave-one-out": "gl_minus_attnloo", "attention~gradient": "gl_minus_attngrad"}
_CENTRES = {0.3: 0, 0.7: 1}
"""Violins of class 0 stand at .3 of their bin, those of class 1 at .7."""


FAR_BIN = 34
"""Bins from .595 on are called far."""


def published(trial: str, about: Mapping[str, str], paper: str = "") -> dict[str, float]:
    """The authors' numbers for this trial, under the names of our summary; empty where they have none.

    Args:
        about: corpus, encoder and attention; `measure` where a trial has one: print has Kendall's tau alone.
        paper: the one that the trial is told under. The Song has trials of earlier papers with numbers of its own;
            for every other paper the trial itself says whose numbers they are.
    """
    if about.get("measure", "kendall") != "kendall":
        return {}
    if paper == SONG:
        return _song(trial, about)
    if trial in _LATER:
        return _LATER[trial](about) if about["attention"] == "additive" else {}
    corpus = _CORPUS.get(about["corpus"], about["corpus"])
    encoder = _ENCODER.get(about["encoder"], about["encoder"])
    key = f"{corpus}+{encoder}+{_ATTENTION.get(about['attention'], about['attention'])}"
    tables, figures = _file("jw_online_tables").get(key, {}), _file("jw_online_figures").get(key, {})
    if trial == "performance":
        # Only where Jain & Wallace have none: planted corpora are AtteFa's.
        return _numbers(tables.get("evaluate", {}), _SCORES) or _first_score(about)
    if trial == "permutation":
        return _violins(figures.get("fig3_permutation_violin", {}), "median_change")
    if trial == "adversary":
        histograms = figures.get("fig4_emaxjsd_hist", [])
        return _violins(figures.get("fig5_emaxjsd_violin", {}), "epsilon_max") | _histograms(histograms)
    return _agreement(tables) if trial == "agreement" else {}


def _agreement(tables: Mapping[str, dict]) -> dict[str, float]:  # type: ignore[type-arg]
    found: dict[str, float] = {}
    for pair, key in _TAUS.items():
        for group, numbers in tables.get(key, {}).items():
            place = pair if group == "Overall" else f"{pair}.class_{group}"
            found |= {f"{name}.{place}": value for name, value in _numbers(numbers, _STATISTICS).items()}
    between = tables.get("corr_stats", {}).get("grad_loo(file label gl)", {})
    found |= {f"{name}.{_BETWEEN}": value for name, value in _numbers(between, _STATISTICS).items()}
    for pair, key in _EXCESSES.items():
        overall = tables.get(key, {}).get("Overall", {})
        found |= {f"{name}.{_BETWEEN} over {pair}": v for name, v in _numbers(overall, {"excess": "mean"}).items()}
    return found


def _numbers(given: Mapping[str, float | None], names: Mapping[str, str]) -> dict[str, float]:
    """The numbers under our names; an empty cell of the authors' (an undefined tau spoilt their mean) is left out."""
    return {ours: float(given[theirs]) for ours, theirs in names.items() if given.get(theirs) is not None}  # type: ignore[arg-type]


def _violins(bins: Mapping[str, list[dict]], name: str) -> dict[str, float]:  # type: ignore[type-arg]
    """Medians of the violins in each bin of maximum attention."""
    found: dict[str, float] = {}
    for label, violins in bins.items():
        low, high = label.strip("[)").split(",")
        for violin in violins:
            predicted = _CENTRES.get(violin["centre"])
            if predicted is not None:
                found[f"{name}.class_{predicted}.attention_{low}_to_{high}"] = float(violin["q25_q50_q75"][1])
    return found


def _histograms(series: list[dict]) -> dict[str, float]:  # type: ignore[type-arg]
    """Means of the histograms of figure 4: 40 bins on [0, .7], so each bin counts at its centre."""
    found: dict[str, float] = {}
    for predicted, histogram in enumerate(series):
        shares = histogram["frac"]
        if sum(shares) > 0:
            mean = sum(share * (place + 0.5) * 0.0175 for place, share in enumerate(shares)) / sum(shares)
            found[f"mean_epsilon_max.class_{predicted}"] = mean
            found[f"far.class_{predicted}"] = sum(shares[FAR_BIN:]) / sum(shares)
    return found


def table(name: str) -> list[dict]:  # type: ignore[type-arg]
    """The rows of a published table."""
    rows: list[dict] = _file(name)["rows"]  # type: ignore[type-arg, assignment]
    return rows


@cache
def _file(name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    text = files("heedful").joinpath("published", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, dict] = json.loads(text)  # type: ignore[type-arg]
    return found


def recomputed(name: str) -> dict[str, float]:
    """Figures 6 to 8 by dataset, recomputed from the authors' released rows."""
    found: dict[str, float] = _file("jw_fig6_7_8")["recomputed"][name]
    return found


_WIEGREFFE = {"diabetes": "Diabetes", "anemia": "Anemia", "imdb": "IMDb", "sst": "SST", "agnews": "AgNews"}
_WIEGREFFE |= {"20news": "20News"}
_ATTEFA = {ours: theirs.replace("IMDb", "IMDB") for ours, theirs in _WIEGREFFE.items()}
_ATTEFA |= {f"mock-{kind}": f"Mock-{kind}" for kind in ("1", "2", "5", "10", "1q", "2q", "3q", "4q")}
ATTEFA_CORPORA = tuple(sorted(_ATTEFA, key=lambda corpus: not corpus.startswith("mock-")))
"""Our names of AtteFa's corpora, planted ones first, as in its tables."""
_ATTEFA_ENCODER = {"bilstm": "lstm", "average": "mlp"}
_GUIDES = {"uniform": "UNIFORM", "trained": "TRAINED MLP", "base": "BASE LSTM", "adversary": "ADVERSARY"}


def lambdas(corpus: str) -> tuple[float, ...]:
    """The lambdas of Wiegreffe & Pinter's table 5 for a corpus; empty where they have none."""
    return tuple(strength for strength, _, _, _ in curve(corpus))


def curve(corpus: str) -> tuple[tuple[float, float, float, float], ...]:
    """Lambda, F1, TVD and JSD of Wiegreffe & Pinter's table 5 for a corpus, by lambda; empty where they have none."""
    rows = _file("wp_table5")["rows"].get(_WIEGREFFE.get(corpus, ""), [])
    return tuple((float(strength), float(f1), float(tvd), float(jsd)) for strength, f1, tvd, jsd in rows)


def corpus_row(name: str, corpus: str) -> dict:  # type: ignore[type-arg]
    """The row of a corpus in a table of the second or third paper; empty where it has none."""
    names = _ATTEFA if name.startswith("attefa") else _WIEGREFFE
    found = {row["dataset"]: row for row in table(name)}
    # The planted corpora have one row in the table of sizes.
    alike = "Mock-*" if corpus.startswith("mock-") else ""
    row: dict = found.get(names.get(corpus, ""), found.get(alike, {}))  # type: ignore[type-arg]
    return row


def seeds_of(corpus: str, encoder: str) -> list[dict[str, float]]:
    """AtteFa's tables 4 and 5: seed, epoch, F1, TVD, JSD and AtteFa of each adversary; empty where there is none."""
    key = _ATTEFA_ENCODER.get(encoder, "")
    rows = _file("attefa_table4_5")["rows"].get(_ATTEFA.get(corpus, ""), [])
    return [{"seed": row["seed"], **row[key]} for row in rows if key in row]


def _necessity(about: Mapping[str, str]) -> dict[str, float]:
    """Table 2 of Wiegreffe & Pinter."""
    row = corpus_row("wp_table2", about["corpus"]) if about["encoder"] == "bilstm" else {}
    return _numbers(row, {"f1.learned": "reproduced", "f1.uniform": "uniform"})


def _guided(about: Mapping[str, str]) -> dict[str, float]:
    """Table 3 of Wiegreffe & Pinter."""
    corpus = _WIEGREFFE.get(about["corpus"], "")
    rows = {row["guide"]: row for row in table("wp_table3")} if about["encoder"] == "average" else {}
    return {f"f1.{ours}": rows[theirs][corpus] for ours, theirs in _GUIDES.items() if corpus in rows.get(theirs, {})}


def _tradeoff(about: Mapping[str, str]) -> dict[str, float]:
    """Tables 4 and 5 of Wiegreffe & Pinter, and the F1 of uniform attention from table 2."""
    corpus = about["corpus"]
    if about["encoder"] != "bilstm":
        return {}
    found = _numbers(corpus_row("wp_table4", corpus), {"chosen_lambda": "lambda"})
    found |= _numbers(corpus_row("wp_table2", corpus), {"f1.uniform": "uniform"})
    for strength, f1, tvd, jsd in curve(corpus):
        place = f"lambda_{strength:g}"
        found |= {f"f1.{place}": f1, f"tvd.{place}": tvd, f"jsd.{place}": jsd}
    return found


def _attefa(about: Mapping[str, str]) -> dict[str, float]:
    """Table 3 of AtteFa, whose deviations are over the population, and the base's F1 from its table 2."""
    cells = corpus_row("attefa_table3", about["corpus"]).get(_ATTEFA_ENCODER.get(about["encoder"], ""), {})
    found = {name: float(cell["mean"]) for name, cell in cells.items()}
    found |= {f"population_std_{name}": float(cell["std"]) for name, cell in cells.items()}
    return found | {f"base_{name}": score for name, score in _first_score(about).items()}


def _first_score(about: Mapping[str, str]) -> dict[str, float]:
    """The F1 of AtteFa's bases, from its table 2."""
    encoder = _ATTEFA_ENCODER.get(about["encoder"])
    row = corpus_row("attefa_table2", about["corpus"]) if about["attention"] == "additive" else {}
    return _numbers(row, {"f1": f"{encoder}_reproduced"})


_LATER: Mapping[str, Callable[[Mapping[str, str]], dict[str, float]]] = {
    "necessity": _necessity,
    "guided": _guided,
    "tradeoff": _tradeoff,
    "attefa": _attefa,
}
"""The trials of the second and third paper."""


SONG = "disagreement"
"""The paper of Neely et al."""
SONG_CORPORA = {"sst": "SST-2", "imdb": "IMDb", "snli": "SNLI", "mnli": "MNLI", "qqp": "Quora"}
"""Our names of its corpora, single texts first, and its own."""
_SONG_METHODS = {
    "LIME": "lime",
    "Int-Grad": "integrated-gradients",
    "DeepLIFT": "deep-lift",
    "Grad-SHAP": "gradient-shap",
    "Deep-SHAP": "deep-shap",
}
SONG_METHODS = tuple(_SONG_METHODS.values())
"""Its methods beside attention, in the order of its tables."""


def _song(trial: str, about: Mapping[str, str]) -> dict[str, float]:
    """Tables 3 to 6 of the Song; the last two repeat tables 1 and 2 with deviations. Self-attention is DistilBERT's."""
    corpus, recurrent = SONG_CORPORA.get(about["corpus"], ""), about["encoder"] == "bilstm"
    if about["attention"] != ("additive" if recurrent else "self"):
        return {}
    if trial == "agreement":
        return _song_agreement(corpus, recurrent=recurrent)
    cells = _file("court_table3")["values"].get(corpus, {})
    model = "BiLSTM" if recurrent else "DistilBERT"
    arms = {"performance": {"accuracy": "softmax"}}
    arms["necessity"] = {"accuracy.learned": "softmax", "accuracy.uniform": "uniform"}
    found = {name: cells.get(f"{model}/{arm}", {}).get("mean") for name, arm in arms.get(trial, {}).items()}
    return _numbers(found, {name: name for name in found})


def _song_agreement(corpus: str, *, recurrent: bool) -> dict[str, float]:
    """What print calls attention is that of the BiLSTM, and rollout in transformers; flow has a table of its own."""
    names = {**_SONG_METHODS, "Attn": "attention" if recurrent else "rollout"}
    found: dict[str, float] = {}
    for pair, cell in _file("court_table6_std" if recurrent else "court_table5_std")["values"].get(corpus, {}).items():
        place = "~".join(names[each] for each in pair.split("|"))
        found |= {f"{name}.{place}": float(cell[name]) for name in ("mean", "std")}
    flow = {} if recurrent else _file("court_table4")["values"].get(corpus, {})
    return found | {f"mean.flow~{names[method]}": float(value) for method, value in flow.items()}


def provenance(trial: str, paper: str = "") -> str:
    """How the published numbers of a trial came about, in a sentence."""
    if paper == SONG:
        return (
            "Published numbers are means over three seeds, for agreement over 500 texts of each, special symbols "
            "included; where our model is a transformer, theirs is DistilBERT."
        )
    if trial == "attefa":
        return (
            "Published numbers are means over nine adversaries of one base, with deviations over the population; the "
            "epoch was chosen on the test split."
        )
    if trial in _LATER:
        return "Published numbers are one training each, whose epoch was chosen on the test split."
    return "Published numbers are one run of the authors' code, which set no seed."
