"""What a method explains: the probability of the target, or its logit.

Work on many rows in blocks that fit into memory: a block that does not is halved and tried again.

What a perturbing method keeps or removes as one: a unit, or a word with all its pieces.

An *index* `[batch unit]` gives each scored unit the number of its feature, counted from 0 in each row; -1 elsewhere.
With `specials` each special symbol is a feature of its own.

The reference that a text is compared with: what stands there when nothing is said.

References are built at the door of the embeddings: a symbol in the place of each word is read by the model's own
embedding block, so that a transformer's reference keeps positions, segments and normalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.types import Attribution, Batch, Model, Task, Trace, UserError

Output = Literal["probability", "logit"]


def check_output(output: str) -> None:
    """Refuses an output that no method explains."""
    if output not in get_args(Output):
        raise UserError(f"there is no output {output!r} to explain; choose one of {', '.join(get_args(Output))}")


def target_output(task: Task, logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """The target's probability or logit in float64, `[batch ...]` for logits `[batch ... output]`.

    In float32 a confident probability rounds to 1, and all differences and slopes to 0. Of two classes that share one
    logit z, class 1 has z and class 0 has -z.

    Args:
        target: class indices `[batch]`.
    """
    logits = logits.double()
    if output == "probability":
        values = task.probabilities(logits)
    else:
        values = logits if logits.shape[-1] == task.num_classes else torch.cat((-logits, logits), dim=-1)
    index = target.reshape(-1, *(1,) * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)


BLOCK_CELLS = 1 << 18
"""Cells of one attention matrix in a block: rows x units x units, with short texts counted as 128 units wide."""

_OUT_OF_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")


def run_in_blocks(work: Callable[[Tensor], None], batch: Batch, copies: int, block_size: int | None) -> None:
    """Has the numbers 0 ... len(batch) copies - 1 done, block by block, in order.

    A block that runs out of memory must have left nothing behind: it is done again in halves, and the blocks after it
    are as small.

    Args:
        copies: rows made of each row of the batch.
        size: rows of a block at the start; None takes what should fit.
    """
    units, count, start = batch.mask.shape[1], len(batch) * copies, 0
    block_size = max(1, BLOCK_CELLS // max(1, units * max(units, 128))) if block_size is None else block_size
    while start < count:
        block = torch.arange(start, min(start + block_size, count), device=batch.mask.device)
        if _fits(work, block):
            start += len(block)
        elif len(block) > 1:
            block_size = len(block) // 2
        else:
            raise UserError(
                f"not even one text of {units} units fits into memory: cut the texts, or use a smaller model"
            )


def _fits(work: Callable[[Tensor], None], block: Tensor) -> bool:
    # By returning, all that the failed attempt still holds is set free before the next.
    try:
        work(block)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(
            words in str(error) for words in _OUT_OF_MEMORY_MESSAGES
        ):
            raise
        if block.is_cuda:
            torch.cuda.empty_cache()
        return False
    return True


def check_internal_batch_size(internal_batch_size: int | None) -> None:
    """Refuses a block without rows."""
    if internal_batch_size is not None and internal_batch_size < 1:
        raise UserError(f"internal_batch_size={internal_batch_size}: give at least 1, or None to have it chosen")


Feature = Literal["unit", "word"]


def check_feature(feature: str) -> None:
    """Refuses a kind of feature that there is not."""
    if feature not in get_args(Feature):
        raise UserError(f"there is no feature {feature!r}; choose one of {', '.join(get_args(Feature))}")


def feature_index(batch: Batch, feature: Feature, *, special_tokens: bool = False) -> Tensor:
    """The feature of each scored unit `[batch unit]`, in the order of the text; -1 elsewhere."""
    units, scored = replaced_units(batch, special_tokens=special_tokens), batch.content_mask
    if feature == "unit":
        return (units.cumsum(1) - 1).masked_fill(~units, -1)
    places = torch.arange(units.shape[1], device=units.device)
    same = (batch.words.unsqueeze(2) == batch.words.unsqueeze(1)) & scored.unsqueeze(1) & scored.unsqueeze(2)
    same = same | (places == places.unsqueeze(1))
    leader = same.long().argmax(2)  # the first unit of one's word
    number = ((leader == places) & units).cumsum(1) - 1
    return number.gather(1, leader).masked_fill(~units, -1)


def legacy_feature_index(batch: Batch, *, special_tokens: bool = False) -> Tensor:
    """The fault of Neely et al.'s pairs: unit i of the first text and unit i of the second are one feature."""
    index = torch.full_like(batch.words, -1)
    for part in (0, 1):
        units = replaced_units(batch, special_tokens=special_tokens) & (batch.segments == part)
        index = torch.where(units, units.cumsum(1) - 1, index)
    return index


