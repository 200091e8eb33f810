"""Explanations as a weighted mean of attention heads: static attention and the learned head mix of SMaT.

A head's *map* is the mean over query rows of its scores before softmax, one number per token. An explanation is the
softmax over tokens of sum_h lambda_h map_h, lambda = normalize(phi) (Fernandes et al. 2022), exactly zero off its
support. The functions of phi use plain operations, so that second and forward-mode derivatives pass through.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from heedful.attributions.attention import ATTENTION_WEIGHTS, index_slice
from heedful.attributions.lime import centered_moments, solve_ridge
from heedful.attributions.method import (
    Background,
    CheckedOptions,
    MethodTags,
    in_evaluation_mode,
    kind_name,
    name_by_fields,
    register,
    scored_units,
)
from heedful.capabilities import read_heads
from heedful.store.atomic_write import refuse_write_errors, replace_text, try_to_write
from heedful.store.recipe import json_digest, to_json
from heedful.types import Attribution, Batch, Model, UserError, check_choice, shorten, user_path

MixNormalizer = Literal["sparsemax", "softmax", "entmax15", "none"]
ScoreType = Literal["distribution", "logits"]
"""Scores as a distribution over tokens, or as the logits of that distribution."""

EXPLAINER_FILE = "explainer.json"
_LEARNED_FIELDS = ("phi", "layers", "heads", "temperature", "architecture")
"""Fields of learned mixes that belong to one model or were learned for it: a name has a digest of them."""
MIN_PROBABILITY = 1e-7
"""Probabilities are clamped to [this, 1 - this] in a divergence, as in the paper's code."""


def uniform_phi(count: int) -> Tensor:
    """The phi `[map]` that every normaliser turns into the mean of `count` maps: 1 / count each.

    >>> mixing_weights(uniform_phi(4), "sparsemax")
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    if count < 1:
        raise UserError(f"cannot mix {count} maps: at least one is needed")
    return torch.full((count,), 1 / count)


def mixing_weights(phi: Tensor, normalizer: MixNormalizer) -> Tensor:
    """The weight lambda of each map `[map]`; not negative and summing to 1, except for "none" (lambda = phi).

    Equal entries of phi give exactly equal weights 1 / count.

    >>> mixing_weights(torch.tensor([1.0, 0.6, -2.0]), "sparsemax")
    tensor([0.7000, 0.3000, 0.0000])
    """
    check_choice("normalizer", normalizer, MixNormalizer)
    if normalizer == "none":
        return phi
    if normalizer == "softmax":
        return phi.softmax(-1)
    # Subtracting the maximum changes nothing, and makes equal entries exactly 0.
    shifted = phi - phi.detach().amax(-1, keepdim=True)
    return _sparsemax(shifted) if normalizer == "sparsemax" else _entmax15(shifted / 2)


# The functions of the `entmax` package have no second and no forward-mode derivative, which SMaT needs.
def _sparsemax(scores: Tensor) -> Tensor:
    """max(0, z - tau) with tau = (sum over the support - 1) / its size (Martins & Astudillo 2016)."""
    with torch.no_grad():
        ordered = scores.sort(-1, descending=True).values
        inside = 1 + _one_based_ranks(scores) * ordered > ordered.cumsum(-1)
        support = scores >= ordered.gather(-1, inside.sum(-1, keepdim=True) - 1)
    count = support.sum(-1, keepdim=True)
    tau = (scores.masked_fill(~support, 0.0).sum(-1, keepdim=True) - 1) / count
    return (scores - tau).clamp(min=0.0).masked_fill(~support, 0.0)


def _entmax15(halves: Tensor) -> Tensor:
    """max(0, z/2 - tau)² with the tau that makes it sum to 1 (Peters et al. 2019), from halved scores.

    With m and s the mean and the sum of squared deviations of the k entries in the support, tau = m - sqrt((1-s)/k).
    """
    with torch.no_grad():
        ordered = halves.sort(-1, descending=True).values
        ranks = _one_based_ranks(halves)
        mean = ordered.cumsum(-1) / ranks
        spread = (ordered.square().cumsum(-1) - ranks * mean.square()).clamp(min=0.0)
        tau = mean - ((1 - spread).clamp(min=0.0) / ranks).sqrt()
        support = halves >= ordered.gather(-1, (tau <= ordered).sum(-1, keepdim=True) - 1)
    count = support.sum(-1, keepdim=True)
    mean = halves.masked_fill(~support, 0.0).sum(-1, keepdim=True) / count
    away = (halves - mean).masked_fill(~support, 0.0)
    level = (1 - away.square().sum(-1, keepdim=True)) / count
    # (away + sqrt(level))² expanded: equal scores then give exactly 1 / count.
    return (away.square() + 2 * away * level.sqrt() + level).clamp(min=0.0).masked_fill(~support, 0.0)


def _one_based_ranks(scores: Tensor) -> Tensor:
    return torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)


def mix_maps(maps: Tensor, phi: Tensor, normalizer: MixNormalizer) -> Tensor:
    """sum_h lambda_h maps_h, `[batch unit]` from maps `[batch map unit]`."""
    return torch.einsum("bmu,m->bu", maps, mixing_weights(phi, normalizer).to(maps.dtype))


def masked_log_softmax(logits: Tensor, support: Tensor) -> Tensor:
    """Log of the softmax over the support `[batch unit]`; 0 off the support, with finite values and gradients."""
    # The smallest number instead of minus infinity: a row without support would be NaN before it is masked.
    inside = logits.masked_fill(~support, torch.finfo(logits.dtype).min)
    return inside.log_softmax(-1).masked_fill(~support, 0.0)


def masked_softmax(logits: Tensor, support: Tensor) -> Tensor:
    """Softmax over the support `[batch unit]`, exactly 0 off it.

    >>> masked_softmax(torch.tensor([[0.0, 9.0, 0.0]]), torch.tensor([[True, False, True]]))
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    return masked_log_softmax(logits, support).exp().masked_fill(~support, 0.0)


