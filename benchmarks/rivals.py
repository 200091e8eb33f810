"""The same scores judged by heedful, by ICE and by normalized AOPC: time, verdicts, and what makes them differ.

Run `python -m benchmarks.rivals FOLDER MODEL DATA [--ice DIR]` on a machine that does nothing else; DATA is a CSV file
with a column `text`. An audit explains and judges 28 texts. Two rivals then judge the same scores of the same words:

- ICE (Basu and Chakraborty 2026), the package `ice-faithfulness`, under one operator at a time and under its default,
  the mean of two. Every token of a word gets the score of the word.
- Normalized AOPC (Edin et al. 2025), by its definition: the mean drop of the output while all words are removed one by
  one, between the lowest (0) and the highest (1) that any order reaches. The extremes are exact for at most
  `EXACT_WORDS` words and come from a beam search otherwise.

After that, one property of ICE after the other is exchanged for that of an audit, in an implementation of its own that
first has to reproduce ICE. Everything is kept in FOLDER, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import pandas as pd
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.modeling_outputs import SequenceClassifierOutput

from heedful.audits.audit_result import Audit
from heedful.audits.schedule import AuditOptions, audit
from heedful.report.text_table import read_text_table

METHODS = ("raw-attention", "input-x-gradient", "integrated-gradients", "lime")
JUDGED = (*METHODS, "random")
TEXTS, MINUTES = 28, 30
KEPT_SHARE, PERMUTATIONS = 0.2, 50
"""Those of the quick start of ICE."""
DRAWS = 200
"""Random sets per text where ICE's number is exchanged; all sets if there are no more."""
EXACT_WORDS, BEAM = 8, 5
BATCH = 64
EQUAL = 1e-6
"""Outputs that differ by less are equal: the same input in another batch."""
SMALL_RANGE, LARGEST = 0.05, 2.0
"""ICE's normalized score is 0 where the output of the text is closer to that of its baseline, and is clipped."""

Way = Literal["delete", "mask", "retrieval"]
Operators = Literal["delete", "mask", "retrieval", "default"]
Floats = NDArray[np.float64]
Rows = Sequence[Sequence[int]]
ValueT = TypeVar("ValueT")


@dataclass
class Cost:
    """What a measurement took: seconds of the processor, and `passes` calls of the network with `rows` texts in all."""

    seconds: float = 0.0
    passes: int = 0
    rows: int = 0


@dataclass(frozen=True)
class ScoredText:
    """A text as the network reads it.

    Args:
        ids: with special tokens.
        words: the positions in `ids` of the tokens of each word.
        scores: of each word, by method.
    """

    ids: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]
    scores: Mapping[str, tuple[float, ...]]

    def token_scores(self, method: str) -> Floats:
        """The score of a word at each of its tokens, and nothing lower at special tokens."""
        scores = np.full(len(self.ids), -math.inf)
        for positions, score in zip(self.words, self.scores[method], strict=True):
            scores[list(positions)] = score
        return scores


@dataclass(frozen=True)
class IceResult:
    """What ICE says of one method.

    Args:
        significant: texts on which its randomization test rejects (Benjamini-Hochberg).
        outputs: of each text, of the text that it keeps, and of ICE's baseline; with several operators of the first.
    """

    win_rates: list[float]
    significant: int
    outputs: list[tuple[float, float, float]]


@dataclass(frozen=True)
class Variant:
    """How a method is compared with random choices.

    Args:
        unit: what is kept or removed.
        measure: what is read: the text that has only the chosen units, or the one that has all others; `steps` is the
            mean over the sizes of which an audit takes the mean, with random orders as the null.
        normalized: as ICE does, to the range between the text and a baseline.
        ties: what an equal output counts.
        special: whether the retrieved tokens also replace special tokens.
        fills: retrieved texts over which the output is averaged.
    """

    name: str
    way: Way = "delete"
    unit: Literal["token", "word"] = "token"
    measure: Literal["keep", "remove", "steps"] = "keep"
    share: float = KEPT_SHARE
    draws: int = PERMUTATIONS
    normalized: bool = True
    ties: float = 0.0
    special: bool = True
    fills: int = 1


