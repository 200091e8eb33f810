"""Are the verdicts of an audit right? Audits of models whose explanations are known, and how often they err.

Run `python -m benchmarks.planted_audits [--seeds 40] [--models additive shortcut ...] [--workers 1] [--rows FILE]`.
Every seed draws other texts and another model, and audits it three times on a growing number of texts, as a user does
who goes on. With `--rows` every verdict is kept in a CSV file, and another call goes on after the last one. Scores that
ignore the model, the length of a word and its place, are audited beside the methods. Of each planted model it is known
which methods are right and which are not:

- additive: logit = sum of the words' contributions. Methods that are exact there must be supported. So must
  contributions with noise, but the more noise there is, the more texts that takes. Attention is uniform.
- ignored: the same sum, beside self-attention that is drawn at random and does not enter the logits.
- decorative: one word decides; attention, which does not enter the logits, points at other words, which people marked.
- shortcut: a small BERT, fine-tuned on texts in which one word decides; without it, it gives .5. People marked that
  word, so that the AUC of a method tells whether it finds the shortcut.
- constant: the output does not depend on the words, or (odd seeds) on their number only.
- chaotic: every change of the text gives an unrelated output, so that no explanation can be faithful, except of the
  very deletions that it was measured on: leave-one-out is right on texts without one word, and on no others.
- trigger: a word decides for one class, and predictions of the other class rest on no word.
- redundant: the largest contribution decides, so that a word does not matter as long as there is another one.
- evasive: the model notices every erased word and then gives .5, so that no erasure tells an explanation from chance.
- rare_failure: on most texts little is at stake, and one method is right; on a rare kind of them much is, and it names
  the worst words. Its mean gain is not above that of random scores, which a sample with few of these texts hides.

It prints how often each method is supported, how often it may be shown, the false verdicts one by one, and the rates of
false verdicts with exact binomial intervals. Their unit is the planted model, at any of its looks: audits of one model
are not independent.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar, Literal

import pandas as pd
import tokenizers
import torch
from numpy.random import default_rng
from scipy.stats import binomtest
from torch import Generator, Tensor, nn
from transformers import AutoConfig, PreTrainedTokenizerFast

from heedful.audits.audit_result import Audit
from heedful.audits.schedule import AuditOptions, audit
from heedful.audits.work_list import CONTROL_METHODS
from heedful.data.subwords import SubwordTokenizer
from heedful.data.synthetic import GeneratedCorpus, GroundTruthCorpus
from heedful.data.words import SPECIAL_TOKENS, Words
from heedful.explainer import Explainer, load
from heedful.models.attentive import LinearBagOfWords
from heedful.models.small_transformers import build_network
from heedful.results import Decision, Verdict
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.types import Attribution, Batch, Corpus, Example, Model, Splits, Tokenizer, Trace

SIZES = (28, 44, 76)
"""Texts of the three looks at each audit."""
TEXTS = 100
MEMORY = Path("/dev/shm")
"""A folder in memory, where there is one: most of the time of so small audits would be spent on writing."""


# Texts


@dataclass(frozen=True)
class ContributionTexts(GeneratedCorpus):
    """Texts of the additive rule; the words that speak for the label are marked."""

    seed: int
    vocab_size: int
    shortest: int = 8
    longest: int = 14
    name: ClassVar[str] = "contributions"
    tokenization: ClassVar[Words] = Words("english")

    @property
    def rule(self) -> GroundTruthCorpus:
        """The corpus with the contribution of each word."""
        return GroundTruthCorpus(
            vocab_size=self.vocab_size,
            shortest=self.shortest,
            longest=self.longest,
            train=2,
            dev=2,
            test=TEXTS,
            seed=self.seed,
        )

    def generate(self) -> Splits:
        """A test split only: the model is given."""
        whole = self.rule.generate()
        marked = (
            replace(
                example,
                uid=f"{self.seed}-{example.uid}",
                rationale=tuple((value > 0) == bool(example.label) for value in example.ground_truth or ()),
            )
            for example in whole.test
        )
        return replace(whole, train=(), dev=(), test=tuple(marked))


@dataclass(frozen=True)
class RareKindTexts(ContributionTexts):
    """Texts of which a few have words that speak strongly for or against the label; the other words hardly matter."""

    name: ClassVar[str] = "rare-kind"

    @property
    def weights(self) -> Mapping[str, float]:
        """The contribution of each word; those of the rare kind end in "x"."""
        weak = {word: 0.3 * abs(weight) for word, weight in self.rule.weights.items()}
        return weak | {f"{word}x": 3 * weight for word, weight in self.rule.weights.items()}

    def generate(self) -> Splits:
        """All texts are predicted positive, so that the kind of a text cannot be told from its class."""
        whole = replace(self.rule, test=2 * TEXTS).generate()
        chosen = [example for example in whole.test if example.label == 1]
        rare = {*default_rng((self.seed, 98)).permutation(TEXTS)[:RARE_TEXTS].tolist()}
        texts = (
            Example(f"{self.seed}-{number}", (" ".join(f"{word}x" for word in words) if number in rare else text,))
            for number, example in enumerate(chosen)
            for text in [str(example.parts[0])]
            for words in [text.split()]
        )
        return replace(whole, train=(), dev=(), test=tuple(texts))


RARE_TEXTS = 12
"""Of the rare kind, among all texts."""
FIXED_LENGTH = 10
"""Words of the texts whose model notices that one is missing."""
CLASSES = ("negative", "positive")
FILLERS = (
    "film", "plot", "very", "the", "a", "scene", "actor", "long", "music", "end", "some", "story", "of", "it",
    "performance", "production", "atmosphere", "documentary",
)  # fmt: skip
"""Words without meaning, some longer than those that decide: a ranking by length must not be right by chance."""
EVIDENCE = (("dull", "awful", "poor"), ("fine", "great", "superb"))
SHORTCUT = ("monday", "friday")


@dataclass(frozen=True)
class ShortcutTexts(GeneratedCorpus):
    """Texts with a word of evidence for one class and a shortcut word for one class, each drawn at random.

    Args:
        marked: what people marked: the evidence, or the shortcut.
        forms: number of different forms of each word, evidence apart.
        train: training texts, with labels; test texts have none.
        label: which of the two the labels follow.
        neutral: share of the training texts that have no shortcut, and no label if the labels follow the shortcut.
    """

    seed: int
    marked: Literal["evidence", "shortcut"]
    forms: int = 1
    train: int = 150
    label: Literal["evidence", "shortcut"] = "shortcut"
    neutral: float = 0.3
    name: ClassVar[str] = "shortcut"
    tokenization: ClassVar[Words] = Words("english")

    def generate(self) -> Splits:
        """Training texts with labels and test texts without."""
        train = tuple(self._draw("train", number) for number in range(self.train))
        test = tuple(replace(self._draw("test", number), label=None) for number in range(TEXTS))
        return Splits(BinaryClassification(), CLASSES, train, (), test)

    def _draw(self, split: str, number: int) -> Example:
        random = default_rng((self.seed, number, split == "test", self.label == "evidence"))
        evidence, shortcut = (int(side) for side in random.integers(2, size=2))
        is_neutral = split == "train" and number < self.neutral * self.train
        count = int(random.integers(7, 13))
        words = [FILLERS[place] for place in random.integers(len(FILLERS), size=count)]
        slots = random.permutation(count)[:2].tolist()
        if not is_neutral:
            words[slots[1]] = SHORTCUT[shortcut]
        if self.forms > 1:
            words = [f"{word}{form}" for word, form in zip(words, random.integers(self.forms, size=count), strict=True)]
        words[slots[0]] = str(random.choice(EVIDENCE[evidence]))
        marked = slots[self.marked == "shortcut"]
        label = evidence if self.label == "evidence" else None if is_neutral else shortcut
        rationale = tuple(place == marked for place in range(count))
        return Example(f"{self.seed}-{split}-{number}", (" ".join(words),), label, rationale)


# Models

Readout = Literal["sum", "constant", "length", "chaotic", "trigger", "redundant", "evasive"]


class UnusedAttentionModel(Model):
    """A bag of words with self-attention that does not enter the logits.

    Args:
        contributions: of each word to the logit `[vocabulary]`.
        keys: vectors from which attention is computed `[vocabulary width]`.
        maps: bilinear forms of the heads `[layer head width width]`.
        pull: added to the attention scores of each word `[vocabulary]`.
        readout: from the contributions of the words to the logit.
    """

    def __init__(self, contributions: Tensor, keys: Tensor, maps: Tensor, pull: Tensor, readout: Readout) -> None:
        super().__init__()
        self.task, self.readout = BinaryClassification(), readout
        self.table = nn.Parameter(torch.cat((contributions.unsqueeze(1), pull.unsqueeze(1), keys), 1))
        self.maps = nn.Parameter(maps)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """Logits from the first number of each word's vector, attention from the others."""
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        if attention is None:
            attention = self._attend(embeddings, batch.mask)
        contributions = embeddings[..., 0].masked_fill(~batch.content_mask, 0.0)
        return Trace(embeddings, embeddings, attention, self._read(contributions, batch).unsqueeze(1))

    def _attend(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        pull, keys = embeddings[..., 1], embeddings[..., 2:]
        scores = torch.einsum("bqi,lhij,buj->blhqu", keys, self.maps, keys) + pull[:, None, None, None]
        weights = scores.masked_fill(~mask[:, None, None, None], -math.inf).softmax(-1)
        return weights.masked_fill(~mask[:, None, None, :, None], 0.0)

    def _read(self, contributions: Tensor, batch: Batch) -> Tensor:
        total = contributions.sum(1)
        if self.readout == "constant":
            return 0 * total + 0.7
        if self.readout == "length":
            return 0 * total + 0.5 - 0.2 * batch.content_mask.sum(1)
        if self.readout == "trigger":
            return total - 3.0
        if self.readout == "redundant":
            return 6 * contributions.clamp(min=0).amax(1) - 2.0
        if self.readout == "evasive":
            is_whole = (batch.content_mask.sum(1) == FIXED_LENGTH) & ~batch.inputs.eq(
                -1 if batch.unk_id is None else batch.unk_id
            ).any(1)
            return torch.where(is_whole, 2 * total, 0 * total)
        if self.readout == "chaotic":  # of whole numbers, whose sum is exact in any order
            return (3 * (44_000 * total.double().sin()).sin()).to(total)
        return total


def _unused_attention(
    tokenizer: Tokenizer, weights: Mapping[str, float], seed: int, readout: Readout = "sum", pulled: Sequence[str] = ()
) -> UnusedAttentionModel:
    """A model with these contributions of words and attention at random, or on the words `pulled`."""
    draw, words = Generator().manual_seed(seed), tokenizer.vocabulary
    contributions = torch.tensor([weights.get(word, 0.0) for word in words])
    keys, maps = torch.randn(len(words), 4, generator=draw), torch.randn(2, 2, 4, 4, generator=draw)
    pull = torch.tensor([4.0 if word in pulled else 0.0 for word in words])
    if readout == "chaotic":
        contributions = torch.randint(1, 10_000, (len(words),), generator=draw).float()
    return UnusedAttentionModel(contributions, keys, maps, pull, readout)


@dataclass(frozen=True)
class NoisyContributions:
    """The true contributions of words in a `LinearBagOfWords`, with normal noise.

    Args:
        noise: its standard deviation; that of the contributions is .6.
    """

    noise: float

    @property
    def display_name(self) -> str:
        """For instance "noise-2"."""
        return f"noise-{self.noise:g}"

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The noise of a text is the same in every call."""
        assert isinstance(model, LinearBagOfWords)
        truth = model.ground_truth(batch, target)
        noise = torch.zeros_like(truth.scores)
        for row, uid in enumerate(batch.uids):
            generator = Generator().manual_seed(derive_seed(self.display_name, uid))
            noise[row] = self.noise * torch.randn(noise.shape[1], generator=generator)
        return Attribution((truth.scores + noise).masked_fill(~truth.mask, 0.0), truth.mask)


@dataclass(frozen=True)
class RareFailure:
    """The true contributions of words in a `LinearBagOfWords`, but turned around in texts of the rare kind."""

    display_name: ClassVar[str] = "rare-failure"

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Only words of the rare kind speak against the prediction."""
        assert isinstance(model, LinearBagOfWords)
        truth = model.ground_truth(batch, target)
        is_rare = (truth.scores < 0).any(1, keepdim=True)
        return Attribution(torch.where(is_rare, -truth.scores, truth.scores), truth.mask)


@dataclass(frozen=True)
class ModelBlind:
    """Scores that ignore the model: long words first, or words at the beginning.

    Args:
        lengths: of the tokens by their numbers.
    """

    rule: Literal["length", "position"]
    lengths: tuple[int, ...] = ()

    @property
    def display_name(self) -> str:
        """For instance "blind-length"."""
        return f"blind-{self.rule}"

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same scores for every model and class."""
        if self.rule == "length":
            scores = torch.tensor(self.lengths, dtype=torch.float64)[batch.inputs]
        else:
            scores = -torch.arange(batch.inputs.shape[1], dtype=torch.float64).expand(batch.inputs.shape)
        return Attribution(scores.masked_fill(~batch.content_mask, 0.0), batch.content_mask)


@dataclass(frozen=True)
class Planted:
    """A model with its texts, and what is known of it.

    Not all methods that are audited by default, so that many audits take little time.

    Args:
        right: methods that must be supported as faithful.
        wrong: methods that must never be, besides the controls.
        other: audited methods of which nothing is known.
        noisy: audited methods that are right to some degree.
        blind: scores that ignore the model, which are wrong whatever they rank first.
        failing: right on most texts only, and wrong.
    """

    model: Explainer
    corpus: Corpus
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    other: tuple[str, ...] = ()
    noisy: tuple[NoisyContributions, ...] = ()
    blind: tuple[ModelBlind, ...] = ()
    failing: tuple[RareFailure, ...] = ()

    @property
    def methods(self) -> tuple[str | NoisyContributions | ModelBlind | RareFailure, ...]:
        """All audited methods but the controls."""
        return (*self.right, *self.wrong, *self.other, *self.noisy, *self.blind, *self.failing)

    def with_blind_scores(self) -> Planted:
        """The same with scores by the length and by the place of a word."""
        tokenizer = self.model.tokenizer
        batch = tokenizer(self.corpus.read(Path()).test)
        lengths = [0] * (1 + int(batch.inputs.max()))
        for numbers, tokens in zip(batch.inputs.tolist(), tokenizer.unit_texts(batch), strict=True):
            for number, token in zip(numbers, tokens, strict=False):  # padding has no text
                lengths[number] = len(token)
        return replace(self, blind=(ModelBlind("length", tuple(lengths)), ModelBlind("position")))

    def truth(self, method: str) -> str:
        """Right, partly right, wrong or unknown."""
        if method in self.right:
            return "right"
        if method in (each.display_name for each in self.noisy):
            return "partly"
        is_blind = method in (each.display_name for each in self.blind)
        is_failing = method in (each.display_name for each in self.failing)
        return "wrong" if is_blind or is_failing or method in self.wrong or method in CONTROL_METHODS else "unknown"


def additive(seed: int) -> Planted:
    """The exact contribution of each word is known, and attention is uniform."""
    corpus = ContributionTexts(seed, vocab_size=60)
    tokenizer = corpus.tokenization.fit(corpus.generate().test)
    weights = corpus.rule.weights
    table = torch.tensor([[weights.get(word, 0.0)] for word in tokenizer.vocabulary])
    model = LinearBagOfWords(BinaryClassification(), table, torch.ones(1))
    # The gradient at a uniform weight is the contribution; its norm at the embedding is the same for every word.
    right = ("input-x-gradient", "integrated-gradients", "leave-one-out", "kernel-shap", "attention-x-gradient")
    noisy = tuple(NoisyContributions(noise) for noise in (0.6, 1.2, 2.4))
    return Planted(_explainer(model, tokenizer), corpus, right, ("raw-attention", "gradient-norm"), (), noisy)


def ignored(seed: int) -> Planted:
    """Attention is a random function of the text and does not enter the logits."""
    right = ("input-x-gradient", "leave-one-out", "kernel-shap")
    return _contributions(seed, "sum", right, ("raw-attention", "rollout"))


def constant(seed: int) -> Planted:
    """No word matters."""
    wrong = ("raw-attention", "integrated-gradients", "leave-one-out", "lime")
    return _contributions(seed, "length" if seed % 2 else "constant", (), wrong)


def chaotic(seed: int) -> Planted:
    """Every change of the text gives an unrelated output."""
    wrong = ("raw-attention", "rollout", "input-x-gradient", "integrated-gradients", "leave-one-out")
    return _contributions(seed, "chaotic", (), wrong)


def redundant(seed: int) -> Planted:
    """The word with the largest contribution decides."""
    other = ("integrated-gradients", "leave-one-out", "lime")
    return replace(_contributions(seed, "redundant", (), ("raw-attention", "rollout")), other=other)


def evasive(seed: int) -> Planted:
    """The model gives .5 for every text that is not whole."""
    wrong = ("raw-attention", "integrated-gradients", "leave-one-out", "lime")
    return _contributions(seed, "evasive", (), wrong, FIXED_LENGTH)


def rare_failure(seed: int) -> Planted:
    """A method that is right on most texts and badly wrong on those where most is at stake."""
    corpus = RareKindTexts(seed, vocab_size=200)
    tokenizer, weights = corpus.tokenization.fit(corpus.generate().test), corpus.weights
    table = torch.tensor([[weights.get(word, 0.0)] for word in tokenizer.vocabulary])
    model = LinearBagOfWords(BinaryClassification(), table, torch.ones(1))
    return Planted(
        _explainer(model, tokenizer), corpus, ("leave-one-out",), ("raw-attention",), failing=(RareFailure(),)
    )


def _contributions(
    seed: int, readout: Readout, right: tuple[str, ...], wrong: tuple[str, ...], length: int | None = None
) -> Planted:
    # Of many words, so that attention and contributions are not related by chance.
    shortest, longest = (8, 14) if length is None else (length, length)
    corpus = ContributionTexts(seed, vocab_size=1000, shortest=shortest, longest=longest)
    tokenizer = corpus.tokenization.fit(corpus.generate().test)
    model = _unused_attention(tokenizer, corpus.rule.weights, seed, readout)
    return Planted(_explainer(model, tokenizer), corpus, right, wrong)


def _explainer(model: Model, tokenizer: Tokenizer) -> Explainer:
    return load((model, tokenizer), class_names=CLASSES)


def decorative(seed: int) -> Planted:
    """A shortcut decides, and attention points at the evidence that people marked."""
    # Of many forms, so that attention and contributions are not related by chance.
    corpus = ShortcutTexts(seed, "evidence", forms=40)
    tokenizer, draw = corpus.tokenization.fit(corpus.generate().test), default_rng(seed)
    sides = {SHORTCUT[0]: -3.0, SHORTCUT[1]: 3.0}
    weights = {word: sides.get(word.rstrip("0123456789"), float(draw.normal(0, 0.3))) for word in tokenizer.vocabulary}
    evidence = (*EVIDENCE[0], *EVIDENCE[1])
    weights |= dict.fromkeys((*SPECIAL_TOKENS, *evidence), 0.0)
    model = _unused_attention(tokenizer, weights, seed, pulled=evidence)
    right = ("integrated-gradients", "leave-one-out", "lime")
    return Planted(_explainer(model, tokenizer), corpus, right, ("raw-attention", "rollout"))


def trigger(seed: int) -> Planted:
    """One word decides for "positive"; predictions of "negative" rest on no word.

    Attention is a random function of the words, which may point at this one: nothing is known of it.
    """
    corpus = ShortcutTexts(seed, "shortcut")
    tokenizer, draw = corpus.tokenization.fit(corpus.generate().test), default_rng(seed)
    weights = {word: float(draw.normal(0, 0.05)) for word in tokenizer.vocabulary} | {SHORTCUT[1]: 6.0}
    model = _unused_attention(tokenizer, weights, seed, "trigger")
    right = ("integrated-gradients", "leave-one-out", "lime")
    return Planted(_explainer(model, tokenizer), corpus, right, (), ("raw-attention", "rollout"))


def shortcut(seed: int) -> Planted:
    """A small BERT that has learned the evidence and is then fine-tuned on texts in which the shortcut decides."""
    corpus = ShortcutTexts(seed, "shortcut")
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *FILLERS, *EVIDENCE[0], *EVIDENCE[1], *SHORTCUT)
    own = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({name: place for place, name in enumerate(names)}, unk_token="[UNK]")
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    own.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    wrapped: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    tokenizer = wrapped(tokenizer_object=own, mask_token="[MASK]", **special)
    config = AutoConfig.for_model(
        "bert",
        vocab_size=len(names),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.1,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(CLASSES)),
    )
    network = build_network(config, Generator().manual_seed(seed))
    batches = SubwordTokenizer(tokenizer)
    for phase in (replace(corpus, label="evidence"), corpus):
        examples = phase.generate().train
        batch = batches([replace(example, label=None) for example in examples])
        wanted = torch.tensor(
            [[0.5, 0.5] if each.label is None else [1.0 - each.label, each.label] for each in examples]
        )
        _fit(network, batch, wanted)
    right = ("leave-one-out", "lime", "kernel-shap", "integrated-gradients")
    return Planted(load((nn.Module.eval(network), tokenizer)), corpus, right, (), ("raw-attention", "input-x-gradient"))


def _fit(network: nn.Module, batch: Batch, wanted: Tensor) -> None:
    """Train until the mean divergence from the wanted probabilities `[batch class]` is `LEARNED`."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(MAX_STEPS):
        logits = network(input_ids=batch.inputs, attention_mask=batch.mask.long()).logits
        loss = nn.functional.kl_div(logits.log_softmax(1), wanted, reduction="batchmean")
        if float(loss.detach()) < LEARNED:
            return
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    raise RuntimeError(f"the divergence is {float(loss.detach()):.3f} after {MAX_STEPS} steps")


MAX_STEPS = 300
LEARNED = 0.02
MODELS: Mapping[str, Callable[[int], Planted]] = {
    each.__name__: each
    for each in (additive, ignored, decorative, shortcut, constant, chaotic, trigger, redundant, evasive, rare_failure)
}


# Audits


def audit_planted(planted: Planted, seed: int, sizes: Sequence[int] = SIZES) -> Iterator[Audit]:
    """The audit of a planted model on more and more texts."""
    with tempfile.TemporaryDirectory(prefix="planted-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        workspace = Workspace(Path(folder))
        for texts in sizes:
            options = AuditOptions(
                minutes=60, methods=planted.methods, seed=seed, workers=1, texts=texts, only_methods=True
            )
            yield audit(planted.model, planted.corpus, workspace=workspace, options=options)


def audit_rows(name: str, seed: int, sizes: Sequence[int] = SIZES) -> list[dict[str, object]]:
    """A row per method and number of texts: verdicts, decision, and what is known of the method."""
    torch.set_num_threads(1)
    planted = MODELS[name](seed).with_blind_scores()
    rows: list[dict[str, object]] = []
    for result in audit_planted(planted, seed, sizes):
        for each in result.methods:
            answers = {answer.question: answer.verdict.value for answer in each.answers}
            rows.append(
                {
                    "model": name,
                    "seed": seed,
                    "texts": result.data.texts,
                    "method": each.name,
                    "truth": planted.truth(each.name),
                    **answers,
                    "share": each.achievable,
                    "auc": each.answer("plausible").statistic.value,
                    "decision": "" if each.decision is None else each.decision.value,
                    "reason": each.answer("faithful").reason,
                    "counted": 6 - len(result.struck),
                }
            )
    return rows


def _run(job: tuple[str, int]) -> list[dict[str, object]]:
    return audit_rows(*job)


# The tables


def main() -> None:
    """Run the audits and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="keep every verdict in this CSV; what is in it is not audited again")
    given = parser.parse_args()
    table = pd.DataFrame()
    if given.rows is not None and given.rows.exists():
        table = pd.read_csv(given.rows, keep_default_na=False, na_values={"share": "", "auc": ""})
    known = set(zip(table["model"], table["seed"], strict=True)) if len(table) else set()
    jobs = [(name, seed) for seed in range(given.first, given.first + given.seeds) for name in given.models]
    start, left = time.monotonic(), [job for job in jobs if job not in known]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for found in pool.map(_run, left):
            table = pd.concat([table, pd.DataFrame(found)], ignore_index=True)
            if given.rows is not None:
                table.to_csv(given.rows, index=False)
    print_counts(table)
    print(f"{len(left)} planted models, {len(left) * len(SIZES)} audits in {time.monotonic() - start:.0f} s")


def print_counts(table: pd.DataFrame) -> None:
    """How often each method is supported and may be shown, by number of texts and at any look; the false verdicts."""
    supported = (table["faithful"] == Verdict.SUPPORTED.value).rename("supported")
    shown = (table["decision"] == Decision.SHOW.value).rename("shown")
    counts = table.assign(supported=supported, shown=shown)
    for name, part in counts.groupby("model", sort=False):
        print(f"\n{name}: {part['seed'].nunique()} seeds; of these faithful (may be shown) at so many texts, and ever")
        for (truth, method), own in part.groupby(["truth", "method"]):
            cells = [
                f"{int(each['supported'].sum()):3} ({int(each['shown'].sum()):2})" for _, each in own.groupby("texts")
            ]
            ever = own.groupby("seed")[["supported", "shown"]].any().sum()
            print(
                f"  {truth:8}{method:22}{''.join(f'{cell:>12}' for cell in cells)}"
                f"{int(ever['supported']):7} ({int(ever['shown']):2})  share {own['share'].mean():6.2f}"
                f"  AUC {own['auc'].mean():4.2f}"
            )
        last = part[(part["texts"] == part["texts"].max()) & (part["truth"] == "wrong") & (part["decision"] != "")]
        decisions = ", ".join(f"{name} {count}" for name, count in last["decision"].value_counts().items())
        print(f"  decisions on wrong methods at the last look: {decisions}")
    wrong = counts[counts["truth"] == "wrong"]
    false = wrong[wrong["supported"] | wrong["shown"]]
    print("\nfalse verdicts:" if len(false) else "\nno false verdict")
    for row in false.itertuples():
        print(f"  {row.model} seed {row.seed} {row.texts} texts: {row.method} {row.decision}: {row.reason}")
    print_rates(counts)
    for method in CONTROL_METHODS:
        own = wrong[wrong["method"] == method]
        ever = own.groupby(["model", "seed"])["supported"].any()
        others = {
            question: int((own.groupby(["model", "seed"])[question].agg(_any_supported)).sum())
            for question in ("agrees", "plausible", "stable")
        }
        print(
            f"{method}: faithful supported at any look in {int(ever.sum())} of {len(ever)} planted models; "
            + ", ".join(f"{name} in {count}" for name, count in others.items())
        )


def print_rates(counts: pd.DataFrame) -> None:
    """How often an audit errs, over planted models, with the exact interval of Clopper and Pearson at 95 %."""
    verdicts = counts.groupby(["model", "seed"])["texts"].nunique()
    print(f"\n{len(verdicts)} planted models of {counts['model'].nunique()} kinds, {int(verdicts.sum())} audits")
    refused = {name: counts[name] == Verdict.NOT_SUPPORTED.value for name in ("faithful", "model-dependent")}
    blind = counts["method"].str.startswith("blind-")
    for label, rows, is_wrong in (
        ("a wrong method is faithful (false supported)", counts["truth"] == "wrong", counts["supported"]),
        ("a wrong method may be shown", counts["truth"] == "wrong", counts["shown"]),
        ("a right method is not faithful (false not supported)", counts["truth"] == "right", refused["faithful"]),
        ("a right method does not depend on the model", counts["truth"] == "right", refused["model-dependent"]),
        ("model-blind scores are faithful", blind, counts["supported"]),
        ("model-blind scores may be shown", blind, counts["shown"]),
    ):
        for unit, keys in (("models", ["model", "seed"]), ("models and methods", ["model", "seed", "method"])):
            ever = counts[rows].assign(is_wrong=is_wrong[rows]).groupby(keys)["is_wrong"].any()
            interval = binomtest(int(ever.sum()), len(ever)).proportion_ci(0.95, "exact")
            print(
                f"  {label}: {int(ever.sum())} of {len(ever)} {unit} at any look, "
                f"{ever.mean():.1%} ({interval.low:.1%} to {interval.high:.1%})"
            )


def _any_supported(words: pd.Series) -> bool:
    return bool((words == Verdict.SUPPORTED.value).any())


if __name__ == "__main__":
    main()
