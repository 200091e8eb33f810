"""How many texts a verdict needs under the removals and the null of an audit, and under those it had before.

Run `python -m benchmarks.texts_needed MODEL DATA [--texts N]`; DATA is a CSV file with a column `text`. On the same
texts and scores it reads comprehensiveness, sufficiency and decision flips of raw attention, input x gradient,
integrated gradients and LIME, under both ways of deletion, and compares each with

- "before": ERASER's shares of the words, against the mean of three independent random orders;
- "steps": the numbers of words that an audit removes, against the same kind of null;
- "now": these numbers, against the exact expectation over all orders in texts of at most eight words and two random
  orders with their reverses in longer ones.

The texts that a one-sided test at .025 needs to see a gain with even odds are (1.96 sd / mean)^2, from the mean and
the standard deviation over texts of the gain over the null. Gains of less than one standard error are left out.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.method import Baseline, example_seeds, feature_counts, feature_index
from heedful.attributions.registry import list_methods, method_for_words
from heedful.audits.best_explanation import word_erasure
from heedful.audits.random_orders import random_erasure
from heedful.explainer import Explainer, load, word_scores
from heedful.measures.erasure import AOPC_FRACTIONS
from heedful.seeding import random_permutations
from heedful.trials.faithfulness import ErasureEvaluator
from heedful.types import Batch, Example, Method

METHODS = ("raw-attention", "input-x-gradient", "integrated-gradients", "lime")
WAYS: tuple[Baseline, ...] = ("delete", "mask")
MEASURES = {"comprehensiveness": 1.0, "sufficiency": -1.0, "flip": -1.0}
"""Each with the sign of a better value."""
DESIGNS = ("before", "steps", "now")
ORDERS = 3
BATCH = 16
QUANTILE = 1.96


def word_rows(method: Method, explainer: Explainer, batch: Batch, target: Tensor) -> Tensor:
    """The scores of the words of a batch `[batch word]`."""
    return word_scores(method, method(explainer.model, batch, target), batch).scores.double()


def independent_orders(batch: Batch, seed: int) -> Tensor:
    """Scores `[order batch word]` of independent random orders."""
    words = feature_counts(feature_index(batch, "word"))
    support = torch.arange(max(1, int(words.max()))) < words.unsqueeze(1)
    return (
        random_permutations(example_seeds("independent", seed, batch), ORDERS, support)
        .argsort(2)
        .double()
        .transpose(0, 1)
    )


def read_measures(
    evaluator: ErasureEvaluator, explainer: Explainer, batch: Batch, target: Tensor, scores: Tensor
) -> dict[str, Tensor]:
    """Each measure `[order batch]` of the orders of these scores."""
    outputs = evaluator(explainer.model, batch, target, scores)
    return {name: getattr(outputs, name).reshape(len(scores), len(batch)) for name in MEASURES}


def gains(explainer: Explainer, methods: Sequence[Method], batch: Batch, seed: int) -> list[dict[str, object]]:
    """A row per text, method, way, measure and design with the gain over random orders."""
    with torch.no_grad():
        target = explainer.model(batch).logits.argmax(1)
    scores = torch.stack([word_rows(method, explainer, batch, target) for method in methods])
    rows: list[dict[str, object]] = []
    for way in WAYS:
        steps = word_erasure(way, seed)
        bins = ErasureEvaluator(
            way, steps=None, samples=0, seed=seed, feature="word", quantized=False, bins=AOPC_FRACTIONS
        )
        values: dict[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = {}
        for design, evaluator in (("before", bins), ("steps", steps)):
            read = read_measures(
                evaluator, explainer, batch, target, torch.cat((scores, independent_orders(batch, seed)))
            )
            ours = {name: value[: len(scores)] for name, value in read.items()}
            values[design] = ours, {name: value[len(scores) :].mean(0) for name, value in read.items()}
        null = random_erasure(explainer.model, batch, target, way, seed)
        values["now"] = values["steps"][0], {name: getattr(null, name) for name in MEASURES}
        for design, (reached, random) in values.items():
            for measure, sign in MEASURES.items():
                gain = sign * (reached[measure] - random[measure])
                for name, row in zip(METHODS, gain.tolist(), strict=True):
                    about = {"method": name, "way": way, "measure": measure, "design": design}
                    rows += [{**about, "gain": value} for value in row]
    return rows


def texts_needed(values: Sequence[float]) -> float:
    """Texts for even odds of a one-sided test at .025; NaN if the mean is less than one standard error above 0.

    >>> round(texts_needed([1.0, 2.0, 3.0]), 2)
    0.96
    """
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    if mean * math.sqrt(len(values)) < deviation:
        return math.nan
    return (QUANTILE * deviation / mean) ** 2


def main() -> None:
    """Print the texts needed by method, way and measure, and the median ratios to "before"."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    explainer = load(arguments.model)
    contents = pd.read_csv(arguments.data)["text"].astype(str)
    examples = [Example(str(number), (content,)) for number, content in enumerate(contents[: arguments.texts])]
    methods = [method_for_words(method, "word") for method in list_methods(METHODS)]
    rows: list[dict[str, object]] = []
    for start in range(0, len(examples), BATCH):
        batch = explainer.tokenizer(examples[start : start + BATCH])
        rows += gains(explainer, methods, batch, arguments.seed)
    needed = (
        pd.DataFrame(rows)
        .groupby(["method", "way", "measure", "design"])["gain"]
        .agg(lambda gain: texts_needed(list(gain)))
    )
    table = needed.unstack("design")[[*DESIGNS]]
    sys.stdout.write(table.round(1).to_string() + "\n")
    for design in DESIGNS[1:]:
        ratio = (table[design] / table["before"]).dropna()
        sys.stdout.write(f"{design}: median ratio to before {ratio.median():.2f} over {len(ratio)} rows\n")


if __name__ == "__main__":
    main()
