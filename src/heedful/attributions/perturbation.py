"""Perturbation: remove tokens, read the text again and compare outputs; the engine, Occlusion and LeaveOneOut.

LIME and the Shapley methods use the same engine: perturbed texts are built from ids or embeddings, never from decoded
text, each distinct one is read once per call, and texts of similar length are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from heedful.attributions.method import (
    Background,
    Baseline,
    CheckedOptions,
    Feature,
    MethodTags,
    Output,
    SampledAttribution,
    baseline_vectors,
    change_option,
    divide_among_units,
    expand_to_units,
    feature_counts,
    feature_index,
    in_evaluation_mode,
    register,
    replace_units,
    run_in_chunks,
    scored_units,
    target_output,
)
from heedful.capabilities import SupportsLeaveOneOut, SupportsPrefixes, TextPrefix
from heedful.measures.divergence import total_variation
from heedful.option_bounds import Bounds
from heedful.types import Attribution, Batch, Method, Model, Task, UserError, check_choice

BLOCK_ELEMENTS = 1 << 21
"""Input numbers of the perturbed texts that are built at once."""
MIN_SHARED = 0.2
"""Share of all tokens in unchanged beginnings from which on these are read once: then texts are not read together."""
TOKENS_AFTER_PREFIX, TOKENS_WITH_PREFIX = 1 << 11, 1 << 12
"""Tokens of a pass behind the common beginning of its texts, and with it."""


def logits_keeping(model: Model, batch: Batch, kept: Tensor, baselines: Baseline) -> Tensor:
    """Logits `[batch sample output]` of each text with only the `kept` `[batch sample unit]` of its content tokens."""
    return logits_without(model, batch, ~kept & batch.content_mask.unsqueeze(1), baselines)


def logits_without(model: Model, batch: Batch, removed: Tensor, baselines: Baseline) -> Tensor:
    """Logits `[batch sample output]` of each text without the tokens `removed` `[batch sample unit]`."""
    check_choice("baselines", baselines, Baseline)
    if baselines != "zero" and batch.inputs.dim() > 2 and bool((removed & ~batch.content_mask.unsqueeze(1)).any()):
        # The model would put its own class embedding there again, and nothing would change.
        raise UserError("the class token of an image cannot be blanked: with special_tokens=True use baselines='zero'")
    embeddings = None
    if baselines == "zero":
        with torch.no_grad():
            embeddings = model.read_embeddings(batch)
    origin = torch.arange(len(batch), device=removed.device).repeat_interleave(removed.shape[1])
    rows = removed.flatten(0, 1)
    size = max(1, BLOCK_ELEMENTS // (batch.inputs[:1].numel() or 1))
    logits = [
        _block_logits(model, batch, origin[start : start + size], rows[start : start + size], baselines, embeddings)
        for start in range(0, len(origin), size)
    ]
    return torch.cat(logits).reshape(*removed.shape[:2], -1)


def outputs_without(
    model: Model, batch: Batch, target: Tensor, removed: Tensor, baselines: Baseline, output: Output
) -> Tensor:
    """The target's output `[batch sample]` in float64 for each text without the tokens `removed`."""
    return target_output(model.task, logits_without(model, batch, removed, baselines), target, output)


def _block_logits(
    model: Model, batch: Batch, origin: Tensor, removed: Tensor, baselines: Baseline, embeddings: Tensor | None
) -> Tensor:
    """Logits `[row output]` of the texts at `origin` without the tokens `removed` `[row unit]`.

    Args:
        embeddings: of the whole batch, to be set to zero where removed; None replaces or deletes ids.
    """
    texts = batch.rows(origin)
    removed = removed[:, : texts.mask.shape[1]]
    if embeddings is None:
        texts = replace_units(texts, removed, baselines)
    # Imposed attention may weigh equal tokens of a text by their word number: then the ids left do not say everything.
    by_removal = embeddings is not None or batch.inputs.dim() > 2 or model.has_imposed_attention
    first, group = distinct_texts(texts, origin, removed, by_removal=by_removal)
    if isinstance(model, SupportsPrefixes) and model.reuses_prefixes and not by_removal:
        shared = _shared_units(batch, texts, origin)[first]
        if int(shared.sum()) > MIN_SHARED * int(texts.lengths[first].sum()):
            return _logits_after_prefixes(model, batch, texts.rows(first), origin[first], shared)[group]
    lengths, order = texts.lengths[first].sort(descending=True, stable=True)
    longest, logits = lengths.tolist(), []

    def read(chunk: Tensor) -> None:
        rows = first[order[chunk]]
        block = texts.rows(rows)
        with torch.no_grad():
            if embeddings is None:
                logits.append(model.read_logits(block))
                return
            width = block.mask.shape[1]
            zeroed = embeddings[origin[rows], :width].masked_fill(removed[rows, :width].unsqueeze(-1), 0)
            logits.append(model.read_logits(block, embeddings=zeroed))

    run_in_chunks(read, len(order), lambda start: _rows_together(longest, start, model.tokens_per_pass), order.device)
    return torch.cat(logits)[order.argsort()][group]


