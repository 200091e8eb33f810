"""Mixing a bank of maps into one explanation: sum_h lambda_h map_h, lambda = normalise(phi) (Fernandes et al. 2022).

Pure functions of tensors, written from plain operations only: gradients, second derivatives and forward-mode
derivatives pass through all of them. A *map* is one score per unit, for instance a head's mean score row; explanations
live on a *support* of units and are exactly zero off it.

Learned explainers on disk: numbers in safetensors, settings in JSON, nothing that could run.

Explanations as a mix of what the heads say: fixed, learned, or fitted by ridge regression.

A head's map is the mean over query rows of its scores before softmax; an explanation is the softmax over units of
sum_h lambda_h map_h, lambda = normalise(phi) (SMaT, Fernandes et al. 2022). With equal phi it is static attention.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from heedful.attributions.attention import index_slice
from heedful.attributions.lime import centered_moments, solve_ridge
from heedful.types import Attribution, Batch, Model, UserError, architecture_summary, read_heads

MixNormalizer = Literal["sparsemax", "softmax", "entmax15", "none"]

MIN_PROBABILITY = 1e-7
"""Probabilities count as at least this and at most 1 - this in a divergence, as in the paper's code."""


def check_normalizer(normalizer: str) -> None:
    """Refuses a normaliser that there is not."""
    if normalizer not in get_args(MixNormalizer):
        raise UserError(f"there is no normaliser {normalizer!r}; choose one of {', '.join(get_args(MixNormalizer))}")


def uniform_phi(count: int) -> Tensor:
    """The phi `[map]` that every normaliser turns into the plain mean of `count` maps: 1 / count each.

    >>> mixing_weights(uniform_phi(4), "sparsemax")
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    if count < 1:
        raise UserError(f"a mix of {count} maps cannot be made: at least one is needed")
    return torch.full((count,), 1 / count)


def mixing_weights(phi: Tensor, normalizer: MixNormalizer) -> Tensor:
    """The weight lambda of each map `[map]`; all but "none" (lambda = phi) are never negative and sum to 1.

    Equal entries of phi give exactly equal weights 1 / count, bit for bit.

    >>> mixing_weights(torch.tensor([1.0, 0.6, -2.0]), "sparsemax")
    tensor([0.7000, 0.3000, 0.0000])
    """
    check_normalizer(normalizer)
    if normalizer == "none":
        return phi
    if normalizer == "softmax":
        return phi.softmax(-1)
    # The largest entry is moved to 0: nothing changes, and equal entries are then exactly 0.
    away = phi - phi.detach().amax(-1, keepdim=True)
    return _sparsemax(away) if normalizer == "sparsemax" else _entmax15(away / 2)


def mix_maps(maps: Tensor, phi: Tensor, normalizer: MixNormalizer) -> Tensor:
    """sum_h lambda_h maps_h, `[batch unit]` from maps `[batch map unit]`."""
    return torch.einsum("bmu,m->bu", maps, mixing_weights(phi, normalizer).to(maps.dtype))


def masked_log_softmax(logits: Tensor, support: Tensor) -> Tensor:
    """The log of softmax over the support, `[batch unit]`; 0 off the support, in value and gradient never infinite."""
    # The least number and not minus infinity: a row without support would be NaN before it is masked.
    inside = logits.masked_fill(~support, torch.finfo(logits.dtype).min)
    return inside.log_softmax(-1).masked_fill(~support, 0.0)


def masked_softmax(logits: Tensor, support: Tensor) -> Tensor:
    """Softmax over the support `[batch unit]`, exactly 0 off it.

    >>> masked_softmax(torch.tensor([[0.0, 9.0, 0.0]]), torch.tensor([[True, False, True]]))
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    return masked_log_softmax(logits, support).exp().masked_fill(~support, 0.0)


def mean_peak_ratio(logits: Tensor, support: Tensor) -> float:
    """How many times an even share the largest share of softmax over the support is, on average over texts.

    >>> mean_peak_ratio(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 40.0]]), torch.ones(2, 3, dtype=torch.bool))
    2.0
    """
    filled = support.any(-1)
    largest = masked_softmax(logits[filled], support[filled]).amax(-1)
    return float((largest * support[filled].sum(-1)).mean())


