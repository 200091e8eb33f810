"""How long a run will take, before it begins: some steps of each kind of training are timed, and scaled.

The real training loop runs for two short epochs on a few hundred texts, in a folder that is thrown away. Trainings
with patience are counted with all their epochs for the upper bound, and with a usual number of them for the likely
time. What cannot be timed is taken from what is most like it; an estimate never stops the run that it is about.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Generator, Tensor

from heedful.data.embeddings import WordEmbeddings
from heedful.progress import StepCallback
from heedful.runner import format_duration, topological_order
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.training.adversarial_objectives import AdversarialObjective
from heedful.training.attention_sources import UniformAttention, impose_attention
from heedful.training.objectives import ImposedAttention, Supervised
from heedful.training.predictions import BatchPredictions
from heedful.training.trained_model import Checkpoint, OnOtherData, TrainedModel
from heedful.training.trainer import EpochSelection, Loss, TrainingRun, evaluate, train
from heedful.trials._trial import Trial
from heedful.types import Architecture, Batch, Corpus, Example, Model, Splits, Tokenization

FEW = 3
"""With fewer trainings left, timing them is not worth the wait."""
BUDGET = 25.0
"""Seconds after which no other kind is timed."""
ONE_KIND = 4.0
"""Seconds of steps that are enough for one kind."""
STEPS = 6
READ = 6000
"""Examples from which the vocabulary, and the time to read one example, are taken."""
JUDGED = 256
USUAL = 2
"""Epochs of a training with patience, in multiples of it: 24 AtteFa adversaries with a patience of 10 took 21."""


@dataclass(frozen=True)
class Planned:
    """What is finished and what is left of some recipes and all that they need."""

    finished: int
    left: tuple[Recipe, ...]

    @property
    def trainings(self) -> tuple[TrainedModel, ...]:
        """The subjects that have not been trained."""
        return tuple(
            recipe
            for recipe in self.left
            if isinstance(recipe, TrainedModel) and not isinstance(recipe, Checkpoint | OnOtherData)
        )

    @property
    def worth_timing(self) -> bool:
        """Whether so much is left that an estimate is worth its wait."""
        return len(self.trainings) >= FEW

    @property
    def words(self) -> str:
        """What is to be done and what is done already, in a sentence."""
        if not self.left:
            return f"Nothing is left to be made: everything is finished (recipes: {self.finished})."
        trials = sum(isinstance(recipe, Trial) for recipe in self.left)
        others = len(self.left) - len(self.trainings) - trials
        counts = {"training": len(self.trainings), "trial": trials, "other recipe": others}
        told = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
        whole = " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
        return f"To be made: {whole}; finished already: {self.finished} of {self.finished + len(self.left)} recipes."


@dataclass(frozen=True)
class Estimate:
    """Seconds of the whole run and of each training.

    Args:
        most: if every training goes through all of its epochs.
        likely: if patience ends those that have it after the usual number.
        expected: the likely seconds of each training, on one process.
        timed: of so many kinds of training, how many were timed.
    """

    most: float
    likely: float
    expected: Mapping[Recipe, float]
    workers: int
    timed: tuple[int, int]

    @property
    def words(self) -> str:
        """The estimate in a sentence, with what it leaves out."""
        on = f"on {self.workers} processes" if self.workers > 1 else "in one process"
        most, likely = format_duration(self.most), format_duration(self.likely)
        told = f"about {most}" if most == likely else f"at most about {most}, probably nearer {likely}"
        done, kinds = self.timed
        partly = "" if done == kinds else f" ({done} of {kinds} kinds of training were timed, the others guessed)"
        return f"Trainings will take {told}, {on}{partly}; trials come on top. Finished work is kept if you interrupt."


@dataclass(frozen=True)
class Kind:
    """What decides how long a step of a training takes."""

    corpus: Corpus
    batching: Tokenization
    model: Architecture
    vectors: WordEmbeddings | None
    size: int
    adversarial: bool


@dataclass(frozen=True)
class Seconds:
    """What a kind of training costs once, and for each epoch."""

    setup: float
    epoch: float

    def of(self, epochs: int) -> float:
        """A whole training."""
        return self.setup + epochs * self.epoch


def planned(recipes: Iterable[Recipe], workspace: Workspace) -> Planned:
    """What there is to do."""
    plan = topological_order(recipes)
    left = tuple(recipe for recipe in plan if not workspace.has(recipe))
    return Planned(len(plan) - len(left), left)


def estimated(plan: Planned, workspace: Workspace, workers: int, budget: float = BUDGET) -> Estimate | None:
    """How long the rest will take; None where little is left, or where nothing could be timed."""
    if not plan.worth_timing:
        return None
    subjects: dict[Kind, TrainedModel] = {}
    for subject in plan.trainings:
        subjects.setdefault(kind_of(subject), subject)
    measured = _measured(subjects, workspace, time.monotonic() + budget)
    if not measured:
        return None
    costs = {subject: _nearest(kind_of(subject), measured) for subject in plan.trainings}
    most: dict[Recipe, float] = {subject: cost.of(subject.training.epochs) for subject, cost in costs.items()}
    likely: dict[Recipe, float] = {subject: cost.of(usual_epochs(subject)) for subject, cost in costs.items()}
    used = min(workers, len(plan.left))
    longest, nearer = wall(plan.left, most, used), wall(plan.left, likely, used)
    return Estimate(longest, nearer, likely, used, (len(measured), len(subjects)))


def kind_of(subject: TrainedModel) -> Kind:
    """The kind of a subject's training."""
    adversarial = isinstance(subject.objective, AdversarialObjective)
    parts = (subject.corpus, subject.tokenization, subject.architecture, subject.embeddings)
    return Kind(*parts, subject.training.batch_size, adversarial)


