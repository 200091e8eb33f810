"""Imposed attention (Wiegreffe & Pinter 2019): is attention needed, and do its weights help a model without context?

`UniformBaseline` (section 3.2) compares learned with uniform attention. `GuidedModel` (section 3.4) trains a token-wise
MLP under the attention weights of other models; shuffled and random weights, which the paper lacks, are its controls.
Both compare arms that are trained from the same seeds, by the paired differences of their test scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, ClassVar

import pandas as pd

from heedful.figures import Axis, Bars, Figure, Series
from heedful.measures.intervals import paired_seed_difference
from heedful.models.attentive import Attentive
from heedful.models.encoders import Average
from heedful.option_bounds import Bounds, check_options
from heedful.results import Finding, Statistic, Verdict, get_statistic, interval_finding, select_statistics, value_of
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import (
    AttentionSource,
    FromModel,
    FromScores,
    ShuffledAttention,
    UniformAttention,
)
from heedful.training.objectives import ImposedAttention, Supervised
from heedful.training.trained_model import TrainedModel, check_trained_here
from heedful.trials.trial import Trial
from heedful.types import UserError

LEARNED, UNIFORM, TRAINED = "learned", "uniform", "trained"
_DECISIVE_SCORES = {"f1": "F1 of class 1", "accuracy": "accuracy", "pearson": "correlation with the labels"}
"""The score that decides is the first that the task has (in the paper: F1 of class 1), with its label."""
_SETTING_COLUMNS = ("arm", "seed", "margin", "control", "uniform_fallbacks")
_TOO_FEW_SEEDS = "fewer than two seeds"


@dataclass(frozen=True)
class UniformBaseline(Trial):
    """Test scores with learned and with uniform attention, one row per arm and seed; ignores the subject's own seed.

    Args:
        seeds: both arms are trained from each; arms are compared within seeds.
        margin: the smallest gain that matters.
    """

    name: ClassVar[str] = "uniform-baseline"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "Does the model need its attention at all?"
    claim: ClassVar[str] = (
        "If attention explains a model, the model should need it: with uniform attention in training and testing, "
        "it should do worse."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.2, table 2"
    limits: ClassVar[str] = (
        "If a model does just as well without attention, its attention is not necessarily a bad explanation, but "
        "the task is not suitable for judging attention. If attention helps, it need not explain."
    )

    subject: TrainedModel
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    margin: Annotated[float, Bounds(at_least=0)] = 0.01

    def __post_init__(self) -> None:
        check_options(self)
        check_seeds(self.seeds)
        with_imposed_attention(self.subject, UniformAttention())

    @property
    def arms(self) -> dict[str, tuple[TrainedModel, ...]]:
        """The models of each arm, in the order of the seeds."""
        learned = tuple(replace(self.subject, seed=seed) for seed in self.seeds)
        return {
            LEARNED: learned,
            UNIFORM: tuple(with_imposed_attention(model, UniformAttention()) for model in learned),
        }

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return tuple(chain.from_iterable(self.arms.values()))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per arm and seed with all test scores."""
        table, n = _score_table(workspace, self.arms)
        return self.artefact(table.assign(margin=self.margin), n)

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Mean test scores of both arms over seeds, and the paired `difference` of the score that decides."""
        yield from _arm_statistics(table)
        yield Statistic("margin", value=float(table["margin"].max()))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Every score under both kinds of attention, with its standard deviation over seeds."""
        names = [name for name in _score_names(table) if name != "mean_squared_error"]
        arms = [(arm, table.loc[table["arm"] == arm, names]) for arm in (LEARNED, UNIFORM)]
        bars = tuple(Series(arm, tuple(rows.mean())) for arm, rows in arms)
        errors = tuple(Series(arm, tuple(rows.std())) for arm, rows in arms)
        labels = tuple(_score_label(name) for name in names)
        return (Bars("Learned and uniform attention", Axis("mean over seeds, on test"), labels, bars, errors),)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Whether learned attention gains more than 0, or less than the margin."""
        gain = get_statistic(summary, "difference", LEARNED)
        finding = interval_finding(gain, value_of(summary, "margin"), no_interval=_TOO_FEW_SEEDS)
        if finding.verdict is Verdict.UNDECIDED and not finding.reason:
            finding = replace(finding, reason="the gain may be zero, but also above the margin")
        return (finding,)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        (finding,) = cls.findings(summary)
        gain, margin = finding.evidence[0], value_of(summary, "margin")
        score = _decisive_score(summary["metric"].tolist())
        learned, uniform = (value_of(summary, score, arm) for arm in (LEARNED, UNIFORM))
        words = {
            Verdict.SUPPORTED: "Attention helps" + (f", but by less than {margin:g}." if gain.high < margin else "."),
            Verdict.NOT_SUPPORTED: f"Attention does not help: a gain of {margin:g} or more is excluded.",
            Verdict.UNDECIDED: f"Undecided ({finding.reason}): train more seeds.",
        }
        interval = "" if math.isnan(gain.low) else f"; the gain is {_format_interval(gain)}, {gain.n:.0f} seeds"
        return (
            f"The {_score_label(score)} is {learned:.3f} with learned attention and {uniform:.3f} with uniform "
            f"attention{interval}. {words[finding.verdict]}"
        )


@dataclass(frozen=True)
class GuidedModel(Trial):
    """Test scores of a token-wise model under each guide, one row per guide and seed; ignores the subject's own seed.

    Args:
        subject: a token-wise model; its own attention is the arm "trained".
        guides: sources of attention weights by name; "uniform", which all others are compared with, is always added.
    """

    name: ClassVar[str] = "guided-model"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "Do these weights help a model without context?"
    claim: ClassVar[str] = (
        "If attention weights show which words matter, a model that encodes each word by itself should do better with "
        "these weights than with uniform ones."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.4, table 3"
    limits: ClassVar[str] = (
        "Weights that help another model are useful, but do not necessarily show the reasons of the model they come "
        "from. They may also help because they reveal its prediction."
    )

    subject: TrainedModel
    guides: tuple[tuple[str, AttentionSource], ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        with_imposed_attention(self.subject, UniformAttention())
        model, names = self.subject.architecture, [name for name, _ in self.guides]
        if not isinstance(model, Attentive) or not isinstance(model.encoder, Average):
            raise UserError("guides need a token-wise model; pass Attentive(Average(), ...)")
        if TRAINED in names or len(set(names)) < len(names):
            raise UserError(f"give each guide a different name, other than {TRAINED!r}: {', '.join(names)}")
        if not isinstance(dict(self.guides).get(UNIFORM, UniformAttention()), UniformAttention):
            raise UserError(
                f"the guide named {UNIFORM!r} must be UniformAttention(), because others are compared with it"
            )
        for name, guide in self.guides:
            _check_guide(name, guide, self.subject)

    @property
    def arms(self) -> dict[str, tuple[TrainedModel, ...]]:
        """The models under each guide and with their own attention, in the order of the seeds."""
        trained = tuple(replace(self.subject, seed=seed) for seed in self.seeds)
        guides: dict[str, AttentionSource] = {UNIFORM: UniformAttention(), **dict(self.guides)}
        guided = {
            name: tuple(with_imposed_attention(model, guide) for model in trained) for name, guide in guides.items()
        }
        return {UNIFORM: guided[UNIFORM], TRAINED: trained, **guided}

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return tuple(chain.from_iterable(self.arms.values()))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per guide and seed with all test scores; `uniform_fallbacks` counts texts without guide scores."""
        table, n = _score_table(workspace, self.arms)
        controls = [name for name, guide in self.guides if guide.is_control]
        fallbacks = {name: guide.count_uniform_fallbacks(workspace) for name, guide in self.guides}
        table["control"] = table["arm"].isin(controls)
        table["uniform_fallbacks"] = [fallbacks.get(arm, 0) for arm in table["arm"]]
        return self.artefact(table, n)

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Mean test scores of each guide over seeds, and the paired `difference` from uniform weights."""
        yield from _arm_statistics(table)
        for arm, rows in table.groupby("arm", sort=False):
            yield Statistic("uniform_fallbacks", str(arm), value=float(rows["uniform_fallbacks"].max()), n=len(rows))
            if rows["control"].any():
                yield Statistic("control", str(arm), value=1.0)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """The score that decides under each guide, with its standard deviation over seeds."""
        score = _decisive_score(_score_names(table))
        label, arms = _score_label(score), table.groupby("arm", sort=False)[score]
        axis = Axis(f"{label}, mean over seeds, on test")
        names = tuple(str(arm) for arm, _ in arms)
        bars, errors = Series(label, tuple(arms.mean())), Series(label, tuple(arms.std()))
        return (Bars("A token-wise model under each guide", axis, names, (bars,), (errors,)),)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Whether each guide does better than uniform weights; controls come last."""
        controls = {control.method for control in select_statistics(summary, "control")}
        gains = sorted(select_statistics(summary, "difference"), key=lambda gain: gain.method in controls)
        return tuple(interval_finding(gain, no_interval=_TOO_FEW_SEEDS) for gain in gains)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        controls = {control.method for control in select_statistics(summary, "control")}
        score = _decisive_score(summary["metric"].tolist())
        verbs = {
            Verdict.SUPPORTED: "helps",
            Verdict.NOT_SUPPORTED: "harms",
            Verdict.UNDECIDED: "makes no clear difference",
        }
        findings = cls.findings(summary)
        words = [f"With uniform weights, the {_score_label(score)} is {value_of(summary, score, UNIFORM):.3f}."]
        for finding in findings:
            name = f"{finding.method} (control)" if finding.method in controls else finding.method
            name = "The model's own trained attention" if finding.method == TRAINED else name
            words.append(f"{name} {verbs[finding.verdict]}: {_format_interval(finding.evidence[0])}.")
        if any(finding.verdict is Verdict.SUPPORTED and finding.method in controls for finding in findings):
            words.append("A control also helps, so the gains of the other guides are not evidence.")
        words += [
            f"{fallback.method} has no scores for {fallback.value:.0f} texts, which got uniform weights."
            for fallback in select_statistics(summary, "uniform_fallbacks")
            if fallback.value
        ]
        return " ".join(words)


