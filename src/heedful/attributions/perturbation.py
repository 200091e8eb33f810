"""What a model says when some units are taken away: the one engine of all methods that perturb.

A *coalition* says which scored units are kept; `baselines` says what becomes of the others. Everything happens on
ids and vectors, never through decoded text. Equal texts of one example are read once, also across methods inside one
block of `core.remembering.remembering`; texts of like length are read together, as many as memory allows.

Attributions that change the input and watch the output, and the null that watches nothing.

Attributions that delete a unit and read the text anew.

What other methods asked inside `core.remembering.remembering` is not read again, nor what is asked here by them; only a
model that `Deletes` by a short cut of its own neither looks into that memory nor adds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from heedful.attributions._base import (
    Feature,
    Output,
    check_feature,
    check_output,
    divide_among_units,
    expand_to_units,
    feature_counts,
    feature_index,
    replaced_units,
    target_output,
)
from heedful.core.remembering import Memory, keys_of, memory_of, remembering
from heedful.measures.divergence import total_variation
from heedful.store.recipe import OMIT_IF_DEFAULT, derive_seed
from heedful.types import Attribution, Batch, Model, SupportsLeaveOneOut, UserError

PerturbationBaseline = Literal["pad", "mask", "unk", "zero", "delete"]
"""What stands in the place of a unit taken away: the padding symbol (still attended to, as in Neely et al.), the mask
symbol, the unknown word, the zero vector, or nothing: the gap is closed."""

CHUNK_CELLS = 1 << 18
"""Cells of one attention matrix in a chunk of texts: rows x units x units."""
_OUT_OF_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")
BLOCK_ELEMENTS = 1 << 21
"""Numbers of one block of perturbed inputs."""


def check_perturbation_baseline(baselines: str, *, special_tokens: bool = False) -> None:
    """Refuses a way of taking units away that there is not, or that special symbols cannot go."""
    if baselines not in get_args(PerturbationBaseline):
        raise UserError(
            f"there are no baselines {baselines!r}; choose one of {', '.join(get_args(PerturbationBaseline))}"
        )
    if special_tokens and baselines == "delete":
        raise UserError(
            "a text that lost its special symbols is none that a model knows: with special_tokens=True choose "
            "baselines='pad', 'mask', 'unk' or 'zero', which put something in their place"
        )


def logits_keeping(
    model: Model, batch: Batch, kept: Tensor, baselines: PerturbationBaseline, *, internal_batch_size: int | None = None
) -> Tensor:
    """Logits `[batch sample output]` of each text with only the `kept` of its scored units; special symbols stay.

    A part that "delete" would empty keeps one padding symbol, since models need something to attend to. Of an image,
    "pad" and "delete" blank the patch.

    Args:
        kept: coalitions `[batch sample unit]`.
        internal_batch_size: texts read at once at most; fewer where they are long. Halves when memory runs out.
    """
    out = ~kept & batch.content_mask.unsqueeze(1)
    return logits_without(model, batch, out, baselines, internal_batch_size=internal_batch_size)


def logits_without(
    model: Model,
    batch: Batch,
    removed: Tensor,
    baselines: PerturbationBaseline,
    *,
    internal_batch_size: int | None = None,
) -> Tensor:
    """Logits `[batch sample output]` of each text without the units `out` `[batch sample unit]`, of whatever kind.

    See `asked`, which spares special symbols.
    """
    _check_images(batch, removed, baselines)
    symbol = _replacement_id(batch, baselines)
    vectors = _embeddings(model, batch) if baselines == "zero" else None
    memory = memory_of(model)
    row = torch.arange(len(batch), device=removed.device).repeat_interleave(removed.shape[1])
    flat = removed.flatten(0, 1)
    found = []
    size = _rows_per_block(batch)
    for start in range(0, len(row), size):
        origin = row[start : start + size]
        texts = batch.rows(origin)
        gone = flat[start : start + size, : texts.mask.shape[1]]
        some = (
            _PerturbedTexts(remove_units(texts, gone, symbol))
            if vectors is None
            else _PerturbedTexts(texts, origin, gone, vectors)
        )
        found.append(_logits_of_distinct_texts(memory, some, internal_batch_size))
    return torch.cat(found).reshape(*removed.shape[:2], -1)


def batch_logits(model: Model, batch: Batch) -> Tensor:
    """Logits `[batch output]` of a batch through the model's memory: what was read before is not read again."""
    return _logits_of_distinct_texts(memory_of(model), _PerturbedTexts(batch), None)


