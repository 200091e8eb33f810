"""The faults of captum 0.2 in the numbers that Neely et al. (2022) print, as methods; used only to reproduce them.

Three things went wrong there: captum's DeepLift knows registered modules only, so that fused LSTMs, functional softmax,
products and LayerNorm keep their gradients and gradient x difference is all that is left; its DeepSHAP tiles masks and
targets while it interleaves texts; and LIME on pairs took token i of both texts for one feature.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from captum.attr import DeepLift as CaptumDeepLift
from torch import Tensor, nn

from heedful.attributions.deeplift import DeepLift
from heedful.attributions.lime import Lime
from heedful.attributions.method import (
    CompleteAttribution,
    baseline_vectors,
    complete_attribution,
    copy_to_units,
    run_copies,
    scored_units,
    target_output,
)
from heedful.types import Attribution, Batch, Model, Trace, UserError


@dataclass(frozen=True)
class FaultyDeepLift:
    """captum's DeepLift in place of ours, with the same options."""

    method: DeepLift = DeepLift()

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        return _attribute(self.method, model, batch, target, tiled=False)


@dataclass(frozen=True)
class FaultyDeepShap:
    """captum's DeepSHAP with two equal baselines on two texts at a time: the batch matters.

    Half of each mean is computed with the mask and for the target of the other text.
    """

    method: DeepLift = DeepLift()

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        return _attribute(self.method, model, batch, target, tiled=True)


@dataclass(frozen=True)
class FaultyLime:
    """LIME in which token i of the first text and token i of the second are one feature with one score."""

    method: Lime = Lime()

    def __post_init__(self) -> None:
        if self.method.feature == "word":
            raise UserError("FaultyLime numbers tokens as Neely et al. did: use feature='unit'")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed coefficients in float64."""
        index = shared_position_index(batch, special_tokens=self.method.special_tokens)
        return Attribution(copy_to_units(self.method.coefficients(model, batch, target, index), index), index >= 0)


def shared_position_index(batch: Batch, *, special_tokens: bool = False) -> Tensor:
    """The feature index `[batch unit]` that starts at 0 again in the second text of a pair."""
    index = torch.full_like(batch.words, -1)
    for segment in (0, 1):
        units = scored_units(batch, special_tokens=special_tokens) & (batch.segments == segment)
        index = torch.where(units, units.cumsum(1) - 1, index)
    return index


def _attribute(method: DeepLift, model: Model, batch: Batch, target: Tensor, *, tiled: bool) -> CompleteAttribution:
    """captum's scores with one baseline for each text, or two, one of them read in the place of another text."""
    units = scored_units(batch, special_tokens=method.special_tokens)
    with torch.no_grad():
        text = model(batch)
        baseline = model(batch, embeddings=baseline_vectors(model, batch, method.baselines, units))
    module = _CaptumModule(model, batch, target, method)
    scores = torch.zeros(units.shape, dtype=torch.float64, device=units.device)
    copies = 2 if tiled else 1
    # The authors' model read a pair as two texts, each with its own mask.
    is_pair = text.attention.shape[3] == 2

    def work(row: Tensor, copy: Tensor) -> None:
        host = (row - row % 2 + copy).clamp(max=len(batch) - 1) if tiled else row
        position, own = _host_positions(batch, row, host) if is_pair else _own_positions(batch, row)
        index = position.unsqueeze(-1).expand(-1, -1, text.embeddings.shape[2])
        inputs, reference = (trace.embeddings[row].gather(1, index) * own.unsqueeze(-1) for trace in (text, baseline))
        share = _captum_attributions(module, inputs, reference, host).double().sum(-1) * own
        scores.index_add_(0, row, torch.zeros_like(share).scatter_add_(1, position, share) / copies)

    run_copies(work, batch, copies)
    outputs = [target_output(model.task, trace.logits, target, method.output) for trace in (text, baseline)]
    return complete_attribution(scores, units, outputs[0] - outputs[1])


def _host_positions(batch: Batch, row: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the tokens of each row when read under the masks of its host, and which of them are its own.

    Each text of a pair is cut or padded to the length of the same text of the host.
    """
    first = (batch.mask & (batch.segments == 0)).sum(1, keepdim=True)
    position, _ = _own_positions(batch, row)
    in_second = position >= first[host]
    moved = torch.where(in_second, position - first[host] + first[row], position)
    own = moved < torch.where(in_second, batch.lengths.unsqueeze(1)[row], first[row])
    return moved.clamp(max=position.shape[1] - 1), own


def _own_positions(batch: Batch, row: Tensor) -> tuple[Tensor, Tensor]:
    position = torch.arange(batch.mask.shape[1], device=row.device).expand(len(row), -1)
    return position, torch.ones_like(position, dtype=torch.bool)


class _CaptumModule(nn.Module):
    """The explained output as captum needs it: a module of embeddings and row numbers."""

    def __init__(self, model: Model, batch: Batch, target: Tensor, method: DeepLift) -> None:
        super().__init__()
        self.model, self.batch, self.target, self.method = model, batch, target, method

    def forward(self, embeddings: Tensor, row: Tensor) -> Tensor:
        part = self.batch.rows(row)
        trace: Trace = self.model(part, embeddings=embeddings[:, : part.mask.shape[1]])
        return target_output(self.model.task, trace.logits, self.target[row], self.method.output)


def _captum_attributions(module: _CaptumModule, inputs: Tensor, reference: Tensor, row: Tensor) -> Tensor:
    """captum's DeepLift scores `[batch unit width]`; attributes that it leaves on modules are removed."""
    before = {each: set(vars(each)) for each in module.modules()}
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            scores: Tensor = CaptumDeepLift(module).attribute(
                inputs.detach().clone(), reference.detach(), additional_forward_args=(row,)
            )
    finally:
        # captum removes its hooks, but not what they wrote on modules before an exception.
        for each, names in before.items():
            for name in set(vars(each)) - names:
                delattr(each, name)
    return scores.detach()
