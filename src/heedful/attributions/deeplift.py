"""DeepLIFT and Deep-SHAP: differences from a reference, carried back through every operation.

Both are complete on every model of this house whose attention is a softmax (see `rules` for how); where a model has
an operation that no rule covers, the `gap` of the result says how much is missing or too much. `legacy` gives what
captum gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from captum.attr import DeepLift as CaptumDeepLift
from torch import Tensor, nn
from torch.func import functional_call

from heedful.attributions._base import (
    Baseline,
    CompleteAttribution,
    Output,
    baseline_trace,
    check_baseline,
    check_internal_batch_size,
    check_output,
    complete_attribution,
    output_difference,
    replaced_units,
    run_in_blocks,
    target_output,
)
from heedful.attributions._deeplift_rules import multipliers
from heedful.seeding import sample_uniform
from heedful.store.recipe import derive_seed
from heedful.types import Batch, Model, Trace, UserError


@dataclass(frozen=True)
class DeepLift:
    """The difference from a reference, shared out by secants in the place of slopes (Shrikumar et al. 2017).

    Args:
        baselines: what stands for each word in the reference: the padding, mask or unknown symbol, or a zero vector.
        internal_batch_size: texts that are computed at once; None chooses, and halves where memory does not suffice.
        specials: special symbols are replaced and scored too, as in Neely et al.; they then share in the difference.
        legacy: captum's own DeepLift, for the cells of Neely et al. It knows registered modules only: fused LSTMs,
            softmax as a function, products and LayerNorm keep their slopes, and on the models of that paper nothing
            is left of it but gradient x difference.
    """

    baselines: Baseline = "pad"
    internal_batch_size: int | None = None
    output: Output = "probability"
    special_tokens: bool = False
    legacy: bool = False

    def __post_init__(self) -> None:
        check_output(self.output)
        check_baseline(self.baselines)
        check_internal_batch_size(self.internal_batch_size)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed shares of the units, in float64."""
        pairs = _InputReferencePairs(model, batch, target, self.output, self.special_tokens)
        if self.legacy:
            return pairs.attribute_by_captum(self.baselines, self.internal_batch_size, tiled=False)
        return pairs.attribute_by_rules(self.baselines, self.internal_batch_size, _no_noise)