def remove_units(batch: Batch, removed: Tensor, replacement_id: int | None) -> Batch:
    """The batch with `symbol` on the units `out` `[batch unit]`, or with the gap closed where there is no symbol."""
    if batch.inputs.dim() > 2:
        return batch.keep_units(~removed)
    if replacement_id is not None:
        return replace(batch, inputs=batch.inputs.masked_fill(removed, replacement_id))
    stand_in = torch.zeros_like(removed)
    for part in (0, 1):
        units = batch.content_mask & (batch.segments == part)
        emptied = ~(units & ~removed).any(1, keepdim=True)
        stand_in |= units & emptied & (units.cumsum(1) == 1)
    return replace(batch, inputs=batch.inputs.masked_fill(stand_in, batch.pad_id)).keep_units(~removed | stand_in)


def baseline_embeddings(
    model: Model, batch: Batch, baselines: PerturbationBaseline, *, special_tokens: bool = False
) -> Tensor:
    """The vectors `[batch unit width]` that stand where all scored units are taken away; zero where nothing stands.

    With `specials`, special symbols are taken away too.
    """
    units = replaced_units(batch, special_tokens=special_tokens)
    symbol = _replacement_id(batch, baselines)
    if baselines == "zero" or (symbol is None and batch.inputs.dim() == 2):
        vectors = _embeddings(model, batch)
        return vectors.masked_fill(units.unsqueeze(-1), 0)
    return _embeddings(model, remove_units(batch, units, symbol))


@torch.no_grad()
def _embeddings(model: Model, batch: Batch) -> Tensor:
    return model(batch).embeddings


def _check_images(batch: Batch, removed: Tensor, baselines: PerturbationBaseline) -> None:
    """Refuses to blank a class unit: the model puts its own vector there, so that nothing would change."""
    if batch.inputs.dim() > 2 and baselines != "zero" and bool((removed & ~batch.content_mask.unsqueeze(1)).any()):
        raise UserError(
            "the class unit of an image is no patch to be blanked: with special_tokens=True choose baselines='zero'"
        )


def _replacement_id(batch: Batch, baselines: PerturbationBaseline) -> int | None:
    """The id that stands on units taken away; None where none does."""
    check_perturbation_baseline(baselines)
    if baselines in ("zero", "delete"):
        return None
    if batch.inputs.dim() > 2:
        if baselines == "pad":
            return None
        raise UserError(f"an image has no {baselines.upper()} symbol: choose baselines='zero' or 'delete'")
    symbol = {"pad": batch.pad_id, "mask": batch.mask_id, "unk": batch.unk_id}[baselines]
    if symbol is None:
        raise UserError(
            f"this vocabulary has no {baselines.upper()} symbol: choose baselines='pad', 'zero' or 'delete', "
            "or a tokenizer that has one"
        )
    return symbol


@dataclass(frozen=True)
class _PerturbedTexts:
    """Perturbed texts, and where vectors are put to zero: which row of `vectors` each came from.

    Args:
        origin: `[row]`.
        zeroed: `[row unit]`.
        vectors: of the whole texts, `[batch unit width]`.
    """

    batch: Batch
    origin: Tensor | None = None
    zeroed: Tensor | None = None
    embeddings: Tensor | None = None

    def rows(self, index: Tensor) -> _PerturbedTexts:
        batch = self.batch.rows(index)
        if self.origin is None or self.zeroed is None:
            return _PerturbedTexts(batch)
        return _PerturbedTexts(batch, self.origin[index], self.zeroed[index][:, : batch.mask.shape[1]], self.embeddings)

    @torch.no_grad()
    def logits(self, model: Model) -> Tensor:
        if self.origin is None or self.zeroed is None or self.embeddings is None:
            return model(self.batch).logits
        vectors = self.embeddings[self.origin][:, : self.zeroed.shape[1]].masked_fill(self.zeroed.unsqueeze(-1), 0)
        return model(self.batch, embeddings=vectors).logits