def usual_epochs(subject: TrainedModel) -> int:
    """The epochs that a training is likely to take: all, or the usual multiple of its patience."""
    fit = subject.training
    return fit.epochs if fit.patience is None else min(fit.epochs, USUAL * fit.patience)


def wall(left: Sequence[Recipe], seconds: Mapping[Recipe, float], workers: int) -> float:
    """The time on the clock: the work shared among all, but never less than the longest chain of needs."""
    chains: dict[Recipe, float] = {}
    for recipe in left:
        before = max((chains.get(need, 0.0) for need in recipe.dependencies), default=0.0)
        chains[recipe] = before + seconds.get(recipe, 0.0)
    return max(sum(seconds.values()) / workers, max(chains.values(), default=0.0))


def _measured(subjects: Mapping[Kind, TrainedModel], workspace: Workspace, deadline: float) -> dict[Kind, Seconds]:
    """The costs of the kinds that could be timed, a first one of every corpus before any second one."""
    found: dict[Kind, Seconds] = {}
    places: dict[Corpus, int] = {}
    turns: dict[Kind, int] = {}
    for kind in subjects:
        turns[kind] = places[kind.corpus] = places.get(kind.corpus, -1) + 1
    prepared: dict[tuple[Corpus, Tokenization], _Prepared] = {}
    with torch.random.fork_rng():
        for kind in sorted(subjects, key=lambda kind: turns[kind]):
            if time.monotonic() > deadline:
                break
            try:
                key = (kind.corpus, kind.batching)
                prepared[key] = prepared.get(key) or _Prepared(kind, workspace)
                found[kind] = prepared[key].time(subjects[kind], workspace)
            except Exception:  # noqa: BLE001 - whatever is wrong with a subject, the run itself will say it better
                continue
    return found


def _nearest(kind: Kind, measured: Mapping[Kind, Seconds]) -> Seconds:
    """The kind's own costs, or the mean of those most like it: same corpus and model, same corpus, same model, all."""
    if kind in measured:
        return measured[kind]
    likeness: tuple[Callable[[Kind], bool], ...] = (
        lambda other: (other.corpus, other.model) == (kind.corpus, kind.model),
        lambda other: other.corpus == kind.corpus,
        lambda other: other.model == kind.model,
        lambda other: True,
    )
    groups = ([cost for other, cost in measured.items() if like(other)] for like in likeness)
    like = next(group for group in groups if group)
    return Seconds(fmean(cost.setup for cost in like), fmean(cost.epoch for cost in like))


