"""Banks of maps: what a teacher can show of a batch before anything is chosen or mixed, `[batch map unit]`.

The heads of the teacher, one map each; any attribution method, one map; the layers of its integrated gradients. A bank
is frozen and the teacher too, so that the maps of an example are computed once, whoever learns to mix them later.

What a frozen teacher says to a class: who learns from which examples, and the maps and answers kept for them.

Students simulate their teacher on few examples (`Classroom.size`), drawn anew for each seed or once for all as in the
paper. What early stopping sees and what an explainer is trained on are different examples, unless the paper's shared
dev split is asked for. The teacher is asked once about each example (`Maps`); students look its words up.

Explanations that teach: how a teacher turns an example into a distribution e_T over its units.

Nothing (`Unexplained`), the scores of any attribution method (`Static`), heads mixed in a fixed way (`Mixed`) or as a
ridge regression on leave-one-out effects says (`Ridged`, the cheap rival), or a mix that is itself trained (`Learned`,
SMaT). All are softmax(sum_h lambda_h map_h / temperature) over a support: the words, or all real units as in the paper.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions import head_mix
from heedful.attributions.attention import index_slice
from heedful.attributions.head_mix import MixNormalizer, fit_ridge_mix
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.perturbation import LeaveOneOut
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.hypergradient import HypergradientMethod, check_hypergradient_method
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.types import Batch, Example, HeadTrace, Method, Model, Split, Task, UserError, read_heads


@dataclass(frozen=True)
class MapsAndLogits:
    """The maps of a batch `[batch map unit]` and the logits that the model gave `[batch output]`."""

    maps: Tensor
    logits: Tensor


class MapSource(ABC):
    """Maps of a model, none of them trained."""

    @abstractmethod
    def compute_maps(self, model: Model, batch: Batch) -> MapsAndLogits:
        """The maps of a batch, and the model's answers to it."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """A word or two for people."""

    @property
    def special_tokens(self) -> bool:
        """Whether the maps say something of special symbols too; attribution methods leave those out."""
        return False


@dataclass(frozen=True)
class HeadMaps(MapSource):
    """Mean pre-softmax scores of each attention head, layer by layer.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes all.
    """

    layer: int | None = None

    def compute_maps(self, model: Model, batch: Batch) -> MapsAndLogits:
        """One map per head, without a gradient."""
        with torch.no_grad():
            heads = read_heads(model, batch)
        return MapsAndLogits(self.select_maps(heads), heads.logits)

    def select_maps(self, heads: HeadTrace) -> Tensor:
        """The maps of the layer that counts, `[batch map unit]`."""
        layers = heads.scores.shape[1]
        return heads.scores[:, index_slice(self.layer, layers, "layer")].flatten(1, 2)

    @property
    def display_name(self) -> str:
        if self.layer is None:
            return "attention, all layers"
        return "attention, last layer" if self.layer == -1 else f"attention, layer {self.layer}"

    @property
    def special_tokens(self) -> bool:
        return True


@dataclass(frozen=True)
class MethodMaps(MapSource):
    """The scores of one attribution method for the predicted output: a bank of one map."""

    method: Method

    def compute_maps(self, model: Model, batch: Batch) -> MapsAndLogits:
        """The method's scores, zero off the scored units."""
        logits, target = _logits_and_target(model, batch)
        return MapsAndLogits(self.method(model, batch, target).scores.unsqueeze(1), logits)

    @property
    def display_name(self) -> str:
        return type(self.method).__name__


@dataclass(frozen=True)
class LayerMaps(MapSource):
    """Integrated gradients of the predicted output at the input of each layer, one map per layer.

    Args:
        mix: how they are computed; its own phi and temperature do not count.
    """

    mix: LayerMix = LayerMix()

    def compute_maps(self, model: Model, batch: Batch) -> MapsAndLogits:
        """Signed shares, zero off the units that the mix scores."""
        logits, target = _logits_and_target(model, batch)
        return MapsAndLogits(self.mix.maps(model, batch, target)[0], logits)

    @property
    def display_name(self) -> str:
        return "integrated gradients of the layers"

    @property
    def special_tokens(self) -> bool:
        return self.mix.special_tokens


