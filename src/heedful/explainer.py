"""A model that explains its predictions: `load` opens it, `Explainer.explain` gives scores of words.

Words, not tokens: the score of a word is the sum of the scores of its tokens where scores are contributions to the
output, and their mean where they are weights without sign, so that long words are not favoured.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, overload, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from heedful import __version__
from heedful.attributions._base import SampledAttribution
from heedful.attributions.attention import (
    AttentionXGradient,
    Flow,
    HeadAttention,
    KobayashiNorm,
    RawAttention,
    Relevance,
    Rollout,
    ValueNorm,
    first_token_shares,
)
from heedful.attributions.controls import PermutedAttention, Random, RandomizedModel
from heedful.attributions.gradient import GradientNorm
from heedful.attributions.head_mix import HeadMix, StaticAttention
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.catalogue import METHODS
from heedful.data.prompt import Prompt, PromptTokenizer, has_mask_token, read_prompt, render_chat
from heedful.data.tokenization import (
    SPECIAL_TOKENS,
    UNK,
    PatchTokenizer,
    Subwords,
    SubwordTokenizer,
    copy_tokenizer,
    load_tokenizer,
    read_patches,
    wrap_tokenizer,
)
from heedful.devices import Precision, arithmetic_notes, arithmetic_of, check_device, check_precision, is_same_device
from heedful.explanation import NUMBER, Explanation, MethodScores
from heedful.models._attention_hooks import copy_sharing_weights
from heedful.models._network_anatomy import image_layout, reads_images
from heedful.models.contrast import contrast_model
from heedful.models.label_words import LabelWords, Vocabulary
from heedful.models.language_model import check_language_head, language_head, read_language_head
from heedful.models.model_files import (
    check_distinct_names,
    check_explained_task,
    check_model_source,
    load_network,
    read_output_labels,
)
from heedful.models.transformer import Transformer, TransformerModel, output_names
from heedful.store.recipe import Json, json_digest, to_json
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.checkpoint import (
    Checkpoint,
    GivenModel,
    PromptedModel,
    PromptText,
    align_labels,
    check_label_words,
    check_language_model,
    check_trained_head,
    model_in_memory,
    negated_name,
    prompted_model,
)
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trained_model import OnOtherData
from heedful.trials._trial import Verdict
from heedful.types import (
    Attribution,
    Batch,
    Corpus,
    Example,
    Method,
    Model,
    Pooling,
    SupportsPreparation,
    Task,
    Tokenizer,
    UserError,
    check_attribution,
    check_methods,
    hash_model_folder,
    method_name,
    pool_by_word,
    shorten,
    user_path,
)

if TYPE_CHECKING:  # as in models: its import takes seconds
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network
    from transformers import PreTrainedTokenizerBase

# Methods on words


@runtime_checkable
class DeclaresWordPooling(Protocol):
    """A method that says itself how the scores of a word's tokens become the score of the word."""

    @property
    def word_pooling(self) -> Pooling: ...


WEIGHTS = (
    RawAttention,
    HeadAttention,
    StaticAttention,
    HeadMix,
    Rollout,
    Flow,
    ValueNorm,
    KobayashiNorm,
    Relevance,
    GradientNorm,
    Random,
    PermutedAttention,
)
"""Methods whose scores are weights without sign."""
SAME_FOR_EVERY_TARGET = tuple(kind for kind in WEIGHTS if kind not in (Relevance, GradientNorm))
"""Methods that read attention, or nothing, and never the output."""

READS_ATTENTION = tuple(kind for kind in (*WEIGHTS, AttentionXGradient) if kind not in (GradientNorm, Random))
"""Methods that read attention."""


ON_FEATURES = (Lime, KernelShap, Shapley, Occlusion, LeaveOneOut)
"""Methods that can remove whole words."""
WORD_SAMPLES = 200
"""Samples of LIME and KernelSHAP on words, where they are asked for by name; the papers draw 1000 on tokens."""


def is_signed(method: Method) -> bool:
    """Whether negative scores speak against the target: contributions have a sign, weights have none.

    >>> is_signed(Lime()), is_signed(RawAttention()), is_signed(LeaveOneOut("distribution"))
    (True, False, False)
    """
    if isinstance(method, RandomizedModel):
        return is_signed(method.method)
    if isinstance(method, DeclaresWordPooling):
        return method.word_pooling == "sum"
    is_weight = (
        isinstance(method, WEIGHTS)
        or (isinstance(method, AttentionXGradient) and method.positive)
        or (isinstance(method, LeaveOneOut) and method.output == "distribution")
        or (isinstance(method, LayerMix) and method.score_type == "distribution")
    )
    return not is_weight


def word_pooling(method: Method) -> Pooling:
    """How the scores of a word's tokens become the score of the word.

    >>> word_pooling(Lime()), word_pooling(RawAttention()), word_pooling(RandomizedModel(Lime()))
    ('sum', 'mean', 'sum')
    """
    if isinstance(method, RandomizedModel):
        return word_pooling(method.method)
    if isinstance(method, DeclaresWordPooling):
        return method.word_pooling
    # A method on words has divided the score of a word among its tokens.
    is_divided = isinstance(method, ON_FEATURES) and method.feature == "word"
    return "sum" if is_signed(method) or is_divided else "mean"


