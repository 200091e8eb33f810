"""Language models read as classifiers: the logit of a class is the log-probability of its label word.

A causal model is read at the last token of a text, a masked one at its mask tokens. A label word of several tokens has
the joint log-probability log p(w_1 | text) + log p(w_2 | text, w_1) + ... Of a causal model the further terms come from
the keys and values of the text, whose attention does not depend on what follows. A masked model sees as many mask
tokens as a label word has tokens, the same number for all of them, and its terms are log p(w_i | text, masks) of one
forward pass: the tokens of a word count as independent given the text.

With one label word only, the logit is its log odds against everything else, log p / (1 - p).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor

from heedful.models.attention_hooks import outside_pass
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.types import Batch, DecidingRow, Task, UserError

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import PreTrainedModel as Network

SAMPLE_MASKS = (2, 4, 0)
"""Where the mask tokens of a random text stand; each place exists in the shortest one."""


class Readout(Protocol):
    """How the logits of a text are read from a network."""

    def logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        """Logits `[batch output]` of one forward pass of a batch, which the network gets as these arguments."""
        ...

    def library_logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        """The same by whole forward passes of one text without padding, in the library's own way."""
        ...

    def prepare_sample(self, batch: Batch) -> Batch:
        """A random batch with what such texts must contain."""
        ...

    def deciding_row(self, read: Tensor, batch: Batch) -> DecidingRow:
        """The name of the query rows `[batch unit]` whose states have an influence on the logits."""
        ...

    def is_joint_beyond(self, window: int | None, units: int) -> bool:
        """Whether words of several tokens follow texts of this width that a window of attention does not span."""
        ...


@dataclass(frozen=True)
class ClassifierHead:
    """The logits of a network with a head for its classes."""

    def logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        return cast("Tensor", network(**inputs).logits)

    def library_logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        output: object = network(**inputs)
        if not isinstance(output, Mapping) or "logits" not in output:
            raise UserError(
                f"{type(network).__name__} has no head: load it with AutoModelForSequenceClassification or "
                "AutoModelForImageClassification"
            )
        return cast("Tensor", output["logits"])

    def prepare_sample(self, batch: Batch) -> Batch:
        return batch

    def deciding_row(self, read: Tensor, batch: Batch) -> DecidingRow:
        positions = torch.arange(read.shape[1], device=read.device)
        if torch.equal(read, (positions == 0).expand_as(read)):
            return "first"
        return "last" if torch.equal(read, positions == batch.lengths.unsqueeze(1) - 1) else "all"

    def is_joint_beyond(self, window: int | None, units: int) -> bool:
        return False


