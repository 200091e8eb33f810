"""Parts that attribution methods share: explained output, scored tokens, baselines, features and chunked work.

Tensors lie on the unit axis of a batch, one unit per token or image patch. A *feature* is what a perturbation method
removes as one: a token, or a word with all its subword tokens. A feature index `[batch unit]` numbers the features of
each row from 0 and is -1 on tokens that are not scored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal, TypeVar, cast, get_origin, get_type_hints

import torch
from torch import Tensor

from heedful.devices import free_cached_memory, is_out_of_memory
from heedful.store.recipe import derive_seed
from heedful.types import Attribution, Batch, Model, Task, UserError, check_choice, shorten

Output = Literal["probability", "logit"]
"""The explained number: the probability of the target, or its logit."""
Baseline = Literal["pad", "mask", "unk", "zero", "delete"]
"""What replaces a removed token: the pad token (still attended to), the mask token, the unknown token, a zero
embedding, or nothing ("delete" closes the gap). Of an image, "pad" and "delete" set the patch to 0."""
FixedLengthBaseline = Literal["pad", "mask", "unk", "zero"]
"""Baselines of gradient methods, which compare texts of equal length."""
Feature = Literal["unit", "word"]

CHUNK_CELLS = 1 << 18
"""Cells of one attention matrix in a chunk: rows x units x units."""
LARGEST_COUNTS = {"n_samples": 100_000, "n_steps": 1_000, "n_baselines": 100_000}
"""The largest value of each option that counts samples or steps, which are held in memory together.

A text of 512 tokens with the most samples takes a few gigabytes, and points of quadrature a matrix of steps x steps.
"""
MAX_PREDICTED = 4_000
"""Samples of a text whose outputs a Gaussian process goes through: it has several matrices of samples x samples."""
ExplainT = TypeVar("ExplainT", bound=Callable[..., Attribution])


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Every part of the model in evaluation mode, without dropout; parts in training mode are set back at the end."""
    parts = [part for part in model.modules() if part.training]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part in parts:
            part.training = True


def in_evaluation_mode(explain: ExplainT) -> ExplainT:
    """A method's call that explains the model in evaluation mode: with dropout it would explain each time another."""

    @functools.wraps(explain)
    def explain_in_evaluation_mode(method: object, model: Model, batch: Batch, target: Tensor) -> Attribution:
        with evaluation_mode(model):
            return explain(method, model, batch, target)

    return cast("ExplainT", explain_in_evaluation_mode)


