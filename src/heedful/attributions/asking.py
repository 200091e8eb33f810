"""What a model says when some units are taken away: the one engine of all methods that perturb.

A *coalition* says which scored units are kept; `baselines` says what becomes of the others. Everything happens on
ids and vectors, never through decoded text. Equal texts of one example are read once, also across methods inside one
block of `core.remembering.remembering`; texts of like length are read together, as many as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions.references import replaced_units
from heedful.core.remembering import Memory, keys_of, memory_of
from heedful.core.types import Batch, Model, UserError

Baselines = Literal["pad", "mask", "unk", "zero", "delete"]
"""What stands in the place of a unit taken away: the padding symbol (still attended to, as in Neely et al.), the mask
symbol, the unknown word, the zero vector, or nothing: the gap is closed."""

CELLS = 1 << 18
"""Cells of one attention matrix in a chunk of texts: rows x units x units."""
_FULL = ("out of memory", "can't allocate memory", "not enough memory")
BLOCK = 1 << 21
"""Numbers of one block of perturbed inputs."""


def check_baselines(baselines: str, *, specials: bool = False) -> None:
    """Refuses a way of taking units away that there is not, or that special symbols cannot go."""
    if baselines not in get_args(Baselines):
        raise UserError(f"there are no baselines {baselines!r}; choose one of {', '.join(get_args(Baselines))}")
    if specials and baselines == "delete":
        raise UserError(
            "a text that lost its special symbols is none that a model knows: with specials=True choose baselines="
            "'pad', 'mask', 'unk' or 'zero', which put something in their place"
        )


def asked(
    model: Model, batch: Batch, kept: Tensor, baselines: Baselines, *, internal_batch_size: int | None = None
) -> Tensor:
    """Logits `[batch sample output]` of each text with only the `kept` of its scored units; special symbols stay.

    A part that "delete" would empty keeps one padding symbol, since models need something to attend to. Of an image,
    "pad" and "delete" blank the patch.

    Args:
        kept: coalitions `[batch sample unit]`.
        internal_batch_size: texts read at once at most; fewer where they are long. Halves when memory runs out.
    """
    out = ~kept & batch.scored.unsqueeze(1)
    return lacking(model, batch, out, baselines, internal_batch_size=internal_batch_size)


def lacking(
    model: Model, batch: Batch, out: Tensor, baselines: Baselines, *, internal_batch_size: int | None = None
) -> Tensor:
    """Logits `[batch sample output]` of each text without the units `out` `[batch sample unit]`, of whatever kind.

    See `asked`, which spares special symbols.
    """
    _check_images(batch, out, baselines)
    symbol = _symbol(batch, baselines)
    vectors = _vectors(model, batch) if baselines == "zero" else None
    memory = memory_of(model)
    row = torch.arange(len(batch), device=out.device).repeat_interleave(out.shape[1])
    flat = out.flatten(0, 1)
    found = []
    size = _block_rows(batch)
    for start in range(0, len(row), size):
        origin = row[start : start + size]
        texts = batch.rows(origin)
        gone = flat[start : start + size, : texts.mask.shape[1]]
        some = _Texts(without(texts, gone, symbol)) if vectors is None else _Texts(texts, origin, gone, vectors)
        found.append(_answers(memory, some, internal_batch_size))
    return torch.cat(found).reshape(*out.shape[:2], -1)


def answers(model: Model, batch: Batch) -> Tensor:
    """Logits `[batch output]` of a batch through the model's memory: what was read before is not read again."""
    return _answers(memory_of(model), _Texts(batch), None)


def without(batch: Batch, out: Tensor, symbol: int | None) -> Batch:
    """The batch with `symbol` on the units `out` `[batch unit]`, or with the gap closed where there is no symbol."""
    if batch.inputs.dim() > 2:
        return batch.keep(~out)
    if symbol is not None:
        return replace(batch, inputs=batch.inputs.masked_fill(out, symbol))
    stand_in = torch.zeros_like(out)
    for part in (0, 1):
        units = batch.scored & (batch.segments == part)
        emptied = ~(units & ~out).any(1, keepdim=True)
        stand_in |= units & emptied & (units.cumsum(1) == 1)
    return replace(batch, inputs=batch.inputs.masked_fill(stand_in, batch.filler)).keep(~out | stand_in)


def baseline_vectors(model: Model, batch: Batch, baselines: Baselines, *, specials: bool = False) -> Tensor:
    """The vectors `[batch unit width]` that stand where all scored units are taken away; zero where nothing stands.

    With `specials`, special symbols are taken away too.
    """
    units = replaced_units(batch, specials=specials)
    symbol = _symbol(batch, baselines)
    if baselines == "zero" or (symbol is None and batch.inputs.dim() == 2):
        vectors = _vectors(model, batch)
        return vectors.masked_fill(units.unsqueeze(-1), 0)
    return _vectors(model, without(batch, units, symbol))


@torch.no_grad()
def _vectors(model: Model, batch: Batch) -> Tensor:
    return model(batch).embeddings


