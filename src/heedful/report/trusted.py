"""Who can be trusted: methods and measures before the court that knows the truth.

A method is trusted as far as it finds the words that are known to decide; a measure as far as it ranks the truth above
what is known to be wrong, and methods as the truth does, on the same models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from heedful.core.faithfulness import MEASURES
from heedful.core.figures import Figure, Matrix
from heedful.report.content import Cell, TableView
from heedful.report.tabulating import Told, known
from heedful.trials.measuring import MEASURED, RIVALS, verdicts
from heedful.trials.truth import CHANCE, CONTROLS

FOLLOWS, PARTLY = 0.9, 0.75
"""The share of pairs in the right order from which a measure follows the truth, and from which it does so in part.
Chance has one half. The truth tells these pairs apart beyond doubt, so that a good measure has nearly all of them
right; three quarters is half way from chance to all."""
SHOWN = ("aopc_comprehensiveness", "aopc_sufficiency")


def tables(told: Sequence[Told]) -> tuple[TableView, ...]:
    """Methods by the truth and by faithfulness; measures by the truth, and by what they say of methods."""
    return _methods(told), _truth_first(told), _measures(told)


def figures(told: Sequence[Told]) -> tuple[Figure, ...]:
    """The share of telling words among the first, by method and planted corpus."""
    courts = _courts(told)
    methods = _ranked(courts)
    if not methods:
        return ()
    values = tuple(tuple(_of(court, "precision", method) for court in courts) for method in methods)
    names = tuple(court.label for court in courts)
    return (Matrix("Share of the telling words among the first", methods, names, values, (0.0, 1.0)),)


def _courts(told: Sequence[Told]) -> list[Told]:
    """Trials before the truth where the model uses the telling words at all."""
    return [each for each in told if each.trial == "truth" and each.summary.get("used")]


def plain(method: str) -> str:
    """A method's name, whatever output it explains: planted models that add are asked for their logit.

    >>> plain("lime(logit)"), plain("deep-lift(legacy)")
    ('lime', 'deep-lift(legacy)')
    """
    return method.removesuffix("(logit)")


def _of(each: Told, number: str, method: str) -> float | None:
    found = known(each, f"{number}.{method}")
    return known(each, f"{number}.{method}(logit)") if found is None else found


def _ranked(courts: Sequence[Told]) -> tuple[str, ...]:
    """All methods on trial, those that find most beyond chance first; adversarial attention and random scores last."""
    start = "precision."
    names = {
        plain(name.removeprefix(start)): None for each in courts for name in each.summary if name.startswith(start)
    }
    gains = {name: _mean(_gains(courts, name)) for name in names if name not in CONTROLS}
    # Methods without a number stand behind the others.
    ranked = sorted(gains, key=lambda name: math.inf if (gain := gains[name]) is None else -gain)
    return (*ranked, *(name for name in CONTROLS if name in names))


def _gains(courts: Sequence[Told], method: str) -> list[float]:
    """The share of what chance misses that the method finds, by corpus: 0 as random scores, 1 all telling words."""
    both = [(_of(court, "precision", method), known(court, f"precision.{CHANCE}")) for court in courts]
    return [
        (found - chance) / (1 - chance) for found, chance in both if found is not None and chance not in (None, 1.0)
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if defined else None


def _methods(told: Sequence[Told]) -> TableView:
    courts, faithful = _courts(told), [each for each in told if each.trial == "faithfulness"]
    rows: list[tuple[Cell, ...]] = []
    for method in _ranked(courts):
        tried = [court for court in courts if _of(court, "precision", method) is not None]
        gain = None if method in CONTROLS else _mean(_gains(courts, method))
        numbers = [_shown(_mean(_of(court, name, method) for court in tried)) for name in ("precision", "auc", "tau")]
        excesses = [_shown(_mean(_of(each, f"excess.{name}", method) for each in faithful)) for name in SHOWN]
        row = (method, f"{len(tried)} of {len(courts)}", *numbers, _shown(gain))
        rows.append((*row, _failures(tried, method), *excesses, _beaten(faithful, method)))
    columns = (
        "method",
        "planted corpora",
        "precision",
        "AUC",
        "tau",
        "found beyond chance",
        "no better than chance on",
    )
    measures = tuple(f"{name.replace('_', ' ').removeprefix('aopc ')} over random" for name in SHOWN)
    note = (
        "Means over planted corpora whose telling words are known and used by the model. Found beyond "
        "chance is the share of what random scores miss, which also compares methods that were tried on different "
        "corpora: 0 is no better than they, 1 is all. Beside it what "
        "faithfulness says, on all models where it was measured: how much better than random scores, and on how many "
        "measures and models beyond doubt (on each of a model's seeds)."
    )
    return TableView("Who can be trusted", (*columns, *measures, "faithfulness beyond random"), tuple(rows), note)


def _shown(value: float | None) -> Cell:
    return "" if value is None else value


def _failures(tried: Sequence[Told], method: str) -> str:
    """The corpora where the method cannot be told from random scores, by their intervals."""
    if method in CONTROLS:
        return ""
    failed = [court.corpus for court in tried if not _beats(court, method)]
    return ", ".join(failed) or "none"


def _beats(court: Told, method: str) -> bool:
    low, chance = _of(court, "low", method), known(court, f"high.{CHANCE}")
    return low is not None and chance is not None and low > chance


def _beaten(faithful: Sequence[Told], method: str) -> str:
    lows = [
        low
        for each in faithful
        for name, measure in MEASURES.items()
        if measure.against_null and (low := _of(each, f"low.{name}", method)) is not None
    ]
    return f"{sum(low > 0 for low in lows)} of {len(lows)}" if lows else ""


def _truth_first(told: Sequence[Told]) -> TableView:
    """Whether each measure ranks the truth above random scores and above adversarial attention."""
    found = {court.label: (court, verdicts(court.summary)) for court in _courts(told)}
    rows: list[tuple[Cell, ...]] = []
    for measure in MEASURED:
        above = {label: each[measure] for label, (_, each) in found.items() if measure in each}
        judged = {rival: _one_rival(above, rival) for rival in RIVALS.values()}
        if any(judged.values()):
            counts = (_texts([court for court, _ in found.values()], rival, measure) for rival in judged)
            cells = [cell for pair in zip(map(_counted, judged.values()), counts, strict=True) for cell in pair]
            rows.append((measure.replace("_", " "), *cells, _doubtful(judged), _verdict(judged)))
    columns = ("measure", "truth above random", "of texts", "truth above adversarial attention", "on texts")
    note = (
        "Measured were the truth itself, random scores, and the weights farthest from the model's attention that leave "
        "its prediction as it is, on texts whose telling words the model uses and the wrong scores do not name. A "
        "corpus counts where the 95 % interval of the mean difference is above zero; of texts, ties count half. A "
        "measure knows the truth where it ranks it above both on every corpus."
    )
    ends = ("not beyond doubt on", "verdict")
    return TableView("Does each measure rank the truth above what is wrong?", (*columns, *ends), tuple(rows), note)


def _one_rival(above: Mapping[str, Mapping[str, bool | None]], rival: str) -> dict[str, bool]:
    """By corpus, whether the truth is above this rival; corpora where that is not known are left out."""
    return {label: each for label, rivals in above.items() if (each := rivals.get(rival)) is not None}


def _counted(found: Mapping[str, bool]) -> str:
    return f"{sum(found.values())} of {len(found)}" if found else ""


def _texts(courts: Sequence[Told], rival: str, measure: str) -> str:
    """The texts of all courts where the truth is above the rival, of those where the two can be compared."""
    both = [[known(court, f"above_{rival}_{name}.{measure}") for name in ("share", "texts")] for court in courts]
    defined = [(share, texts) for share, texts in both if share is not None and texts is not None]
    right = sum(share * texts for share, texts in defined)
    return f"{right:.4g} of {sum(texts for _, texts in defined):.0f}" if defined else ""


def _doubtful(judged: Mapping[str, Mapping[str, bool]]) -> str:
    failed = [f"{label} ({rival})" for rival, found in judged.items() for label, above in found.items() if not above]
    return ", ".join(failed) or "none"


def _verdict(judged: Mapping[str, Mapping[str, bool]]) -> str:
    """In words; a rival that was met nowhere leaves the verdict open."""
    beaten = [rival for rival, found in judged.items() if found and all(found.values())]
    missing = [rival for rival, found in judged.items() if not found]
    if len(beaten) == len(judged):
        return "knows the truth"
    if beaten:
        return f"above {beaten[0]}, {missing[0]} not tried" if missing else f"only above {beaten[0]}"
    return "fails"


def _measures(told: Sequence[Told]) -> TableView:
    rows: list[tuple[Cell, ...]] = []
    both = [(court, each) for court in _courts(told) for each in told if _same(court, each)]
    for name in MEASURES:
        found = {court.label: pairs for court, each in both if (pairs := ordered(name, court, each))}
        if found:
            rows.append((name.replace("_", " "), *_judged(found)))
    columns = ("measure", "planted corpora", "pairs told apart", "in the right order", "method above random")
    note = (
        "Pairs of methods, random scores among them, whose shares of telling words have intervals that do not touch: "
        "how many of them the mean of the measure puts in the same order, ties counting half. Chance has .5. Among "
        "them are the pairs of a method with random scores. A measure follows the truth where it has at least "
        f"{FOLLOWS} right on every corpus, in part where it has {PARTLY} on the whole, else it fails."
    )
    ends = ("worst", "worst on", "verdict")
    return TableView(
        "Which measures of faithfulness rank methods as the truth does", (*columns, *ends), tuple(rows), note
    )


def _judged(found: Mapping[str, Mapping[tuple[str, str], float]]) -> tuple[Cell, ...]:
    everything = [(pair, right) for pairs in found.values() for pair, right in pairs.items()]
    share = statistics.fmean(right for _, right in everything)
    null = _mean(right for pair, right in everything if CHANCE in pair)
    shares = {label: statistics.fmean(pairs.values()) for label, pairs in found.items()}
    worst = min(shares, key=lambda label: shares[label])
    verdict = "follows the truth" if shares[worst] >= FOLLOWS else "in part" if share >= PARTLY else "fails"
    return len(found), len(everything), share, _shown(null), shares[worst], worst, verdict


def _same(court: Told, each: Told) -> bool:
    """Whether both are about the same model."""
    if each.trial != "faithfulness":
        return False
    return (court.label, court.encoder, court.attention) == (each.label, each.encoder, each.attention)


def ordered(measure: str, court: Told, faithful: Told) -> dict[tuple[str, str], float]:
    """Pairs of methods that the truth tells apart, better one first: 1 where the measure agrees, 0 else, .5 tied."""
    names = [plain(name.removeprefix("low.")) for name in court.summary if name.startswith("low.")]
    values = {name: value for name in names if (value := _of(faithful, measure, name)) is not None}
    found: dict[tuple[str, str], float] = {}
    for one, other in (pair for each in combinations(values, 2) for pair in (each, each[::-1])):
        low, high = _of(court, "low", one), _of(court, "high", other)
        if low is not None and high is not None and low > high:
            ahead = MEASURES[measure].sign * (values[one] - values[other])
            found[one, other] = 0.5 if ahead == 0 else float(ahead > 0)
    return found