def target_output(task: Task, logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """The target's probability or logit in float64, `[batch ...]` for logits `[batch ... output]`.

    In float32 a confident probability rounds to 1 and its gradient to 0. Of two classes that share one logit z, class 1
    has logit z and class 0 has -z.

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


def scored_units(batch: Batch, *, special_tokens: bool) -> Tensor:
    """The scored tokens `[batch unit]`: content tokens, or with `special_tokens` all real tokens."""
    return batch.mask if special_tokens else batch.content_mask


def masked_attribution(scores: Tensor, batch: Batch, *, special_tokens: bool) -> Attribution:
    """An attribution with these scores on the scored tokens and zero elsewhere."""
    units = scored_units(batch, special_tokens=special_tokens)
    return Attribution(scores.masked_fill(~units, 0), units)


@dataclass(frozen=True)
class CompleteAttribution(Attribution):
    """Scores of a method whose scores should sum to f(text) - f(baseline).

    Args:
        convergence_delta: sum of the scores minus that difference `[batch]`; 0 where the method is complete.
    """

    convergence_delta: Tensor

    @property
    def difference(self) -> Tensor:
        """f(text) - f(baseline) `[batch]`."""
        return self.scores.sum(1) - self.convergence_delta


@dataclass(frozen=True)
class SampledAttribution(Attribution):
    """Scores of a method that samples until their posterior errors are small enough.

    Args:
        posterior_errors: of the scores `[batch unit]`; two of them on either side hold the exact score in about 95 % of
            cases or more.
        samples: perturbed texts that were read for each text `[batch]`.
    """

    posterior_errors: Tensor
    samples: Tensor


def complete_attribution(scores: Tensor, units: Tensor, difference: Tensor) -> CompleteAttribution:
    """Scores of all tokens `[batch unit]`, cut to the scored ones, with their error against `difference` `[batch]`."""
    return CompleteAttribution(scores.masked_fill(~units, 0), units, scores.sum(1) - difference)


def is_whole_number(value: object) -> bool:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


class CheckedOptions:
    """Base of methods that are dataclasses with options."""

    def __post_init__(self) -> None:
        """Raise a `UserError` if a field is outside its type, too large, or contradicts another field."""
        types, values = get_type_hints(type(self)), vars(self)
        for name, value in values.items():
            if get_origin(types[name]) is Literal:
                check_choice(name, value, types[name])
            optional = types[name] == int | None
            if (types[name] is int or (optional and value is not None)) and not is_whole_number(value):
                wanted = "a whole number, or None" if optional else "a whole number"
                raise UserError(f"{type(self).__name__}({name}={shorten(value)}): give {wanted}")
            if types[name] is float and not (isinstance(value, Real) and math.isfinite(value)):
                raise UserError(f"{type(self).__name__}({name}={shorten(value)}): give a number")
        error = values.get("error")
        if error is not None and not (isinstance(error, int | float) and 0 < error < 1):
            raise UserError(
                f"error={shorten(error)}: give a number between 0 and 1, a share of the largest score, or None"
            )
        for name, largest in LARGEST_COUNTS.items():
            most, reason = (largest, "") if error is None else (min(largest, MAX_PREDICTED), " with error")
            if values.get(name, 0) > most:
                raise UserError(
                    f"{type(self).__name__}({name}={shorten(values[name])}): give at most {most}{reason}; "
                    "more would not fit into memory"
                )
        if values.get("baselines") == "delete" and values.get("special_tokens"):
            raise UserError("baselines='delete' cannot remove special tokens: choose 'pad', 'mask', 'unk' or 'zero'")


def example_seeds(purpose: str, seed: int, batch: Batch) -> Tensor:
    """A seed for each example `[batch]`, whatever else is in its batch."""
    return torch.tensor([derive_seed(purpose, seed, uid) for uid in batch.uids], device=batch.mask.device)


def replace_units(batch: Batch, removed: Tensor, baselines: Baseline) -> Batch:
    """The batch with the tokens `removed` `[batch unit]` replaced by a token id, blanked (images) or deleted.

    A text of which "delete" would remove all content tokens keeps one pad token, since models need something to attend
    to; so does each text of a pair.
    """
    if batch.inputs.dim() > 2:
        if baselines not in ("pad", "delete"):
            raise UserError(f"an image has no {baselines} token: choose baselines='pad' or 'zero'")
        return batch.keep_units(~removed)
    if baselines == "delete":
        kept_pads = torch.zeros_like(removed)
        for segment in (0, 1):
            units = batch.content_mask & (batch.segments == segment)
            emptied = ~(units & ~removed).any(1, keepdim=True)
            kept_pads |= units & emptied & (units.cumsum(1) == 1)
        padded = replace(batch, inputs=batch.inputs.masked_fill(kept_pads, batch.pad_id))
        return padded.keep_units(~removed | kept_pads)
    token_id = {"pad": batch.pad_id, "mask": batch.mask_id, "unk": batch.unk_id}[baselines]
    if token_id is None:
        raise UserError(f"this vocabulary has no {baselines} token: choose baselines='pad' or 'zero'")
    return replace(batch, inputs=batch.inputs.masked_fill(removed, token_id))


@torch.no_grad()
def baseline_vectors(model: Model, batch: Batch, baselines: Baseline, removed: Tensor) -> Tensor:
    """The embeddings `[batch unit width]` of the baseline: the batch with the tokens `removed` `[batch unit]` replaced.

    Replaced ids pass through the model's own embedding block, so that a transformer's baseline keeps positions,
    segments and normalisation.
    """
    if baselines == "zero":
        return model.read_embeddings(batch).masked_fill(removed.unsqueeze(-1), 0)
    return model.read_embeddings(replace_units(batch, removed, baselines))


def run_in_chunks(
    work: Callable[[Tensor], None], count: int, rows_at: Callable[[int], int], device: torch.device
) -> None:
    """Call `work` on the numbers 0 ... count - 1, chunk by chunk, in order.

    A chunk that runs out of memory is tried again in halves, and later chunks stay as small; `work` must leave nothing
    behind when it fails.

    Args:
        rows_at: the size of a chunk that starts at this number.
    """
    start, limit = 0, count
    while start < count:
        size = max(1, min(rows_at(start), limit, count - start))
        if _fits(work, torch.arange(start, start + size, device=device)):
            start += size
        elif size > 1:
            limit = size // 2
        else:
            raise UserError("a single text does not fit into memory: shorten the texts or use a smaller model")


def _fits(work: Callable[[Tensor], None], chunk: Tensor) -> bool:
    # Returning frees what the failed attempt still holds before the next one starts.
    try:
        work(chunk)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        free_cached_memory(chunk.device)
        return False
    return True


def run_copies(work: Callable[[Tensor, Tensor], None], batch: Batch, copies: int) -> None:
    """Call `work(row, copy)` for `copies` copies of each row of the batch, in chunks that fit into memory."""
    units = batch.mask.shape[1]
    size = CHUNK_CELLS // max(1, units * max(units, 128))
    device = batch.mask.device
    run_in_chunks(lambda chunk: work(chunk // copies, chunk % copies), len(batch) * copies, lambda _: size, device)


def feature_index(batch: Batch, feature: Feature, *, special_tokens: bool = False) -> Tensor:
    """The feature of each scored token `[batch unit]`, in text order; each special token is a feature of its own."""
    units, content = scored_units(batch, special_tokens=special_tokens), batch.content_mask
    if feature == "unit":
        return (units.cumsum(1) - 1).masked_fill(~units, -1)
    position = torch.arange(units.shape[1], device=units.device)
    same = (batch.words.unsqueeze(2) == batch.words.unsqueeze(1)) & content.unsqueeze(1) & content.unsqueeze(2)
    same = same | (position == position.unsqueeze(1))
    first = same.long().argmax(2)  # the first token of the same word
    number = ((first == position) & units).cumsum(1) - 1
    return number.gather(1, first).masked_fill(~units, -1)


def feature_counts(index: Tensor) -> Tensor:
    """Features of each row `[batch]`."""
    return index.amax(1) + 1


def expand_to_units(coalitions: Tensor, index: Tensor) -> Tensor:
    """Coalitions of features `[batch sample feature]` as coalitions of tokens `[batch sample unit]`."""
    feature = index.clamp(min=0).unsqueeze(1).expand(-1, coalitions.shape[1], -1)
    return coalitions.gather(2, feature) & (index >= 0).unsqueeze(1)


def copy_to_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]` copied to every token of the feature `[batch unit]`; 0 elsewhere."""
    return scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)


def divide_among_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]` divided equally among their tokens `[batch unit]`; sums are kept."""
    sizes = torch.zeros_like(scores).scatter_add_(1, index.clamp(min=0), (index >= 0).to(scores))
    return copy_to_units(scores / sizes.clamp(min=1), index)