def mean_peak_ratio(logits: Tensor, support: Tensor) -> float:
    """The largest softmax weight relative to a uniform weight, averaged over texts.

    >>> mean_peak_ratio(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 40.0]]), torch.ones(2, 3, dtype=torch.bool))
    2.0
    """
    filled = support.any(-1)
    largest = masked_softmax(logits[filled], support[filled]).amax(-1)
    return float((largest * support[filled].sum(-1)).mean())


def temperature_for_peak(logits: Tensor, support: Tensor, target_peak: float) -> float:
    """The temperature at which softmax(logits / temperature) reaches this `mean_peak_ratio`, by bisection.

    1 where no temperature from 1e-6 to 1e6 reaches it, as for logits that are equal on all tokens.
    """
    cold, hot = -6.0, 6.0
    if not mean_peak_ratio(logits / 10**cold, support) >= target_peak:
        return 1.0
    for _ in range(50):
        middle = (cold + hot) / 2
        cold, hot = (middle, hot) if mean_peak_ratio(logits / 10**middle, support) >= target_peak else (cold, middle)
    return float(10**cold)


def clamped_kl_divergence(teacher_probabilities: Tensor, student_log_probabilities: Tensor, support: Tensor) -> Tensor:
    """KL(e_T || e_S) = sum_t e_T (log e_T - log e_S) over the support, in nats `[batch]`.

    Both sides are clamped to [`MIN_PROBABILITY`, 1 - `MIN_PROBABILITY`]; clamped values have no gradient.
    """
    teacher = teacher_probabilities.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    student = student_log_probabilities.clamp(math.log(MIN_PROBABILITY), math.log(1 - MIN_PROBABILITY))
    return (teacher * (teacher.log() - student)).masked_fill(~support, 0.0).sum(-1)