def variants() -> Iterator[Variant]:
    """From ICE to an audit by one change at a time, then the shares of words, then masks and infill."""
    ice = Variant("as ICE: keep 20 % of tokens")
    yield ice
    exact = replace(ice, name=f"+ {DRAWS} random sets, or all", draws=DRAWS)
    yield exact
    ties = replace(exact, name="+ an equal output is half a win", ties=0.5)
    yield ties
    plain = replace(ties, name="+ probability, not normalized", normalized=False)
    yield plain
    words = replace(plain, name="+ words, not tokens", unit="word")
    yield words
    removed = replace(words, name="+ remove, not keep", measure="remove")
    yield removed
    yield replace(removed, name="+ all steps to half of the words", measure="steps")
    for share in (0.1, 0.3, 0.5):
        yield replace(words, name=f"keep {share:.0%} of words", share=share)
        yield replace(removed, name=f"remove {share:.0%} of words", share=share)
    mask = replace(exact, name="mask as ICE", way="mask")
    yield mask
    yield replace(mask, name="mask, not normalized", normalized=False)
    yield replace(mask, name="mask, not normalized, remove words", normalized=False, unit="word", measure="remove")
    retrieval = replace(ties, name="retrieval, not normalized", way="retrieval", normalized=False)
    yield retrieval
    special = replace(retrieval, name="retrieval, special tokens stay", special=False)
    yield special
    yield replace(special, name="retrieval, they stay, 3 fills, remove words", fills=3, unit="word", measure="remove")


