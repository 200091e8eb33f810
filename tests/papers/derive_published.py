"""Derive `published_tables/numbers.csv` of the package from the printed tables and the files that authors released.

Jain & Wallace released more than they printed: tables and figures of all 72 combinations are in
`published_tables/jw_online_*.json`, decoded from the files of their repository. The numbers of Wiegreffe & Pinter
(`wp_*`), AtteFa (`attefa_*`) and Neely et al. (`disagreement_*`) are those of their printed tables. Write the file
again with `python -m tests.papers.derive_published`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from heedful import catalogue

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
_TAUS = {"attention~gradient": "tau_attn_grad", "attention~leave-one-out(distribution)": "tau_attn_loo"}
_STATISTICS = {"mean": "mean", "std": "std", "significant": "pval_sig"}
_GRADIENT_LOO_PAIR = "gradient~leave-one-out(distribution)"
_EXCESSES = {"attention~leave-one-out(distribution)": "gl_minus_attnloo", "attention~gradient": "gl_minus_attngrad"}
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
    if paper:
        return _base_f1(about, paper)
    if trial in _ADVERSARY_TRIALS:
        return _ADVERSARY_TRIALS[trial](about) if about["attention"] == "additive" else {}
    corpus = _JAIN_CORPORA.get(about["corpus"], about["corpus"])
    encoder = _JAIN_ENCODERS.get(about["encoder"], about["encoder"])
    model = f"{corpus}+{encoder}+{_JAIN_ATTENTIONS.get(about['attention'], about['attention'])}"
    tables, figures = _load_json("jw_online_tables").get(model, {}), _load_json("jw_online_figures").get(model, {})
    if trial == "performance":
        return _keyed(_select(tables.get("evaluate", {}), _SCORES))
    if trial == "permutation":
        return _violin_medians(figures.get("fig3_permutation_violin", {}), "median_change")
    if trial == "adversarial-attention":
        histograms = figures.get("fig4_emaxjsd_hist", [])
        return _violin_medians(figures.get("fig5_emaxjsd_violin", {}), "epsilon_max") | _histogram_means(histograms)
    return _jain_agreement(tables) if trial == "agreement" else {}


@cache
def _load_json(name: str) -> dict[str, dict]:
    text = (Path(__file__).parent / "published_tables" / f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, dict] = json.loads(text)
    return content


def published_table(name: str) -> list[dict]:
    """The rows of a published table."""
    return list(_load_json(name)["rows"])


def published_cells(name: str) -> dict[str, dict]:
    """A published table as rows of named cells."""
    return _load_json(name)["values"]


def _select(values: Mapping[str, float | None], names: Mapping[str, str]) -> dict[str, float]:
    """The defined numbers under our names; cells that are empty in the paper are left out."""
    return {ours: float(value) for ours, theirs in names.items() if (value := values.get(theirs)) is not None}


def _keyed(numbers: Mapping[str, float], method: str = "", subset: str = "") -> dict[Key, float]:
    return {(metric, method, subset): value for metric, value in numbers.items()}


def _jain_agreement(tables: Mapping[str, dict]) -> dict[Key, float]:
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


def _violin_medians(bins: Mapping[str, list[dict]], metric: str) -> dict[Key, float]:
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


def _histogram_means(histograms: list[dict]) -> dict[Key, float]:
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
_ATTEFA_ENCODERS = {"bilstm": "lstm", "average": "mlp"}
_GUIDES = {"uniform": "UNIFORM", "trained": "TRAINED MLP", "base": "BASE LSTM", "adversary": "ADVERSARY"}


def published_tradeoff(corpus: str) -> tuple[tuple[float, float, float, float], ...]:
    """Lambda, F1, TVD and JSD of Wiegreffe & Pinter's table 5 for a corpus, by lambda; empty where they have none."""
    rows = _load_json("wp_table5")["rows"].get(_WIEGREFFE_CORPORA.get(corpus, ""), [])
    return tuple((float(strength), float(f1), float(tvd), float(jsd)) for strength, f1, tvd, jsd in rows)


def corpus_row(table: str, corpus: str) -> dict:
    """The row of a corpus in a table of Wiegreffe & Pinter or AtteFa; empty where it has none."""
    names = _ATTEFA_CORPORA if table.startswith("attefa") else _WIEGREFFE_CORPORA
    rows = {row["dataset"]: row for row in published_table(table)}
    # The table of sizes has one row for all synthetic corpora.
    shared = "Mock-*" if corpus.startswith("mock-") else ""
    row: dict = rows.get(names.get(corpus, ""), rows.get(shared, {}))
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


def _base_f1(about: Mapping[str, str], paper: str) -> dict[Key, float]:
    """The F1 of the base models of Wiegreffe & Pinter and of AtteFa, from table 2 of each."""
    if paper == "attefa":
        return _keyed(_attefa_base_f1(about))
    learned = _uniform_baseline(about).get(("f1", "learned", "")) if about["attention"] == "additive" else None
    return {} if learned is None else _keyed({"f1": learned})


