"""Teachers of student models: which examples students see, the teacher's outputs on them, and its explanations.

Students simulate a teacher on few examples. The teacher is frozen: its logits and its maps (unmixed scores of the
units, `[batch map unit]`) are computed once for each example and looked up afterwards. An explanation of the teacher is
a distribution e_T over the units of words, softmax(sum_h lambda_h map_h / temperature); in Fernandes et al. (2022)
special tokens may have weight too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions import head_mix
from heedful.attributions.attention import index_slice
from heedful.attributions.head_mix import MixNormalizer, fit_ridge_mix
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.method import method_name
from heedful.attributions.perturbation import LeaveOneOut
from heedful.capabilities import read_heads
from heedful.option_bounds import Bounds, check_options
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trainer import device_batches
from heedful.types import Batch, Example, Method, Model, Split, Task, UserError

TEST_SPLIT_SHARES = (0.7, 0.1)
"""Shares of a test split that become the students' train and dev splits; the rest is their test (the paper's IMDB)."""

Sampling = Literal["redrawn", "fixed"]
SourceSplit = Literal["train", "test"]


@dataclass(frozen=True)
class ExampleSubset:
    """Some examples of a teacher's corpus.

    Args:
        limit: at most this many, drawn by `seed`; None takes all in the corpus's order.
        from_test_split: all three splits are cut from the corpus's test split, which the teacher has never seen.
    """

    split: Split
    limit: int | None = None
    seed: int = 0
    from_test_split: bool = False

    def select_examples(self, teacher: LoadedModel) -> tuple[Example, ...]:
        """The examples, of those that the teacher's tokenization keeps."""
        if self.from_test_split:
            order = shuffle_examples(teacher.examples("test"), "unseen", 0)
            first, second = (round(share * len(order)) for share in accumulate(TEST_SPLIT_SHARES))
            examples = {"train": order[:first], "dev": order[first:second], "test": order[second:]}[self.split]
        else:
            examples = tuple(teacher.examples(self.split))
        if not examples:
            raise UserError(f"the {self.split} split has no examples for students")
        return examples if self.limit is None else shuffle_examples(examples, self.split, self.seed)[: self.limit]


def shuffle_examples(examples: Sequence[Example], purpose: str, seed: int) -> tuple[Example, ...]:
    """The examples in an order that depends on purpose, seed and their number alone."""
    generator = Generator().manual_seed(derive_seed("class", purpose, seed, len(examples)))
    return tuple(examples[index] for index in torch.randperm(len(examples), generator=generator).tolist())


