"""Students of one teacher under different explanations: what they share, and one arm per kind of explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from heedful.models.model_files import read_config
from heedful.models.small_transformers import ScalarMix, TruncatedTransformer
from heedful.models.transformer import Transformer
from heedful.training.model_recipe import ModelRecipe
from heedful.training.smat import SMaT
from heedful.training.student import STUDENT_TRAINING, Student, StudentRecipe
from heedful.training.teacher import LearnedExplanation, StudentData, TeacherExplanation
from heedful.training.trainer import Adam, Training
from heedful.types import Architecture, UserError

STUDENT_LAYERS = 3
"""Layers of a student whose teacher is pretrained."""
QUICK_SIZES = (150,)
"""Training sizes of students in quick versions."""
QUICK_EPOCHS = 12
TEXT_TRAINING = replace(
    STUDENT_TRAINING, optimizer=Adam(lr=1e-4, weight_decay=0.0, amsgrad=False, no_decay=()), epochs=50
)
"""Students that read texts. With the paper's SGD at 5e-3 a student of MiniLM reached .57 after eight epochs on SST; at
0.1 it jumped between .81 and .48; Adam reached .84 in five."""
PILOT_LR = 0.1
"""Learning rate of the pilot step, which is SGD: Adam's learning rate would make the hypergradients too small."""
SMAT = "SMaT"
"""Name of the arm whose explanation is learned."""


@dataclass(frozen=True)
class StudentSetting:
    """A teacher and what its students have in common.

    Args:
        explainer_lr: learning rate of phi. The paper's 5e-4 (2e-4 for quality) is for hundreds of epochs; here there
            are few.
    """

    teacher: ModelRecipe
    student_architecture: Architecture
    student_data: StudentData
    student_sizes: tuple[int, ...]
    training: Training = TEXT_TRAINING
    explainer_lr: float = 2e-3


@dataclass(frozen=True)
class ExplanationArm:
    """Students under one kind of explanation.

    Args:
        beta: weight of the explanation loss; None is the paper's: 5 for attention, .2 for gradients.
    """

    name: str
    explanation: TeacherExplanation
    beta: float | None = None

    def students(self, setting: StudentSetting, seeds: Sequence[int]) -> tuple[StudentRecipe, ...]:
        """A student for each training size and seed."""
        shared = setting.teacher, setting.student_architecture
        students: list[StudentRecipe] = []
        for size, seed in product(setting.student_sizes, seeds):
            data, training = replace(setting.student_data, train_size=size), setting.training
            if isinstance(self.explanation, LearnedExplanation):
                learned = replace(self.explanation, lr=setting.explainer_lr, pilot_lr=PILOT_LR)
                students.append(SMaT(*shared, learned, data, self.beta, training=training, seed=seed))
            else:
                students.append(Student(*shared, self.explanation, data, self.beta, training=training, seed=seed))
        return tuple(students)


def shortened_student(source: str, layers: int) -> ScalarMix:
    """A student that starts as the first layers of a checkpoint, under a new head."""
    whole = Transformer(source)
    return ScalarMix(whole if count_layers(source) <= layers else TruncatedTransformer(whole, layers))


def count_layers(source: str) -> int:
    """The number of layers of a checkpoint, from its configuration."""
    config = read_config(source)
    count = config.get("num_hidden_layers", config.get("n_layers"))
    if not isinstance(count, int):
        raise UserError(
            f"{source} has no config.json with a number of layers: give a folder that save_pretrained wrote"
        )
    return count
