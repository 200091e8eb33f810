"""Who can be trusted: methods and measures before the court that knows the truth.

A method is trusted as far as it finds the words that are known to decide; a measure as far as it ranks the truth above
what is known to be wrong, and methods as the truth does, on the same models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from heedful.figures import Figure, Matrix
from heedful.measures.erasure import FAITHFULNESS_MEASURES
from heedful.papers._chapter import Cell, TableView
from heedful.report.tabulating import ResultRow, summary_value
from heedful.trials._flat import flat_measure_verdicts as measure_verdicts
from heedful.trials.ground_truth import ALL_MEASURES, CHANCE, CONTROL_LABELS, CONTROLS

FOLLOWS_TRUTH_SHARE, PARTLY_FOLLOWS_SHARE = 0.9, 0.75
"""The share of pairs in the right order from which a measure follows the truth, and from which it does so in part.
Chance has one half. The truth tells these pairs apart beyond doubt, so that a good measure has nearly all of them
right; three quarters is half way from chance to all."""
SHOWN_MEASURES = ("aopc_comprehensiveness", "aopc_sufficiency")


def ground_truth_tables(told: Sequence[ResultRow]) -> tuple[TableView, ...]:
    """Methods by the truth and by faithfulness; measures by the truth, and by what they say of methods."""
    return _method_table(told), _truth_above_controls_table(told), _measure_ranking_table(told)


def ground_truth_figures(told: Sequence[ResultRow]) -> tuple[Figure, ...]:
    """The share of telling words among the first, by method and planted corpus."""
    courts = _ground_truth_results(told)
    methods = _rank_methods(courts)
    if not methods:
        return ()
    values = tuple(tuple(_method_value(court, "precision", method) for court in courts) for method in methods)
    names = tuple(court.label for court in courts)
    return (Matrix("Share of the telling words among the first", methods, names, values, (0.0, 1.0)),)


def _ground_truth_results(told: Sequence[ResultRow]) -> list[ResultRow]:
    """Trials before the truth where the model uses the telling words at all."""
    return [each for each in told if each.trial == "truth" and each.summary.get("used")]


def base_method_name(method: str) -> str:
    """A method's name, whatever output it explains: planted models that add are asked for their logit.

    >>> base_method_name("lime(logit)"), base_method_name("deep-lift(zero)")
    ('lime', 'deep-lift(zero)')
    """
    return method.removesuffix("(logit)")


def _method_value(each: ResultRow, number: str, method: str) -> float | None:
    found = summary_value(each, f"{number}.{method}")
    return summary_value(each, f"{number}.{method}(logit)") if found is None else found


def _rank_methods(courts: Sequence[ResultRow]) -> tuple[str, ...]:
    """All methods on trial, those that find most beyond chance first; adversarial attention and random scores last."""
    start = "precision."
    names = {
        base_method_name(name.removeprefix(start)): None
        for each in courts
        for name in each.summary
        if name.startswith(start)
    }
    gains = {name: _mean_defined(_gains_over_chance(courts, name)) for name in names if name not in CONTROLS}
    # Methods without a number stand behind the others.
    ranked = sorted(gains, key=lambda name: math.inf if (gain := gains[name]) is None else -gain)
    return (*ranked, *(name for name in CONTROLS if name in names))


def _gains_over_chance(courts: Sequence[ResultRow], method: str) -> list[float]:
    """The share of what chance misses that the method finds, by corpus: 0 as random scores, 1 all telling words."""
    both = [
        (_method_value(court, "precision", method), summary_value(court, f"precision.{CHANCE}")) for court in courts
    ]
    return [
        (found - chance) / (1 - chance) for found, chance in both if found is not None and chance not in (None, 1.0)
    ]


def _mean_defined(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if defined else None


def _method_table(told: Sequence[ResultRow]) -> TableView:
    courts, faithful = _ground_truth_results(told), [each for each in told if each.trial == "faithfulness"]
    rows: list[tuple[Cell, ...]] = []
    for method in _rank_methods(courts):
        tried = [court for court in courts if _method_value(court, "precision", method) is not None]
        gain = None if method in CONTROLS else _mean_defined(_gains_over_chance(courts, method))
        numbers = [
            _cell_or_blank(_mean_defined(_method_value(court, name, method) for court in tried))
            for name in ("precision", "auc", "tau")
        ]
        excesses = [
            _cell_or_blank(_mean_defined(_method_value(each, f"excess.{name}", method) for each in faithful))
            for name in SHOWN_MEASURES
        ]
        row = (method, f"{len(tried)} of {len(courts)}", *numbers, _cell_or_blank(gain))
        rows.append((*row, _failed_corpora(tried, method), *excesses, _faithfulness_wins(faithful, method)))
    columns = (
        "method",
        "planted corpora",
        "precision",
        "AUC",
        "tau",
        "found beyond chance",
        "no better than chance on",
    )
    measures = tuple(f"{name.replace('_', ' ').removeprefix('aopc ')} over random" for name in SHOWN_MEASURES)
    note = (
        "Means over planted corpora whose telling words are known and used by the model. Found beyond "
        "chance is the share of what random scores miss, which also compares methods that were tried on different "
        "corpora: 0 is no better than they, 1 is all. Beside it what "
        "faithfulness says, on all models where it was measured: how much better than random scores, and on how many "
        "measures and models beyond doubt (on each of a model's seeds)."
    )
    return TableView("Who can be trusted", (*columns, *measures, "faithfulness beyond random"), tuple(rows), note)


def _cell_or_blank(value: float | None) -> Cell:
    return "" if value is None else value


def _failed_corpora(tried: Sequence[ResultRow], method: str) -> str:
    """The corpora where the method cannot be told from random scores, by their intervals."""
    if method in CONTROLS:
        return ""
    failed = [court.corpus for court in tried if not _beats_chance(court, method)]
    return ", ".join(failed) or "none"


def _beats_chance(court: ResultRow, method: str) -> bool:
    low, chance = _method_value(court, "low", method), summary_value(court, f"high.{CHANCE}")
    return low is not None and chance is not None and low > chance


def _faithfulness_wins(faithful: Sequence[ResultRow], method: str) -> str:
    lows = [
        low
        for each in faithful
        for name, measure in FAITHFULNESS_MEASURES.items()
        if measure.has_random_control and (low := _method_value(each, f"low.{name}", method)) is not None
    ]
    return f"{sum(low > 0 for low in lows)} of {len(lows)}" if lows else ""


def _truth_above_controls_table(told: Sequence[ResultRow]) -> TableView:
    """Whether each measure ranks the truth above random scores and above adversarial attention."""
    found = {court.label: (court, measure_verdicts(court.summary)) for court in _ground_truth_results(told)}
    rows: list[tuple[Cell, ...]] = []
    for measure in ALL_MEASURES:
        above = {label: each[measure] for label, (_, each) in found.items() if measure in each}
        judged = {rival: _verdicts_against(above, rival) for rival in CONTROL_LABELS.values()}
        if any(judged.values()):
            counts = (_count_texts([court for court, _ in found.values()], rival, measure) for rival in judged)
            cells = [cell for pair in zip(map(_count_true, judged.values()), counts, strict=True) for cell in pair]
            rows.append((measure.replace("_", " "), *cells, _unproven_corpora(judged), _measure_verdict(judged)))
    columns = ("measure", "truth above random", "of texts", "truth above adversarial attention", "on texts")
    note = (
        "Measured were the truth itself, random scores, and the weights farthest from the model's attention that leave "
        "its prediction as it is, on texts whose telling words the model uses and the wrong scores do not name. A "
        "corpus counts where the 95 % interval of the mean difference is above zero; of texts, ties count half. A "
        "measure knows the truth where it ranks it above both on every corpus."
    )
    ends = ("not beyond doubt on", "verdict")
    return TableView("Does each measure rank the truth above what is wrong?", (*columns, *ends), tuple(rows), note)


def _verdicts_against(above: Mapping[str, Mapping[str, bool | None]], rival: str) -> dict[str, bool]:
    """By corpus, whether the truth is above this rival; corpora where that is not known are left out."""
    return {label: each for label, rivals in above.items() if (each := rivals.get(rival)) is not None}


def _count_true(found: Mapping[str, bool]) -> str:
    return f"{sum(found.values())} of {len(found)}" if found else ""


def _count_texts(courts: Sequence[ResultRow], rival: str, measure: str) -> str:
    """The texts of all courts where the truth is above the rival, of those where the two can be compared."""
    both = [
        [summary_value(court, f"above_{rival}_{name}.{measure}") for name in ("share", "texts")] for court in courts
    ]
    defined = [(share, texts) for share, texts in both if share is not None and texts is not None]
    right = sum(share * texts for share, texts in defined)
    return f"{right:.4g} of {sum(texts for _, texts in defined):.0f}" if defined else ""


def _unproven_corpora(judged: Mapping[str, Mapping[str, bool]]) -> str:
    failed = [f"{label} ({rival})" for rival, found in judged.items() for label, above in found.items() if not above]
    return ", ".join(failed) or "none"


def _measure_verdict(judged: Mapping[str, Mapping[str, bool]]) -> str:
    """In words; a rival that was met nowhere leaves the verdict open."""
    beaten = [rival for rival, found in judged.items() if found and all(found.values())]
    missing = [rival for rival, found in judged.items() if not found]
    if len(beaten) == len(judged):
        return "knows the truth"
    if beaten:
        return f"above {beaten[0]}, {missing[0]} not tried" if missing else f"only above {beaten[0]}"
    return "fails"


def _measure_ranking_table(told: Sequence[ResultRow]) -> TableView:
    rows: list[tuple[Cell, ...]] = []
    both = [(court, each) for court in _ground_truth_results(told) for each in told if _is_same_model(court, each)]
    for name in FAITHFULNESS_MEASURES:
        found = {court.label: pairs for court, each in both if (pairs := pair_order_agreement(name, court, each))}
        if found:
            rows.append((name.replace("_", " "), *_measure_ranking_row(found)))
    columns = ("measure", "planted corpora", "pairs told apart", "in the right order", "method above random")
    note = (
        "Pairs of methods, random scores among them, whose shares of telling words have intervals that do not touch: "
        "how many of them the mean of the measure puts in the same order, ties counting half. Chance has .5. Among "
        "them are the pairs of a method with random scores. A measure follows the truth where it has at least "
        f"{FOLLOWS_TRUTH_SHARE} right on every corpus, in part where it has {PARTLY_FOLLOWS_SHARE} on the whole, else it fails."
    )
    ends = ("worst", "worst on", "verdict")
    return TableView(
        "Which measures of faithfulness rank methods as the truth does", (*columns, *ends), tuple(rows), note
    )


def _measure_ranking_row(found: Mapping[str, Mapping[tuple[str, str], float]]) -> tuple[Cell, ...]:
    everything = [(pair, right) for pairs in found.values() for pair, right in pairs.items()]
    share = statistics.fmean(right for _, right in everything)
    null = _mean_defined(right for pair, right in everything if CHANCE in pair)
    shares = {label: statistics.fmean(pairs.values()) for label, pairs in found.items()}
    worst = min(shares, key=lambda label: shares[label])
    verdict = (
        "follows the truth"
        if shares[worst] >= FOLLOWS_TRUTH_SHARE
        else "in part"
        if share >= PARTLY_FOLLOWS_SHARE
        else "fails"
    )
    return len(found), len(everything), share, _cell_or_blank(null), shares[worst], worst, verdict


def _is_same_model(court: ResultRow, each: ResultRow) -> bool:
    """Whether both are about the same model."""
    if each.trial != "faithfulness":
        return False
    return (court.label, court.encoder, court.attention) == (each.label, each.encoder, each.attention)


def pair_order_agreement(measure: str, court: ResultRow, faithful: ResultRow) -> dict[tuple[str, str], float]:
    """Pairs of methods that the truth tells apart, better one first: 1 where the measure agrees, 0 else, .5 tied."""
    names = [base_method_name(name.removeprefix("low.")) for name in court.summary if name.startswith("low.")]
    values = {name: value for name in names if (value := _method_value(faithful, measure, name)) is not None}
    found: dict[tuple[str, str], float] = {}
    for one, other in (pair for each in combinations(values, 2) for pair in (each, each[::-1])):
        low, high = _method_value(court, "low", one), _method_value(court, "high", other)
        if low is not None and high is not None and low > high:
            ahead = FAITHFULNESS_MEASURES[measure].sign * (values[one] - values[other])
            found[one, other] = 0.5 if ahead == 0 else float(ahead > 0)
    return found