def _check_images(batch: Batch, out: Tensor, baselines: Baselines) -> None:
    """Refuses to blank a class unit: the model puts its own vector there, so that nothing would change."""
    if batch.inputs.dim() > 2 and baselines != "zero" and bool((out & ~batch.scored.unsqueeze(1)).any()):
        raise UserError(
            "the class unit of an image is no patch to be blanked: with specials=True choose baselines='zero'"
        )


def _symbol(batch: Batch, baselines: Baselines) -> int | None:
    """The id that stands on units taken away; None where none does."""
    check_baselines(baselines)
    if baselines in ("zero", "delete"):
        return None
    if batch.inputs.dim() > 2:
        if baselines == "pad":
            return None
        raise UserError(f"an image has no {baselines.upper()} symbol: choose baselines='zero' or 'delete'")
    symbol = {"pad": batch.filler, "mask": batch.masker, "unk": batch.unknown}[baselines]
    if symbol is None:
        raise UserError(
            f"this vocabulary has no {baselines.upper()} symbol: choose baselines='pad', 'zero' or 'delete', "
            "or a tokenizer that has one"
        )
    return symbol


@dataclass(frozen=True)
class _Texts:
    """Perturbed texts, and where vectors are put to zero: which row of `vectors` each came from.

    Args:
        origin: `[row]`.
        zeroed: `[row unit]`.
        vectors: of the whole texts, `[batch unit width]`.
    """

    batch: Batch
    origin: Tensor | None = None
    zeroed: Tensor | None = None
    vectors: Tensor | None = None

    def rows(self, index: Tensor) -> _Texts:
        batch = self.batch.rows(index)
        if self.origin is None or self.zeroed is None:
            return _Texts(batch)
        return _Texts(batch, self.origin[index], self.zeroed[index][:, : batch.mask.shape[1]], self.vectors)

    @torch.no_grad()
    def read(self, model: Model) -> Tensor:
        if self.origin is None or self.zeroed is None or self.vectors is None:
            return model(self.batch).logits
        vectors = self.vectors[self.origin][:, : self.zeroed.shape[1]].masked_fill(self.zeroed.unsqueeze(-1), 0)
        return model(self.batch, embeddings=vectors).logits


def _answers(memory: Memory, texts: _Texts, most: int | None) -> Tensor:
    """Logits `[row output]`; each distinct text that the memory does not know is read once."""
    keys = keys_of(texts.batch, texts.zeroed, imposed=memory.model.imposed)
    first, group = _distinct(keys)
    known, recalled = memory.recall(keys[first])
    new = first[~known]
    memory.hits += len(keys) - len(new)
    memory.misses += len(new)
    if not len(new):
        return recalled[group]
    logits = _read(memory.model, texts, new, most)
    memory.add(keys[new], logits)
    found = logits.new_empty(len(first), logits.shape[1])
    found[~known] = logits
    found[known] = recalled.to(logits)
    return found[group]


def _distinct(keys: Tensor) -> tuple[Tensor, Tensor]:
    """One row of each distinct key, and for each row the number of its key among these."""
    order = torch.argsort(keys[:, 0], stable=True)
    ordered = keys[order]
    new = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    group = torch.empty_like(order).scatter_(0, order, new.cumsum(0) - 1)
    return order[new], group


def _read(model: Model, texts: _Texts, index: Tensor, most: int | None) -> Tensor:
    """Logits of the texts at `index`, longest first, fewer at once after memory ran out."""
    lengths = texts.batch.lengths[index]
    order = torch.argsort(lengths, descending=True, stable=True)
    longest = lengths[order].tolist()
    found: list[Tensor] = []
    start, share = 0, 1
    while start < len(order):
        fit = CELLS // max(16, longest[start]) ** 2
        size = max(1, min(fit, most or fit) // share)
        logits = _tried(model, texts.rows(index[order[start : start + size]]))
        if logits is None:
            share *= 2
            continue
        found.append(logits)
        start += size
    logits = torch.cat(found)
    return torch.empty_like(logits).index_copy_(0, order, logits)


def _tried(model: Model, texts: _Texts) -> Tensor | None:
    """Logits, or None where several texts at once do not fit into memory."""
    try:
        return texts.read(model)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        if len(texts.batch) == 1:
            units = texts.batch.mask.shape[1]
            raise UserError(f"not even one text of {units} units fits into memory: cut the texts") from error
        return None


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in _FULL)


def _block_rows(batch: Batch) -> int:
    """Rows of perturbed inputs that make up one block."""
    numbers = batch.inputs[:1].numel() or 1
    return max(1, BLOCK // numbers)


def row_blocks(batch: Batch, samples: int) -> Iterator[Tensor]:
    """The rows of a batch in blocks whose coalitions `[row sample unit]` stay within twice the block size."""
    cells = max(1, samples * batch.mask.shape[1])
    size = max(1, 2 * BLOCK // cells)
    for start in range(0, len(batch), size):
        yield torch.arange(start, min(start + size, len(batch)), device=batch.mask.device)