@dataclass(frozen=True)
class DeepShap:
    """The mean of DeepLIFT over several references (Lundberg & Lee 2017).

    Without noise all references are one and the same, and Deep-SHAP is DeepLIFT, which is then computed once.

    Args:
        n_baselines: references.
        stdevs: standard deviation of the Gaussian noise that is laid on the replaced units of each reference, drawn
            from (seed, uid, reference); 0 as in Neely et al.
        baselines: see DeepLift, as for the fields below.
        legacy: as Neely et al. had it from captum 0.2: captum's DeepLift on two texts and two references at a time,
            in which masks and targets are tiled while texts are interleaved, so that half of each mean is computed
            with the mask and for the target of the other text. The company in a batch then matters.
    """

    n_baselines: int = 2
    stdevs: float = 0.0
    seed: int = 0
    baselines: Baseline = "pad"
    internal_batch_size: int | None = None
    output: Output = "probability"
    special_tokens: bool = False
    legacy: bool = False

    def __post_init__(self) -> None:
        check_output(self.output)
        check_baseline(self.baselines)
        check_internal_batch_size(self.internal_batch_size)
        if self.n_baselines < 1 or self.stdevs < 0:
            raise UserError(
                f"DeepShap(n_baselines={self.n_baselines}, stdevs={self.stdevs}): at least 1 reference and noise of at "
                "least 0 are needed"
            )
        if self.legacy and (self.n_baselines != 2 or self.stdevs):
            raise UserError("DeepShap(legacy=True) has two equal references: leave n_baselines and stdevs as they are")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed shares of the units, in float64, each the mean over the references."""
        pairs = _InputReferencePairs(model, batch, target, self.output, self.special_tokens)
        if self.legacy:
            return pairs.attribute_by_captum(self.baselines, self.internal_batch_size, tiled=True)
        if not self.stdevs:
            return pairs.attribute_by_rules(self.baselines, self.internal_batch_size, _no_noise)
        return pairs.attribute_by_rules(self.baselines, self.internal_batch_size, self._noise, self.n_baselines)

    def _noise(self, batch: Batch, number: Tensor, width: int) -> Tensor:
        """Gaussian noise `[batch unit width]` for the references with these numbers."""
        named = zip(batch.uids, number.tolist(), strict=True)
        seeds = torch.tensor([derive_seed("deep-shap", self.seed, uid, each) for uid, each in named])
        even = sample_uniform(seeds, 1, batch.mask.shape[1] * width) + 2.0**-54
        normal = torch.special.ndtri(even).reshape(*batch.mask.shape, width)
        noise: Tensor = self.stdevs * normal
        return noise.to(batch.mask.device)


Noise = Callable[[Batch, Tensor, int], Tensor]


def _no_noise(batch: Batch, number: Tensor, width: int) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=batch.mask.device)


@dataclass(frozen=True)
class _InputReferencePairs:
    """Texts beside their references, and what of a model is explained."""

    model: Model
    batch: Batch
    target: Tensor
    output: Output
    special_tokens: bool

    def attribute_by_rules(
        self, baselines: Baseline, size: int | None, noise: Noise, references: int = 1
    ) -> CompleteAttribution:
        """The shares by our rules, each the mean over the references."""
        units, (given, reference) = self._endpoints(baselines)
        here, there = given.embeddings, reference.embeddings
        shares = torch.zeros(units.shape, dtype=torch.float64, device=units.device)
        differences = shares.new_zeros(len(units))

        def work(block: Tensor) -> None:
            row, number = block // references, block % references
            part = self.batch.rows(row)
            width = part.mask.shape[1]
            lift = noise(part, number, here.shape[2]) * units[row, :width, None]
            other = (there[row, :width] + lift).to(here)
            slope, difference = multipliers(self._output_function(row), here[row, :width], other)
            share = (slope.double() * (here[row, :width].double() - other.double())).sum(-1)
            shares[:, :width].index_add_(0, row, share / references)
            differences.index_add_(0, row, difference / references)

        run_in_blocks(work, self.batch, references, size)
        return complete_attribution(shares, units, differences)

    def attribute_by_captum(self, baselines: Baseline, size: int | None, *, tiled: bool) -> CompleteAttribution:
        """The shares by captum: one reference for each text, or two, one of them read in the place of another text."""
        units, (given, reference) = self._endpoints(baselines)
        here, there = given.embeddings, reference.embeddings
        shares = torch.zeros(units.shape, dtype=torch.float64, device=units.device)
        copies = 2 if tiled else 1
        # A compared pair came to the authors' model as two texts, each with a mask of its own.
        apart = given.attention.shape[3] == 2

        def work(block: Tensor) -> None:
            row = block // copies
            host = (row - row % 2 + block % 2).clamp(max=len(here) - 1) if tiled else row
            place, own = _host_positions(self.batch, row, host) if apart else _own_positions(self.batch, row)
            vectors = [_gather_units(values[row], place) * own.unsqueeze(-1) for values in (here, there)]
            share = _captum_attributions(_CaptumModule(self), vectors[0], vectors[1], host).double().sum(-1) * own
            shares.index_add_(0, row, torch.zeros_like(share).scatter_add_(1, place, share) / copies)

        run_in_blocks(work, self.batch, copies, size)
        return complete_attribution(
            shares, units, output_difference(self.model, (given, reference), self.target, self.output)
        )

    def _endpoints(self, baselines: Baseline) -> tuple[Tensor, tuple[Trace, Trace]]:
        units = replaced_units(self.batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            return units, (self.model(self.batch), baseline_trace(self.model, self.batch, baselines, units))

    def _output_function(self, row: Tensor) -> Callable[[Tensor], Tensor]:
        """What reads the output off embeddings of these texts and of their references behind them."""
        both = row.repeat(2)
        pair = self.batch.rows(both)
        # Our own copy of the names of the weights, so that nothing but the embeddings requires a gradient.
        weights = {name: value.detach() for name, value in self.model.named_parameters()}

        def read(embeddings: Tensor) -> Tensor:
            trace: Trace = functional_call(self.model, weights, (pair,), {"embeddings": embeddings})
            return target_output(self.model.task, trace.logits, self.target[both], self.output)

        return read


def _host_positions(batch: Batch, row: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    """Where the units of two texts stand when they are read under the masks of their hosts, and which are their own.

    Each part is cut or padded to the length that the same part of the host has.
    """
    first = (batch.mask & (batch.segments == 0)).sum(1, keepdim=True)
    place, _ = _own_positions(batch, row)
    later = place >= first[host]
    moved = torch.where(later, place - first[host] + first[row], place)
    own = moved < torch.where(later, batch.lengths.unsqueeze(1)[row], first[row])
    return moved.clamp(max=place.shape[1] - 1), own


def _own_positions(batch: Batch, row: Tensor) -> tuple[Tensor, Tensor]:
    place = torch.arange(batch.mask.shape[1], device=row.device).expand(len(row), -1)
    return place, torch.ones_like(place, dtype=torch.bool)


def _gather_units(values: Tensor, place: Tensor) -> Tensor:
    return values.gather(1, place.unsqueeze(-1).expand(-1, -1, values.shape[2]))


class _CaptumModule(nn.Module):
    """The output as captum wants it: a module of embeddings and, beside them, the numbers of the texts."""

    def __init__(self, pairs: _InputReferencePairs) -> None:
        super().__init__()
        self.model, self.pairs = pairs.model, pairs

    def forward(self, embeddings: Tensor, row: Tensor) -> Tensor:
        part = self.pairs.batch.rows(row)
        trace: Trace = self.model(part, embeddings=embeddings[:, : part.mask.shape[1]])
        return target_output(self.model.task, trace.logits, self.pairs.target[row], self.pairs.output)


def _captum_attributions(module_of_embeddings: _CaptumModule, inputs: Tensor, reference: Tensor, row: Tensor) -> Tensor:
    """captum's DeepLift of each embedding's entries `[batch unit width]`; whatever it sets up is gone afterwards."""
    before = {module: set(vars(module)) for module in module_of_embeddings.modules()}
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            found: Tensor = CaptumDeepLift(module_of_embeddings).attribute(
                inputs.detach().clone(), reference.detach(), additional_forward_args=(row,)
            )
    finally:
        # captum takes its hooks away, but not what they wrote on modules before an exception.
        for module, names in before.items():
            for name in set(vars(module)) - names:
                delattr(module, name)
    return found.detach()