@dataclass(frozen=True)
class StudentData:
    """Which examples a student is trained, stopped and tested on.

    Args:
        train_size: examples with the teacher's predictions, and explanations, that a student is trained on.
        sampling: "redrawn" for each seed, or the same "fixed" ones for all seeds (the paper).
        source_split: "train" draws them from the teacher's training split; "test" cuts the teacher's test split into
            the three splits of the student, so that the teacher has seen none of them.
        share_dev: the whole dev split trains a learned explainer and decides early stopping (the paper); else one half
            does the one, the other half the other.
        eval_limit: at most so many dev, and so many test, examples; None takes all.
    """

    train_size: Annotated[int, Bounds(1)] = 500
    sampling: Sampling = "redrawn"
    source_split: SourceSplit = "train"
    share_dev: bool = False
    eval_limit: Annotated[int, Bounds(2)] | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def subset(self, split: Split, seed: int) -> ExampleSubset:
        """The examples of a split for a student of this seed, which changes only training examples that are redrawn."""
        limit = self.train_size if split == "train" else self.eval_limit
        drawn = seed if split == "train" and self.sampling == "redrawn" else 0
        return ExampleSubset(split, limit, drawn, from_test_split=self.source_split == "test")

    def divide_dev(self, dev: Sequence[Example]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
        """What trains an explainer, and what decides early stopping."""
        if self.share_dev:
            return tuple(dev), tuple(dev)
        if len(dev) < 2:
            raise UserError("a dev split of one example cannot be divided: give more, or share_dev=True")
        order = shuffle_examples(dev, "divided", 0)
        cut = round(len(order) / 2)
        return order[:cut], order[cut:]


@dataclass(frozen=True)
class HeadMaps:
    """Mean pre-softmax scores of each attention head, layer by layer.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes all.
    """

    layer: int | None = None

    def compute_maps(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            heads = read_heads(model, batch)
        return self.select_maps(heads.scores), heads.logits

    def select_maps(self, scores: Tensor) -> Tensor:
        """The maps of the chosen layers, `[batch map unit]`, of scores `[batch layer head unit]`."""
        return scores[:, index_slice(self.layer, scores.shape[1], "layer")].flatten(1, 2)

    @property
    def display_name(self) -> str:
        if self.layer is None:
            return "attention, all layers"
        return "attention, last layer" if self.layer == -1 else f"attention, layer {self.layer}"


@dataclass(frozen=True)
class MethodMaps:
    """The scores of one attribution method for the predicted output, as one map."""

    method: Method

    def compute_maps(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, target = _logits_and_target(model, batch)
        return self.method(model, batch, target).scores.unsqueeze(1), logits

    @property
    def display_name(self) -> str:
        return type(self.method).__name__


@dataclass(frozen=True)
class LayerMaps:
    """Integrated gradients of the predicted output at the input of each layer, one map per layer.

    Args:
        mix: how they are computed; its own phi and temperature do not count.
    """

    mix: LayerMix = LayerMix()
    display_name: ClassVar[str] = "integrated gradients of the layers"

    def compute_maps(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, target = _logits_and_target(model, batch)
        return self.mix.maps(model, batch, target)[0], logits


MapSource = HeadMaps | MethodMaps | LayerMaps
"""What the maps of a model are: `compute_maps` gives those of a batch `[batch map unit]`, 0 on units that are not
scored, and the logits `[batch output]`."""


def _logits_and_target(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits, and the predicted output `[batch]`."""
    with torch.no_grad():
        logits = read_heads(model, batch).logits
    return logits, model.task.probabilities(logits).argmax(-1)


def point_predictions(task: Task, logits: Tensor) -> Tensor:
    """A model's predictions `[batch]`: the index of the likeliest class, or the number."""
    probabilities = task.probabilities(logits)
    return probabilities.squeeze(-1) if task.num_classes == 1 else probabilities.argmax(-1)


@dataclass(frozen=True)
class TeacherOutputs(Recipe):
    """A teacher's logits and maps on some examples, stored flat: one row per real unit.

    Args:
        map_source: None stores the logits alone.
    """

    kind: ClassVar[str] = "teacher outputs"

    teacher: ModelRecipe
    subset: ExampleSubset
    map_source: MapSource | None = None

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `logits` `[example output]`, `offsets` `[example + 1]`, `scored` `[unit]`, `maps` `[unit map]`."""
        teacher = self.teacher.restore(workspace)
        batch = teacher.tokenizer(self.subset.select_examples(teacher))
        logits: list[Tensor] = []
        maps: list[Tensor] = []
        order: list[Tensor] = []
        title = "logits of the teacher" if self.map_source is None else f"{self.map_source.display_name} of the teacher"
        for rows, texts in device_batches(batch, workspace, title):
            part_maps, part_logits = self._maps_and_logits(teacher.model, texts)
            order.append(rows)
            logits.append(part_logits.detach().cpu().float())
            for row, length in zip(part_maps.detach().cpu().float(), texts.lengths.tolist(), strict=True):
                maps.append(row[:, :length].T)
        positions = torch.cat(order).argsort()
        tensors = {
            "logits": torch.cat(logits)[positions],
            "offsets": torch.cat((torch.zeros(1, dtype=torch.int64), batch.lengths.cumsum(0))),
            "scored": batch.content_mask[batch.mask],
            "maps": torch.cat([maps[position] for position in positions.tolist()]),
        }
        notes: dict[str, Json] = {"about": dict(self.teacher.about), "examples": len(batch)}
        return Artefact(tensors, pd.DataFrame({"uid": batch.uids}), notes | {"maps": tensors["maps"].shape[1]})

    def _maps_and_logits(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.map_source is not None:
            return self.map_source.compute_maps(model, batch)
        logits, _ = _logits_and_target(model, batch)
        return logits.new_zeros(len(batch), 0, batch.mask.shape[1]), logits


class TeacherLookup:
    """Stored outputs of a teacher: logits and maps of any batch of the stored examples."""

    def __init__(self, artefact: Artefact) -> None:
        self._logits, self._maps = artefact.tensors["logits"], artefact.tensors["maps"]
        self._offsets, self._scored = artefact.tensors["offsets"], artefact.tensors["scored"]
        self._positions = {str(uid): position for position, uid in enumerate(artefact.table["uid"])}

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
            raise UserError("student and teacher tokenize an example differently: give both the same tokenization")
        positions = starts.unsqueeze(1) + torch.arange(mask.shape[1])
        maps = self._maps[positions.masked_fill(~mask, 0)].masked_fill(~mask.unsqueeze(-1), 0.0)
        return maps.transpose(1, 2).to(batch.mask.device)

    def all_maps(self) -> tuple[Tensor, Tensor]:
        """Maps of all examples `[example map unit]`, and which units are scored `[example unit]`."""
        lengths = self._offsets.diff()
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        maps = torch.zeros(*mask.shape, self.map_count)
        scored = torch.zeros_like(mask)
        maps[mask], scored[mask] = self._maps, self._scored.bool()
        return maps.transpose(1, 2), scored

    def _rows(self, batch: Batch) -> Tensor:
        try:
            return torch.tensor([self._positions[uid] for uid in batch.uids])
        except KeyError as error:
            raise UserError(f"the teacher's outputs on example {error} are not stored") from error


@dataclass(frozen=True)
class TeacherExplainer:
    """e_T on any batch of stored examples.

    Args:
        phi: `[map]`, before normalizing; with `learn_temperature` one entry more, the log of a second temperature.
    """

    teacher_lookup: TeacherLookup
    phi: Tensor
    normalizer: MixNormalizer = "sparsemax"
    temperature: float = 1.0
    learn_temperature: bool = False

    def distribution_at(self, phi: Tensor, batch: Batch) -> Tensor:
        """e_T `[batch unit]` at another phi, differentiable in phi."""
        phi = phi.to(batch.mask.device)
        weights, extra = (phi[:-1], phi[-1].exp()) if self.learn_temperature else (phi, 1.0)
        mix = head_mix.mix_maps(self.teacher_lookup.maps(batch), weights, self.normalizer)
        return head_mix.masked_softmax(mix / (self.temperature * extra), batch.content_mask)

    def __call__(self, batch: Batch) -> Tensor:
        """e_T `[batch unit]`."""
        return self.distribution_at(self.phi, batch)

    def coefficients(self, phi: Tensor) -> Tensor:
        """The weight of each map."""
        return head_mix.mixing_weights(phi[:-1] if self.learn_temperature else phi, self.normalizer)


@dataclass(frozen=True)
class NoExplanation:
    """The teacher's predictions alone."""

    beta: ClassVar[float] = 0.0
    display_name: ClassVar[str] = "none"
    map_sources: ClassVar[tuple[MapSource, ...]] = ()


@dataclass(frozen=True)
class MethodExplanation:
    """softmax(scores / temperature) of an attribution method, for the output that the teacher predicts.

    The paper takes temperature .1 for gradient x input, .5 for integrated gradients and none for the gradient's norm.
    A saved `HeadMix(score_type="logits")` works too.
    """

    method: Method
    temperature: Annotated[float, Bounds(above=0)] = 1.0
    beta: ClassVar[float] = 0.2

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (MethodMaps(self.method),)

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        return TeacherExplainer(lookups[0], torch.ones(1), "none", self.temperature)

    @property
    def display_name(self) -> str:
        return method_name(self.method)


@dataclass(frozen=True)
class AttentionExplanation:
    """Static attention: the mean of the heads' scores."""

    map_source: HeadMaps = HeadMaps()
    beta: ClassVar[float] = 5.0

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (self.map_source,)

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        return TeacherExplainer(lookups[0], head_mix.uniform_phi(lookups[0].map_count))

    @property
    def display_name(self) -> str:
        return self.map_source.display_name


@dataclass(frozen=True)
class RidgeExplanation:
    """Heads mixed by ridge regression on leave-one-out effects of the student's examples: a cheap baseline for SMaT.

    The effect is the signed drop of the predicted logit, which tells words for the prediction from words against it.
    The temperature makes the mix as peaked as static attention on these examples: effects are mostly small, and at
    temperature 1 the mix would be nearly uniform and carry no information.
    """

    beta: ClassVar[float] = 5.0
    display_name: ClassVar[str] = "attention, ridge on leave-one-out"
    map_sources: ClassVar[tuple[MapSource, ...]] = (HeadMaps(), MethodMaps(LeaveOneOut("logit")))

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        """The closed-form mix; it needs no student."""
        maps, scored = lookups[0].all_maps()
        phi = fit_ridge_mix(maps, lookups[1].all_maps()[0].squeeze(1), scored, strength=1.0)
        uniform, fitted = (
            head_mix.mix_maps(maps.double(), weights, "none") for weights in (head_mix.uniform_phi(len(phi)), phi)
        )
        temperature = head_mix.temperature_for_peak(fitted, scored, head_mix.mean_peak_ratio(uniform, scored))
        return TeacherExplainer(lookups[0], phi, "none", temperature)


@dataclass(frozen=True)
class LearnedExplanation:
    """A mix that is trained so that students learn from it (SMaT, Fernandes et al. 2022); see `SMaT`.

    Args:
        lr: of AdamW, which takes one step after each step of the student.
        batch_size: held-out examples of a step; None takes as many as the student's batches have.
        pilot_lr: learning rate of the pilot step; None takes that of the student's own step, as the paper.
        learn_temperature: a temperature is learned beside the mix.
    """

    map_source: MapSource = HeadMaps()
    normalizer: MixNormalizer = "sparsemax"
    lr: Annotated[float, Bounds(at_least=0)] = 5e-4
    batch_size: Annotated[int, Bounds(1)] | None = None
    pilot_lr: Annotated[float, Bounds(above=0)] | None = None
    temperature: Annotated[float, Bounds(above=0)] = 1.0
    learn_temperature: bool = False
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        check_options(self)
        if isinstance(self.map_source, LayerMaps) and self.map_source.mix.special_tokens:
            raise UserError("only words are explained to students: omit special_tokens=True of LayerMix")

    @property
    def map_sources(self) -> tuple[MapSource, ...]:
        return (self.map_source,)

    def build_explainer(self, lookups: tuple[TeacherLookup, ...]) -> TeacherExplainer:
        phi = head_mix.uniform_phi(lookups[0].map_count)
        if self.learn_temperature:
            # The logarithm of temperature 1: the mix starts as without one.
            phi = torch.cat((phi, torch.zeros(1)))
        return TeacherExplainer(lookups[0], phi, self.normalizer, self.temperature, self.learn_temperature)

    @property
    def display_name(self) -> str:
        return "SMaT" if self.map_source == HeadMaps() else f"SMaT of {self.map_source.display_name}"


TeacherExplanation = NoExplanation | MethodExplanation | AttentionExplanation | RidgeExplanation | LearnedExplanation
"""How a teacher explains: e_T is built from the stored maps of its `map_sources`, in their order. `beta` is the paper's
weight of explanations beside the simulation loss."""