def depends_on_target(method: Method) -> bool:
    """Whether the scores of a method can differ between two classes of the same text.

    >>> depends_on_target(Lime()), depends_on_target(RawAttention()), depends_on_target(RandomizedModel())
    (True, False, False)
    """
    if isinstance(method, RandomizedModel):
        return depends_on_target(method.method)
    of_all_classes = isinstance(method, LeaveOneOut) and method.output == "distribution"
    return not isinstance(method, SAME_FOR_EVERY_TARGET) and not of_all_classes


def word_scores(method: Method, attribution: Attribution, batch: Batch) -> Attribution:
    """Scores of words `[batch word]` from the scores that the method gave to their tokens; words without one are off.

    A word is a whitespace word of the text, counted over both texts of a pair.
    """
    words = batch.words.masked_fill(~attribution.mask, -1)
    return Attribution(*pool_by_word(attribution.scores, words, word_pooling(method)))


def method_for_words(method: str | Method) -> Method:
    """A method by its name or itself; one that removes tokens removes whole words.

    By name, LIME and KernelSHAP draw `WORD_SAMPLES` samples: a text has fewer words than tokens.

    >>> method_for_words("lime") == Lime(feature="word", n_samples=WORD_SAMPLES)
    True
    """
    found = find_method(method) if isinstance(method, str) else method
    if isinstance(method, str) and found in (Lime(), KernelShap()):
        found = replace(found, n_samples=WORD_SAMPLES)
    check_methods((found,), "method")
    if isinstance(found, RandomizedModel):
        return replace(found, method=method_for_words(found.method))
    if isinstance(found, ON_FEATURES):
        return replace(found, feature="word")
    return found


def list_methods(methods: Methods | None) -> tuple[str | Method, ...]:
    """One method or several, by name or themselves, as a tuple; UserError for anything else.

    >>> list_methods("lime"), list_methods(["lime", "gradient"]), list_methods(None)
    (('lime',), ('lime', 'gradient'), ())
    """
    if methods is None:
        return ()
    if isinstance(methods, str) or callable(methods):
        return (methods,)
    if not isinstance(methods, Iterable) or isinstance(methods, bytes | bytearray | Mapping):
        raise UserError(f"methods is {shorten(methods)}: give names or methods, for instance ['lime', Gradient()]")
    return tuple(methods)


def find_method(name: str) -> Method:
    """The method of this name in the catalogue, also by the name that reports show; options in brackets.

    >>> find_method("lime") == Lime(), find_method("lime(error=0.05, seed=3)") == Lime(error=0.05, seed=3)
    (True, True)
    """
    if name in METHODS:
        return METHODS[name]()
    if (parts := re.fullmatch(r"([\w-]+)\((.+[=-].+)\)", name)) is not None:
        return _with_options(find_method(parts[1]), parts[2])
    for make in METHODS.values():
        if method_name(make()) == name:
            return make()
    near = difflib.get_close_matches(name.lower(), METHODS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"unknown method {shorten(name)}: {hint}`heedful list` shows all methods")


def _with_options(method: Method, text: str) -> Method:
    """The method with the plain options of a text such as `error=0.05, seed=3`."""
    known: dict[str, object] = {each.name: each.default for each in fields(method)} if is_dataclass(method) else {}
    options: dict[str, object] = {name: getattr(method, name) for name in known}
    for entry in text.split(","):
        name, _, value = (
            (part.strip() for part in re.split("([=-])", entry, maxsplit=1)) if entry.strip() else ("",) * 3
        )
        default = known.get(name)
        try:
            if name not in known or isinstance(default, tuple):
                raise ValueError
            is_number = default is None or (isinstance(default, int | float) and not isinstance(default, bool))
            options[name] = (int if isinstance(default, int) else float)(value) if is_number else value
            if isinstance(default, bool):
                options[name] = {"true": True, "false": False}[value.lower()]
        except (ValueError, KeyError):
            raise UserError(
                f"unknown option {shorten(entry.strip())} of {method_name(method)}: give NAME(option=value), for "
                "instance lime(error=0.05); options are " + ", ".join(known)
            ) from None
    return cast("Callable[..., Method]", type(method))(**options)


def catalogue_name(method: Method) -> str:
    """The name of a method in the catalogue if it has the default options (words or tokens), else its display name.

    >>> catalogue_name(Lime(feature="word")), catalogue_name(RawAttention()), catalogue_name(Lime(seed=3))
    ('lime', 'raw-attention', 'lime(seed-3)')
    """
    for name, make in METHODS.items():
        if method in (make(), method_for_words(make()), method_for_words(name)):
            return name
    for_tokens = method
    if isinstance(method, ON_FEATURES):
        for_tokens = replace(method, feature="unit")
    return method_name(for_tokens)


