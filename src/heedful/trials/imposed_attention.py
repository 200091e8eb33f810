"""Arms of an experiment: the same model from the same seeds, trained in several ways, its test scores paired by seed.

Seeds are what varies by chance here, and they are few: the interval of a mean paired difference is Student's t.

Is attention needed (Wiegreffe & Pinter, section 3.2)? Learned weights against uniform ones, in training and test.

Guided MLP (Wiegreffe & Pinter, section 3.4): do these scores help a model that cannot look at context?

A token-wise perceptron is trained and tested under imposed weights. What it gains over uniform weights must come from
the guide. Two guides that the paper lacks, permuted and random weights, know nothing and must gain nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
from scipy import special

from heedful.figures import Axis, Bars, Figure, Series
from heedful.models.attentive import Attentive
from heedful.models.encoders import Average
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import (
    AttentionSource,
    FromModel,
    FromScores,
    ShuffledAttention,
    UniformAttention,
)
from heedful.training.model_recipe import ModelRecipe
from heedful.training.objectives import ImposedAttention, Supervised
from heedful.training.trained_model import TrainedModel, check_trained_here
from heedful.trials._trial import Trial
from heedful.types import UserError

CONFIDENCE = 0.95
_PRIMARY_SCORES = {"f1": "F1 of class 1", "accuracy": "accuracy", "pearson": "correlation with the truth"}
"""The score that decides, the first that the task has (Wiegreffe & Pinter: F1 of class 1), in plain words."""


@dataclass(frozen=True)
class SeedDifference:
    """A mean paired difference and Student's interval; NaN bounds where fewer than two pairs are defined."""

    mean: float
    low: float
    high: float


def paired_seed_difference(
    first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE
) -> SeedDifference:
    """How much larger the first is: mean(d) ± t(n - 1) sd(d) / sqrt(n), over the pairs where both are defined.

    >>> found = paired_seed_difference([0.83, 0.82, 0.84], [0.81, 0.82, 0.80])
    >>> f"{found.mean:.4f} {found.low:.4f} {found.high:.4f}"
    '0.0200 -0.0297 0.0697'
    """
    paired = [one - other for one, other in zip(first, second, strict=True)]
    paired = [value for value in paired if math.isfinite(value)]
    if len(paired) < 2:
        return SeedDifference(paired[0] if paired else math.nan, math.nan, math.nan)
    mean, deviation = statistics.fmean(paired), statistics.stdev(paired)
    half = float(special.stdtrit(len(paired) - 1, (1 + confidence) / 2)) * deviation / math.sqrt(len(paired))
    return SeedDifference(mean, mean - half, mean + half)


def impose_attention(subject: TrainedModel, guide: AttentionSource) -> TrainedModel:
    """The subject trained and tested under a guide's weights, its classes weighted as before."""
    check_trained_here(subject)
    if not isinstance(subject.objective, Supervised):
        raise UserError(
            f"{type(subject.objective).__name__} is no objective to compare guides on: "
            "give a subject that learns its labels and its own attention (objective=Supervised())"
        )
    return replace(subject, objective=ImposedAttention(guide, subject.objective.balance_classes))


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuses no seeds, and the same seed twice."""
    if not seeds:
        raise UserError("give at least one seed, better five")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"a seed stands twice in {tuple(seeds)}; a training that is repeated tells nothing new")


def read_test_scores(workspace: Workspace, subject: ModelRecipe) -> dict[str, float]:
    """The test scores that the subject's training wrote down; NaN where one is undefined."""
    found = _test_notes(workspace.get(subject), "scores")
    return {name: math.nan if value is None else float(str(value)) for name, value in found.items()}


def count_test_examples(workspace: Workspace, subject: ModelRecipe) -> int:
    """How many test examples the subject was scored on."""
    return sum(int(str(count)) for count in _test_notes(workspace.get(subject), "sizes").values())


def _test_notes(artefact: Artefact, key: str) -> Mapping[str, object]:
    splits = artefact.notes[key]
    assert isinstance(splits, dict)
    found = splits["test"]
    assert isinstance(found, dict)
    return found


def primary_score(names: Sequence[str]) -> str:
    """The score that a verdict rests on."""
    return next(name for name in _PRIMARY_SCORES if name in names)


def score_label(score: str) -> str:
    """A score's name for people."""
    return _PRIMARY_SCORES.get(score, score.replace("_", " "))