@register("static-attention")
@dataclass(frozen=True)
class StaticAttention(CheckedOptions):
    """Softmax over tokens of the mean attention score of all heads before softmax (Fernandes et al. 2022).

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None averages all.
        special_tokens: include special tokens in the softmax and score them, as in the paper.
    """

    background: ClassVar[Background] = Background(
        formula="s = softmax over tokens of the mean over heads and rows of q · k / √d",
        avoid="to say why the prediction is what it is: like all attention, it does not know the class",
        references=("fernandes-2022",),
    )

    layer: int | None = None
    special_tokens: bool = False
    score_type: ScoreType = "distribution"

    @property
    def tags(self) -> MethodTags:
        """Scores before softmax can be negative."""
        return replace(ATTENTION_WEIGHTS, signed=self.score_type == "logits")

    @torch.no_grad()
    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same scores for every target."""
        scores = read_heads(model, batch).scores
        maps = scores[:, index_slice(self.layer, scores.shape[1], "layer")].flatten(1, 2).double()
        logits = mix_maps(maps, uniform_phi(maps.shape[1]).to(maps), "sparsemax")
        return mix_attribution(logits, batch, self.score_type, special_tokens=self.special_tokens)


class LearnedMix(CheckedOptions):
    """Base of explainers with weights that are learned for one model, and saved to a folder."""

    mixed: ClassVar[str]
    """What is mixed, in the plural."""

    phi: tuple[float, ...]
    normalizer: MixNormalizer
    architecture: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.phi, tuple) or not all(isinstance(value, Real) for value in self.phi):
            raise UserError(f"{type(self).__name__}(phi={shorten(self.phi)}): give a tuple of numbers")
        if not all(math.isfinite(value) for value in self.phi):
            raise UserError("phi is not finite: learn it again with a lower learning rate")

    @property
    def display_name(self) -> str:
        """How many maps have weight, and six digits of a digest in place of all that was learned.

        >>> HeadMix((1.0, 0.6, -2.0, -2.0), 2, 2).display_name
        'learned-head-mix(2-of-4-heads,64926a)'
        """
        if not self.phi:
            return name_by_fields(self, kind_name(self))
        used = int((mixing_weights(torch.tensor(self.phi, dtype=torch.float64), self.normalizer) != 0).sum())
        digest = json_digest([to_json(vars(self).get(name)) for name in _LEARNED_FIELDS])[:6]
        options = (f"{used}-of-{len(self.phi)}-{self.mixed}", digest)
        return name_by_fields(self, f"learned-{kind_name(self)}", _LEARNED_FIELDS, options)

    def check_architecture(self, model: Model) -> None:
        """Raise a `UserError` if the weights were learned for another architecture; empty fits every model."""
        if self.architecture and model.architecture_summary != self.architecture:
            raise UserError(
                f"this {type(self).__name__} was learned for {self.architecture}, but the model is "
                f"{model.architecture_summary}: learn one for this model"
            )

    def save(self, folder: Path | str) -> None:
        """Write the class and the fields as JSON into the folder, atomically."""
        text = json.dumps({"kind": type(self).__name__, **vars(self)})
        folder = user_path(folder)
        check_explainer_folder(folder)
        with refuse_write_errors(f"an explainer to {folder}", "choose another folder"):
            replace_text(folder / EXPLAINER_FILE, text + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """The explainer of this class saved in the folder; its fields are checked against their types."""
        path = user_path(folder) / EXPLAINER_FILE
        if not path.is_file():
            raise UserError(f"no explainer in {folder} ({path.name} is missing); pass the folder it was saved to")
        try:
            fields = json.loads(path.read_bytes())
            if fields.pop("kind") != cls.__name__:
                raise ValueError(f"it is not a {cls.__name__}")
            return TypeAdapter(cls).validate_json(json.dumps(fields, allow_nan=False), strict=True)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise UserError(f"the explainer in {folder} cannot be read ({reason}): save it again") from error


@dataclass(frozen=True)
class HeadMix(LearnedMix):
    """A weighted mean of the maps of all heads, with weights learned for one model.

    Args:
        phi: one number per head, layer by layer.
        normalizer: maps phi to weights; "none" uses phi itself.
        special_tokens: see `StaticAttention`, as for `score_type`.
        architecture: of the model that phi was learned for; empty fits every model of this shape.
    """

    mixed: ClassVar[str] = "heads"

    phi: tuple[float, ...]
    layers: int
    heads: int
    normalizer: MixNormalizer = "sparsemax"
    special_tokens: bool = False
    score_type: ScoreType = "distribution"
    architecture: str = ""

    @property
    def tags(self) -> MethodTags:
        """Scores before softmax can be negative."""
        note = "attention heads mixed by weights that were learned for this model"
        return replace(ATTENTION_WEIGHTS, signed=self.score_type == "logits", note=note)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < 1 or self.heads < 1 or len(self.phi) != self.layers * self.heads:
            raise UserError(
                f"HeadMix: {len(self.phi)} numbers in phi for {self.layers} layers of {self.heads} heads: give one each"
            )

    @staticmethod
    def from_phi(phi: Tensor, model: Model | None = None, normalizer: MixNormalizer = "sparsemax") -> HeadMix:
        """The mix with this phi `[layer head]`, bound to the architecture of the model if one is given."""
        layers, heads = phi.shape
        values = tuple(phi.detach().double().flatten().tolist())
        architecture = "" if model is None else model.architecture_summary
        return HeadMix(values, layers, heads, normalizer, architecture=architecture)

    @property
    def coefficients(self) -> Tensor:
        """The weight of each head `[layer head]`, in float64."""
        phi = torch.tensor(self.phi, dtype=torch.float64)
        return mixing_weights(phi, self.normalizer).reshape(self.layers, self.heads)

    @torch.no_grad()
    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same scores for every target."""
        self.check_architecture(model)
        heads = read_heads(model, batch)
        shape = tuple(heads.scores.shape[1:3])
        if shape != (self.layers, self.heads):
            raise UserError(
                f"this HeadMix has weights for {self.layers} layers of {self.heads} heads, but the model has "
                f"{shape[0]} of {shape[1]}: learn one for this model"
            )
        maps = heads.maps.double()
        logits = mix_maps(maps, torch.tensor(self.phi, dtype=torch.float64, device=maps.device), self.normalizer)
        return mix_attribution(logits, batch, self.score_type, special_tokens=self.special_tokens)