_ADVERSARY_TRIALS: Mapping[str, Callable[[Mapping[str, str]], dict[Key, float]]] = {
    "uniform-baseline": _uniform_baseline,
    "guided-model": _guided_model,
    "adversarial-tradeoff": _tradeoff,
    "attefa": _attefa,
}
"""The trials of the second and third paper."""
DISAGREEMENT_LABELS = {"sst": "SST-2", "imdb": "IMDb", "snli": "SNLI", "mnli": "MNLI", "qqp": "Quora"}
"""Names of Neely et al. for their corpora, single texts first."""
DISAGREEMENT_METHOD_NAMES = {
    "LIME": "lime",
    "Int-Grad": "integrated-gradients",
    "DeepLIFT": "deep-lift",
    "Grad-SHAP": "gradient-shap",
    "Deep-SHAP": "deep-shap",
}


def _disagreement_numbers(trial: str, about: Mapping[str, str]) -> dict[Key, float]:
    """Tables 3 to 6 of Neely et al.; the last two repeat tables 1 and 2 with standard deviations."""
    corpus, is_bilstm = DISAGREEMENT_LABELS.get(about["corpus"], ""), about["encoder"] == "bilstm"
    if about["attention"] != ("additive" if is_bilstm else "self"):
        return {}
    if trial == "agreement":
        return _disagreement_taus(corpus, is_bilstm=is_bilstm)
    arms = {"performance": {"": "softmax"}, "uniform-baseline": {"learned": "softmax", "uniform": "uniform"}}.get(
        trial, {}
    )
    cells = published_cells("disagreement_table3").get(corpus, {})
    found = {arm: cells.get(f"{'BiLSTM' if is_bilstm else 'DistilBERT'}/{name}") for arm, name in arms.items()}
    return {("accuracy", arm, ""): float(cell["mean"]) for arm, cell in found.items() if cell is not None}


def _disagreement_taus(corpus: str, *, is_bilstm: bool) -> dict[Key, float]:
    """Attention is that of the BiLSTM, and rollout in transformers; flow has a table of its own."""
    names = {**DISAGREEMENT_METHOD_NAMES, "Attn": "attention" if is_bilstm else "rollout"}
    found: dict[Key, float] = {}
    for pair, cell in published_cells(f"disagreement_table{6 if is_bilstm else 5}_std").get(corpus, {}).items():
        numbers = {name: float(cell[name]) for name in ("mean", "std")}
        found |= _keyed(numbers, "~".join(names[each] for each in pair.split("|")))
    flow = {} if is_bilstm else published_cells("disagreement_table4").get(corpus, {})
    return found | {("mean", f"flow~{names[method]}", ""): float(value) for method, value in flow.items()}


COLUMNS = ("paper", "trial", "corpus", "encoder", "attention", "metric", "method", "subset", "value")
Row = tuple[str, str, str, str, str, str, str, str, float]
DATASET_NAMES = {
    "sst": "SST",
    "imdb": "IMDB",
    "adr": "ADR Tweets",
    "agnews": "AG News",
    "20news": "20News",
    "diabetes": "Diabetes",
    "anemia": "Anemia",
    "cnn": "CNN",
    "babi-1": "bAbI 1",
    "babi-2": "bAbI 2",
    "babi-3": "bAbI 3",
    "snli": "SNLI",
}
"""Names of corpora in the tables of Jain & Wallace."""
_TABLE_2_COLUMNS = {
    "grad_bilstm": ("bilstm", "attention~gradient"),
    "grad_average": ("average", "attention~gradient"),
    "loo_bilstm": ("bilstm", "attention~leave-one-out(distribution)"),
}


def rows() -> Iterator[Row]:
    """All rows of the file."""
    yield from _sizes()
    yield from _jain_table_2()
    for trial in ("performance", "agreement", "permutation", "adversarial-attention", *_ADVERSARY_TRIALS):
        yield from _trial_rows(
            trial,
            "",
            (
                ("bilstm", "additive"),
                ("bilstm", "dot"),
                ("average", "additive"),
                ("average", "dot"),
                ("convolution", "additive"),
                ("convolution", "dot"),
            ),
        )
    for corpus in _ATTEFA_CORPORA:
        for encoder in _ATTEFA_ENCODERS:
            for row in attefa_seed_rows(corpus, encoder):
                for metric in ("epoch", "f1", "tvd", "jsd", "attefa"):
                    yield (
                        "attefa",
                        "attefa-seeds",
                        corpus,
                        encoder,
                        "additive",
                        metric,
                        "",
                        f"seed {row['seed']}",
                        row[metric],
                    )
    for paper in ("wiegreffe-pinter", "attefa"):
        yield from _trial_rows("performance", paper, (("bilstm", "additive"), ("average", "additive")))
    for trial in ("performance", "agreement", "uniform-baseline"):
        yield from _trial_rows(trial, DISAGREEMENT_PAPER, (("bilstm", "additive"), ("transformer", "self")))


