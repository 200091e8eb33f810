"""A model that explains its predictions: `load` opens it, `Explainer.explain` gives scores of words.

Words, not tokens: the score of a word is the sum of the scores of its tokens where scores are contributions to the
output, and their mean where they are weights without sign, so that long words are not favoured.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, overload

import torch
from torch import Tensor

from heedful import __version__
from heedful.attributions.attention import first_token_shares
from heedful.attributions.method import Feature, MethodTags, SampledAttribution, change_option, feature_owners, tags_of
from heedful.attributions.registry import Methods, catalogue_name, list_methods, method_for_words
from heedful.data.patches import PatchTokenizer
from heedful.data.prompt import PromptTokenizer, read_prompt
from heedful.data.subwords import Subwords, SubwordTokenizer
from heedful.data.tokenization import with_breaks
from heedful.data.words import SPECIAL_TOKENS, UNK
from heedful.devices import (
    Precision,
    arithmetic_notes,
    arithmetic_of,
    check_device,
    check_precision,
    device_of,
    is_same_device,
)
from heedful.explanation import NUMBER, Explanation, MethodScores
from heedful.formatting import join_names
from heedful.model_loader import (
    ACCEPTED,
    OpenedModel,
    PromptedModel,
    PromptText,
    check_folder_exists,
    copy_to_device,
    open_folder,
    open_language_folder,
    open_language_objects,
    open_objects,
)
from heedful.models.contrast import contrast_model
from heedful.models.label_words import LabelWords
from heedful.models.language_model import language_head, read_language_head
from heedful.models.model_files import check_distinct_names
from heedful.models.transformer import Transformer, TransformerModel
from heedful.recommendation import Recommendation, find_recommendation
from heedful.segmentation import group_words, texts_of_groups
from heedful.store.recipe import Json, json_digest, to_json
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.types import (
    Attribution,
    Batch,
    Corpus,
    Example,
    Method,
    Model,
    SupportsPreparation,
    Task,
    Tokenizer,
    UserError,
    check_attribution,
    check_choice,
    pool_by_word,
    shorten,
)

if TYPE_CHECKING:
    from heedful.training.model_recipe import LoadedModel, ModelRecipe


def word_scores(method: Method, attribution: Attribution, batch: Batch, feature: Feature = "word") -> Attribution:
    """Scores of words `[batch word]` from the scores that the method gave to their tokens; words without one are off.

    A word is a whitespace word of the text, counted over both texts of a pair.

    Args:
        feature: sentences or segments in place of words.
    """
    words = feature_owners(batch, feature).masked_fill(~attribution.mask, -1)
    return Attribution(*pool_by_word(attribution.scores, words, tags_of(method).pooling))


DEFAULT_METHOD = "integrated-gradients"
ExplainedFeature = Literal["token", "word", "sentence", "segment"]
_REMOVED: Mapping[ExplainedFeature, Feature] = {
    "token": "unit",
    "word": "word",
    "sentence": "sentence",
    "segment": "segment",
}
_SHOWN: Mapping[Feature, ExplainedFeature] = {removed: shown for shown, removed in _REMOVED.items()}


@cache
def software_versions() -> Mapping[str, str]:
    """Versions of heedful and of the libraries that scores depend on."""
    return {"heedful": __version__, "torch": torch.__version__, "transformers": metadata.version("transformers")}


# Models

ModelSource: TypeAlias = "str | Path | LoadedModel | tuple[object, object] | Explainer"
"""What `load` accepts."""


@dataclass(frozen=True, eq=False)
class Explainer(OpenedModel):
    """A model in evaluation mode that explains its predictions; `load` makes one."""

    @classmethod
    def of(cls, opened: OpenedModel) -> Explainer:
        """The explainer of an opened model."""
        return cls(**{item.name: getattr(opened, item.name) for item in fields(OpenedModel)})

    def recipe(self, corpus: Corpus) -> ModelRecipe:
        """The model as subject of trials on a corpus, with or without labels, of which a test split is enough.

        The classes of the corpus are matched with the model's by name. A model in memory can be examined in this
        process only, as long as this explainer exists.
        """
        if self.next_words is not None:
            raise UserError(
                f"{self.name} is a language model without classes: give it a prompt and label words, load(..., "
                "prompt='Review: {text}\\nSentiment:', labels={'negative': ' bad', 'positive': ' good'})"
            )
        # Explaining a text needs nothing of training.
        from heedful.training.checkpoint import Checkpoint, align_labels, model_in_memory
        from heedful.training.trained_model import OnOtherData

        aligned = align_labels(corpus, self.model.task, self.class_names)
        if isinstance(self.origin, PromptedModel):
            return Checkpoint(aligned, self.origin.tokenization, self.origin.architecture, scored=False)
        if isinstance(self.origin, str):
            tokenizer = self.tokenizer
            tokenization = tokenizer.tokenization if isinstance(tokenizer, PatchTokenizer) else Subwords(self.origin)
            return Checkpoint(aligned, tokenization, Transformer(self.origin, self.precision), scored=False)
        if self.origin is not None:
            return OnOtherData(self.origin, aligned)
        return model_in_memory(self.given, aligned, self.name, scored=False)

    @overload
    def explain(
        self,
        text: str,
        second: str | None = None,
        *,
        methods: Methods | None = None,
        target: str | int | None = None,
        contrast: str | int | None = None,
        feature: ExplainedFeature | None = None,
        workspace: Path | str | None = None,
    ) -> Explanation: ...

    @overload
    def explain(
        self,
        text: Texts,
        second: Texts | None = None,
        *,
        methods: Methods | None = None,
        target: str | int | None = None,
        contrast: str | int | None = None,
        feature: ExplainedFeature | None = None,
        workspace: Path | str | None = None,
    ) -> tuple[Explanation, ...]: ...

    def explain(
        self,
        text: str | Texts,
        second: str | Texts | None = None,
        *,
        methods: Methods | None = None,
        target: str | int | None = None,
        contrast: str | int | None = None,
        feature: ExplainedFeature | None = None,
        workspace: Path | str | None = None,
    ) -> Explanation | tuple[Explanation, ...]:
        """The explanation of one text, or of each text of a list.

        Each text is explained by itself, and sampling methods draw from (seed, content of the text): other texts and
        their order change nothing.

        Args:
            second: the second text of a pair, or of each pair.
            methods: names of the catalogue or methods; by default the one that the best finished audit of this model
                recommends, else integrated gradients.
            target: name or number of the class to explain; by default the predicted class. Of a language model
                without label words, the word that follows the text.
            contrast: name or number of a class, or another word, to explain the target against.
            feature: what has a score and is removed together: "word", "sentence" or "segment" (about twenty runs of
                words in a text of more than 40 words, else words); "token" scores words by what the removal of single
                tokens does. By default what that audit tested, or words without an audit; notes say where it matters.
            workspace: folder in which audits are kept; by default `HEEDFUL_WORKSPACE`, else `workspace`.
        """
        several = [text] if isinstance(text, str) else text
        others = [second] if isinstance(second, str) and isinstance(text, str) else second
        explained = tuple(
            self.explain_each(
                several,
                others,
                methods=methods,
                target=target,
                contrast=contrast,
                feature=feature,
                workspace=workspace,
            )
        )
        return explained[0] if isinstance(text, str) else explained

    def explain_each(
        self,
        texts: Iterable[str],
        seconds: Iterable[str] | None = None,
        *,
        methods: Methods | None = None,
        target: str | int | None = None,
        contrast: str | int | None = None,
        feature: ExplainedFeature | None = None,
        workspace: Path | str | None = None,
    ) -> Iterator[Explanation]:
        """The explanations of many texts, one after the other; see `explain`."""
        if self.reads_images:
            raise UserError(f"{self.name} reads images, which cannot be given here: audit it on an image corpus")
        if feature is not None:
            check_choice("feature", feature, ExplainedFeature)
        examples = _make_examples(texts, seconds)
        if self.next_words is not None:
            yield from self._explain_next_words(examples, methods, target, contrast, feature, workspace)
            return
        root = workspace if workspace is not None else os.environ.get("HEEDFUL_WORKSPACE", "workspace")
        recommendation = self._recommendation(methods, root)
        shown = feature or ("word" if recommendation is None else _SHOWN[recommendation.feature])
        asked, reason, cautions = _choose_methods(methods, recommendation, root, _REMOVED[shown])
        target_index = None if target is None else self._class_index(target, "target")
        contrast_index = None if contrast is None else self._class_index(contrast, "contrast")
        prepared: tuple[tuple[Method, Method], ...] = ()
        for example in examples:
            # Somebody who predicts in inference mode can still ask for gradients.
            with torch.inference_mode(mode=False), arithmetic_of(self.device):
                prepared = prepared or tuple((method, self._prepare(method, contrast_index)) for method in asked)
                explained = self._explain_example(
                    example, prepared, target_index, contrast_index, feature=shown, recommendation=recommendation
                )
            yield replace(explained, chosen_because=reason, notes=(*cautions, *explained.notes))

    def _explain_next_words(
        self,
        examples: Iterable[Example],
        methods: Methods | None,
        target: str | int | None,
        contrast: str | int | None,
        feature: ExplainedFeature | None,
        workspace: Path | str | None,
    ) -> Iterator[Explanation]:
        """Why this word follows each text and not that one; by default the likeliest token."""
        assert self.next_words is not None
        if not isinstance(target, str | None) or not isinstance(contrast, str | None):
            raise UserError("target and contrast of a language model are words: give for instance target=' good'")
        if target is None and contrast is not None:
            raise UserError("a contrast needs a target: give the word that is explained against it")
        for example in examples:
            texts = [part for part in example.parts if isinstance(part, str)]
            with torch.no_grad(), arithmetic_of(self.device):
                logits = self.model(self.tokenizer([example]).to(self.device)).logits[0]
            likeliest = int(logits.argmax())
            name = str(self.next_words.tokenizer.decode([likeliest]))
            given, class_names = self.next_words.classifier(target, contrast, likeliest)
            asked = replace(self, given=given, class_names=class_names, next_words=None)
            (explained,) = asked.explain_each(
                texts[:1],
                texts[1:] or None,
                methods=methods,
                target=target or len(asked.class_names) - 1,
                contrast=contrast,
                feature=feature,
                workspace=workspace,
            )
            with torch.no_grad(), arithmetic_of(self.device):
                answer_logits = asked.model(asked.tokenizer([example]).to(self.device)).logits.cpu()
            classes, index = asked.model.task.probabilities(answer_logits.double())[0], explained.target_index
            has_own_logit = len(classes) == answer_logits.shape[1]
            share = float(answer_logits[0, index].double().exp() if has_own_logit else classes[index])
            yield replace(
                explained,
                predicted=name,
                predicted_probability=float(logits.cpu().max().double().exp()),
                probability=share,
                identity=self.identity,
            )

    def _prepare(self, method: Method, contrast: int | None) -> Method:
        """The method prepared for all texts; a contrast is another model for each target."""
        return method.prepare(self.model) if isinstance(method, SupportsPreparation) and contrast is None else method

    def _recommendation(self, methods: Methods | None, root: Path | str) -> Recommendation | None:
        """What the best audit of this model in a workspace says; None if there is none."""
        if methods is None:
            return find_recommendation(self.identity, root)
        with suppress(UserError):  # a workspace out of reach must not stop what does not need it
            return find_recommendation(self.identity, root)
        return None

    def _class_index(self, asked: str | int, role: str) -> int:
        """The number of a class that is given by its name, whatever the case, or by its number."""
        names = self.class_names
        if not names:
            raise UserError(f"{self.name} predicts a number and has no classes: leave {role} out")
        if isinstance(asked, str):
            same = [index for index, name in enumerate(names) if name == asked]
            same = same or [index for index, name in enumerate(names) if name.casefold() == asked.strip().casefold()]
            if same:
                return same[0]
            asked = int(asked) if asked.isdecimal() and len(asked) < 7 else asked
        if not isinstance(asked, Integral) or isinstance(asked, bool) or not 0 <= asked < len(names):
            more = ", ..." if len(names) > MAX_LISTED_NAMES else ""
            listed = ", ".join(map(_word, names[:MAX_LISTED_NAMES])) + more
            raise UserError(f"{self.name} has no output {shorten(asked)} for {role}: choose one of {listed}")
        return int(asked)

    def _limits(self, rows: Sequence[MethodScores]) -> dict[str, list[str]]:
        """What heat-maps cannot show, each with the methods of which that is true."""
        limits: dict[str, list[str]] = {}
        for row in rows:
            is_specific = row.depends_on_target or not self.class_names
            for limit in MethodTags(signed=row.is_signed, target_specific=is_specific).limits:
                limits.setdefault(limit, []).append(row.method)
        return limits

    def _explain_example(
        self,
        example: Example,
        methods: Sequence[tuple[Method, Method]],
        target: int | None,
        contrast: int | None,
        *,
        feature: ExplainedFeature,
        recommendation: Recommendation | None,
    ) -> Explanation:
        """Args:
        methods: each method, and the same prepared for this model.
        """
        batch = with_breaks(self.tokenizer([example]), [example]).to(self.device)
        texts = tuple(part for part in example.parts if isinstance(part, str))
        words = example.words
        parts = [part for part, text in enumerate(texts) for _ in text.split()]
        if not bool(batch.content_mask.any()):
            raise UserError("the text is empty after tokenization: give another text")
        with torch.no_grad():
            logits, share = self.model.read_logits(batch), math.nan
            if any(tags_of(method).reads == "attention" for method, _ in methods):
                share = float(first_token_shares(self.model(batch).attention, batch)[0])
            probabilities = self.model.task.probabilities(logits.double())[0].tolist()
        predicted = max(range(len(probabilities)), key=probabilities.__getitem__)
        explained = predicted if target is None else target
        if contrast == explained:
            raise UserError(
                f"target and contrast are both {self.class_names[explained]}: choose another class for one of them"
            )
        removed = _REMOVED[feature]
        features = _word_features(batch, removed, len(words))
        rows = tuple(
            _score(self.model, batch, pair, explained, contrast, removed, max(features) + 1) for pair in methods
        )
        names, notes = self.class_names or (NUMBER,), _feature_notes(batch, removed, recommendation, len(words))
        notes += _reading_notes(self.tokenizer, batch, words)
        notes += _language_notes(self.model, self.tokenizer, logits[0], rows)
        notes += arithmetic_notes(self.device, self.precision)
        if isinstance(self.model, TransformerModel) and self.model.implementation_note:
            notes.append(self.model.implementation_note)
        if not math.isnan(share):
            notes.append(f"{share:.2f} of the attention of all layers, heads and tokens goes to the first token")
        notes += [f"{', '.join(limited)}: {limit}" for limit, limited in self._limits(rows).items()]
        return Explanation(
            parts=texts,
            words=tuple(texts_of_groups(words, features)),
            word_parts=tuple(parts[features.index(number)] for number in range(max(features) + 1)),
            tokens=_token_texts(self.tokenizer, batch, words),
            token_words=tuple(feature_owners(batch, removed)[0].tolist()),
            token_parts=tuple(batch.segments[0].tolist()),
            target=names[explained],
            target_index=explained,
            probability=probabilities[explained],
            predicted=names[predicted],
            predicted_probability=probabilities[predicted],
            contrast="" if contrast is None else names[contrast],
            rows=rows,
            chosen_because="",
            notes=tuple(notes),
            model=self.name,
            identity=self.identity,
            versions=software_versions(),
            first_token_share=None if math.isnan(share) else share,
            feature=feature,
        )


def _word_features(batch: Batch, feature: Feature, count: int) -> list[int]:
    """The number of the feature of each of the `count` words of the one text of a batch."""
    if feature == "unit" or feature == "word" or batch.breaks is None:
        return list(range(count))
    numbers: list[int] = group_words(batch.breaks, feature)[0].tolist()
    return numbers


def _choose_methods(
    methods: Methods | None, recommendation: Recommendation | None, root: Path | str, feature: Feature
) -> tuple[tuple[Method, ...], str, list[str]]:
    """The methods, for these features, why they were chosen, and a warning for each that did not pass an audit."""
    if methods is not None:
        several = list_methods(methods)
        if not several:
            raise UserError("no method is given: name one, or leave methods out")
        asked = tuple(method_for_words(method, feature) for method in several)
        return asked, "asked for", _audit_warnings(asked, recommendation)
    default = (method_for_words(DEFAULT_METHOD, feature),)
    if recommendation is None:
        return default, f"the default, as no finished audit of this model is in {shown_path(root)}", []
    if recommendation.methods:
        best = (method_for_words(recommendation.methods[0], feature),)
        warnings = _audit_warnings(best, recommendation)
        return best, f"{recommendation.audit} of this model recommends it", warnings
    reason = f"the default, as {recommendation.audit} of this model recommends no method of the catalogue"
    return default, reason, _audit_warnings(default, recommendation)


def _feature_notes(batch: Batch, feature: Feature, recommendation: Recommendation | None, count: int) -> list[str]:
    """That a text of `count` words is explained by longer units, as in an audit; or by others than those it tested."""
    if recommendation is None:
        return []
    shown, tested = (
        f"{_SHOWN[each]}s" if each == "unit" or max(_word_features(batch, each, count)) + 1 < count else "words"
        for each in (feature, recommendation.feature)
    )
    if shown != tested:
        return [f"{recommendation.audit} of this model tested {tested}, not {shown}: its verdicts need not hold here"]
    return [f"{shown} are explained, not single words, as in {recommendation.audit} of this model"] * (shown != "words")


def _audit_warnings(methods: Sequence[Method], recommendation: Recommendation | None) -> list[str]:
    """A line for each method that was audited and may not be shown alone, or not for all predictions."""
    warnings: list[str] = []
    if recommendation is None:
        return warnings
    for name in map(catalogue_name, methods):
        if name in recommendation.not_passed:
            reason = recommendation.not_passed[name]
            warnings.append(f"warning: {name} did not pass {recommendation.audit} of this model: {reason}")
        elif classes := recommendation.exceptions.get(name):
            warnings.append(
                f"warning: {name} did not pass {recommendation.audit} of this model for predictions of "
                f"{join_names(classes)}"
            )
    return warnings


Texts: TypeAlias = list[str] | tuple[str, ...]


def explain(
    model: ModelSource,
    text: str,
    second: str | None = None,
    *,
    methods: Methods | None = None,
    target: str | int | None = None,
    contrast: str | int | None = None,
    feature: ExplainedFeature | None = None,
    prompt: PromptText | None = None,
    labels: Mapping[str, str] | None = None,
    chat: bool = False,
    device: str | None = None,
    precision: Precision = "float32",
) -> Explanation:
    """The explanation of one text by a model that is opened for it; see `load` and `Explainer.explain`."""
    explainer = load(model, prompt=prompt, labels=labels, chat=chat, device=device, precision=precision)
    return explainer.explain(text, second, methods=methods, target=target, contrast=contrast, feature=feature)


def _make_examples(texts: Iterable[str], seconds: Iterable[str] | None) -> list[Example]:
    """The texts as examples whose uid is a digest of their content."""
    firsts = list(texts) if isinstance(texts, Iterable) else [texts]
    if seconds is not None and (isinstance(seconds, str) or not isinstance(seconds, Iterable)):
        raise UserError(f"second is {shorten(seconds)}: give a text for one text, a list of texts for a list")
    if seconds is not None and len(seconds := list(seconds)) != len(firsts):
        raise UserError("a list of texts needs a list of second texts of the same length")
    pairs = [(text,) for text in firsts] if seconds is None else list(zip(firsts, seconds, strict=True))
    for text in itertools.chain.from_iterable(pairs):
        if not isinstance(text, str):
            raise UserError(f"{shorten(text)} is not a text: give a string")
        if not text.strip():
            raise UserError("the text is empty: give at least one word")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UserError("the text contains an unpaired surrogate: re-read the file with its original encoding")
    return [Example(f"text-{json_digest([*pair])[:16]}", tuple(pair)) for pair in pairs]


def _score(
    model: Model,
    batch: Batch,
    pair: tuple[Method, Method],
    target: int,
    contrast: int | None,
    feature: Feature,
    count: int,
) -> MethodScores:
    """The scores of one method, where the text has `count` words, or other features."""
    method, prepared = pair
    name, explained = catalogue_name(method), torch.tensor([target], device=batch.mask.device)
    used = method
    try:
        if contrast is None:
            attribution = prepared(model, batch, explained)
        else:
            used = change_option(method, "output", lambda _: "logit")
            attribution = used(contrast_model(model, target, contrast), batch, torch.ones_like(explained))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    attribution = check_attribution(attribution, batch, name)
    pooled = word_scores(used, attribution, batch, feature)
    # One NaN for all, so that equal explanations are equal.
    by_word = [math.nan] * count
    for word in pooled.mask[0].nonzero().flatten().tolist():
        by_word[word] = float(pooled.scores[0, word])
    scored = zip(attribution.scores[0].tolist(), attribution.mask[0].tolist(), strict=True)
    by_token = [score if is_scored else math.nan for score, is_scored in scored]
    tags = tags_of(used)
    return MethodScores(
        name,
        tuple(by_word),
        tuple(by_token),
        tags.pooling,
        tags.signed,
        tags.target_specific,
        _options(used) | _sampling(attribution),
    )


def _sampling(attribution: Attribution) -> dict[str, Json]:
    """How much was sampled, of a method that samples until its scores are accurate enough."""
    if not isinstance(attribution, SampledAttribution):
        return {}
    return {
        "samples used": int(attribution.samples[0]),
        "largest posterior error": float(attribution.posterior_errors[0].amax()),
    }


def _options(method: object) -> dict[str, Json]:
    """The options of a method; another method among them by its name, what JSON has no type for by its type."""
    options: dict[str, Json] = {}
    for name in [field.name for field in fields(method)] if is_dataclass(method) else []:
        value = getattr(method, name)
        try:
            options[name] = catalogue_name(cast("Method", value)) if is_dataclass(value) else to_json(value)
        except TypeError:
            options[name] = f"<{type(value).__name__}>"  # its repr may have an address in memory
    return options


def _token_texts(tokenizer: Tokenizer, batch: Batch, words: Sequence[str]) -> tuple[str, ...]:
    """The tokens of a text; a word outside a vocabulary of words is shown as it is written."""
    texts, owners = tokenizer.unit_texts(batch)[0], batch.words[0].tolist()
    return tuple(
        words[owner] if text == SPECIAL_TOKENS[UNK] and owner >= 0 else text
        for text, owner in zip(texts, owners, strict=True)
    )


MAX_LISTED_WORDS = 5
MAX_LISTED_NAMES = 20


def _word(text: str) -> str:
    """A word or name for a list in a message; a long one is shortened."""
    return shorten(text)[1:-1]


def _reading_notes(tokenizer: Tokenizer, batch: Batch, words: Sequence[str]) -> list[str]:
    """Words that the model did not read, or does not know."""
    owners, notes = batch.words[0].tolist(), []
    missing = len(words) - len({owner for owner in owners if owner >= 0})
    if missing:
        limit = tokenizer.max_length if isinstance(tokenizer, SubwordTokenizer | PromptTokenizer) else None
        is_cut = limit is not None and int(batch.lengths[0]) >= limit
        reason = f"the text is longer than {limit} tokens" if is_cut else "the tokenizer has no token for them"
        notes.append(f"{missing} of {len(words)} words were not read by the model: {reason}")
    is_unknown = batch.inputs[0] == (-1 if batch.unk_id is None else batch.unk_id)
    unknown = dict.fromkeys(
        words[owners[token]] for token in is_unknown.nonzero().flatten().tolist() if owners[token] >= 0
    )
    if unknown:
        more = f" and {len(unknown) - MAX_LISTED_WORDS} more" if len(unknown) > MAX_LISTED_WORDS else ""
        listed = ", ".join(map(_word, [*unknown][:MAX_LISTED_WORDS]))
        notes.append(f"the tokenizer does not know, wholly or in part: {listed}{more}")
    return notes


def _language_notes(model: Model, tokenizer: Tokenizer, logits: Tensor, rows: Sequence[MethodScores]) -> Iterator[str]:
    """How likely the label words are at all, and what stands for a removed token."""
    if isinstance(model, TransformerModel) and isinstance(model.readout, LabelWords) and len(logits) > 1:
        share = float(logits.double().logsumexp(0).exp())
        yield f"the label words have {share:.3g} of the probability of all that may stand there"
    if isinstance(tokenizer, PromptTokenizer) and tokenizer.neutral_note:
        replaced = [row.method for row in rows if row.options.get("baselines") in ("pad", "unk")]
        if replaced:
            yield f"{', '.join(replaced)}: the tokenizer has no pad token, {tokenizer.neutral_note}"


def load(
    source: ModelSource,
    *,
    task: Task | None = None,
    class_names: Sequence[str] = (),
    prompt: PromptText | None = None,
    labels: Mapping[str, str] | None = None,
    chat: bool = False,
    device: str | None = None,
    precision: Precision = "float32",
    version: str | None = None,
) -> Explainer:
    """Open a model to explain and audit it; nothing is unpickled, and objects of the user stay unchanged.

    A language model with label words is a classifier; without them it explains which token follows a text.

    Args:
        source: a folder or hub id; `(network, tokenizer)` of transformers; `(model, tokenizer)` of heedful; a
            `LoadedModel`; `(recipe, workspace)`; or an explainer.
        task: by default that of the model's configuration.
        class_names: names of the classes in the order of the outputs; by default those of the model.
        prompt: in which a language model reads a text, with `{text}` where it stands; `[MASK]` asks a masked one.
        labels: the label word of each class, as it stands behind the prompt.
        chat: whether the prompt is the turn of a user in the chat template of the tokenizer.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; by default that of a model in memory, else the CPU. A model in memory
            that is on another one is copied.
        precision: of the weights and states of a folder or hub id. Half precision (bfloat16, float16) takes half of the
            memory and gives other numbers, which the notes of every result say.
        version: a name for what a model in memory does, such as a date; change it whenever that changes. Stored results
            of the same weights and version are reused, whatever else the model holds. Without it, results of a model
            that holds objects heedful cannot compare, such as a pipeline of scikit-learn, are not reused.
    """
    is_language_question = prompt is not None or labels is not None or chat
    kind = check_precision(precision)
    wanted = None if device is None else check_device(device)
    if task is not None and not isinstance(task, Task):
        raise UserError(f"task is {shorten(task)}: give a task such as BinaryClassification(), or leave it out")
    if not isinstance(class_names, Sequence | None):
        raise UserError(f"class_names is {shorten(class_names)}: give a list of names, or leave it out")
    if kind != "float32" and not isinstance(source, str | Path):
        raise UserError("a model in memory has its own precision: leave it out, or give a folder or hub id")
    if version is not None and isinstance(source, str | Path | Explainer):
        raise UserError(VERSION_IN_MEMORY)
    if is_language_question and (task is not None or class_names):
        raise UserError("labels name the classes of a language model: leave task and class_names out")
    if is_language_question and not isinstance(source, str | Path | tuple):
        raise UserError("prompt, labels and chat are for a language model: give a folder or (network, tokenizer)")
    if isinstance(source, Explainer):
        explainer = source
        if wanted is not None and not is_same_device(explainer.device, wanted):
            raise UserError(f"{explainer.name} was loaded on {explainer.device}: load it again with device={device!r}")
    elif isinstance(source, str | Path):
        location, memory = str(source), wanted or torch.device("cpu")
        check_folder_exists(location)
        if is_language_question or (task is None and read_language_head(location) != "classifier"):
            question = read_prompt(prompt, chat=chat)
            opened = open_language_folder(location, question, labels, precision=kind, device=memory)
        else:
            opened = open_folder(location, task, precision=kind, device=memory)
        explainer = Explainer.of(opened)
    else:
        explainer = _load_from_memory(
            source, task, device=wanted, prompt=prompt, labels=labels, chat=chat, version=version
        )
    if task is not None and task != explainer.model.task:
        raise UserError(f"{explainer.source} is a model for {explainer.model.task}, not for {task}: leave task out")
    if class_names:
        explainer = replace(explainer, class_names=_check_names(explainer, class_names))
    check_distinct_names(explainer.source, explainer.class_names)
    return explainer


VERSION_IN_MEMORY = "a version is for a model in memory, (model, tokenizer): files and recipes have their content"


def _load_from_memory(
    source: object,
    task: Task | None,
    *,
    device: torch.device | None,
    prompt: PromptText | None,
    labels: Mapping[str, str] | None,
    chat: bool,
    version: str | None,
) -> Explainer:
    """The explainer of a model and its tokenizer, or of a recipe and its workspace; see `load`."""
    # Explaining a text with the model in a folder needs nothing of training.
    from heedful.training.model_recipe import LoadedModel, ModelRecipe

    if version is not None and (not isinstance(version, str) or not version.strip()):
        raise UserError(f"version={shorten(version)}: give a text, for instance version='2026-11-18'")
    if isinstance(source, LoadedModel):
        subject, tokenizer = cast("tuple[object, object]", (source.model, source.tokenizer))
    elif isinstance(source, tuple) and len(source) == 2:
        subject, tokenizer = source
    else:
        raise UserError(f"{shorten(source)} is not a model: give {ACCEPTED}")
    if isinstance(subject, ModelRecipe) and isinstance(tokenizer, Workspace):
        if version is not None:
            raise UserError(VERSION_IN_MEMORY)
        explainer = load(subject.restore(tokenizer), device=None if device is None else str(device))
        return replace(explainer, name=subject.title, source=subject.title, origin=subject)
    network = copy_to_device(subject, tokenizer, device)
    is_language_model = task is None and language_head(type(network).__name__) != "classifier"
    with arithmetic_of(device_of(network)):
        if prompt is not None or labels is not None or chat or is_language_model:
            question = read_prompt(prompt, chat=chat)
            opened = open_language_objects(network, tokenizer, question, labels, version=version or "")
        else:
            opened = open_objects(network, tokenizer, task, version=version or "")
    explainer = Explainer.of(opened)
    return replace(explainer, class_names=source.splits.class_names) if isinstance(source, LoadedModel) else explainer


def _check_names(explainer: Explainer, class_names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; UserError unless there is one for each class."""
    count = explainer.model.task.num_classes
    is_list = isinstance(class_names, Sequence) and not isinstance(class_names, str)
    if not is_list or not all(isinstance(name, str) for name in class_names) or len(class_names) != count or count < 2:
        has = f"the classes {', '.join(explainer.class_names)}" if count > 1 else "no classes"
        raise UserError(
            f"{explainer.source} has {has}, but class_names is {shorten(class_names)}: give one name per class"
        )
    return tuple(class_names)