# Explanations

DEFAULT_METHOD = "integrated-gradients"


@dataclass(frozen=True)
class Recommendation:
    """What the best finished audit of a model says of its methods.

    Args:
        methods: names of those of the catalogue that may be shown, best first.
        date: of the audit; empty if unknown.
        not_passed: each method that was audited and may not be shown alone, and why.
    """

    methods: tuple[str, ...]
    date: str
    not_passed: Mapping[str, str] = field(default_factory=dict)

    @property
    def audit(self) -> str:
        """The audit in words."""
        return f"the audit of {self.date}" if self.date else "the audit"


AUDITS = ".audits"
"""Folder of a workspace with the results of audits, each as `<digest of the model>-....json`."""


def find_recommendation(digest: str, workspace: Path | str) -> Recommendation | None:
    """The recommendation of the best finished audit of a model in `<workspace>/.audits`; None if there is none.

    The best audit has examined most: the number of texts times the number of methods of the catalogue. Of equal ones
    that with most decided answers counts, then the latest. Its results do not decide before that, because an audit that
    is chosen by its results errs more often than it says.
    """
    place = Workspace(workspace)
    names = [name for name in place.list_documents(AUDITS) if name.startswith(digest[:16]) and name.endswith(".json")]
    found = [_read_audit(place.read_document(f"{AUDITS}/{name}") or b"") for name in names]
    audits = [each for each in found if each is not None]
    return max(audits, key=lambda each: each[0])[1] if audits else None


_AuditRank = tuple[int, int, str]
"""Texts times methods, decided answers, date."""