def temperature_for_peak(logits: Tensor, support: Tensor, target_peak: float) -> float:
    """The temperature at which softmax(logits / temperature) has this `peak`, or the least one more: by halving.

    The peak never falls when the temperature does. 1 where no temperature from 1e-6 to 1e6 reaches it, since what is
    the same for all units cannot be made to point anywhere.
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

    Both sides are clamped as in the paper (`LEAST`); what is clamped has no gradient.
    """
    teacher = clamp_probabilities(teacher_probabilities)
    terms = teacher * (teacher.log() - clamp_log_probabilities(student_log_probabilities))
    return terms.masked_fill(~support, 0.0).sum(-1)


def clamp_probabilities(probabilities: Tensor) -> Tensor:
    """Probabilities moved into [1e-7, 1 - 1e-7]."""
    return probabilities.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)


def clamp_log_probabilities(log_probabilities: Tensor) -> Tensor:
    """Log-probabilities moved into [log 1e-7, log(1 - 1e-7)]: the log of `clamped`."""
    least = torch.tensor((MIN_PROBABILITY, 1 - MIN_PROBABILITY), dtype=torch.float64).log().tolist()
    return log_probabilities.clamp(*least)


def _sparsemax(scores: Tensor) -> Tensor:
    """The point of the simplex nearest to the scores: max(0, z - tau), tau = (sum over the support - 1) / its size."""
    with torch.no_grad():
        ordered = scores.sort(-1, descending=True).values
        inside = 1 + _one_based_ranks(scores) * ordered > ordered.cumsum(-1)
        support = scores >= ordered.gather(-1, inside.sum(-1, keepdim=True) - 1)
    count = support.sum(-1, keepdim=True)
    tau = (scores.masked_fill(~support, 0.0).sum(-1, keepdim=True) - 1) / count
    return (scores - tau).clamp(min=0.0).masked_fill(~support, 0.0)


def _entmax15(halves: Tensor) -> Tensor:
    """max(0, z/2 - tau)^2 with the tau that makes it sum to 1 (Peters et al. 2019), from halved scores.

    With m and s the mean and the sum of squared differences of the support's k entries, tau = m - sqrt((1 - s) / k).
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
    # (away + sqrt(level))^2 written out: equal scores then give exactly 1 / count.
    return (away.square() + 2 * away * level.sqrt() + level).clamp(min=0.0).masked_fill(~support, 0.0)


def _one_based_ranks(scores: Tensor) -> Tensor:
    return torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)


SETTINGS_FILE, PHI_FILE = "explainer.json", "explainer.safetensors"
Setting = str | int | float | bool | None
SettingsT = TypeVar("SettingsT")


def write_explainer(folder: Path, phi: Tensor, settings: Mapping[str, Setting]) -> None:
    """Writes phi and the settings into a folder, which is made where it is missing; both aside first, then renamed."""
    numbers = save({"phi": phi.detach().cpu().contiguous()})
    files = {PHI_FILE: numbers, SETTINGS_FILE: (json.dumps(dict(settings), indent=1) + "\n").encode("utf-8")}
    with _explain_write_errors(folder):
        for name, content in files.items():
            _temporary_path(folder, name).write_bytes(content)
        for name in files:
            os.replace(_temporary_path(folder, name), folder / name)


def check_explainer_folder(folder: Path) -> None:
    """Makes the folder where it is missing; refuses one that an explainer could not be written to."""
    with _explain_write_errors(folder):
        for name in (PHI_FILE, SETTINGS_FILE):
            _temporary_path(folder, name).write_bytes(b"")


@contextmanager
def _explain_write_errors(folder: Path) -> Iterator[None]:
    """Complains in one line about what cannot be written, and leaves nothing lying aside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (PHI_FILE, SETTINGS_FILE):
            if (folder / name).is_dir():
                raise IsADirectoryError(0, f"{name} is a folder there")
        yield
    except OSError as error:
        raise UserError(
            f"the explainer could not be written to {folder} ({error.strerror}): choose another folder"
        ) from error
    finally:
        if folder.is_dir():
            for name in (PHI_FILE, SETTINGS_FILE):
                _temporary_path(folder, name).unlink(missing_ok=True)


def _temporary_path(folder: Path, name: str) -> Path:
    return folder / f".{name}.{os.getpid()}"