def _logits_and_target(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits, and the output that is predicted `[batch]`."""
    with torch.no_grad():
        logits = read_heads(model, batch).logits
    return logits, model.task.probabilities(logits).argmax(-1)


TEST_SPLIT_SHARES = (0.7, 0.1)
"""Shares of a test split that become the pupils' pool and dev part; the rest is their test (the paper's IMDB)."""


@dataclass(frozen=True)
class ExampleSubset:
    """Some examples of a teacher's corpus.

    Args:
        limit: at most this many, drawn by `draw`; None takes all in the corpus's order.
        unseen: all splits are cut from the corpus's test split, which the teacher has never seen.
    """

    split: Split
    limit: int | None = None
    seed: int = 0
    from_test_split: bool = False

    def select_examples(self, trained: LoadedModel) -> tuple[Example, ...]:
        """The examples, those that the teacher's preprocessing keeps."""
        whole = (
            _divide_test_split(trained.examples("test"))[self.split]
            if self.from_test_split
            else trained.examples(self.split)
        )
        if not whole:
            raise UserError(f"the {self.split} split has no examples for a class to work with")
        return shuffle_examples(whole, self.split, self.seed)[: self.limit] if self.limit is not None else whole


@dataclass(frozen=True)
class StudentData:
    """Which examples a student learns from, is stopped by, and is examined on.

    Args:
        size: examples with the teacher's answers, and explanations, that a student learns from: its budget.
        draw: "redrawn" for each seed, or the same "fixed" ones for all seeds (the paper).
        pool: "train" draws them from the texts that the teacher learned from; "test" cuts the teacher's test split
            into the three splits of the class, so that the teacher has seen none of them.
        outer_share: share of the dev split that trains a learned explainer; the rest decides early stopping.
        shared: the whole dev split does both (the paper).
        limit: at most so many dev, and so many test, examples; None takes all.
    """

    train_size: int = 500
    sampling: Literal["redrawn", "fixed"] = "redrawn"
    source_split: Split = "train"
    explainer_share: float = 0.5
    share_dev: bool = False
    eval_limit: int | None = None

    def __post_init__(self) -> None:
        if self.train_size < 1 or (self.eval_limit is not None and self.eval_limit < 2):
            raise UserError("a classroom needs at least one example to learn from and two to be judged by")
        if self.sampling not in ("redrawn", "fixed") or self.source_split not in ("train", "test"):
            raise UserError("a classroom is drawn 'redrawn' or 'fixed', from the pool 'train' or 'test'")
        if not 0 < self.explainer_share < 1:
            raise UserError(f"outer_share must lie between 0 and 1, not {self.explainer_share}; shared=True shares all")

    def train_subset(self, seed: int) -> ExampleSubset:
        """The examples that a student of this seed learns from."""
        return self._subset("train", self.train_size, seed if self.sampling == "redrawn" else 0)

    @property
    def dev(self) -> ExampleSubset:
        """The examples held out from learning."""
        return self._subset("dev", self.eval_limit, 0)

    @property
    def test(self) -> ExampleSubset:
        """The examples that simulability is measured on."""
        return self._subset("test", self.eval_limit, 0)

    def divide_dev(self, dev: Sequence[Example]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
        """What trains an explainer, and what decides early stopping."""
        if self.share_dev:
            return tuple(dev), tuple(dev)
        if len(dev) < 2:
            raise UserError("one dev example cannot be divided: say shared=True or give more")
        order = shuffle_examples(dev, "divided", 0)
        cut = min(max(1, round(self.explainer_share * len(order))), len(order) - 1)
        return order[:cut], order[cut:]

    def _subset(self, split: Split, limit: int | None, draw: int) -> ExampleSubset:
        return ExampleSubset(split, limit, draw, from_test_split=self.source_split == "test")


def shuffle_examples(examples: Sequence[Example], purpose: str, seed: int) -> tuple[Example, ...]:
    """The examples in an order that depends on purpose, draw and their number alone."""
    generator = Generator().manual_seed(derive_seed("class", purpose, seed, len(examples)))
    return tuple(examples[place] for place in torch.randperm(len(examples), generator=generator).tolist())


def _divide_test_split(examples: Sequence[Example]) -> dict[Split, tuple[Example, ...]]:
    order = shuffle_examples(examples, "unseen", 0)
    first, second = (round(share * len(order)) for share in accumulate(TEST_SPLIT_SHARES))
    return {"train": order[:first], "dev": order[first:second], "test": order[second:]}


@dataclass(frozen=True)
class TeacherOutputs(Recipe):
    """A teacher's logits and the maps of a bank on some examples, kept flat: one row per real unit.

    Args:
        bank: None keeps the logits alone.
    """

    teacher: ModelRecipe
    subset: ExampleSubset
    map_source: MapSource | None = None

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `logits` `[example output]`, `offsets` `[example + 1]`, `scored` `[unit]`, `maps` `[unit map]`."""
        trained = self.teacher.restore(workspace)
        batch = trained.tokenizer(self.subset.select_examples(trained))
        logits: list[Tensor] = []
        maps: list[Tensor] = []
        order: list[Tensor] = []
        title = f"{'answers' if self.map_source is None else self.map_source.display_name} of the teacher"
        with workspace.progress.task(title, len(batch)) as step:
            for rows, part in inference_batches(batch, workspace.batch_size):
                shown = self._maps_and_logits(trained, part.to(workspace.device))
                order.append(rows)
                logits.append(shown.logits.detach().cpu().float())
                maps += [
                    found[:, :length].T.detach().cpu().float() for found, length in _maps_with_lengths(shown.maps, part)
                ]
                step(len(part))
        places = torch.cat(order).argsort()
        flat = torch.cat([maps[place] for place in places.tolist()])
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), batch.lengths.cumsum(0)))
        tensors = {"logits": torch.cat(logits)[places], "offsets": offsets, "scored": batch.content_mask[batch.mask]}
        notes: dict[str, Json] = {"about": dict(self.teacher.about), "maps": flat.shape[1], "examples": len(batch)}
        return Artefact(tensors | {"maps": flat}, pd.DataFrame({"uid": batch.uids}), notes)

    def _maps_and_logits(self, trained: LoadedModel, part: Batch) -> MapsAndLogits:
        if self.map_source is not None:
            return self.map_source.compute_maps(trained.model, part)
        with torch.no_grad():
            logits = read_heads(trained.model, part).logits
        return MapsAndLogits(logits.new_zeros(len(part), 0, part.mask.shape[1]), logits)


def _maps_with_lengths(maps: Tensor, part: Batch) -> list[tuple[Tensor, int]]:
    return list(zip(maps, part.lengths.tolist(), strict=True))


class TeacherLookup:
    """A teacher's words, looked up: logits and maps of any batch of the examples that it was asked about."""

    def __init__(self, artefact: Artefact) -> None:
        self._logits, self._maps = artefact.tensors["logits"], artefact.tensors["maps"]
        self._offsets, self._scored = artefact.tensors["offsets"], artefact.tensors["scored"]
        self._places = {str(uid): place for place, uid in enumerate(artefact.table["uid"])}

    @property
    def map_count(self) -> int:
        """How many maps there are for each example."""
        return self._maps.shape[1]

    def logits(self, batch: Batch) -> Tensor:
        """The teacher's logits `[batch output]`."""
        return self._logits[self._rows(batch)].to(batch.mask.device)

    def maps(self, batch: Batch) -> Tensor:
        """The maps on the batch's unit axis `[batch map unit]`, 0 on padding."""
        rows = self._rows(batch)
        starts, lengths = self._offsets[rows], self._offsets[rows + 1] - self._offsets[rows]
        mask = batch.mask.cpu()
        if not torch.equal(lengths, mask.sum(1)):
            raise UserError("student and teacher read other units of the same example: give both the same batching")
        places = starts.unsqueeze(1) + torch.arange(mask.shape[1])
        found = self._maps[places.masked_fill(~mask, 0)].masked_fill(~mask.unsqueeze(-1), 0.0)
        return found.transpose(1, 2).to(batch.mask.device)

    def all_maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Maps of all examples `[example map unit]`, which units are scored, and which are real `[example unit]`."""
        lengths = self._offsets.diff()
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        maps = torch.zeros(*mask.shape, self.map_count)
        scored = torch.zeros_like(mask)
        maps[mask], scored[mask] = self._maps, self._scored.bool()
        return maps.transpose(1, 2), scored, mask

    def _rows(self, batch: Batch) -> Tensor:
        try:
            return torch.tensor([self._places[uid] for uid in batch.uids])
        except KeyError as error:
            raise UserError(f"the teacher was never asked about example {error}") from error


def point_predictions(task: Task, logits: Tensor) -> Tensor:
    """What a model says `[batch]`: the index of its likeliest class, or its number."""
    said = task.probabilities(logits)
    return said.squeeze(-1) if task.num_classes == 1 else said.argmax(-1)


@dataclass(frozen=True)
class TeacherExplainer:
    """e_T of any batch that the teacher was asked about.

    Args:
        phi: `[map]`, before normalising; with `tempered` a last entry more, the logarithm of a second temperature.
        specials: whether special symbols may be pointed at.
    """

    teacher_lookup: TeacherLookup
    phi: Tensor
    normalizer: MixNormalizer = "sparsemax"
    temperature: float = 1.0
    special_tokens: bool = False
    learn_temperature: bool = False

    def support(self, batch: Batch) -> Tensor:
        """The units that may be pointed at `[batch unit]`."""
        return batch.mask if self.special_tokens else batch.content_mask

    def distribution_at(self, phi: Tensor, batch: Batch) -> Tensor:
        """e_T `[batch unit]` as phi would have it, differentiable in phi."""
        phi = phi.to(batch.mask.device)
        weights, extra = (phi[:-1], phi[-1].exp()) if self.learn_temperature else (phi, 1.0)
        logits = head_mix.mix_maps(self.teacher_lookup.maps(batch), weights, self.normalizer) / (
            self.temperature * extra
        )
        return head_mix.masked_softmax(logits, self.support(batch))

    def __call__(self, batch: Batch) -> Tensor:
        """e_T `[batch unit]`."""
        return self.distribution_at(self.phi, batch)

    def coefficients(self, phi: Tensor) -> Tensor:
        """The weight of each map."""
        return head_mix.mixing_weights(phi[:-1] if self.learn_temperature else phi, self.normalizer)


class TeacherExplanation(ABC):
    """A frozen way to explain; `beta` is how heavy the paper lets it weigh beside the simulation."""

    beta: ClassVar[float]

    @property
    @abstractmethod
    def map_sources(self) -> tuple[MapSource, ...]:
        """The maps of the teacher that it is made of; none where nothing is explained."""

    @abstractmethod
    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer | None:
        """e_T from the maps of its banks, in their order; None where nothing is explained."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """A few words for tables."""

    @property
    def last_layer_only(self) -> bool:
        """Whether it reads the last layer only, as the student's own explainer then does too."""
        return False


@dataclass(frozen=True)
class NoExplanation(TeacherExplanation):
    """The teacher's answers alone."""

    beta: ClassVar[float] = 0.0

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return ()

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> None:
        """Nothing."""

    @property
    def display_name(self) -> str:
        return "none"


@dataclass(frozen=True)
class MethodExplanation(TeacherExplanation):
    """softmax(scores / temperature) of an attribution method, for the output that the teacher predicts.

    The paper takes temperature .1 for gradient x input, .5 for integrated gradients and none for the gradient's norm.
    A saved `HeadMix(output="logits")` teaches in this way too.
    """

    method: Method
    temperature: float = 1.0
    beta: ClassVar[float] = 0.2

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (MethodMaps(self.method),)

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        """The method's scores as they are."""
        return TeacherExplainer(lookups[0], torch.ones(1), "none", self.temperature)

    @property
    def display_name(self) -> str:
        return type(self.method).__name__


@dataclass(frozen=True)
class AttentionExplanation(TeacherExplanation):
    """Heads mixed in a fixed way: static attention.

    Args:
        phi: before normalising, layer by layer; None is the plain mean.
        specials: special symbols may be pointed at too, as in the paper.
    """

    map_source: HeadMaps = HeadMaps()
    phi: tuple[float, ...] | None = None
    normalizer: MixNormalizer = "sparsemax"
    temperature: float = 1.0
    special_tokens: bool = False
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        head_mix.check_normalizer(self.normalizer)

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (self.map_source,)

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        """The mix."""
        phi = _initial_phi(self.phi, lookups[0].map_count)
        return TeacherExplainer(lookups[0], phi, self.normalizer, self.temperature, self.special_tokens)

    @property
    def display_name(self) -> str:
        return self.map_source.display_name if self.phi is None else f"{self.map_source.display_name}, mixed"

    @property
    def last_layer_only(self) -> bool:
        return self.map_source.layer == -1


@dataclass(frozen=True)
class RidgeExplanation(TeacherExplanation):
    """Heads mixed so that they foretell leave-one-out effects best, by ridge regression on the student's examples.

    Args:
        ridge: how strongly large coefficients are punished.
        temperature: None finds the one that makes the mix as peaked as static attention on these examples. Effects
            have a scale of their own, mostly a small one: at temperature 1 the mix would be nearly even and teach
            nothing, whatever it says.
        effects: the effects; the signed loss of the answer's logit tells words for it from words against it.
    """

    ridge: float = 1.0
    temperature: float | None = None
    effects: LeaveOneOut = LeaveOneOut("logit")
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        if self.temperature is not None:
            _check_temperature(self.temperature)
        _check_number("ridge", self.ridge)

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (HeadMaps(), MethodMaps(self.effects))

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        """The mix of the closed form; it needs no student at all."""
        maps, scored, _ = lookups[0].all_maps()
        effects = lookups[1].all_maps()[0].squeeze(1)
        phi = fit_ridge_mix(maps, effects, scored, self.ridge)
        if self.temperature is not None:
            return TeacherExplainer(lookups[0], phi, "none", self.temperature)
        even = head_mix.mix_maps(maps.double(), head_mix.uniform_phi(len(phi)), "none")
        own = head_mix.mix_maps(maps.double(), phi, "none")
        return TeacherExplainer(
            lookups[0], phi, "none", head_mix.temperature_for_peak(own, scored, head_mix.mean_peak_ratio(even, scored))
        )

    @property
    def display_name(self) -> str:
        return "attention, ridge on leave-one-out"


@dataclass(frozen=True)
class LearnedExplanation(TeacherExplanation):
    """A mix that is trained so that students learn from it (SMaT, Fernandes et al. 2022); see `Scaffolded`.

    Args:
        start: phi before training; None is the plain mean.
        rate: of AdamW, which takes one step after each of the student's.
        clip: largest norm of the hypergradient; None leaves it.
        batch: held-out examples of a step; None takes as many as the student's batches have.
        pilot: learning rate of the pilot step; None takes that of the student's own step, as the paper.
        way: how the hypergradient is computed.
        specials: special symbols may be pointed at too, as in the paper.
        tempered: a temperature is learned beside the mix.
    """

    map_source: MapSource = HeadMaps()
    normalizer: MixNormalizer = "sparsemax"
    initial_phi: tuple[float, ...] | None = None
    lr: float = 5e-4
    max_grad_norm: float | None = 5.0
    batch_size: int | None = None
    pilot_lr: float | None = None
    hypergradient_method: HypergradientMethod = "jvp"
    temperature: float = 1.0
    special_tokens: bool = False
    learn_temperature: bool = False
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        head_mix.check_normalizer(self.normalizer)
        check_hypergradient_method(self.hypergradient_method)
        _check_number("rate", self.lr)
        for name, value in (("clip", self.max_grad_norm), ("pilot", self.pilot_lr)):
            if value is not None:
                _check_number(name, value, positive=True)
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch must be 1 or more, not {self.batch_size}; None takes as many as the student's")
        if self.special_tokens and not self.map_source.special_tokens:
            raise UserError(
                f"{self.map_source.display_name} says nothing of special symbols: leave special_tokens=True out"
            )
        if isinstance(self.map_source, LayerMaps) and self.map_source.mix.special_tokens != self.special_tokens:
            raise UserError(
                "LayerMix(special_tokens=True) also replaces special symbols in the reference: say "
                "special_tokens=True here too, or at neither place"
            )

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (self.map_source,)

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        """The mix before training."""
        phi = _initial_phi(self.initial_phi, lookups[0].map_count)
        found = TeacherExplainer(lookups[0], phi, self.normalizer, self.temperature, self.special_tokens)
        # The logarithm of temperature 1: the mix starts as without one.
        return (
            replace(found, phi=torch.cat((phi, torch.zeros(1))), learn_temperature=True)
            if self.learn_temperature
            else found
        )

    @property
    def display_name(self) -> str:
        return "SMaT" if self.map_source == HeadMaps() else f"SMaT of {self.map_source.display_name}"

    @property
    def last_layer_only(self) -> bool:
        return isinstance(self.map_source, HeadMaps) and self.map_source.layer == -1


def _initial_phi(phi: tuple[float, ...] | None, count: int) -> Tensor:
    if phi is None:
        return head_mix.uniform_phi(count)
    if len(phi) != count:
        raise UserError(f"phi has {len(phi)} entries, but the teacher has {count} maps to mix")
    return torch.tensor(phi)


def _check_number(name: str, value: float, *, positive: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 if positive else value >= 0)):
        raise UserError(f"{name} must be a number {'above' if positive else 'from'} 0, not {value}")


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise UserError(f"a temperature must be above 0, not {temperature}")
