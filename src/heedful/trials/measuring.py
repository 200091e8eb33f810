"""Do measures of explanations know the truth? The planted truth itself is measured, beside scores that are wrong.

Wrong are random scores, and attention that an adversary chose. A measure that is worth anything ranks the truth above
both. Measures are those of faithfulness, and agreement: how much an explanation agrees with what other methods say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.core.bootstrap import paired_bootstrap
from heedful.core.faithfulness import MEASURES
from heedful.core.kendall import kendall_matrix
from heedful.core.types import Batch, Example, Model
from heedful.core.workspace import Workspace, derived_seed
from heedful.recipes.attributed import sampled
from heedful.recipes.subject import Trained
from heedful.recipes.training import inference_batches
from heedful.trials.comparing import compared
from heedful.trials.evidence import RESOLUTION, Probing, looked_up

TRUTH, RANDOM, ADVERSARIAL = "truth", "random", "adversarial-attention"
RIVALS = {RANDOM: "random", ADVERSARIAL: "adversarial"}
"""Explanations that are wrong, and what they are called in summaries."""
FAITHFULNESS = tuple(name for name, measure in MEASURES.items() if measure.against_null)
AGREEMENT = ("agreement", "agreement_with_attention")
MEASURED = (*FAITHFULNESS, *AGREEMENT)
"""All measures that are judged: sensitivity is not, because the truth does not move at all."""
FEWEST = 10
"""With fewer texts than this there is no interval."""
_TEXTS = 64


def sign_of(measure: str) -> int:
    """1 where higher is better, -1 where lower is; agreement is better the higher it is."""
    return MEASURES[measure].sign if measure in MEASURES else 1


def truth_table(table: pd.DataFrame, known: Mapping[str, Example]) -> pd.DataFrame:
    """The truth as a method would tell it, in the form of a table of attributions for the same texts.

    It speaks for the predicted class; a word's number is shared evenly by its pieces. Where the corpus knows no
    negative number it knows sizes only, and they speak for whatever is predicted.
    """
    signed = any(value < 0 for example in known.values() for value in example.truth or ())
    columns = (table[name].tolist() for name in ("uid", "words", "scored", "predicted"))
    scores = []
    for uid, words, scored, predicted in zip(*columns, strict=True):
        truth = np.asarray(known[uid].truth, dtype=np.float64)
        told = (truth if predicted == 1 else -truth) if signed else np.abs(truth)
        scores.append(_on_units(told, np.asarray(words), np.asarray(scored, dtype=bool)).tolist())
    return table.assign(scores=scores)


def _on_units(told: NDArray[np.float64], words: NDArray[np.int64], scored: NDArray[np.bool_]) -> NDArray[np.float64]:
    pieces = np.bincount(words[scored], minlength=len(told))
    return np.where(scored, told[np.where(scored, words, 0)] / np.maximum(pieces[np.where(scored, words, 0)], 1), 0.0)


def measured(
    trained: Trained,
    explanations: Mapping[str, pd.DataFrame],
    methods: Mapping[str, pd.DataFrame],
    workspace: Workspace,
) -> pd.DataFrame:
    """A row per text and explanation with every measure of it: `uid`, `method`, then `MEASURED`.

    Args:
        explanations: the truth and its rivals, as tables of attributions by name.
        methods: what explanations are to agree with; attention, if it is among them, is called `attention`.
    """
    faithful = _faithfulness(trained, explanations, workspace)
    return faithful.merge(_agreement(explanations, methods), on=["uid", "method"], how="left")


def _faithfulness(trained: Trained, explanations: Mapping[str, pd.DataFrame], workspace: Workspace) -> pd.DataFrame:
    texts = next(iter(explanations.values()))
    batch = sampled(trained.batch("test"), len(texts))
    tables = {name: table.set_index("uid") for name, table in explanations.items()}
    target = dict(zip(texts["uid"], texts["predicted"], strict=True))
    parts = []
    for _, some in inference_batches(batch, min(_TEXTS, workspace.batch_size)):
        part = some.to(workspace.device)
        said = torch.tensor([target[uid] for uid in part.uids], device=part.mask.device)
        parts.append(_probed(trained.model, part, said, looked_up(tables, part), tuple(explanations)))
    return pd.concat(parts, ignore_index=True)


def _probed(model: Model, batch: Batch, target: Tensor, scores: Tensor, names: Sequence[str]) -> pd.DataFrame:
    evidence = Probing()(model, batch, target, scores)
    known = {"uid": batch.uids * len(names), "method": np.repeat(np.array(names, dtype=object), len(batch))}
    return pd.DataFrame({**known, **{name: MEASURES[name].of(evidence).tolist() for name in FAITHFULNESS}})


def _agreement(explanations: Mapping[str, pd.DataFrame], methods: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The mean of Kendall's tau with the methods, sizes alone, by text and explanation; and that with attention."""
    tables = {f"explanation {name}": table for name, table in explanations.items()}
    table = compared({**tables, **methods}, kendall_matrix, absolute=True, resolution=RESOLUTION)
    across = table[table["first"].isin(list(tables)) & table["second"].isin(list(methods)) & table["defined"]]
    across = across.assign(method=across["first"].str.removeprefix("explanation "))
    everybody, alone = (each.groupby(["uid", "method"])["value"].mean() for each in (across, _attention(across)))
    return pd.DataFrame({"agreement": everybody, "agreement_with_attention": alone}).reset_index()