def with_imposed_attention(subject: TrainedModel, source: AttentionSource) -> TrainedModel:
    """The same model trained and tested under the weights of an attention source."""
    check_trained_here(subject)
    if not isinstance(subject.objective, Supervised):
        raise UserError(
            f"attention cannot be imposed on a model with the objective {type(subject.objective).__name__}; use "
            "objective=Supervised()"
        )
    return replace(subject, objective=ImposedAttention(source, subject.objective.balance_classes))


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise `UserError` for no seeds or duplicate ones."""
    if not seeds:
        raise UserError("pass at least one seed, preferably five")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"duplicate seed in {tuple(seeds)}; pass each seed once")


def _score_table(workspace: Workspace, arms: Mapping[str, Sequence[TrainedModel]]) -> tuple[pd.DataFrame, int]:
    """A row per arm and seed with all test scores, NaN where one is undefined; and the number of test examples."""
    rows = []
    for arm, model in ((arm, model) for arm, models in arms.items() for model in models):
        rows.append({"arm": arm, "seed": model.seed, **_test_notes(workspace, model, "scores")})
    return pd.DataFrame(rows), int(sum(_test_notes(workspace, arms[UNIFORM][0], "sizes").values()))


def _test_notes(workspace: Workspace, model: TrainedModel, key: str) -> dict[str, float]:
    """The numbers about the test split in the notes of a training."""
    splits = workspace.get(model).notes[key]
    notes = splits["test"] if isinstance(splits, dict) else None
    assert isinstance(notes, dict)
    return {name: math.nan if value is None else float(str(value)) for name, value in notes.items()}


def _score_names(table: pd.DataFrame) -> list[str]:
    return [str(column) for column in table.columns if column not in _SETTING_COLUMNS]


def _decisive_score(names: Sequence[str]) -> str:
    return next(name for name in _DECISIVE_SCORES if name in names)


def _score_label(score: str) -> str:
    return _DECISIVE_SCORES.get(score, score.replace("_", " "))


def _arm_statistics(table: pd.DataFrame) -> Iterator[Statistic]:
    """Mean scores over seeds of each arm, and of the decisive one the deviation and the difference from uniform."""
    names = _score_names(table)
    score = _decisive_score(names)
    arms = {str(arm): rows.sort_values("seed") for arm, rows in table.groupby("arm", sort=False)}
    for arm, arm_rows in arms.items():
        for name in names:
            yield Statistic(name, arm, value=float(arm_rows[name].mean()), n=len(arm_rows))
        yield Statistic("std", arm, value=float(arm_rows[score].std()), n=len(arm_rows))
        if arm != UNIFORM:
            difference = paired_seed_difference(arm_rows[score].tolist(), arms[UNIFORM][score].tolist())
            yield Statistic("difference", arm, "", *difference, len(arm_rows))


def _format_interval(gain: Statistic) -> str:
    """A difference with its sign and interval; `+ 0.0` turns -0.0 into 0.0."""
    mean, low, high = (f"{round(value, 3) + 0.0:+.3f}" for value in (gain.value, gain.low, gain.high))
    if math.isnan(gain.low):
        return f"{mean}, undecided with fewer than two seeds"
    return f"{mean} (95 % interval {low} to {high})"


def _check_guide(name: str, guide: AttentionSource, learner: TrainedModel) -> None:
    """Raise `UserError` for weights of other texts, and for attention over the tokens of another tokenization."""
    if isinstance(guide, ShuffledAttention):
        _check_guide(name, guide.source, learner)
    if isinstance(guide, FromModel | FromScores) and guide.subject.corpus != learner.corpus:
        raise UserError(
            f"the guide {name!r} was trained on a different corpus than the learner; use the same one for both"
        )
    if isinstance(guide, FromModel) and guide.subject.tokenization != learner.tokenization:
        raise UserError(
            f"the guide {name!r} has a different tokenization than the learner; use the same one for both, or its "
            "scores by word: FromScores(subject, RawAttention())"
        )