class Judge:
    """The network, one thread, with the texts that replace others."""

    def __init__(self, model: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.network: nn.Module = AutoModelForSequenceClassification.from_pretrained(model).eval()
        self.special = {int(token) for token in self.tokenizer.all_special_ids}

    def outputs(self, rows: Rows) -> Floats:
        """Class probabilities `[row class]`; rows of about the same length are read together."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        results: dict[int, Floats] = {}
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            length = max(len(rows[index]) for index in part)
            padded = [[*rows[index], *[self.tokenizer.pad_token_id] * (length - len(rows[index]))] for index in part]
            real = [[1] * len(rows[index]) + [0] * (length - len(rows[index])) for index in part]
            with torch.no_grad():
                logits = self.network(input_ids=torch.tensor(padded), attention_mask=torch.tensor(real)).logits
            results |= dict(zip(part, logits.double().softmax(-1).numpy(), strict=True))
        return np.stack([results[index] for index in range(len(rows))])

    def target(self, text: ScoredText) -> int:
        """The predicted class."""
        return int(self.outputs([text.ids])[0].argmax())

    def without(self, text: ScoredText, removed: set[int], way: Way) -> list[int]:
        """The text without the tokens at some positions."""
        if way == "delete":
            return [token for position, token in enumerate(text.ids) if position not in removed]
        mask = self.tokenizer.mask_token_id
        return [mask if position in removed else token for position, token in enumerate(text.ids)]


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """Time and calls of any classifier of transformers, also of one that another package calls."""
    cost, start = Cost(), time.process_time()

    def count(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if isinstance(output, SequenceClassifierOutput) and isinstance(output.logits, Tensor):
            cost.passes += 1
            cost.rows += len(output.logits)

    handle = nn.modules.module.register_module_forward_hook(count)
    try:
        yield cost
    finally:
        handle.remove()
        cost.seconds = time.process_time() - start


def kept(path: Path, compute: Callable[[], ValueT]) -> tuple[ValueT, Cost]:
    """A JSON value that is computed only if its file does not exist, and what that took."""
    if not path.is_file():
        with measured() as cost:
            value = compute()
        path.write_text(json.dumps({"value": value, "cost": asdict(cost)}, indent=1), encoding="utf-8")
    stored = json.loads(path.read_text(encoding="utf-8"))
    return stored["value"], Cost(**stored["cost"])


def run_audit(folder: Path, model: str, data: str) -> tuple[Audit, Cost]:
    """The audit whose scores everything rests on."""
    options = AuditOptions(MINUTES, METHODS, texts=TEXTS, workers=1, only_methods=True)

    def compute() -> int:
        return audit(
            model, data, workspace=folder / "workspace", options=options, out=folder / "audit"
        ).data.texts  # the pages hold everything else

    _, cost = kept(folder / "audit-cost.json", compute)
    return Audit.from_json((folder / "audit" / "audit.json").read_text(encoding="utf-8")), cost


def read_texts(folder: Path, judge: Judge, data: str) -> list[ScoredText]:
    """The audited texts with the word scores of the audit, found in the data by their tokens."""
    table = read_text_table(folder / "audit" / "texts" / "texts.parquet")
    by_pieces = {}
    for content in pd.read_csv(data)["text"].astype(str):
        ids = judge.tokenizer(content)["input_ids"]
        pieces = judge.tokenizer.convert_ids_to_tokens([token for token in ids if token not in judge.special])
        by_pieces[tuple(piece.removeprefix("##") for piece in pieces)] = tuple(ids)
    texts = []
    for row in table.texts:
        ids = by_pieces[row.tokens]
        positions = [position for position, token in enumerate(ids) if token not in judge.special]
        words = tuple(tuple(positions[token] for token in group) for group in row.word_groups)
        scores = {
            column.name: tuple(row.pool(cell.weights, column.pooling).tolist())
            for column, cell in zip(table.rows, row.rows, strict=True)
            if cell is not None and column.name in JUDGED
        }
        texts.append(ScoredText(ids, words, scores))
    return texts


def import_ice(folder: Path | None) -> ModuleType:
    """The package ICE; the process ends with the command that installs it if it is missing."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("ice")
    except ImportError:
        sys.exit("ICE is missing: pip install --no-deps --target DIR ice-faithfulness, and give --ice DIR")


class GivenScores:
    """An extractor of ICE that returns scores that exist."""

    def __init__(self, texts: Sequence[ScoredText], method: str) -> None:
        self.scores = {text.ids: torch.from_numpy(text.token_scores(method)) for text in texts}

    def get_importance_scores(self, input_ids: Tensor, attention_mask: Tensor, target_class: int) -> Tensor:
        """One score per token of a text that has been scored."""
        return self.scores[tuple(input_ids.flatten().tolist())]


def run_ice(
    ice: ModuleType, judge: Judge, texts: Sequence[ScoredText], method: str, operators: Operators
) -> dict[str, Any]:
    """ICE on one method; the retrieved tokens come from the same texts."""
    config = ice.ICEConfig(k_values=[KEPT_SHARE], n_permutations=PERMUTATIONS, device="cpu")
    evaluator = ice.ICEEvaluator(judge.network, judge.tokenizer, config)
    if operators != "default":
        retrieval = importlib.import_module("ice.retrieval_operator").RetrievalInfillOperator
        kinds = {"delete": ice.DeletionOperator, "mask": ice.MaskOperator, "retrieval": retrieval}
        evaluator.operators = [kinds[operators](judge.tokenizer)]
    rows = [{"input_ids": torch.tensor(text.ids), "attention_mask": torch.ones(len(text.ids)).long()} for text in texts]
    with contextlib.redirect_stdout(io.StringIO()):
        result = evaluator.evaluate_dataset(rows, GivenScores(texts, method), KEPT_SHARE, show_progress=False)
    first = [row["per_operator_suf"][0] for row in result.example_results]
    names = ("original_score", "intervened_score", "baseline_score")
    return asdict(
        IceResult(
            [float(row["win_rate"]) for row in result.example_results],
            int(result.sufficiency_stats["n_significant_fdr"]),
            [(float(row[names[0]]), float(row[names[1]]), float(row[names[2]])) for row in first],
        )
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and percentile bootstrap over texts, the kind that ICE uses for its scores."""
    array, rng = np.asarray(values), default_rng(0)
    means = array[rng.integers(len(array), size=(2000, len(array)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(array.mean()), float(low), float(high)


class Comparison:
    """One text under a variant: what is chosen, what it is compared with, and the outputs of both."""

    def __init__(
        self, judge: Judge, texts: Sequence[ScoredText], number: int, variant: Variant, rng: Generator
    ) -> None:
        self.judge, self.text, self.variant, self.rng = judge, texts[number], variant, rng
        self.target = judge.target(self.text)
        others = itertools.chain.from_iterable(text.ids for index, text in enumerate(texts) if index != number)
        self.pool = [token for token in others if token not in judge.special]
        tokens = [(position,) for positions in self.text.words for position in positions]
        self.units = list(self.text.words) if variant.unit == "word" else tokens
        self.size = max(1, int(variant.share * len(self.units)))

    def win_rates(self) -> dict[str, float]:
        """Of every method: how many random choices it beats."""
        orders = {method: self._order(method) for method in JUDGED}
        values = self._values([*orders.values(), *self._random_orders()])
        own, null = values[: len(orders)], values[len(orders) :]
        wins = (own[:, None] > null + EQUAL) + self.variant.ties * (abs(own[:, None] - null) <= EQUAL)
        return dict(zip(orders, wins.mean(1).tolist(), strict=True))

    def _order(self, method: str) -> list[int]:
        scores = self.text.token_scores(method)
        unit_scores = [scores[unit[0]] for unit in self.units]
        return sorted(range(len(self.units)), key=lambda unit: -unit_scores[unit])

    def _random_orders(self) -> list[list[int]]:
        """Random orders; all sets of the size where these are few."""
        indices = range(len(self.units))
        number = math.comb(len(indices), self.size)
        if self.variant.measure != "steps" and self.variant.draws == DRAWS and number <= DRAWS:
            return [
                [*chosen, *sorted(set(indices) - set(chosen))] for chosen in itertools.combinations(indices, self.size)
            ]
        return [self.rng.permutation(len(indices)).tolist() for _ in range(self.variant.draws)]

    def _values(self, orders: Sequence[Sequence[int]]) -> Floats:
        """What each order achieves; more is better."""
        steps, half = [self.size], math.ceil(len(self.units) / 2)
        if self.variant.measure == "steps":
            steps = sorted({round(step) for step in np.linspace(1, half, min(5, half))})
        sets = [frozenset(order[:size]) for order in orders for size in steps]
        deterministic = self.variant.way != "retrieval"
        distinct = list(dict.fromkeys(sets)) if deterministic else sets
        outputs = np.zeros(len(distinct))
        for _ in range(self.variant.fills):
            rows = [self._row(chosen) for chosen in distinct]
            outputs += self.judge.outputs(rows)[:, self.target] / self.variant.fills
        found = dict(zip(distinct, outputs, strict=True))
        read = np.array([found[chosen] for chosen in sets]) if deterministic else outputs
        if self.variant.normalized:
            read = self._normalize(read)
        values: Floats = (read if self.variant.measure == "keep" else -read).reshape(len(orders), -1).mean(1)
        return values

    def _row(self, chosen: frozenset[int]) -> list[int]:
        positions = {position for unit in chosen for position in self.units[unit]}
        everything = {position for unit in self.units for position in unit}
        removed = everything - positions if self.variant.measure == "keep" else positions
        if self.variant.way != "retrieval":
            return self.judge.without(self.text, removed, self.variant.way)
        if self.variant.special and self.variant.measure == "keep":
            removed |= set(range(len(self.text.ids))) - everything
        row = list(self.text.ids)
        drawn = self.rng.choice(self.pool, size=len(removed), replace=len(self.pool) < len(removed)).tolist()
        for position, token in zip(sorted(removed), drawn, strict=True):
            row[position] = token
        return row

    def _normalize(self, outputs: Floats) -> Floats:
        """ICE's normalized score; the baseline is the empty text, or with masks a text of five of them."""
        masks = [self.judge.tokenizer.mask_token_id] * (5 if self.variant.way == "mask" else 0)
        empty = [self.text.ids[0], *masks, self.text.ids[-1]]
        original, baseline = self.judge.outputs([self.text.ids, empty])[:, self.target]
        if abs(original - baseline) < SMALL_RANGE:
            return np.zeros_like(outputs)
        clipped: Floats = ((outputs - baseline) / (original - baseline)).clip(-LARGEST, LARGEST)
        return clipped


def run_variant(judge: Judge, texts: Sequence[ScoredText], variant: Variant) -> dict[str, list[float]]:
    """The win rates of every method on every text."""
    rng = default_rng(0)
    rows = [Comparison(judge, texts, number, variant, rng).win_rates() for number in range(len(texts))]
    return {method: [row[method] for row in rows] for method in JUDGED}


class Removal:
    """What is left of the output when words of a text are removed; equal sets are read once."""

    def __init__(self, judge: Judge, text: ScoredText, way: Way) -> None:
        self.judge, self.text, self.way = judge, text, way
        self.target, self.words = judge.target(text), frozenset(range(len(text.words)))
        self.output = float(judge.outputs([text.ids])[0, self.target])
        self.drops: dict[frozenset[int], float] = {}

    def read(self, sets: Sequence[frozenset[int]]) -> list[float]:
        """By how much the output drops without each set of words."""
        new = [removed for removed in dict.fromkeys(sets) if removed not in self.drops]
        if new:
            positions = [{position for word in removed for position in self.text.words[word]} for removed in new]
            rows = [self.judge.without(self.text, removed, self.way) for removed in positions]
            self.drops |= zip(new, self.output - self.judge.outputs(rows)[:, self.target], strict=True)
        return [float(self.drops[removed]) for removed in sets]

    def aopc(self, method: str) -> float:
        """The mean drop while words are removed from the highest score to the lowest."""
        scores = self.text.scores[method]
        order = sorted(self.words, key=lambda word: -scores[word])
        return float(np.mean(self.read([frozenset(order[: size + 1]) for size in range(len(order))])))

    def bound(self, sign: int) -> float:
        """The highest mean drop of any order, or with -1 the lowest; exact if no set is discarded."""
        width = 2 ** len(self.words) if len(self.words) <= EXACT_WORDS else BEAM
        beam = {frozenset[int](): 0.0}
        for _ in self.words:
            grown = [(chosen | {word}, total) for chosen, total in beam.items() for word in self.words - chosen]
            following: dict[frozenset[int], float] = {}
            for (chosen, total), drop in zip(grown, self.read([chosen for chosen, _ in grown]), strict=True):
                following[chosen] = max(following.get(chosen, -math.inf), total + sign * drop)
            beam = dict(sorted(following.items(), key=lambda item: -item[1])[:width])
        return sign * max(beam.values()) / len(self.words)


def run_aopc(judge: Judge, texts: Sequence[ScoredText], way: Way) -> dict[str, list[float]]:
    """Bounds and the AOPC of every method on every text."""
    columns: dict[str, list[float]] = {name: [] for name in ("low", "high", *JUDGED)}
    for text in texts:
        removal = Removal(judge, text, way)
        columns["low"].append(removal.bound(-1))
        columns["high"].append(removal.bound(1))
        for method in JUDGED:
            columns[method].append(removal.aopc(method))
    return columns


def normalize(columns: Mapping[str, Sequence[float]], method: str) -> list[float]:
    """Normalized AOPC of each text."""
    low, high, values = (np.asarray(columns[name]) for name in ("low", "high", method))
    normalized: list[float] = ((values - low) / (high - low)).tolist()
    return normalized


def say(line: str = "") -> None:
    """A line on the standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_cost(name: str, cost: Cost) -> None:
    """What a measurement took."""
    say(f"{name}: {cost.seconds:.0f} s, {cost.passes} passes with {cost.rows} texts")


def in_percent(values: Sequence[float]) -> str:
    """A mean with its interval."""
    mean, low, high = interval(values)
    return f"{mean:.0%} ({low:.0%} to {high:.0%})"


def show_audit(result: Audit, cost: Cost) -> None:
    """Shares of the achievable, in all and by way of removal, with verdict and decision."""
    say_cost(f"heedful, {result.data.texts} texts, explanations included", cost)
    for method in result.methods:
        if method.name in JUDGED:
            share = f"{method.achievable:.0%} ({method.achievable_low:.0%} to {method.achievable_high:.0%})"
            ways = ", ".join(f"{entry.share.subset} {entry.share.value:.0%}" for entry in method.by_way)
            decision = method.decision.value if method.decision else "control"
            verdict = f"faithful: {method.answer('faithful').verdict.value}, tier {method.tier}, {decision}"
            say(f"  {method.name:22}{share:24}{ways}; {verdict}")


def show_ice(folder: Path, ice: ModuleType, judge: Judge, texts: Sequence[ScoredText]) -> None:
    """Win rates under every operator. The package gives no verdict; an interval beyond 50 % is read as one."""
    for operators in get_args(Operators):
        total = Cost()
        lines = []
        for method in JUDGED:
            path = folder / f"ice-{operators}-{method}.json"
            stored, cost = kept(path, partial(run_ice, ice, judge, texts, method, operators))
            total = Cost(total.seconds + cost.seconds, total.passes + cost.passes, total.rows + cost.rows)
            result = IceResult(**stored)
            _, low, high = interval(result.win_rates)
            verdict = "better than random" if low > 0.5 else "worse than random" if high < 0.5 else "undecided"
            ranges = np.array([original - baseline for original, _, baseline in result.outputs])
            lines.append(
                f"  {method:22}{in_percent(result.win_rates):22}{verdict}; {result.significant} texts significant; "
                f"normalized score 0 by rule on {(abs(ranges) < SMALL_RANGE).sum()} texts, reversed on "
                f"{(ranges <= -SMALL_RANGE).sum()}"
            )
        say_cost(f"ICE, {operators}", total)
        for line in lines:
            say(line)


def show_aopc(folder: Path, judge: Judge, texts: Sequence[ScoredText]) -> None:
    """Normalized and plain AOPC; words are masked, as in the paper."""
    columns, cost = kept(folder / "aopc-mask.json", partial(run_aopc, judge, texts, "mask"))
    say_cost("normalized AOPC, mask", cost)
    for method in JUDGED:
        values = normalize(columns, method)
        beyond = sum(value > 1 or value < 0 for value in values)
        say(f"  {method:22}{in_percent(values):22}plain {np.mean(columns[method]):.3f}; beyond 0 to 1: {beyond}")


def show_variants(folder: Path, judge: Judge, texts: Sequence[ScoredText]) -> None:
    """A line per variant with the win rate of every method."""
    say(f"{'win rate':46}" + "".join(f"{method:>22}" for method in JUDGED))
    for number, variant in enumerate(variants()):
        path = folder / f"variant-{number}.json"
        rates, cost = kept(path, partial(run_variant, judge, texts, variant))
        cells = "".join(f"{in_percent(rates[method]):>22}" for method in JUDGED)
        say(f"{variant.name:46}{cells}  {cost.seconds:.0f} s")


def main(arguments: Sequence[str]) -> None:
    """Everything, in the order in which it rests on each other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals")
    parser.add_argument("folder", type=Path, help="where everything is kept")
    parser.add_argument("model", help="model folder with its tokenizer")
    parser.add_argument("data", help="CSV file with a column text")
    parser.add_argument("--ice", type=Path, help="folder in which ice-faithfulness is installed")
    options = parser.parse_args(arguments)
    ice = import_ice(options.ice)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    result, cost = run_audit(options.folder, options.model, options.data)
    judge = Judge(options.model)
    texts = read_texts(options.folder, judge, options.data)
    say(f"{len(texts)} texts of {np.mean([len(text.words) for text in texts]):.1f} words")
    show_audit(result, cost)
    show_ice(options.folder, ice, judge, texts)
    show_aopc(options.folder, judge, texts)
    show_variants(options.folder, judge, texts)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