@dataclass(frozen=True)
class LabelWords:
    """The log-probabilities of label words, given by their token ids.

    Args:
        words: the tokens of the label word of each class.
        mask_id: the mask token of a masked language model; None for a causal one.
    """

    words: tuple[tuple[int, ...], ...]
    mask_id: int | None = None

    def __post_init__(self) -> None:
        if not self.words or not all(self.words):
            raise UserError("a label word has no token: give each class a word that the tokenizer knows")
        lengths = {len(word) for word in self.words}
        if self.mask_id is not None and (len(lengths) > 1 or max(lengths) > len(SAMPLE_MASKS)):
            raise UserError(
                f"the label words have {', '.join(map(str, sorted(lengths)))} tokens: a masked model needs words of "
                f"one length of at most {len(SAMPLE_MASKS)} tokens, because its mask tokens show the length"
            )
        for first, second in permutations(self.words, 2):
            if second[: len(first)] == first:
                raise UserError(
                    f"the tokens of one label word, {list(first)}, begin another, {list(second)}, which can never be "
                    "the likelier: choose other words"
                )

    @property
    def task(self) -> Task:
        """Classes with a logit each; of a single word whether it is the one."""
        return BinaryClassification() if len(self.words) == 1 else MulticlassClassification(len(self.words))

    @property
    def is_joint(self) -> bool:
        """Whether tokens must follow the text before all terms are known."""
        return self.mask_id is None and max(map(len, self.words)) > 1

    def logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        read, cache = _read_places(network, inputs, self._places(batch), keeps_cache=self.is_joint)
        if self.mask_id is not None:
            parts = [read[:, position, [word[position] for word in self.words]] for position in range(read.shape[1])]
            return self._to_logits(torch.stack(parts).sum(0))
        first = read[:, 0, [word[0] for word in self.words]]
        if not self.is_joint:
            return self._to_logits(first)
        with outside_pass():
            return self._to_logits(first + self._further_terms(network, inputs, cache))

    def _places(self, batch: Batch) -> Tensor:
        """The units whose output is read `[batch place]`: the last, or the mask tokens outside the user's text."""
        if self.mask_id is None:
            return _last_places(batch)
        count, is_mask = len(self.words[0]), self._is_mask(batch)
        if not bool((is_mask.sum(1) == count).all()):
            raise UserError(f"the model reads {count} mask tokens outside the text, but a text has another number")
        return is_mask.nonzero()[:, 1].reshape(-1, count)

    def _is_mask(self, batch: Batch) -> Tensor:
        return (batch.inputs == self.mask_id) & batch.mask & ~batch.content_mask

    def _to_logits(self, log_probabilities: Tensor) -> Tensor:
        if len(self.words) > 1:
            return log_probabilities
        # Below 0 even where a probability rounds to 1.
        exact = log_probabilities.double().clamp(max=-1e-12)
        return (exact - torch.log(-torch.expm1(exact))).to(log_probabilities.dtype)

    def _further_terms(self, network: Network, inputs: dict[str, Tensor], cache: _Cache | None) -> Tensor:
        """The sum of log p(w_i | text, w_1 ... w_i-1) from the second token on `[batch class]`, by one forward pass."""
        if cache is None:
            raise UserError(
                f"{type(network).__name__} keeps no keys and values, so words of several tokens cannot be scored: "
                "choose label words of one token"
            )
        rows, classes, device = len(inputs["input_ids"]), len(self.words), inputs["input_ids"].device
        longest = max(map(len, self.words))
        ids = torch.tensor([[*word, *[word[-1]] * (longest - len(word))] for word in self.words], device=device)
        exists = torch.tensor(
            [[position < len(word) for position in range(1, longest)] for word in self.words], device=device
        )
        try:
            cache.batch_repeat_interleave(classes)
        except AttributeError as error:
            raise UserError(
                f"{type(network).__name__} keeps states that cannot be repeated, so words of several tokens "
                "cannot be scored: choose label words of one token"
            ) from error
        mask = inputs["attention_mask"].repeat_interleave(classes, 0)
        arguments = {
            "input_ids": ids[:, :-1].repeat(rows, 1),
            "attention_mask": torch.cat([mask, mask.new_ones(len(mask), longest - 1)], 1),
        }
        if "position_ids" in inputs:
            start = inputs["position_ids"].amax(1).repeat_interleave(classes, 0).unsqueeze(1) + 1
            arguments["position_ids"] = start + torch.arange(longest - 1, device=device)
        scores = network(**arguments, past_key_values=cache, use_cache=True).logits
        terms = _log_probabilities(scores).gather(2, ids[:, 1:].repeat(rows, 1).unsqueeze(-1)).squeeze(-1)
        return terms.reshape(rows, classes, -1).masked_fill(~exists, 0.0).sum(-1)

    def library_logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        if not self.is_joint:
            every = _log_probabilities(network(**inputs).logits)
            positions = self._places(batch)[0].tolist()
            parts = [
                every[:, position, [word[number] for word in self.words]] for number, position in enumerate(positions)
            ]
            return self._to_logits(torch.stack(parts).sum(0))
        totals = []
        for word in self.words:
            ids = torch.cat([inputs["input_ids"], inputs["input_ids"].new_tensor([word[:-1]]).long()], 1)
            scores = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            every = _log_probabilities(scores)[0, -len(word) :]
            totals.append(every[torch.arange(len(word)), list(word)].sum())
        return self._to_logits(torch.stack(totals).unsqueeze(0))

    def prepare_sample(self, batch: Batch) -> Batch:
        batch = replace(batch, segments=torch.zeros_like(batch.segments))  # a prompt is one sequence
        if self.mask_id is None:
            return batch
        inputs = batch.inputs.clone()
        inputs[:, sorted(SAMPLE_MASKS[: len(self.words[0])])] = self.mask_id
        return replace(batch, inputs=inputs, mask_id=self.mask_id)

    def deciding_row(self, read: Tensor, batch: Batch) -> DecidingRow:
        if self.mask_id is None:
            return ClassifierHead().deciding_row(read, batch)
        return "mask" if torch.equal(read, self._is_mask(batch)) else "all"

    def is_joint_beyond(self, window: int | None, units: int) -> bool:
        # A window counts padding that stands between a short text and the word behind it.
        return self.is_joint and window is not None and units + max(map(len, self.words)) > window


@dataclass(frozen=True)
class Vocabulary:
    """The log-probabilities of all tokens that may follow a text."""

    def logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        return _read_places(network, inputs, _last_places(batch), keeps_cache=False)[0][:, 0]

    def library_logits(self, network: Network, inputs: dict[str, Tensor], batch: Batch) -> Tensor:
        return _log_probabilities(network(**inputs).logits)[:, -1]

    def prepare_sample(self, batch: Batch) -> Batch:
        return batch

    def deciding_row(self, read: Tensor, batch: Batch) -> DecidingRow:
        return ClassifierHead().deciding_row(read, batch)

    def is_joint_beyond(self, window: int | None, units: int) -> bool:
        return False


class _Cache(Protocol):
    """The keys and values of a library."""

    def batch_repeat_interleave(self, repeats: int) -> None: ...


def _last_places(batch: Batch) -> Tensor:
    return (batch.lengths - 1).clamp(min=0).unsqueeze(1)


def _read_places(
    network: Network, inputs: dict[str, Tensor], places: Tensor, *, keeps_cache: bool
) -> tuple[Tensor, _Cache | None]:
    """Log-probabilities `[batch place token]` at some units of each text, and the keys and values if they are kept."""
    wanted, index = torch.unique(places, return_inverse=True)
    # Logits of all units would be vocabulary x units numbers.
    known = inspect.signature(type(network).forward).parameters
    options = {"logits_to_keep": wanted} if "logits_to_keep" in known else {}
    output = network(**inputs, **options, use_cache=True) if keeps_cache else network(**inputs, **options)
    scores = output.logits if options else output.logits[:, wanted]
    read = _log_probabilities(scores).gather(1, index.unsqueeze(-1).expand(-1, -1, scores.shape[-1]))
    return read, getattr(output, "past_key_values", None) if keeps_cache else None


def _log_probabilities(scores: Tensor) -> Tensor:
    """Over the vocabulary, at least in single precision."""
    return (scores if scores.dtype == torch.float64 else scores.float()).log_softmax(-1)