def _read_audit(written: bytes) -> tuple[_AuditRank, Recommendation] | None:
    """The rank of a stored audit and what it recommends; None if it is not finished, or damaged."""
    try:
        audit = json.loads(written)
        if not audit["finished"]:
            return None
        methods = [entry for entry in audit["methods"] if not entry["control"]]
        listed = [entry for entry in methods if _is_in_catalogue(entry["name"])]
        decided = sum(answer["verdict"] in DECIDED for entry in listed for answer in entry["answers"])
        not_passed = {
            entry["name"]: str(entry["reason"]) for entry in methods if entry["name"] not in audit["recommended"]
        }
        recommended = tuple(name for name in audit["recommended"] if _is_in_catalogue(name))
        rank = (len(listed) * int(audit["data"]["texts"]), decided, str(audit["date"]))
        return rank, Recommendation(recommended, str(audit["date"]), not_passed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


DECIDED = (Verdict.SUPPORTED.value, Verdict.NOT_SUPPORTED.value)


def _is_in_catalogue(name: str) -> bool:
    """Whether a name is that of a method of the catalogue: audits also have scores made elsewhere."""
    with suppress(UserError):
        find_method(name)
        return True
    return False


@cache
def software_versions() -> Mapping[str, str]:
    """Versions of heedful and of the libraries that scores depend on."""
    return {"heedful": __version__, "torch": torch.__version__, "transformers": metadata.version("transformers")}


# Models

ModelSource: TypeAlias = "str | Path | LoadedModel | tuple[object, object] | Explainer"
"""What `load` accepts."""
ACCEPTED = (
    "a folder or hub id, (network, tokenizer) of transformers, (model, tokenizer) of heedful, a LoadedModel, or "
    "(recipe of a model, workspace)"
)


@dataclass(frozen=True, eq=False)
class Explainer:
    """A model in evaluation mode with its tokenizer and the names of its classes; `load` makes one.

    The model shares the weights of an object of the user and nothing else, so that the object stays as it is.

    Args:
        class_names: in the order of the outputs; empty for regression.
        name: short, for tables and file names.
        source: folder, hub id, or the class of an object in memory.
        origin: what recipes refer to: a folder or hub id, a prompted model, a recipe, or None for an object in memory.
        folder_digest: of the folder when it was read; empty if the model does not come from a folder.
        next_words: of a language model without label words, which explains any token that may follow a text.
        precision: of the weights of a folder or hub id as they were loaded; models in memory are left as they are.
    """

    model: Model
    tokenizer: Tokenizer
    class_names: tuple[str, ...]
    name: str
    source: str
    given: GivenModel
    origin: str | PromptedModel | ModelRecipe | None = None
    folder_digest: str = ""
    next_words: NextWords | None = None
    precision: Precision = "float32"

    @property
    def digest(self) -> str:
        """SHA-256 of weights and tokenizer: of the files of a folder and the precision, else of what is in memory."""
        return self.folder_digest or self.given.digest

    def check_folder(self) -> None:
        """UserError if the folder of a classifier has other files than when it was loaded: recipes read it again."""
        if not self.folder_digest or not isinstance(self.origin, str):
            return
        if _folder_digest(user_path(self.origin), self.precision) != self.folder_digest:
            raise UserError(f"the model ({self.source}) changed after it was loaded: load it again")

    @property
    def reads_images(self) -> bool:
        """Whether the model reads patches of images, not texts."""
        return isinstance(self.tokenizer, PatchTokenizer)

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
        aligned = align_labels(corpus, self.model.task, self.class_names)
        if isinstance(self.origin, PromptedModel):
            return Checkpoint(aligned, self.origin.tokenization, self.origin.architecture, scored=False)
        if isinstance(self.origin, str):
            own = self.tokenizer
            tokenization = own.tokenization if isinstance(own, PatchTokenizer) else Subwords(self.origin)
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
            workspace: folder in which audits are kept; by default `HEEDFUL_WORKSPACE`, else `workspace`.
        """
        several = [text] if isinstance(text, str) else text
        others = [second] if isinstance(second, str) and isinstance(text, str) else second
        explained = tuple(
            self.explain_each(several, others, methods=methods, target=target, contrast=contrast, workspace=workspace)
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
        workspace: Path | str | None = None,
    ) -> Iterator[Explanation]:
        """The explanations of many texts, one after the other; see `explain`."""
        if self.reads_images:
            raise UserError(f"{self.name} reads images, which cannot be given here: audit it on an image corpus")
        examples = _make_examples(texts, seconds)
        if self.next_words is not None:
            yield from self._explain_next_words(examples, methods, target, contrast, workspace)
            return
        asked, reason, cautions = self._choose_methods(methods, workspace)
        target_index = None if target is None else self._class_index(target, "target")
        contrast_index = None if contrast is None else self._class_index(contrast, "contrast")
        prepared: tuple[tuple[Method, Method], ...] = ()
        for example in examples:
            # Somebody who predicts in inference mode can still ask for gradients.
            with torch.inference_mode(mode=False), arithmetic_of(self.device):
                prepared = prepared or tuple((method, self._prepare(method, contrast_index)) for method in asked)
                explained = self._explain_example(example, prepared, target_index, contrast_index)
            yield replace(explained, chosen_because=reason, notes=(*cautions, *explained.notes))

    def _explain_next_words(
        self,
        examples: Iterable[Example],
        methods: Methods | None,
        target: str | int | None,
        contrast: str | int | None,
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
            asked = self.next_words.explainer(self, target, contrast, likeliest)
            (explained,) = asked.explain_each(
                texts[:1],
                texts[1:] or None,
                methods=methods,
                target=target or len(asked.class_names) - 1,
                contrast=contrast,
                workspace=workspace,
            )
            with torch.no_grad(), arithmetic_of(self.device):
                own = asked.model(asked.tokenizer([example]).to(self.device)).logits.cpu()
            classes, index = asked.model.task.probabilities(own.double())[0], explained.target_index
            share = float(own[0, index].double().exp()) if len(classes) == own.shape[1] else float(classes[index])
            yield replace(
                explained,
                predicted=name,
                predicted_probability=float(logits.cpu().max().double().exp()),
                probability=share,
                model_digest=self.digest,
            )

    @property
    def device(self) -> torch.device:
        """That of the weights."""
        return self.given.device

    def _prepare(self, method: Method, contrast: int | None) -> Method:
        """The method prepared for all texts; a contrast is another model for each target."""
        return method.prepare(self.model) if isinstance(method, SupportsPreparation) and contrast is None else method

    def _choose_methods(
        self, methods: Methods | None, workspace: Path | str | None
    ) -> tuple[tuple[Method, ...], str, list[str]]:
        """The methods, for words, why they were chosen, and a warning for each that did not pass an audit."""
        root = workspace if workspace is not None else os.environ.get("HEEDFUL_WORKSPACE", "workspace")
        if methods is not None:
            several = list_methods(methods)
            if not several:
                raise UserError("no method is given: name one, or leave methods out")
            found = None
            with suppress(UserError):  # a workspace out of reach must not stop what does not need it
                found = find_recommendation(self.digest, root)
            asked = tuple(method_for_words(method) for method in several)
            return asked, "asked for", _audit_warnings(asked, found)
        found = find_recommendation(self.digest, root)
        default = (method_for_words(DEFAULT_METHOD),)
        if found is None:
            return default, f"the default, as no finished audit of this model is in {shown_path(root)}", []
        if found.methods:
            return (method_for_words(found.methods[0]),), f"{found.audit} of this model recommends it", []
        reason = f"the default, as {found.audit} of this model recommends no method of the catalogue"
        return default, reason, _audit_warnings(default, found)

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
            listed = ", ".join(map(_word, names[:MAX_LISTED_NAMES])) + (
                ", ..." if len(names) > MAX_LISTED_NAMES else ""
            )
            raise UserError(f"{role} {shorten(asked)} is none of the outputs of {self.name}: choose one of {listed}")
        return int(asked)

    def _explain_example(
        self,
        example: Example,
        methods: Sequence[tuple[Method, Method]],
        target: int | None,
        contrast: int | None,
    ) -> Explanation:
        """Args:
        methods: each method, and the same prepared for this model.
        """
        batch = self.tokenizer([example]).to(self.device)
        texts = tuple(part for part in example.parts if isinstance(part, str))
        words = [word for text in texts for word in text.split()]
        if not bool(batch.content_mask.any()):
            raise UserError("the tokenizer of the model leaves nothing of this text: give another text")
        with torch.no_grad():
            logits, share = self.model.read_logits(batch), math.nan
            if any(isinstance(method, READS_ATTENTION) for method, _ in methods):
                share = float(first_token_shares(self.model(batch).attention, batch)[0])
            probabilities = self.model.task.probabilities(logits.double())[0].tolist()
        predicted = max(range(len(probabilities)), key=probabilities.__getitem__)
        explained = predicted if target is None else target
        if contrast == explained:
            raise UserError(
                f"target and contrast are both {self.class_names[explained]}: choose another class for one of them"
            )
        rows = tuple(_score(self.model, batch, pair, explained, contrast, len(words)) for pair in methods)
        names, notes = self.class_names or (NUMBER,), _reading_notes(self.tokenizer, batch, words)
        notes += _language_notes(self.model, self.tokenizer, logits[0], rows)
        notes += arithmetic_notes(self.device, self.precision)
        if isinstance(self.model, TransformerModel) and self.model.implementation_note:
            notes.append(self.model.implementation_note)
        if not math.isnan(share):
            notes.append(f"{share:.2f} of the attention of all layers, heads and tokens goes to the first token")
        same = [row.method for row in rows if not row.depends_on_target]
        if same and (target is not None or contrast is not None):
            notes.append(f"the scores of {', '.join(same)} do not depend on the class that is explained")
        return Explanation(
            parts=texts,
            words=tuple(words),
            word_parts=tuple(part for part, text in enumerate(texts) for _ in text.split()),
            tokens=_token_texts(self.tokenizer, batch, words),
            token_words=tuple(batch.words[0].tolist()),
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
            model_digest=self.digest,
            versions=software_versions(),
            first_token_share=None if math.isnan(share) else share,
        )


def _audit_warnings(methods: Sequence[Method], found: Recommendation | None) -> list[str]:
    """A line for each method that was audited and may not be shown alone."""
    names = [catalogue_name(method) for method in methods]
    return [
        f"warning: {name} did not pass {found.audit} of this model: {found.not_passed[name]}"
        for name in names
        if found is not None and name in found.not_passed
    ]


Texts: TypeAlias = list[str] | tuple[str, ...]
Methods: TypeAlias = "str | Method | Sequence[str | Method]"
"""Names of the catalogue or methods, one or several."""


def explain(
    model: ModelSource,
    text: str,
    second: str | None = None,
    *,
    methods: Methods | None = None,
    target: str | int | None = None,
    contrast: str | int | None = None,
    prompt: PromptText | None = None,
    labels: Mapping[str, str] | None = None,
    chat: bool = False,
    device: str | None = None,
    precision: Precision = "float32",
) -> Explanation:
    """The explanation of one text by a model that is opened for it; see `load` and `Explainer.explain`."""
    explainer = load(model, prompt=prompt, labels=labels, chat=chat, device=device, precision=precision)
    return explainer.explain(text, second, methods=methods, target=target, contrast=contrast)


def _make_examples(texts: Iterable[str], seconds: Iterable[str] | None) -> list[Example]:
    """The texts as examples whose uid is a digest of their content."""
    firsts = list(texts) if isinstance(texts, Iterable) else [texts]
    if seconds is not None and (isinstance(seconds, str) or not isinstance(seconds, Iterable)):
        raise UserError(f"second is {shorten(seconds)}: give a text for one text, a list of texts for a list")
    if seconds is not None and len(seconds := list(seconds)) != len(firsts):
        raise UserError("a list of texts needs a list of second texts of the same length")
    pairs = [(text,) for text in firsts] if seconds is None else list(zip(firsts, seconds, strict=True))
    examples = []
    for pair in pairs:
        parts = []
        for part in pair:
            if not isinstance(part, str):
                raise UserError(f"{shorten(part)} is not a text: give a string")
            if not part.strip():
                raise UserError("the text is empty: give at least one word")
            if any("\ud800" <= letter <= "\udfff" for letter in part):
                raise UserError("the text holds half a character: read it again in its own encoding")
            parts.append(part)
        examples.append(Example(f"text-{json_digest([*parts])[:16]}", tuple(parts)))
    return examples


def _score(
    model: Model, batch: Batch, pair: tuple[Method, Method], target: int, contrast: int | None, count: int
) -> MethodScores:
    """The scores of one method, where the text has `count` words."""
    method, prepared = pair
    name, explained = catalogue_name(method), torch.tensor([target], device=batch.mask.device)
    if isinstance(method, KernelShap) and method.error is None and method.n_samples == WORD_SAMPLES < 2 * count:
        # By name it must do for a text of any length: it needs two samples per word.
        method = prepared = replace(method, n_samples=2 * count)
    used = method
    try:
        if contrast is None:
            attribution = prepared(model, batch, explained)
        else:
            used = _on_logits(method)
            attribution = used(contrast_model(model, target, contrast), batch, torch.ones_like(explained))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    attribution = check_attribution(attribution, batch, name)
    pooled = word_scores(used, attribution, batch)
    # One NaN for all, so that equal explanations are equal.
    by_word = [math.nan] * count
    for word in pooled.mask[0].nonzero().flatten().tolist():
        by_word[word] = float(pooled.scores[0, word])
    scored = zip(attribution.scores[0].tolist(), attribution.mask[0].tolist(), strict=True)
    by_token = [score if is_scored else math.nan for score, is_scored in scored]
    return MethodScores(
        name,
        tuple(by_word),
        tuple(by_token),
        word_pooling(used),
        is_signed(used),
        depends_on_target(used),
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


def _on_logits(method: Method) -> Method:
    """The method with logits as the explained output, where it has a choice."""
    if isinstance(method, RandomizedModel):
        return replace(method, method=_on_logits(method.method))
    if is_dataclass(method) and any(each.name == "output" for each in fields(method)):
        return cast("Method", replace(method, output="logit"))
    return method


def _options(method: object) -> dict[str, Json]:
    """The options of a method; another method among them by its name, what JSON has no type for by its type."""
    values = {each.name: getattr(method, each.name) for each in fields(method)} if is_dataclass(method) else {}
    options: dict[str, Json] = {}
    for name, value in values.items():
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
        words[owners[place]] for place in is_unknown.nonzero().flatten().tolist() if owners[place] >= 0
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
    _check_version(version, source)
    asked = _LanguageQuestion(prompt, labels, chat, check_precision(precision), version or "")
    wanted = None if device is None else check_device(device)
    if task is not None and not isinstance(task, Task):
        raise UserError(f"task is {shorten(task)}: give a task such as BinaryClassification(), or leave it out")
    if not isinstance(class_names, Sequence | None):
        raise UserError(f"class_names is {shorten(class_names)}: give a list of names, or leave it out")
    if precision != "float32" and not isinstance(source, str | Path):
        raise UserError("a model in memory has its own precision: leave it out, or give a folder or hub id")
    if asked.is_asked and (task is not None or class_names):
        raise UserError("labels name the classes of a language model: leave task and class_names out")
    if asked.is_asked and not isinstance(source, str | Path | tuple):
        raise UserError("prompt, labels and chat are for a language model: give a folder or (network, tokenizer)")
    if isinstance(source, Explainer):
        explainer = source
        if wanted is not None and not is_same_device(explainer.device, wanted):
            raise UserError(f"{explainer.name} was loaded on {explainer.device}: load it again with device={device!r}")
    elif isinstance(source, str | Path):
        explainer = _load_folder(str(source), task, asked, wanted or torch.device("cpu"))
    elif isinstance(source, LoadedModel):
        explainer = _load_objects(
            source.model, source.tokenizer, task, _LanguageQuestion(version=version or ""), wanted
        )
        explainer = replace(explainer, class_names=source.splits.class_names)
    elif not isinstance(source, tuple) or len(source) != 2:
        raise UserError(f"{shorten(source)} is not a model: give {ACCEPTED}")
    elif isinstance(source[0], ModelRecipe) and isinstance(source[1], Workspace):
        explainer = load(source[0].restore(source[1]), device=device)
        explainer = replace(explainer, name=source[0].title, source=source[0].title, origin=source[0])
    else:
        explainer = _load_objects(source[0], source[1], task, asked, wanted)
    if task is not None and task != explainer.model.task:
        raise UserError(f"{explainer.source} is a model for {explainer.model.task}, not for {task}: leave task out")
    if class_names:
        explainer = replace(explainer, class_names=_check_names(explainer, class_names))
    check_distinct_names(explainer.source, explainer.class_names)
    return explainer


def _check_version(version: object, source: ModelSource) -> None:
    """UserError unless the version is a text, and of a model in memory."""
    if version is None:
        return
    if not isinstance(version, str) or not version.strip():
        raise UserError(f"version={shorten(version)}: give a text, for instance version='2026-11-18'")
    is_recipe = isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], ModelRecipe)
    if is_recipe or not isinstance(source, tuple | LoadedModel):
        raise UserError("a version is for a model in memory, (model, tokenizer): files and recipes have their content")


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


@dataclass(frozen=True)
class _LanguageQuestion:
    """What a language model is asked, in which precision, and the version of a model in memory."""

    prompt: PromptText | None = None
    labels: Mapping[str, str] | None = None
    chat: bool = False
    precision: Precision = "float32"
    version: str = ""

    @property
    def is_asked(self) -> bool:
        return self.prompt is not None or self.labels is not None or self.chat


@dataclass(frozen=True, eq=False)
class NextWords:
    """A causal language model that can be asked about any word that may follow a text.

    Args:
        opened: explainers of words that were asked about before.
    """

    network: Network
    tokenizer: PreTrainedTokenizerBase
    prompt: Prompt
    opened: dict[tuple[str | None, str | None, int], Explainer] = field(default_factory=dict)

    def explainer(self, parent: Explainer, target: str | None, contrast: str | None, likeliest: int) -> Explainer:
        """An explainer whose classes are these words, by default the likeliest token against everything else."""
        key = (target, contrast, -1 if target is not None else likeliest)
        if key not in self.opened:
            if target is None:
                words, names = LabelWords(((likeliest,),)), [str(self.tokenizer.decode([likeliest]))]
            else:
                names = [target] if contrast is None else [target, contrast]
                words = LabelWords(self._tokens(names))
            model = TransformerModel.wrap_language_model(self.network, words).eval()
            tokenizer = _prompt_tokenizer(self.tokenizer, self.prompt, words, model)
            classes = (negated_name(names[0]), names[0]) if len(names) == 1 else tuple(names)
            self.opened[key] = replace(
                parent,
                model=model,
                tokenizer=tokenizer,
                class_names=classes,
                given=GivenModel(model, tokenizer),
                next_words=None,
            )
        return self.opened[key]

    def _tokens(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return PromptTokenizer(self.tokenizer, self.prompt).label_tokens({name: name for name in names})


def _prompt_tokenizer(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, words: LabelWords | None, model: TransformerModel
) -> PromptTokenizer:
    """The tokenizer of a prompt that leaves room for label words within the positions of a model."""
    longest = 1 if words is None else max(map(len, words.words))
    is_masked = words is not None and words.mask_id is not None
    limit = model.max_tokens
    room = None if limit is None else limit - (0 if is_masked else longest - 1)
    return PromptTokenizer(tokenizer, prompt, longest if is_masked else 0, room)


def _open_language_model(
    network: Network, tokenizer: PreTrainedTokenizerBase, asked: _LanguageQuestion, name: str, source: str
) -> Explainer:
    """The explainer of a language model in memory, with label words or without."""
    prompt = render_chat(tokenizer, read_prompt(asked.prompt, chat=asked.chat))
    is_masked = has_mask_token(tokenizer, prompt)
    check_language_model(source, language_head(type(network).__name__), is_masked=is_masked)
    words: LabelWords | None = None
    names: tuple[str, ...]
    if asked.labels is None:
        if is_masked:
            raise UserError(f"{source} is read at its mask token: give labels with a label word for each class")
        model = TransformerModel.wrap_language_model(network, Vocabulary())
        names = tuple(str(number) for number in range(model.task.num_classes))
    else:
        check_label_words(asked.labels)
        reader = PromptTokenizer(tokenizer, prompt, int(is_masked))
        words, names = LabelWords(reader.label_tokens(asked.labels), reader.mask_id), tuple(asked.labels)
        model = TransformerModel.wrap_language_model(network, words)
    model = copy_sharing_weights(model).eval()
    reader = _prompt_tokenizer(tokenizer, prompt, words, model)
    given = GivenModel(model, reader, asked.version)
    next_words = None if words is not None else NextWords(network, tokenizer, prompt)
    return Explainer(model, reader, names, name, source, given, next_words=next_words)


def _load_language_folder(source: str, asked: _LanguageQuestion, device: torch.device) -> Explainer:
    """The explainer of a language model in a folder or on the hub."""
    folder, name = user_path(source), Transformer(source).describe()["encoder"]
    own = _folder_digest(folder, asked.precision) or source
    if asked.labels is None:
        head = read_language_head(source)
        if head != "causal":
            raise UserError(
                f"{source} is no causal language model: give labels with a label word for each class, and [MASK] in "
                "the prompt of a masked one"
            )
        network, notes = load_network(source, None, "causal", asked.precision)
        check_language_head(source, notes)
        nn.Module.to(network, device)
        with arithmetic_of(device):
            opened = _open_language_model(network, load_tokenizer(source), asked, name, source)
        digest = json_digest([own, opened.tokenizer.definition()])
        return replace(opened, folder_digest=digest, precision=asked.precision)
    found = prompted_model(source, asked.prompt, asked.labels, chat=asked.chat, precision=asked.precision)
    model = found.architecture.build(found.architecture.words.task, None, Generator().manual_seed(0)).to(device)
    tokenizer = found.tokenization.restore({"answers": 0})
    digest = json_digest([own, tokenizer.definition(), to_json(found.architecture.words.words)])
    return Explainer(
        model,
        tokenizer,
        tuple(asked.labels),
        name,
        source,
        GivenModel(model, tokenizer),
        found,
        digest,
        precision=asked.precision,
    )


def _folder_digest(folder: Path, precision: Precision) -> str:
    """Of the files of a model, and of the precision in which it computes; empty for a hub id."""
    if not folder.is_dir():
        return ""
    own = hash_model_folder(folder, with_weights=True)
    return own if precision == "float32" else json_digest([own, precision])


def _load_folder(source: str, task: Task | None, asked: _LanguageQuestion, device: torch.device) -> Explainer:
    folder = user_path(source)
    if not folder.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        # Only other names can be ids of the hub, which takes time to answer.
        raise UserError(f"{source}: no such folder; give the folder that save_pretrained has written, or a hub id")
    if asked.is_asked or (task is None and read_language_head(source) != "classifier"):
        return _load_language_folder(source, asked, device)
    labels, architecture = read_output_labels(source), Transformer(source, asked.precision)
    if task is None:
        several = MulticlassClassification(len(labels.names)) if len(labels.names) > 1 else BinaryClassification()
        task = Regression() if labels.is_regression else several
    # What a folder holds is checked before its weights are read.
    config = check_model_source(source)
    tokenizer = _patch_tokenizer(source, config) or Subwords(source).restore({"answers": 0})
    model = architecture.build(task, None, Generator().manual_seed(0)).to(device)
    check_trained_head(model, source)
    tokenizer = _with_special_tokens(tokenizer, model)
    return Explainer(
        model,
        tokenizer,
        _class_names(task, labels.names),
        architecture.describe()["encoder"],
        source,
        GivenModel(model, tokenizer),
        source,
        _folder_digest(folder, asked.precision),
        precision=asked.precision,
    )


def _patch_tokenizer(source: str, config: NetworkConfig) -> Tokenizer | None:
    """The tokenizer of a model that reads square images in square patches; None for models of texts."""
    layout = image_layout(config)
    if layout is None:
        return None
    patch, side, channels = layout
    return read_patches(source, patch, side).restore({"channels": channels, "height": side, "width": side})


def _with_special_tokens(tokenizer: Tokenizer, model: TransformerModel) -> Tokenizer:
    """A tokenizer of images with as many special tokens before the patches as the model has."""
    if not isinstance(tokenizer, PatchTokenizer):
        return tokenizer
    count = model.stack.inputs.prefix
    own = replace(tokenizer.tokenization, class_token=count > 0, registers=max(0, count - 1))
    return own.restore(tokenizer.state())


def _load_objects(
    network: object, tokenizer: object, task: Task | None, asked: _LanguageQuestion, device: torch.device | None
) -> Explainer:
    """The explainer of a model and a tokenizer in memory, each of transformers or of heedful."""
    pair = f"({type(network).__name__}, {type(tokenizer).__name__})"
    if not isinstance(network, nn.Module):
        raise UserError(f"{pair} is not a model and its tokenizer: give {ACCEPTED}")
    own_device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    if device is not None and not is_same_device(own_device, device):
        network = copy.deepcopy(network).to(device)  # moving weights would move those of the user
    with arithmetic_of(device or own_device):
        return _open_objects(network, tokenizer, task, asked, pair)


def _open_objects(
    network: nn.Module, tokenizer: object, task: Task | None, asked: _LanguageQuestion, pair: str
) -> Explainer:
    """Args:
    pair: the names of their classes.
    """
    if asked.is_asked or (task is None and language_head(type(network).__name__) != "classifier"):
        if isinstance(network, Model):
            raise UserError(f"{pair}: prompt, labels and chat are for a language model of transformers")
        given_network = cast("Network", network)
        own = Path(given_network.config.name_or_path or "").name or type(network).__name__
        return _open_language_model(given_network, copy_tokenizer(tokenizer), asked, own, type(network).__name__)
    if not isinstance(network, Model):
        check_explained_task(pair, type(network).__name__)
    model = network if isinstance(network, Model) else TransformerModel.wrap(cast("Network", network), task)
    model = copy_sharing_weights(model).eval()
    name, outputs = type(network).__name__, tuple[str, ...]()
    if isinstance(model, TransformerModel):
        if reads_images(model.network) and not isinstance(tokenizer, PatchTokenizer):
            raise UserError(
                f"{pair}: {type(network).__name__} reads images: give its patches in place of the tokenizer, for "
                "instance Patches(16, image_size=224).fit(images)"
            )
        name = Path(model.network.config.name_or_path or "").name or name
        outputs = output_names(model.network)
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = wrap_tokenizer(tokenizer, model.max_tokens)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"{pair}: a model of heedful needs the tokenizer of heedful that it was trained with")
    given = GivenModel(model, tokenizer, asked.version)
    return Explainer(model, tokenizer, _class_names(model.task, outputs), name, type(network).__name__, given)


def _class_names(task: Task, outputs: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes from the names of the outputs, of which a binary model has one.

    >>> _class_names(BinaryClassification(), ("toxic",)), _class_names(BinaryClassification(), ("LABEL_0",))
    (('not toxic', 'toxic'), ('LABEL_0', 'LABEL_1'))
    """
    count = task.num_classes
    if count < 2:
        return ()
    if len(outputs) == count:
        return tuple(outputs)
    if count == 2 and len(outputs) == 1 and outputs[0] != "LABEL_0":
        return negated_name(outputs[0]), outputs[0]
    return tuple(f"LABEL_{number}" for number in range(count))