def read_explainer(folder: Path, settings: type[SettingsT]) -> tuple[Tensor, SettingsT]:
    """Phi in float64 and the settings, checked against their types; refuses what is missing or broken in one line."""
    for name in (SETTINGS_FILE, PHI_FILE):
        if not (folder / name).is_file():
            raise UserError(
                f"there is no explainer in {folder} ({name} is missing): give the folder that it was saved to"
            )
    try:
        about = TypeAdapter(settings).validate_json((folder / SETTINGS_FILE).read_bytes(), strict=True)
    except OSError as error:
        raise _unreadable_error(folder / SETTINGS_FILE, error.strerror or type(error).__name__) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise _unreadable_error(folder / SETTINGS_FILE, reason) from error
    return _load_phi(folder / PHI_FILE), about


def _load_phi(file: Path) -> Tensor:
    try:
        tensors = load_file(str(file))
    except (SafetensorError, OSError) as error:
        raise _unreadable_error(file, str(error).splitlines()[0]) from error
    if set(tensors) != {"phi"}:
        raise _unreadable_error(file, f"it holds {sorted(tensors)} instead of phi")
    if not bool(torch.isfinite(tensors["phi"]).all()):
        raise _unreadable_error(file, "phi is not finite")
    return tensors["phi"].double()


