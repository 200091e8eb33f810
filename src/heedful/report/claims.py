"""What the Song of (Dis)agreement claims of its numbers, each claim told true or false of ours.

A claim is judged on all corpora and models that were run, no quick versions, and with the paper's own methods.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

from heedful.printed import SONG_METHODS
from heedful.report.content import Cell, TableView
from heedful.report.tabulating import Told, difference, known

LOW = 0.33
"""Print has attention with any method below this, everywhere (at most .316)."""
STRONG = 0.33
"""Print's strong pairs on transformers have .39 to .60, all others at most .29: the line lies between."""
COST = 0.008
"""The most that print's BiLSTMs lose by uniform attention, in accuracy."""
STRONG_PAIRS = frozenset({"integrated-gradients~gradient-shap", "deep-lift~deep-shap"})
PAIRS_OF_TEXTS = ("snli", "mnli", "qqp")
Claim = tuple[str, bool | None]
"""Our numbers in words, and whether the claim holds of them; None where there is nothing to judge it by."""


def claims(told: Sequence[Told]) -> TableView:
    """A row for each claim; no rows where nothing at all can be said."""
    told = [each for each in told if not each.quick]
    found: dict[str, Claim] = {
        f"(i) attention agrees with no method at {LOW} or more": _attention_is_apart(told),
        "(ii) methods agree more on BiLSTMs than on transformers": _recurrent_agree_more(told),
        "(iii) on BiLSTMs they agree more on single texts than on pairs": _single_agree_more(told),
        "(iv) on transformers only integrated gradients with gradient SHAP, and DeepLIFT with Deep-SHAP, agree "
        f"strongly ({STRONG} or more)": _only_kin_agree(told),
        f"(v) uniform attention costs a BiLSTM at most {COST} of its accuracy": _uniform_is_cheap(told),
    }
    verdicts = {None: "not tested", True: "true", False: "false"}
    rows: list[tuple[Cell, ...]] = [(claim, numbers, verdicts[holds]) for claim, (numbers, holds) in found.items()]
    tested = any(holds is not None for _, holds in found.values())
    note = (
        "Judged on the corpora that were run, with the paper's methods; attention is rollout or flow in transformers. "
        "Means are over the fifteen pairs of its six methods. A claim is false where one corpus or model speaks "
        "against it, by however little."
    )
    return TableView("What the paper claims", ("claim", "our numbers", "verdict"), tuple(rows) if tested else (), note)


def pairs(attention: str) -> tuple[str, ...]:
    """The fifteen pairs of the paper's methods, with this for attention."""
    return tuple(f"{one}~{other}" for one, other in combinations((attention, *SONG_METHODS), 2))


def agreements(told: Sequence[Told], attention: str) -> list[Told]:
    """Agreement by Kendall's tau where this stands for attention: "attention" in BiLSTMs, else "rollout" or "flow"."""
    recurrent = attention == "attention"
    return [
        each
        for each in told
        if (each.trial, each.measure) == ("agreement", "kendall")
        and (each.encoder == "bilstm") == recurrent
        and any(f"mean.{attention}~{method}" in each.summary for method in SONG_METHODS)
    ]


def mean_tau(numbers: Mapping[str, float], attention: str) -> float | None:
    """The mean over the fifteen pairs; None unless all are defined."""
    values = [numbers.get(f"mean.{pair}", math.nan) for pair in pairs(attention)]
    return None if any(math.isnan(value) for value in values) else statistics.fmean(values)


def called(each: Told) -> str:
    """The corpus, and the encoder where it is no BiLSTM."""
    return each.label if each.encoder == "bilstm" else f"{each.label}, {each.encoder}"


def _attention_is_apart(told: Sequence[Told]) -> Claim:
    found = {
        f"{called(each)}, {attention} and {method}": value
        for attention in ("attention", "rollout", "flow")
        for each in agreements(told, attention)
        for method in SONG_METHODS
        if (value := known(each, f"mean.{attention}~{method}")) is not None
    }
    if not found:
        return "no agreement", None
    where = max(found, key=lambda name: found[name])
    return f"at most {_number(found[where])} of {len(found)} ({where})", found[where] < LOW


def _recurrent_agree_more(told: Sequence[Told]) -> Claim:
    recurrent, others = _keyed(told, "attention"), _keyed(told, "rollout")
    both = [
        (f"{other}: {_number(mean)} and {_number(value)}", mean > value)
        for corpus, mean in recurrent.values()
        for other, (same, value) in others.items()
        if same == corpus
    ]
    if not both:
        return "no corpus with both", None
    return "; ".join(words for words, _ in both), all(more for _, more in both)


def _keyed(told: Sequence[Told], attention: str) -> dict[str, tuple[str, float]]:
    """Corpus and mean over all pairs, by what a model is called."""
    return {
        called(each): (each.corpus, mean)
        for each in agreements(told, attention)
        if (mean := mean_tau(each.summary, attention)) is not None
    }


def _single_agree_more(told: Sequence[Told]) -> Claim:
    found = _keyed(told, "attention")
    single = {name: mean for name, (corpus, mean) in found.items() if corpus not in PAIRS_OF_TEXTS}
    paired = {name: mean for name, (corpus, mean) in found.items() if corpus in PAIRS_OF_TEXTS}
    if not single or not paired:
        return _listed({**single, **paired}) or "no agreement", None
    return f"{_listed(single)}; pairs: {_listed(paired)}", min(single.values()) > max(paired.values())


def _only_kin_agree(told: Sequence[Told]) -> Claim:
    words: list[str] = []
    holds = True
    for each in agreements(told, "rollout"):
        taus = {pair: known(each, f"mean.{pair}") for pair in pairs("rollout")}
        defined = {pair: tau for pair, tau in taus.items() if tau is not None}
        if len(defined) < len(taus):
            continue
        weakest = min(defined[pair] for pair in STRONG_PAIRS)
        strongest = max((pair for pair in defined if pair not in STRONG_PAIRS), key=lambda pair: defined[pair])
        words.append(
            f"{called(each)}: these at least {_number(weakest)}, others at most {_number(defined[strongest])} "
            f"({strongest.replace('~', ' and ')})"
        )
        holds = holds and weakest >= STRONG > defined[strongest]
    return ("; ".join(words), holds) if words else ("no transformer", None)


def _uniform_is_cheap(told: Sequence[Told]) -> Claim:
    costs = {
        called(each): cost
        for each in told
        if (each.trial, each.encoder) == ("necessity", "bilstm")
        and (cost := difference(known(each, "accuracy.learned"), known(each, "accuracy.uniform"))) is not None
    }
    # Accuracies have three decimals in print: .667 - .659 must not be more than .008 by a binary digit.
    return (_listed(costs), max(costs.values()) <= COST + 1e-9) if costs else ("no uniform attention", None)


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())


def _number(value: float) -> str:
    return f"{value:.3f}".replace("-", "\N{MINUS SIGN}")