def _logits_of_distinct_texts(memory: Memory, texts: _PerturbedTexts, max_rows: int | None) -> Tensor:
    """Logits `[row output]`; each distinct text that the memory does not know is read once."""
    keys = keys_of(texts.batch, texts.zeroed, imposed=memory.model.has_imposed_attention)
    first, group = _distinct_rows(keys)
    known, recalled = memory.recall(keys[first])
    new = first[~known]
    memory.hits += len(keys) - len(new)
    memory.misses += len(new)
    if not len(new):
        return recalled[group]
    logits = _logits_longest_first(memory.model, texts, new, max_rows)
    memory.add(keys[new], logits)
    found = logits.new_empty(len(first), logits.shape[1])
    found[~known] = logits
    found[known] = recalled.to(logits)
    return found[group]


def _distinct_rows(keys: Tensor) -> tuple[Tensor, Tensor]:
    """One row of each distinct key, and for each row the number of its key among these."""
    order = torch.argsort(keys[:, 0], stable=True)
    ordered = keys[order]
    new = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    group = torch.empty_like(order).scatter_(0, order, new.cumsum(0) - 1)
    return order[new], group


def _logits_longest_first(model: Model, texts: _PerturbedTexts, index: Tensor, max_rows: int | None) -> Tensor:
    """Logits of the texts at `index`, longest first, fewer at once after memory ran out."""
    lengths = texts.batch.lengths[index]
    order = torch.argsort(lengths, descending=True, stable=True)
    longest = lengths[order].tolist()
    found: list[Tensor] = []
    start, share = 0, 1
    while start < len(order):
        fit = CHUNK_CELLS // max(16, longest[start]) ** 2
        size = max(1, min(fit, max_rows or fit) // share)
        logits = _try_logits(model, texts.rows(index[order[start : start + size]]))
        if logits is None:
            share *= 2
            continue
        found.append(logits)
        start += size
    logits = torch.cat(found)
    return torch.empty_like(logits).index_copy_(0, order, logits)


def _try_logits(model: Model, texts: _PerturbedTexts) -> Tensor | None:
    """Logits, or None where several texts at once do not fit into memory."""
    try:
        return texts.logits(model)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(texts.batch) == 1:
            units = texts.batch.mask.shape[1]
            raise UserError(f"not even one text of {units} units fits into memory: cut the texts") from error
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY_MESSAGES)