class _Prepared:
    """A part of a corpus, read as a training reads it, with the seconds that reading all of it would take."""

    def __init__(self, kind: Kind, workspace: Workspace) -> None:
        start = time.perf_counter()
        self.splits = kind.corpus.read(workspace.data_dir)
        reading = time.perf_counter() - start
        rows = _some(self.splits.train, READ)
        self.batcher = kind.batching.fit((*rows, *_lexicon(self.splits)))
        selected = kind.batching.select(rows).examples
        self.kept = len(selected) / len(rows)
        self.texts = _some(selected, JUDGED + STEPS * kind.size)
        each = (time.perf_counter() - start - reading) / len(rows)
        start = time.perf_counter()
        self.batcher(self.texts)
        each += (time.perf_counter() - start) / len(self.texts)
        self.setup = reading + each * sum(len(self.splits[split]) for split in ("train", "dev", "test"))

    def time(self, subject: TrainedModel, workspace: Workspace) -> Seconds:
        """The costs of a training of this subject."""
        start = time.perf_counter()
        generator = Generator().manual_seed(0)
        model = self._model(subject, workspace, generator)
        built = time.perf_counter() - start
        judge = self.batcher(self.texts[:JUDGED])
        batch = self.batcher(_some(self.texts, STEPS * subject.training.batch_size)).to(workspace.device)
        fit = replace(subject.training, epochs=2, patience=None, selection=EpochSelection())
        lesson = TrainingRun(model, _loss(subject, model, batch, workspace), batch, judge, fit, seed=0)
        step, tail = _timed(lesson, workspace)
        start = time.perf_counter()
        evaluate(model, judge, workspace.batch_size)
        judging = time.perf_counter() - start
        steps = math.ceil(self.kept * len(self.splits.train) / fit.batch_size)
        judged = judging * self.kept * len(self.splits[subject.training.selection.split]) / len(judge)
        return Seconds(self.setup + built, steps * step + judged + max(0.0, tail - judging))

    def _model(self, subject: TrainedModel, workspace: Workspace, generator: Generator) -> Model:
        table: Tensor | None = None
        if subject.embeddings is not None and self.batcher.vocabulary:
            table = subject.embeddings.look_up(self.batcher.vocabulary, workspace.data_dir, generator).matrix
        model = subject.architecture.build(self.splits.task, table, generator).to(workspace.device)
        if isinstance(subject.objective, ImposedAttention):
            impose_attention(model, UniformAttention().attention_function(model, workspace))
        return model


def _some(examples: Sequence[Example], count: int) -> tuple[Example, ...]:
    """At most so many examples, drawn at random but always the same."""
    if count >= len(examples):
        return tuple(examples)
    return tuple(examples[place] for place in np.random.default_rng(0).choice(len(examples), count, replace=False))


def _lexicon(splits: Splits) -> tuple[Example, ...]:
    return (Example("lexicon", (" ".join(splits.extra_vocabulary),)),) if splits.extra_vocabulary else ()


def _loss(subject: TrainedModel, model: Model, batch: Batch, workspace: Workspace) -> Loss:
    """The subject's loss; an adversary's against a base that says nothing, as its own is not trained yet."""
    objective, task = subject.objective, model.task
    if not isinstance(objective, AdversarialObjective):
        return Supervised().loss(batch, task, workspace)
    attention = UniformAttention().attention_function(model, workspace)

    def losses(model: Model, batch: Batch) -> Tensor:
        even = torch.full((len(batch), task.num_classes), 1 / task.num_classes, device=batch.mask.device)
        return objective.example_losses(
            objective.distance_to_base(model, batch, BatchPredictions(even, attention(batch)))[1]
        )

    return losses


class _Enough(Exception):
    """So many steps were timed as time allows."""


class _Stamps:
    """A progress that writes down when each step ended, and stops the training when that took long enough."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A task whose steps are stamped; the first stamp is that of its beginning."""

        def step(advance: int = 1, note: str = "") -> None:
            self.times.append(time.perf_counter())
            if len(self.times) > 2 and self.times[-1] - self.times[0] > ONE_KIND:
                raise _Enough

        yield step


def _timed(lesson: TrainingRun, workspace: Workspace) -> tuple[float, float]:
    """Mean seconds of a step, and of what follows an epoch's last one: judging and writing the checkpoint.

    The first epoch warms up. It is all there is where steps are so slow that they were stopped.
    """
    stamps = _Stamps()
    with TemporaryDirectory() as folder:
        try:
            train(lesson, Path(folder), stamps, workspace.batch_size)
        except _Enough:
            return fmean(np.diff(stamps.times[1:]).tolist()), 0.0
        tail = time.perf_counter() - stamps.times[-1]
    steps = len(stamps.times) // 2
    spent = stamps.times[-1] - stamps.times[steps]
    return max(0.0, spent - tail) / steps, tail