def mix_attribution(logits: Tensor, batch: Batch, score_type: ScoreType, *, special_tokens: bool) -> Attribution:
    """Mixed logits `[batch unit]` as scores of the scored tokens."""
    units = scored_units(batch, special_tokens=special_tokens)
    scores = masked_softmax(logits, units) if score_type == "distribution" else logits.masked_fill(~units, 0.0)
    return Attribution(scores, units)


def fit_ridge_mix(maps: Tensor, effects: Tensor, support: Tensor, strength: float) -> Tensor:
    """The phi `[map]` whose mix with normaliser "none" best predicts the effects: the cheap alternative to learning.

    It minimises sum over texts b and tokens t of the support (y_bt - c_b - sum_h phi_h m_bht)² + strength |phi|², in
    float64; the softmax over tokens does not see the constant c_b of each text.

    Args:
        maps: `[batch map unit]`.
        effects: y `[batch unit]`, for instance leave-one-out scores.
        support: the tokens that count `[batch unit]`.
    """
    features = maps.detach().double().masked_fill(~support.unsqueeze(1), 0.0).transpose(1, 2)
    values = effects.detach().double().masked_fill(~support, 0.0)
    gram, cross = centered_moments(features, values, support.double())
    return solve_ridge(gram.sum(0, keepdim=True), cross.sum(0, keepdim=True), strength).squeeze(0)


def check_explainer_folder(folder: Path) -> None:
    """`UserError` if an explainer cannot be written to the folder."""
    with refuse_write_errors(f"an explainer to {folder}", "choose another folder"):
        try_to_write(folder)
        if (folder / EXPLAINER_FILE).is_dir():
            raise IsADirectoryError(0, f"{EXPLAINER_FILE} is a folder")