def _trial_rows(trial: str, paper: str, models: tuple[tuple[str, str], ...]) -> Iterator[Row]:
    first = {
        "attefa": "attefa",
        **dict.fromkeys(("uniform-baseline", "guided-model", "adversarial-tradeoff"), "wiegreffe-pinter"),
    }
    for corpus in catalogue.CORPORA:
        for encoder, attention in models:
            found = published_numbers(trial, {"corpus": corpus, "encoder": encoder, "attention": attention}, paper)
            named = paper or first.get(trial, "jain-wallace")
            for key, value in found.items():
                yield named, trial, corpus, encoder, attention, *key, value


def _sizes() -> Iterator[Row]:
    """Sizes of corpora, with the score that Jain & Wallace print beside them."""
    names = {theirs: ours for ours, theirs in DATASET_NAMES.items()}
    for row in published_table("jw_table1"):
        corpus = names[row["dataset"].replace("20 Newsgroups", "20News").removesuffix(" (MIMIC)")]
        numbers = {"vocabulary": row["vocab"], "mean_length": row["avg_len"], "score": row["perf"]}
        for metric, value in {**numbers, "train": sum(row["train"]), "test": sum(row["test"])}.items():
            yield "jain-wallace", "corpus", corpus, "", "", metric, "", "", value
    for paper, table, corpora in (
        ("wiegreffe-pinter", "wp_table1", _WIEGREFFE_CORPORA),
        ("attefa", "attefa_table1", {"mock-*": "Mock-*", **_WIEGREFFE_CORPORA, "imdb": "IMDB"}),
    ):
        by_name = {row["dataset"]: row for row in published_table(table)}
        for corpus, theirs in corpora.items():
            row = by_name[theirs]
            for split in ("train", "test"):
                for place, value in enumerate(row[split]):
                    yield paper, "corpus", corpus, "", "", split, "", f"class {place}", value
            yield (
                paper,
                "corpus",
                corpus,
                "",
                "",
                "mean_length",
                "",
                "",
                row["avg_len"] if "avg_len" in row else row["test_len"],
            )


def _jain_table_2() -> Iterator[Row]:
    """The printed digits; `jw_online_tables` has more."""
    names = {theirs: ours for ours, theirs in DATASET_NAMES.items()}
    for row in published_table("jw_table2"):
        subset = "" if row["class"] == "Overall" else f"class {row['class']}"
        for column, (encoder, pair) in _TABLE_2_COLUMNS.items():
            for metric, name in (("mean", "mean"), ("std", "std"), ("significant", "sig")):
                value = row[column][name]
                yield (
                    "jain-wallace",
                    "agreement-table-2",
                    names[row["dataset"]],
                    encoder,
                    "additive",
                    metric,
                    pair,
                    subset,
                    value,
                )


_SHARES = {
    "attention~gradient": "fig2_tau_grad_hist",
    "attention~leave-one-out(distribution)": "tau_loo_hist",
    "epsilon_max": "fig4_emaxjsd_hist",
}
_QUARTILES = {"median_change": "fig3_permutation_violin", "epsilon_max": "fig5_emaxjsd_violin"}
_CENTERS = {1: (0.5,), 2: (0.3, 0.7), 3: (0.233, 0.5, 0.767)}
"""Where the violin of each class stands in its bin, by the number of classes."""
_BINS = ("[0.00,0.25)", "[0.25,0.50)", "[0.50,0.75)", "[0.75,1.00)")


def distributions() -> dict[str, dict]:
    """The decoded figures of all 72 models in ten-thousandths: shares by class, quartiles by bin and class."""
    models = {}
    for corpus in catalogue.CORPORA:
        for encoder, their_encoder in _JAIN_ENCODERS.items():
            for attention, theirs in _JAIN_ATTENTIONS.items():
                name = f"{_JAIN_CORPORA.get(corpus, corpus)}+{their_encoder}+{theirs}"
                if figures := _load_json("jw_online_figures").get(name):
                    centers = _CENTERS[len(figures[_SHARES["epsilon_max"]])]
                    models[f"{corpus} {encoder} {attention}"] = {
                        "shares": {
                            ours: [[round(1e4 * share) for share in drawn["frac"]] for drawn in figures[key]]
                            for ours, key in _SHARES.items()
                        },
                        "quartiles": {
                            ours: [_class_quartiles(figures[key].get(label, []), centers) for label in _BINS]
                            for ours, key in _QUARTILES.items()
                        },
                    }
    return models


def _class_quartiles(violins: list[dict], centers: tuple[float, ...]) -> list[list[int]]:
    """The quartiles of each class, empty for a class without a violin."""
    drawn = {violin["centre"]: [round(1e4 * value) for value in violin["q25_q50_q75"]] for violin in violins}
    return [drawn.get(center, []) for center in centers]


def write_distributions(path: Path) -> None:
    """One model per line."""
    about = "Figures 2 to 5 of Jain & Wallace and their online versions, decoded from the authors' SVG files; 1e-4."
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(model, separators=(',', ':'))}" for name, model in distributions().items()
    )
    path.write_text(f'{{"_meta": {json.dumps(about)}, "models": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "src" / "heedful" / "papers" / "published_tables" / "numbers.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *rows()])
    write_distributions(path.with_name("distributions.json"))