def _shared_units(batch: Batch, texts: Batch, origin: Tensor) -> Tensor:
    """How many units at the beginning of each perturbed text are those of its text `[row]`, fewer than all."""
    width = texts.mask.shape[1]
    same = texts.mask
    for one, other in ((texts.inputs, batch.inputs), (texts.segments, batch.segments)):
        same = same & (one == other[origin, :width])
    return same.long().cumprod(1).sum(1).minimum(texts.lengths - 1)


@torch.no_grad()
def _logits_after_prefixes(
    model: SupportsPrefixes, batch: Batch, texts: Batch, origin: Tensor, shared: Tensor
) -> Tensor:
    """Logits `[row output]` of perturbed texts, whose beginning is read once for all texts of one origin."""
    logits: list[Tensor] = []
    numbers: list[Tensor] = []
    for source in sorted(set(origin.tolist())):
        row_numbers = (origin == source).nonzero().flatten()
        row_numbers = row_numbers[shared[row_numbers].argsort(stable=True)]
        prefix = model.read_prefix(batch.rows(torch.tensor([source], device=origin.device)))
        starts, lengths = shared[row_numbers].tolist(), texts.lengths[row_numbers].tolist()

        def read(
            chunk: Tensor,
            row_numbers: Tensor = row_numbers,
            starts: Sequence[int] = starts,
            prefix: TextPrefix = prefix,
        ) -> None:
            logits.append(model.read_logits_after(prefix, starts[int(chunk[0])], texts.rows(row_numbers[chunk])))

        def size(start: int, starts: Sequence[int] = starts, lengths: Sequence[int] = lengths) -> int:
            longest = max(lengths[start:])
            # The keys and values of the beginning are in memory once for each text.
            return min(TOKENS_AFTER_PREFIX // max(1, longest - starts[start]), TOKENS_WITH_PREFIX // longest)

        run_in_chunks(read, len(row_numbers), size, origin.device)
        numbers.append(row_numbers)
    return torch.cat(logits)[torch.cat(numbers).argsort()]


def _rows_together(lengths: Sequence[int], start: int, tokens: int) -> int:
    """How many texts from `start` on are read at once: at most `tokens`; one in 64 may be padding.

    A pass of its own costs about as much as so many tokens.

    Args:
        lengths: in falling order.
    """
    rows = padding = 0
    for length in lengths[start : start + max(1, tokens // max(1, lengths[start]))]:
        padding += lengths[start] - length
        if padding > tokens // 64:
            break
        rows += 1
    return rows


def distinct_texts(texts: Batch, origin: Tensor, removed: Tensor, *, by_removal: bool) -> tuple[Tensor, Tensor]:
    """One row of each distinct perturbed text, and the number of its distinct text for each row.

    Args:
        by_removal: compare what was removed, not the ids that are left.
    """
    if by_removal:
        units = removed.long()
    else:
        units = (texts.inputs * 4 + texts.segments * 2 + texts.content_mask).masked_fill(~texts.mask, -1)
    _, group = torch.unique(torch.cat((origin.unsqueeze(1), units), 1), dim=0, return_inverse=True)
    rows = torch.arange(len(group), device=group.device)
    first = torch.full((int(group.max()) + 1,), len(group), device=group.device)
    return first.scatter_reduce(0, group, rows, "amin"), group


def baseline_embeddings(model: Model, batch: Batch, baselines: Baseline, *, special_tokens: bool = False) -> Tensor:
    """Embeddings `[batch unit width]` with all scored tokens removed; zero where a token was deleted."""
    if baselines == "delete" and batch.inputs.dim() == 2:
        baselines = "zero"
    return baseline_vectors(model, batch, baselines, scored_units(batch, special_tokens=special_tokens))


FeatureScores = Callable[[Tensor, Batch, Tensor], Tensor]
"""Scores `[row feature]` from row numbers, these rows of the batch, and their feature index."""


def score_features(score: FeatureScores, batch: Batch, index: Tensor, samples_per_row: int) -> Tensor:
    """Scores of features `[batch feature]`, in blocks of rows whose coalitions `[row sample unit]` fit into memory."""
    units = max(1, index.shape[1])
    scores = torch.zeros(len(batch), units, dtype=torch.float64, device=index.device)
    size = max(1, 2 * BLOCK_ELEMENTS // (samples_per_row * units))
    for start in range(0, len(batch), size):
        rows = torch.arange(start, min(start + size, len(batch)), device=index.device)
        texts_part = batch.rows(rows)
        values = score(rows, texts_part, index[rows, : texts_part.mask.shape[1]])
        scores[rows, : values.shape[1]] = values
    return scores


CoalitionReader = Callable[[Tensor], Tensor]
"""The outputs `[sample]` of one text with these features kept `[sample feature]`."""
Sampler = Callable[[CoalitionReader, Batch, Tensor], tuple[Tensor, Tensor, int]]
"""Scores and posterior errors `[feature]` of one text and its number of samples, from it and its feature index."""


def sample_texts(
    sample: Sampler, model: Model, batch: Batch, target: Tensor, index: Tensor, baselines: Baseline, output: Output
) -> SampledAttribution:
    """An attribution text by text, each with as many outputs as it needs."""
    scores = torch.zeros(batch.mask.shape, dtype=torch.float64, device=index.device)
    errors, samples = torch.zeros_like(scores), torch.zeros(len(batch), dtype=torch.int64, device=index.device)
    for row in range(len(batch)):
        at = torch.tensor([row], device=index.device)
        text = batch.rows(at)
        features = index[at, : text.mask.shape[1]]

        def read(kept: Tensor, at: Tensor = at, text: Batch = text, features: Tensor = features) -> Tensor:
            removed = expand_to_units(~kept.unsqueeze(0), features)
            return outputs_without(model, text, target[at], removed, baselines, output)[0]

        count = int(feature_counts(features))
        if count:
            scores[row, :count], errors[row, :count], samples[row] = sample(read, text, features)
    unit_scores, unit_errors = (divide_among_units(values, index) for values in (scores, errors))
    return SampledAttribution(unit_scores, index >= 0, unit_errors, samples)


def explain_alone(method: Method, model: Model, batch: Batch, target: Tensor, samples: Tensor) -> Attribution:
    """Scores of each text by a method with its own `n_samples` `[batch]`, whatever else is in the batch."""
    scores = torch.zeros(batch.mask.shape, dtype=torch.float64, device=batch.mask.device)
    mask = torch.zeros_like(batch.mask)

    def explain(row: int, count: int) -> Attribution:
        at = torch.tensor([row], device=batch.mask.device)
        return change_option(method, "n_samples", lambda _: count)(model, batch.rows(at), target[at])

    for row, count in enumerate(samples.tolist()):
        alone = explain(row, count)
        scores[row, : alone.scores.shape[1]], mask[row, : alone.mask.shape[1]] = alone.scores[0], alone.mask[0]
    return Attribution(scores, mask)


@register("occlusion")
@dataclass(frozen=True)
class Occlusion(CheckedOptions):
    """Loss of the output when a window of tokens is removed, averaged over the windows that cover a token.

    Windows slide by one and stay inside their text of a pair; a text shorter than the window is one window.

    Args:
        window: features removed together.
        feature: "word" removes all tokens of a word together and divides its score among them; so do "sentence" and
            "segment".
        special_tokens: remove and score special tokens too.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean over windows w that cover t of f(text) − f(text without w)",
        avoid="where several words say the same: removing one of them changes nothing",
        references=("zeiler-2014",),
    )

    window: Annotated[int, Bounds(1)] = 1
    baselines: Baseline = "pad"
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = False

    @property
    def tags(self) -> MethodTags:
        """Comprehensiveness removes tokens in the same way, from the text as a whole."""
        return MethodTags(optimizes=(f"comprehensiveness ({self.baselines})",))

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed losses in float64; positive tokens support the target."""
        index = feature_index(batch, self.feature, special_tokens=self.special_tokens)

        def losses(rows: Tensor, texts: Batch, features: Tensor) -> Tensor:
            covered = occlusion_windows(texts, features, self.window)
            removed = expand_to_units(torch.cat((torch.zeros_like(covered[:, :1]), covered), dim=1), features)
            values = outputs_without(model, texts, target[rows], removed, self.baselines, self.output)
            cover = covered.double()
            return torch.einsum("bsf,bs->bf", cover, values[:, :1] - values[:, 1:]) / cover.sum(1).clamp(min=1)

        scores = score_features(losses, batch, index, batch.mask.shape[1])
        return Attribution(divide_among_units(scores, index), index >= 0)


def occlusion_windows(batch: Batch, index: Tensor, window: int) -> Tensor:
    """The features that each window covers `[batch start feature]`; a window that crosses two texts covers nothing."""
    width = max(1, int(feature_counts(index).max()))
    segment = torch.full((len(batch), width + 1), -1, device=index.device)
    # Tokens without a feature write into a last column that is cut off.
    segment.scatter_(1, index.masked_fill(index < 0, width), batch.segments)
    position = torch.arange(width, device=index.device)
    segment = segment[:, :width].masked_fill(position >= feature_counts(index).unsqueeze(1), -1)
    same = (segment.unsqueeze(1) == segment.unsqueeze(2)) & (segment >= 0).unsqueeze(1)
    step = position - position.unsqueeze(1)  # from the start of a window to a feature
    covered = same & (step >= 0) & (step < window)
    is_first = ~(same & (step < 0)).any(2)
    is_full = covered.sum(2) == window
    return covered & (is_full | is_first).unsqueeze(2)


@register("leave-one-out")
@dataclass(frozen=True)
class LeaveOneOut(CheckedOptions):
    """Change of the output when a token is deleted and the shorter text is read again.

    Special tokens stay; a patch of an image is set to 0. The only content token of a text cannot be deleted and gets 0.

    Args:
        output: "probability" and "logit" give the signed loss of the target's output; "distribution" gives the total
            variation between the two output distributions, ½ sum_c |dp_c|, which is |dp| for two classes as in Jain &
            Wallace (2019): it has no sign, so that words for and against the target rank alike.
        feature: "word" deletes all tokens of a word together and divides the change among them; so do "sentence" and
            "segment".
    """

    background: ClassVar[Background] = Background(
        formula="s_t = f(text) − f(text without token t)",
        avoid="where several words say the same: removing one of them changes nothing",
        references=("li-2016",),
    )

    output: Literal[Output, "distribution"] = "probability"
    feature: Feature = "unit"

    @property
    def tags(self) -> MethodTags:
        """A total variation has no sign; a word's share of its tokens adds up in any case."""
        optimizes = ("comprehensiveness (delete)",)
        if self.output != "distribution":
            note = "what the output of the predicted class loses when the token is removed"
            return MethodTags(optimizes=optimizes, note=note)
        return MethodTags(
            signed=False,
            pooling="mean" if self.feature == "unit" else "sum",
            target_specific=False,
            optimizes=optimizes,
            note="size of the change of all outputs when the token is removed",
        )

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Changes of the output per token, in float64."""
        if self.feature != "unit":
            index = feature_index(batch, self.feature)
            changes = self._feature_changes(model, batch, target, index)
            return Attribution(divide_among_units(changes, index), index >= 0)
        # The model's own shortcut does not know an imposed attention, which is computed for each shorter text.
        if isinstance(model, SupportsLeaveOneOut) and not model.has_imposed_attention:
            with torch.no_grad():
                before, after = model.read_logits(batch).unsqueeze(1), model.leave_one_out_logits(batch)
        else:
            deleted = _single_deletions(batch)
            logits = logits_without(model, batch, torch.cat((torch.zeros_like(deleted[:, :1]), deleted), 1), "delete")
            before, after = logits[:, :1], logits[:, 1:]
        change = self._change(model.task, before, after, target)
        return Attribution(change.masked_fill(~batch.deletable_mask, 0), batch.content_mask)

    def _change(self, task: Task, before: Tensor, after: Tensor, target: Tensor) -> Tensor:
        """The change `[batch sample]` from logits `[batch 1 output]` to logits `[batch sample output]`."""
        if self.output == "distribution":
            return total_variation(*(task.probabilities(logits.double()) for logits in (before, after)))
        whole, shorter = (target_output(task, logits, target, self.output) for logits in (before, after))
        # The logit of an answer that is not a candidate is -inf with and without the token: nothing changes.
        return torch.where(whole == shorter, 0.0, whole - shorter)

    def _feature_changes(self, model: Model, batch: Batch, target: Tensor, index: Tensor) -> Tensor:
        """The change without each feature `[batch feature]`; 0 for the only feature of a text."""
        width = max(1, int(feature_counts(index).max()))
        features = torch.eye(width, dtype=torch.bool, device=index.device).expand(len(batch), -1, -1)
        deleted = expand_to_units(features, index)
        # A text of one feature stays as it is; so does each text of a pair.
        parts = [batch.content_mask & (batch.segments == part) for part in (0, 1)]
        empties = torch.stack([part.any(1, keepdim=True) & ~(part.unsqueeze(1) & ~deleted).any(2) for part in parts])
        deleted = deleted & ~empties.any(0).unsqueeze(2)
        logits = logits_without(model, batch, torch.cat((torch.zeros_like(deleted[:, :1]), deleted), 1), "delete")
        return self._change(model.task, logits[:, :1], logits[:, 1:], target)


def leave_one_out_logits(model: Model, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` of each text without each deletable token, by one forward pass per deletion."""
    return logits_without(model, batch, _single_deletions(batch), "delete")


def _single_deletions(batch: Batch) -> Tensor:
    """One deletable token per sample `[batch unit unit]`; nothing where a token cannot be deleted."""
    deletions = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
    return deletions & batch.deletable_mask.unsqueeze(-1)