def _attention(across: pd.DataFrame) -> pd.DataFrame:
    return across[across["second"] == "attention"]


@dataclass(frozen=True)
class Comparison:
    """How often and by how much a measure puts the truth above a rival, over texts.

    Args:
        share: of the texts where it does so, ties counting half.
        excess: mean difference, above 0 where the truth is better whatever the measure's direction.
        low: of the 95 % interval of `excess`; undefined for fewer than ten texts, as is `high`.
    """

    texts: int
    share: float
    excess: float
    low: float
    high: float


def comparison(measure: str, truth: NDArray[np.float64], rival: NDArray[np.float64]) -> Comparison:
    """What the measure says of the truth and of a rival on the same texts; what is undefined for one is left out."""
    both = np.isfinite(truth) & np.isfinite(rival)
    better, worse = (sign_of(measure) * torch.from_numpy(each[both]) for each in (truth, rival))
    gap = better - worse
    if not len(gap):
        return Comparison(0, math.nan, math.nan, math.nan, math.nan)
    share = float(((gap > 0).double() + 0.5 * (gap == 0)).mean())
    if len(gap) < FEWEST:
        return Comparison(len(gap), share, float(gap.mean()), math.nan, math.nan)
    generator = Generator().manual_seed(derived_seed("measuring", measure))
    interval = paired_bootstrap(better, worse, generator=generator).interval
    return Comparison(len(gap), share, interval.estimate, interval.low, interval.high)


def comparisons(table: pd.DataFrame) -> Iterable[tuple[str, str, Comparison]]:
    """Rival, measure and what came out, from the rows of the truth and its rivals for texts that count.

    A text counts against a rival that does not name the telling words itself: there it is wrong.
    """
    by_method = {str(name): rows.set_index("uid") for name, rows in table.groupby("method")}
    if TRUTH not in by_method:
        return
    for rival in (name for name in RIVALS if name in by_method):
        wrong = by_method[rival][by_method[rival]["precision"] < 1]
        right = by_method[TRUTH].loc[wrong.index]
        for measure in (name for name in MEASURED if name in table.columns):
            values = (rows[measure].to_numpy(np.float64) for rows in (right, wrong))
            yield rival, measure, comparison(measure, *values)


def told(table: pd.DataFrame) -> dict[str, float]:
    """The comparisons as flat numbers: `above_random.measure` and its `_low`, `_high`, `_share` and `_texts`."""
    found: dict[str, float] = {}
    for rival, measure, each in comparisons(table):
        start = f"above_{RIVALS[rival]}"
        numbers = {"": each.excess, "_low": each.low, "_high": each.high, "_share": each.share, "_texts": each.texts}
        found |= {f"{start}{end}.{measure}": float(number) for end, number in numbers.items()}
    return found


def verdicts(summary: Mapping[str, float]) -> dict[str, dict[str, bool | None]]:
    """For each measure and rival, whether the truth is beyond doubt above it; None where there is no interval."""
    found: dict[str, dict[str, bool | None]] = {}
    for measure in MEASURED:
        for rival in RIVALS.values():
            low = summary.get(f"above_{rival}_low.{measure}")
            if low is not None:
                found.setdefault(measure, {})[rival] = None if math.isnan(low) else low > 0
    return found
