"""`Explanation`: the scores of one text as a value that can be shown, stored and traced back to its model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pandas as pd

from heedful.figures import Heatmap, Series
from heedful.report.explanation_page import explanation_fragment, explanation_page
from heedful.store.model_folder import KnownIdentity, ModelIdentity
from heedful.store.recipe import Json, to_json
from heedful.terminal import print_heatmap
from heedful.types import Pooling, UserError

NUMBER = "the predicted number"
"""What is explained of a model that predicts a number."""


@dataclass(frozen=True)
class MethodScores:
    """The scores of one method.

    Args:
        method: name in the catalogue, with the options that are not at their defaults.
        word_scores: one per word of the text; NaN for words that the model did not read.
        token_scores: one per token; NaN for special tokens that have no score.
        pooling: how a word's score comes from its tokens.
        is_signed: whether a negative score speaks against the class: contributions are signed, weights are not.
        depends_on_target: whether another class could have other scores.
        options: all options of the method, the seed of one that samples among them.
    """

    method: str
    word_scores: tuple[float, ...]
    token_scores: tuple[float, ...]
    pooling: Pooling
    is_signed: bool
    depends_on_target: bool
    options: Mapping[str, Json]

    @property
    def seed(self) -> int | None:
        """The seed of a method that samples; None if nothing is drawn."""
        seed = self.options.get("seed")
        return seed if isinstance(seed, int) else None


@dataclass(frozen=True)
class Explanation:
    """Why a model predicts what it predicts for one text, according to one or more methods.

    Args:
        parts: the text, or both texts of a pair.
        words: whitespace words of all parts, or the sentences or segments that were explained (`feature`);
            `word_parts` has the part of each.
        tokens: what the model read, special tokens included; `token_words` has the word of each, -1 for none.
        target: name of the explained class; `target_index` is its number.
        probability: of the explained class; the predicted number itself for regression.
        contrast: name of the class that the target is explained against, empty for none. The explained output is then
            the difference of the two logits.
        rows: the scores of each method.
        chosen_because: why these methods were taken.
        notes: what the reader must know about these scores.
        first_token_share: the share of the attention that goes to the first token, over all layers, heads and tokens;
            None where attention is not read.
        feature: what was removed together: token, word, sentence or segment.
        model: its name.
        identity: of weights and tokenizer, which are hashed when `model_digest` is first needed.
        versions: of heedful, torch and transformers.
    """

    parts: tuple[str, ...]
    words: tuple[str, ...]
    word_parts: tuple[int, ...]
    tokens: tuple[str, ...]
    token_words: tuple[int, ...]
    token_parts: tuple[int, ...]
    target: str
    target_index: int
    probability: float
    predicted: str
    predicted_probability: float
    contrast: str
    rows: tuple[MethodScores, ...]
    chosen_because: str
    notes: tuple[str, ...]
    model: str
    identity: ModelIdentity = field(repr=False)
    versions: Mapping[str, str]
    first_token_share: float | None = None
    feature: str = "word"

    @property
    def model_digest(self) -> str:
        """SHA-256 of weights and tokenizer; empty if the folder of the model changed before anybody asked."""
        try:
            return self.identity.digest
        except UserError:
            return ""

    @property
    def heading(self) -> str:
        """The explained class, its probability and the prediction, in one line."""
        if self.predicted == NUMBER:
            return f"{NUMBER}: {self.predicted_probability:.3g}"
        name = f"{self.target} rather than {self.contrast}" if self.contrast else self.target
        rest = "predicted" if self.target == self.predicted else f"predicted: {self.predicted}"
        rest += "" if self.target == self.predicted else f" {self.predicted_probability:.3f}"
        return f"{name}: {self.probability:.3f} ({rest})"

    def figure(self, *, pieces: bool = False) -> Heatmap:
        """The words, or the tokens, with their scores as a heat-map for a terminal or a page."""
        units, parts = (self.tokens, self.token_parts) if pieces else (self.words, self.word_parts)
        rows = tuple(
            Series(
                row.method,
                row.token_scores if pieces else row.word_scores,
                row.is_signed,
                "" if row.depends_on_target else "same for every class",
            )
            for row in self.rows
        )
        # A space before each unit keeps what looks like the mark of a tokenizer.
        shown = tuple(f" {unit}" for unit in units)
        return Heatmap(self.heading, shown, rows, "", parts, self._meanings(), self.notes)

    def facts(self) -> dict[str, str]:
        """What the scores can be traced by; the weights are hashed for it."""
        facts = {"model": f"{self.model} ({self.model_digest[:16]})", "methods": self.chosen_because, **self.versions}
        if self.first_token_share is not None:
            facts["attention on the first token"] = f"{self.first_token_share:.2f}"
        return facts

    def _meanings(self) -> tuple[str, str]:
        """What positive and negative scores mean."""
        if self.predicted == NUMBER:
            return "raises the number", "lowers the number"
        if self.contrast:
            return f"for {self.target}", f"for {self.contrast}"
        return f"for {self.target}", f"against {self.target}"

    def show(self, *, pieces: bool = False) -> None:
        """Print a colored heat-map of the words, or of the tokens, to the terminal."""
        print_heatmap(self.figure(pieces=pieces))

    def to_frame(self, *, pieces: bool = False) -> pd.DataFrame:
        """One row per method and word, or token."""
        units, parts = (self.tokens, self.token_parts) if pieces else (self.words, self.word_parts)
        tables = [
            pd.DataFrame(
                {
                    "part": parts,
                    "position": range(len(units)),
                    "token" if pieces else self.feature if self.feature != "token" else "word": units,
                    "method": row.method,
                    "score": row.token_scores if pieces else row.word_scores,
                    "target": self.target,
                    "probability": self.probability,
                    "predicted": self.predicted,
                    "predicted_probability": self.predicted_probability,
                    "contrast": self.contrast,
                }
            )
            for row in self.rows
        ]
        return pd.concat(tables, ignore_index=True)

    def to_record(self) -> dict[str, Json]:
        """Everything in JSON's types; scores that do not exist are null."""
        values = asdict(replace(self, identity=KnownIdentity("")))
        del values["identity"]
        record = to_json({**values, "model_digest": self.model_digest})
        assert isinstance(record, dict)
        return record

    def to_json(self) -> str:
        """Everything as JSON; numbers are exact."""
        return json.dumps(self.to_record(), indent=1)

    def to_html(self, *, pieces: bool = False) -> str:
        """A self-contained page without scripts."""
        return explanations_page([self], pieces=pieces)

    def _repr_html_(self) -> str:
        """The heat-map for a notebook."""
        return explanation_fragment([(self.figure(), self.facts())])


def explanations_page(explanations: Sequence[Explanation], *, pieces: bool = False) -> str:
    """A self-contained page without scripts about several texts."""
    title = explanations[0].heading if len(explanations) == 1 else f"{len(explanations)} explained texts"
    return explanation_page([(shown.figure(pieces=pieces), shown.facts()) for shown in explanations], title)


def explanations_frame(
    explanations: Sequence[Explanation], numbers: Sequence[int], *, pieces: bool = False
) -> pd.DataFrame:
    """The scores of several texts, one row per text, method and word (or token); `row` has the number of the text."""
    frames = [explanation.to_frame(pieces=pieces) for explanation in explanations]
    return pd.concat(frames, keys=numbers, names=["row"]).reset_index("row").reset_index(drop=True)