def feature_counts(index: Tensor) -> Tensor:
    """Features of each row `[batch]`."""
    return index.amax(1) + 1


def expand_to_units(coalitions: Tensor, index: Tensor) -> Tensor:
    """Coalitions of features `[batch sample feature]` as coalitions of units `[batch sample unit]`."""
    place = index.clamp(min=0).unsqueeze(1).expand(-1, coalitions.shape[1], -1)
    return coalitions.gather(2, place) & (index >= 0).unsqueeze(1)


def removed_units(coalitions: Tensor, index: Tensor) -> Tensor:
    """The units `[batch sample unit]` of the features that coalitions `[batch sample feature]` leave out."""
    return expand_to_units(~coalitions, index)


def copy_to_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]`, each on all units of its feature `[batch unit]`; 0 elsewhere."""
    return scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)


def divide_among_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]` in equal shares on their units `[batch unit]`, so that sums are kept."""
    sizes = torch.zeros_like(scores).scatter_add_(1, index.clamp(min=0), (index >= 0).to(scores))
    return copy_to_units(scores / sizes.clamp(min=1), index)


Baseline = Literal["pad", "zero", "mask", "unk"]


@dataclass(frozen=True)
class CompleteAttribution(Attribution):
    """Scores of a method that promises to share out the difference between an output and its reference.

    Args:
        gap: what is shared out minus the difference, `[batch]`; 0 where the method is complete.
    """

    convergence_delta: Tensor


def check_baseline(baselines: str) -> None:
    """Refuses a reference that nobody can build."""
    if baselines not in get_args(Baseline):
        raise UserError(f"there is no reference {baselines!r}; choose one of {', '.join(get_args(Baseline))}")


def replaced_units(batch: Batch, *, special_tokens: bool) -> Tensor:
    """The units that the reference replaces and that are scored: words, and with `specials` all real units."""
    return batch.mask if special_tokens else batch.content_mask


@torch.no_grad()
def baseline_trace(model: Model, batch: Batch, baselines: Baseline, units: Tensor) -> Trace:
    """What the model does where a symbol stands on the marked units, or where their embeddings are zero.

    A blank patch is the symbol of images. The mask stays: the reference is as long as the text.
    """
    if baselines == "zero":
        embeddings = model(batch).embeddings
        return model(batch, embeddings=embeddings.masked_fill(units.unsqueeze(-1), 0.0))
    marked = units if batch.inputs.dim() == 2 else units.unsqueeze(-1)
    return model(replace(batch, inputs=batch.inputs.masked_fill(marked, _baseline_id(batch, baselines))))


def _baseline_id(batch: Batch, baselines: Baseline) -> int:
    image = batch.inputs.dim() > 2
    found = 0 if image else batch.pad_id
    if baselines != "pad":
        known = batch.mask_id if baselines == "mask" else batch.unk_id
        if known is None or image:
            what = "images have" if image else "the vocabulary has"
            raise UserError(f"{what} no {baselines} symbol to stand in the reference: take baselines='pad' or 'zero'")
        found = known
    return found


def output_difference(model: Model, traces: tuple[Trace, Trace], target: Tensor, output: Output) -> Tensor:
    """f(text) - f(reference) `[batch]`, in float64."""
    ends = [target_output(model.task, trace.logits.detach(), target, output) for trace in traces]
    return ends[0] - ends[1]


def complete_attribution(shares: Tensor, units: Tensor, difference: Tensor) -> CompleteAttribution:
    """The shares of all units `[batch unit]` as scores of the marked ones, with what is missing to the difference."""
    return CompleteAttribution(shares.masked_fill(~units, 0), units, shares.sum(1) - difference)