def format_signed(value: float) -> str:
    """A difference for people, with its sign.

    >>> format_signed(0.0123), format_signed(-1e-9)
    ('+0.012', '+0.000')
    """
    return f"{round(value, 3) + 0.0:+.3f}"


def mean_over_seeds(values: pd.Series[float]) -> float:
    """The mean over the seeds where a score is defined."""
    return float(values.mean())


def std_over_seeds(values: pd.Series[float]) -> float:
    """The sample deviation over seeds; NaN for one seed."""
    return float(values.std(ddof=1))


ARMS = ("learned", "uniform")


@dataclass(frozen=True)
class UniformBaseline(Trial):
    """Test scores with learned and with uniform attention, one row per seed; the subject's own seed plays no part.

    Args:
        seeds: each trains both arms; the arms are compared within seeds.
        margin: a gain below this is of no use.
    """

    name: ClassVar[str] = "necessity"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "Does the model need its attention at all?"
    claim: ClassVar[str] = (
        "If attention is to explain a model, the model should need it: forced to weigh all words alike, in training "
        "and in test, it should do worse."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.2, table 2"
    limits: ClassVar[str] = (
        "That a model does as well without attention does not make its attention a bad explanation of what it does "
        "with it: it says that this task is no place to judge attention. That attention helps does not show that it "
        "explains."
    )

    subject: TrainedModel
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    margin: float = 0.01

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        impose_attention(self.subject, UniformAttention())
        if self.margin < 0:
            raise UserError(f"margin is {self.margin}: the least gain that matters cannot be negative")

    @property
    def arms(self) -> dict[str, tuple[TrainedModel, ...]]:
        """The subjects of each arm, in the order of the seeds."""
        learned = tuple(replace(self.subject, seed=seed) for seed in self.seeds)
        return {
            "learned": learned,
            "uniform": tuple(impose_attention(subject, UniformAttention()) for subject in learned),
        }

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """Every training of both arms."""
        return tuple(subject for subjects in self.arms.values() for subject in subjects)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per seed with every test score of both arms, as the trainings wrote them down."""
        arms = self.arms
        rows: list[dict[str, float | int | str]] = []
        for place, seed in enumerate(self.seeds):
            row: dict[str, float | int | str] = {"seed": seed, "margin": self.margin}
            for arm, subjects in arms.items():
                row |= {
                    f"{score}.{arm}": value for score, value in read_test_scores(workspace, subjects[place]).items()
                }
            rows.append(row)
        count = count_test_examples(workspace, arms["learned"][0])
        return Artefact(table=pd.DataFrame(rows), notes={"about": dict(self.subject.about), "n": count, "of": count})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Means and deviations over seeds, the mean paired difference with its 95 % interval, and the verdict.

        `difference`, `low` and `high` are of F1 of class 1, of accuracy where there are more classes, of Pearson's
        correlation for numbers. Exactly one of `helps`, `does_not_help` and `undecided` is 1.
        """
        table = table.sort_values("seed")
        names = _score_names(table)
        one, other = (table[f"{primary_score(names)}.{arm}"] for arm in ARMS)
        gain = paired_seed_difference(one.tolist(), other.tolist())
        margin = float(table["margin"].max())
        verdict = _gain_verdict(gain.low, gain.high, margin)
        return {
            "seeds": float(len(table)),
            **{f"{name}.{arm}": mean_over_seeds(table[f"{name}.{arm}"]) for name in names for arm in ARMS},
            "deviation.learned": std_over_seeds(one),
            "deviation.uniform": std_over_seeds(other),
            "difference": gain.mean,
            "low": gain.low,
            "high": gain.high,
            "margin": margin,
            **{each: float(verdict == each) for each in ("helps", "does_not_help", "undecided")},
        }

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Each score under both kinds of weights, with its deviation over seeds."""
        names = [name for name in _score_names(table) if name != "mean_squared_error"]
        titles = tuple(score_label(name) for name in names)
        bars = tuple(Series(arm, tuple(mean_over_seeds(table[f"{name}.{arm}"]) for name in names)) for arm in ARMS)
        errors = tuple(Series(arm, tuple(std_over_seeds(table[f"{name}.{arm}"]) for name in names)) for arm in ARMS)
        return (Bars("Learned and uniform attention", Axis("mean over seeds, on test"), titles, bars, errors),)

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """Both scores, their difference and what it comes to."""
        score = primary_score([name.split(".")[0] for name in summary])
        learned, uniform = (summary[f"{score}.{arm}"] for arm in ARMS)
        found = f"With the attention that it learns the model's {score_label(score)} is {learned:.3f}, with all words "
        found += f"weighted alike {uniform:.3f}"
        if math.isnan(summary["low"]):
            return f"{found}. Undecided: with fewer than two seeds nothing is known about chance; train more seeds."
        low, high, margin = summary["low"], summary["high"], summary["margin"]
        found += f"; the gain lies between {format_signed(low)} and {format_signed(high)} "
        found += f"(95 % interval, {summary['seeds']:.0f} seeds). "
        return found + _gain_sentence(low, high, margin)


def _score_names(table: pd.DataFrame) -> list[str]:
    return [str(column).removesuffix(".learned") for column in table.columns if str(column).endswith(".learned")]


def _gain_verdict(low: float, high: float, margin: float) -> str:
    """The interval above zero, below the margin, or neither; with undefined bounds neither."""
    if low > 0:
        return "helps"
    return "does_not_help" if high < margin else "undecided"


def _gain_sentence(low: float, high: float, margin: float) -> str:
    verdict = _gain_verdict(low, high, margin)
    if verdict == "helps":
        return "Attention helps" + (f", if by less than {margin:g}." if high < margin else ".")
    if verdict == "does_not_help":
        worse = "the model is better without it." if high < 0 else f"a gain of {margin:g} or more can be ruled out."
        return f"Attention does not help: {worse}"
    return f"Undecided: no gain is possible, and so is one of {margin:g} or more; train more seeds."


TRAINED, UNIFORM = "trained", "uniform"
_NON_SCORE_COLUMNS = ("guide", "seed", "null", "silent")


@dataclass(frozen=True)
class GuidedModel(Trial):
    """Test scores of a token-wise model under each guide, one row per guide and seed; its own seed plays no part.

    Args:
        subject: a token-wise model with attention of its own, which is the arm "trained".
        guides: named; "uniform" is added where it is missing, for all others are compared with it.
    """

    name: ClassVar[str] = "guided"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "Do these weights help a model that cannot look at context?"
    claim: ClassVar[str] = (
        "If weights tell which words matter, a simple model that sees each word by itself should do better when its "
        "words are weighted so than when all are weighted alike."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.4, table 3"
    limits: ClassVar[str] = (
        "Weights that help another model are useful, but need not be the reasons of the model that they come from. "
        "They may also help because they give away what that model would have answered."
    )

    subject: TrainedModel
    guides: tuple[tuple[str, AttentionSource], ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        impose_attention(self.subject, UniformAttention())
        model, names = self.subject.architecture, [name for name, _ in self.guides]
        if not isinstance(model, Attentive) or not isinstance(model.encoder, Average):
            raise UserError("guides are tried on a model that sees each word by itself: give Pooled(Perceptron(), ...)")
        if TRAINED in names or len(set(names)) < len(names):
            raise UserError(f"give each guide a name of its own, and none the name {TRAINED!r}: {', '.join(names)}")
        if not isinstance(dict(self.guides).get(UNIFORM, UniformAttention()), UniformAttention):
            raise UserError(f"the guide named {UNIFORM!r} must be Uniform(): the others are compared with it")
        for name, guide in self.guides:
            _check_guide(name, guide, self.subject)

    @property
    def arms(self) -> dict[str, AttentionSource | None]:
        """Each guide by name; None stands for the model's own attention."""
        return {UNIFORM: UniformAttention(), TRAINED: None, **dict(self.guides)}

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """Every training; what guides need, these need in turn."""
        return tuple(self._arm_model(guide, seed) for guide in self.arms.values() for seed in self.seeds)

    def _arm_model(self, guide: AttentionSource | None, seed: int) -> TrainedModel:
        own = replace(self.subject, seed=seed)
        return own if guide is None else impose_attention(own, guide)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per guide and seed with all test scores, as the trainings wrote them down.

        `silent` counts the texts, of all splits, that a guide has nothing to say about.
        """
        rows: list[dict[str, float | int | str | bool]] = []
        for name, guide in self.arms.items():
            null, silent = (False, 0) if guide is None else (guide.is_control, guide.count_uniform_fallbacks(workspace))
            for seed in self.seeds:
                found = read_test_scores(workspace, self._arm_model(guide, seed))
                rows.append({"guide": name, "seed": seed, "null": null, "silent": silent, **found})
        count = count_test_examples(workspace, self._arm_model(None, self.seeds[0]))
        return Artefact(table=pd.DataFrame(rows), notes={"about": dict(self.subject.about), "n": count, "of": count})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Means over seeds by guide; the paired difference from uniform weights with its 95 % interval (`low`, `high`).

        `deviation`, `difference`, `low` and `high` are of F1 of class 1, of accuracy where there are more classes, of
        Pearson's correlation for numbers; `null` is 1 for guides that know nothing.
        """
        names = [str(column) for column in table.columns if column not in _NON_SCORE_COLUMNS]
        score = primary_score(names)
        arms = {str(guide): rows.sort_values("seed") for guide, rows in table.groupby("guide", sort=False)}
        found = {"seeds": float(table["seed"].nunique())}
        found |= {f"{name}.{guide}": mean_over_seeds(rows[name]) for name in names for guide, rows in arms.items()}
        for guide, rows in arms.items():
            found[f"deviation.{guide}"] = std_over_seeds(rows[score])
            found[f"null.{guide}"] = float(rows["null"].max())
            found[f"silent.{guide}"] = float(rows["silent"].max())
            if guide != UNIFORM:
                gain = paired_seed_difference(rows[score].tolist(), arms[UNIFORM][score].tolist())
                found |= {f"difference.{guide}": gain.mean, f"low.{guide}": gain.low, f"high.{guide}": gain.high}
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """The deciding score under each guide, with its deviation over seeds."""
        score = primary_score([str(column) for column in table.columns])
        arms = {str(guide): rows[score] for guide, rows in table.groupby("guide", sort=False)}
        bars = Series(score_label(score), tuple(mean_over_seeds(values) for values in arms.values()))
        errors = Series(score_label(score), tuple(std_over_seeds(values) for values in arms.values()))
        axis = Axis(f"{score_label(score)}, mean over seeds, on test")
        return (Bars("A token-wise model under each guide", axis, tuple(arms), (bars,), (errors,)),)

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """A verdict for each guide, nulls named as such."""
        score = primary_score([name.split(".")[0] for name in summary])
        uniform = summary[f"{score}.{UNIFORM}"]
        guides = [name.removeprefix("difference.") for name in summary if name.startswith("difference.")]
        # Guides that know nothing come last: they are what the others are measured by.
        guides.sort(key=lambda guide: summary[f"null.{guide}"])
        words = [
            "The model sees each word by itself.",
            f"With all words alike its {score_label(score)} is {uniform:.3f}.",
        ]
        words += [_guide_sentence(guide, summary) for guide in guides]
        words += [
            f"{guide} had nothing to say about {summary[f'silent.{guide}']:.0f} texts, which were weighted alike."
            for guide in guides
            if summary[f"silent.{guide}"]
        ]
        if any(summary[f"null.{guide}"] and summary[f"low.{guide}"] > 0 for guide in guides):
            words.append("A guide that knows nothing helps here, so the gains of the others are no evidence.")
        return " ".join(words)


def _guide_sentence(guide: str, summary: Mapping[str, float]) -> str:
    gain, low, high = (summary[f"{name}.{guide}"] for name in ("difference", "low", "high"))
    called = f"{guide} (which knows nothing)" if summary[f"null.{guide}"] else guide
    called = "Its own trained attention" if guide == TRAINED else called
    if math.isnan(low):
        return f"{called}: {format_signed(gain)}, undecided with fewer than two seeds; train more."
    verdict = "helps" if low > 0 else "harms" if high < 0 else "cannot be told from uniform weights"
    return f"{called} {verdict}: {format_signed(gain)} (95 % interval {format_signed(low)} to {format_signed(high)})."


def _check_guide(name: str, guide: AttentionSource, learner: TrainedModel) -> None:
    """Refuses weights of other texts, and borrowed attention over units whose ids mean other words to the learner."""
    if isinstance(guide, ShuffledAttention):
        _check_guide(name, guide.source, learner)
    if isinstance(guide, FromModel | FromScores) and guide.subject.corpus != learner.corpus:
        raise UserError(f"the guide {name!r} was trained on another corpus than the learner: give both the same")
    if isinstance(guide, FromModel) and guide.subject.tokenization != learner.tokenization:
        raise UserError(
            f"the guide {name!r} lends attention over other units than the learner reads: give both the same "
            "preprocessing, or take its scores by word: Scored(subject, RawAttention())"
        )