def _rows_per_block(batch: Batch) -> int:
    """Rows of perturbed inputs that make up one block."""
    numbers = batch.inputs[:1].numel() or 1
    return max(1, BLOCK_ELEMENTS // numbers)


def row_blocks(batch: Batch, samples_per_row: int) -> Iterator[Tensor]:
    """The rows of a batch in blocks whose coalitions `[row sample unit]` stay within twice the block size."""
    cells = max(1, samples_per_row * batch.mask.shape[1])
    size = max(1, 2 * BLOCK_ELEMENTS // cells)
    for start in range(0, len(batch), size):
        yield torch.arange(start, min(start + size, len(batch)), device=batch.mask.device)


@dataclass(frozen=True)
class Occlusion:
    """How much the output loses when a window of units is taken away, averaged over the windows that cover a unit.

    Windows slide by one and stay inside their part of an example; a part shorter than the window is one window.

    Args:
        window: features taken away together.
        baselines: what stands in the place of a unit taken away; see `asking.Baselines`.
        feature: "word" takes all pieces of a word away together and shares its score equally among them.
        specials: special symbols are features too, each by itself, and may be taken away as words are.
    """

    window: int = 1
    baselines: PerturbationBaseline = "pad"
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_perturbation_baseline(self.baselines, special_tokens=self.special_tokens)
        check_feature(self.feature)
        check_output(self.output)
        if self.window < 1:
            raise UserError(f"Occlusion(window={self.window}): a window takes away 1 unit or more")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed losses in float64: a positive unit speaks for the target."""
        index = feature_index(batch, self.feature, special_tokens=self.special_tokens)
        scores = torch.zeros(index.shape, dtype=torch.float64, device=index.device)
        for rows in row_blocks(batch, batch.mask.shape[1]):
            part = batch.rows(rows)
            own = index[rows][:, : part.mask.shape[1]]
            covered = occlusion_windows(part, own, self.window)
            out = expand_to_units(torch.cat((torch.zeros_like(covered[:, :1]), covered), dim=1), own)
            values = target_output(
                model.task, logits_without(model, part, out, self.baselines), target[rows], self.output
            )
            cover = covered.double()
            loss = torch.einsum("bsf,bs->bf", cover, values[:, :1] - values[:, 1:]) / cover.sum(1).clamp(min=1)
            scores[rows] = divide_among_units(loss, index[rows])
        return Attribution(scores, index >= 0)


def occlusion_windows(batch: Batch, index: Tensor, window: int) -> Tensor:
    """The features that each window covers `[batch start feature]`; a window that leaves its part covers nothing."""
    width = max(1, int(feature_counts(index).max()))
    part = torch.full((len(batch), width + 1), -1, device=index.device)
    # Units without a feature write their part into a last column that nobody reads.
    part.scatter_(1, index.masked_fill(index < 0, width), batch.segments)
    part = part[:, :width].masked_fill(
        torch.arange(width, device=index.device) >= feature_counts(index).unsqueeze(1), -1
    )
    same = (part.unsqueeze(1) == part.unsqueeze(2)) & (part >= 0).unsqueeze(1)
    place = torch.arange(width, device=index.device)
    step = place - place.unsqueeze(1)  # from a window's start to a feature
    covered = same & (step >= 0) & (step < window)
    first = ~(same & (step < 0)).any(2)
    whole = covered.sum(2) == window
    return covered & (whole | first).unsqueeze(2)


@dataclass(frozen=True)
class Random:
    """Scores that know nothing: uniform on [0, 1), drawn from (seed, uid). The null of every comparison.

    Args:
        specials: special symbols are scored too.
    """

    seed: int = 0
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same scores for an example whatever stands beside it in the batch."""
        units = replaced_units(batch, special_tokens=self.special_tokens)
        scores = torch.zeros(units.shape)
        for row, uid in enumerate(batch.uids):
            generator = Generator().manual_seed(derive_seed("random", self.seed, uid))
            count = int(units[row].sum())
            scores[row, units[row].cpu()] = torch.rand(count, generator=generator)
        return Attribution(scores.to(batch.mask.device), units)


@dataclass(frozen=True)
class LeaveOneOut:
    """How the output changes when a unit is deleted, the gap closed, and the text encoded and attended to anew.

    Special symbols stay. A patch of an image is blanked. The only scored unit of a part cannot be deleted and gets 0.

    Args:
        output: "probability" gives the total variation between the outputs: |dp| for two classes as Jain & Wallace
            have it, ½ sum_c |dp_c| for more (they take the mean or the sum over classes, which ranks units alike);
            half the change for a number. "logit" gives the signed loss of the target's logit, z(text) -
            z(text without unit): a positive unit speaks for the target.
    """

    output: Output = "probability"

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Changes of the output by unit, in float64."""
        # Imposed attention is asked for with each shortened text as it stands: no short cut knows it.
        if isinstance(model, SupportsLeaveOneOut) and not model.has_imposed_attention:
            with torch.no_grad():
                before, after = model(batch).logits, model.leave_one_out_logits(batch)
        else:
            with remembering(model):
                before, after = batch_logits(model, batch), leave_one_out_logits(model, batch)
        before = before.unsqueeze(1)
        if self.output == "probability":
            sides = (model.task.probabilities(logits.double()) for logits in (before, after))
            change = total_variation(*sides)
        else:
            change = target_output(model.task, before, target, "logit") - target_output(
                model.task, after, target, "logit"
            )
        return Attribution(change.masked_fill(~batch.deletable_mask, 0), batch.content_mask)


def leave_one_out_logits(model: Model, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` of each text without each `deletable` unit, by any model; see `Deletes`."""
    alone = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
    return logits_without(model, batch, alone & batch.deletable_mask.unsqueeze(-1), "delete")