def _unreadable_error(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is no explainer that can be read ({reason}): save it anew")


ScoreType = Literal["distribution", "logits"]

EXCLUDED_PHI = -1e10
"""The phi of a map that is left out, as in the paper's code: every normaliser but "none" gives it weight 0."""


@dataclass(frozen=True)
class StaticAttention:
    """Where attention points before softmax: the mean of the maps of all heads, or of one layer's.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes all.
        specials: special symbols take part in the softmax over units and are scored too, as in the paper.
        output: "distribution" over units, or the "logits" that it is the softmax of.
    """

    layer: int | None = None
    special_tokens: bool = False
    score_type: ScoreType = "distribution"

    def __post_init__(self) -> None:
        check_score_type(self.score_type)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same for every target."""
        scores = read_heads(model, batch).scores
        maps = scores[:, index_slice(self.layer, scores.shape[1], "layer")].flatten(1, 2).double()
        logits = mix_maps(maps, uniform_phi(maps.shape[1]).to(maps), "sparsemax")
        return mix_attribution(logits, batch, self.score_type, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class HeadMix:
    """A weighted mean of the maps of all heads, with weights that were learned for one model.

    Args:
        phi: one number per head, layer by layer.
        normaliser: what makes weights of phi; "none" takes phi itself.
        specials: see StaticAttention, as for `output`.
        architecture: what the model is built like that phi was learned for; empty fits every model of this shape.
    """

    phi: tuple[float, ...]
    layers: int
    heads: int
    normalizer: MixNormalizer = "sparsemax"
    special_tokens: bool = False
    score_type: ScoreType = "distribution"
    architecture: str = ""

    def __post_init__(self) -> None:
        check_normalizer(self.normalizer)
        check_score_type(self.score_type)
        if self.layers < 1 or self.heads < 1 or len(self.phi) != self.layers * self.heads:
            raise UserError(
                f"HeadMix: {len(self.phi)} numbers were given for {self.layers} layers of {self.heads} heads, "
                "which need one each"
            )
        if not all(math.isfinite(value) for value in self.phi):
            raise UserError("HeadMix: phi holds a number that is not finite")

    @staticmethod
    def uniform(layers: int, heads: int) -> HeadMix:
        """The plain mean of all heads: where learning starts, and `StaticAttention()` bit for bit."""
        return HeadMix(tuple(uniform_phi(max(1, layers * heads)).tolist()), layers, heads)

    @staticmethod
    def only_layer(layers: int, heads: int, layer: int) -> HeadMix:
        """The plain mean of one layer's heads; -1 is the last layer."""
        phi = torch.full((layers, heads), EXCLUDED_PHI)
        phi[index_slice(layer, layers, "layer")] = 1 / heads
        return HeadMix.from_phi(phi)

    @staticmethod
    def only_head(layers: int, heads: int, layer: int, head: int) -> HeadMix:
        """One head alone."""
        phi = torch.full((layers, heads), EXCLUDED_PHI)
        phi[index_slice(layer, layers, "layer"), index_slice(head, heads, "head")] = 1.0
        return HeadMix.from_phi(phi)

    @staticmethod
    def from_phi(
        phi: Tensor,
        model: Model | None = None,
        normalizer: MixNormalizer = "sparsemax",
        *,
        special_tokens: bool = False,
    ) -> HeadMix:
        """The mix with this phi `[layer head]`, tied to the architecture of the model if one is given."""
        layers, heads = phi.shape
        values = tuple(phi.detach().double().flatten().tolist())
        built = "" if model is None else architecture_summary(model)
        return HeadMix(values, layers, heads, normalizer, special_tokens=special_tokens, architecture=built)

    @property
    def coefficients(self) -> Tensor:
        """The weight of each head, `[layer head]`, in float64."""
        return mixing_weights(self._phi_tensor(), self.normalizer).reshape(self.layers, self.heads)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same for every target."""
        self.check_model(model)
        heads = read_heads(model, batch)
        found = (heads.scores.shape[1], heads.scores.shape[2])
        if found != (self.layers, self.heads):
            raise UserError(
                f"this HeadMix has weights for {self.layers} layers of {self.heads} heads, but the model has "
                f"{found[0]} of {found[1]}: learn one for this model"
            )
        maps = heads.maps.double()
        logits = mix_maps(maps, self._phi_tensor().to(maps.device), self.normalizer)
        return mix_attribution(logits, batch, self.score_type, special_tokens=self.special_tokens)

    def check_model(self, model: Model) -> None:
        """Raises a `UserError` where the model is built otherwise than the one that phi was learned for."""
        if self.architecture and architecture_summary(model) != self.architecture:
            raise UserError(
                f"this HeadMix was learned for {self.architecture}, but the model is {architecture_summary(model)}: "
                "learn one for this model"
            )

    def save(self, folder: Path | str) -> None:
        """Writes explainer.safetensors (phi `[layer head]`) and explainer.json into the folder."""
        settings = {name: value for name, value in vars(self).items() if name != "phi"}
        write_explainer(
            Path(folder), self._phi_tensor().reshape(self.layers, self.heads), {"kind": "HeadMix", **settings}
        )

    @staticmethod
    def load(folder: Path | str) -> HeadMix:
        """The mix that was saved into the folder; raises a `UserError` for anything else."""
        phi, about = read_explainer(Path(folder), _HeadMixSettings)
        if phi.shape != (about.layers, about.heads):
            raise UserError(
                f"{folder} holds phi of shape {tuple(phi.shape)}, but its settings say {about.layers} layers of "
                f"{about.heads} heads: the two files do not belong together"
            )
        settings = {name: value for name, value in vars(about).items() if name != "kind"}
        return HeadMix(tuple(phi.flatten().tolist()), **settings)

    def _phi_tensor(self) -> Tensor:
        return torch.tensor(self.phi, dtype=torch.float64)


@dataclass(frozen=True)
class _HeadMixSettings:
    kind: Literal["HeadMix"]
    layers: int
    heads: int
    normalizer: MixNormalizer
    special_tokens: bool
    score_type: ScoreType
    architecture: str


def check_score_type(score_type: str) -> None:
    """Refuses an output that a mix does not give."""
    if score_type not in get_args(ScoreType):
        raise UserError(f"a mix does not give {score_type!r}; choose one of {', '.join(get_args(ScoreType))}")


def mix_attribution(logits: Tensor, batch: Batch, score_type: ScoreType, *, special_tokens: bool) -> Attribution:
    """Mixed logits `[batch unit]` as scores of the words, or with `specials` of all real units."""
    units = batch.mask if special_tokens else batch.content_mask
    scores = masked_softmax(logits, units) if score_type == "distribution" else logits.masked_fill(~units, 0.0)
    return Attribution(scores, units)


def fit_ridge_mix(maps: Tensor, effects: Tensor, support: Tensor, strength: float) -> Tensor:
    """The phi `[map]` whose mix, with normaliser "none", comes nearest to the effects: the cheap rival of learning.

    It minimises sum over texts b and units t of the support (y_bt - c_b - sum_h phi_h m_bht)^2 + strength |phi|^2, in
    float64. Each text has a constant c_b of its own: the softmax over units does not see it.

    Args:
        maps: `[batch map unit]`.
        effects: what each unit is worth, `[batch unit]`, for instance by leaving it out.
        support: the units that count, `[batch unit]`.
    """
    if not strength >= 0:
        raise UserError(f"ridge_mix(strength={strength}): give 0 or a positive number")
    features = maps.detach().double().masked_fill(~support.unsqueeze(1), 0.0).transpose(1, 2)
    values = effects.detach().double().masked_fill(~support, 0.0)
    gram, cross = centered_moments(features, values, support.double())
    return solve_ridge(gram.sum(0, keepdim=True), cross.sum(0, keepdim=True), strength).squeeze(0)
