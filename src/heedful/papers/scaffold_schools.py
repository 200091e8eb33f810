"""Teachers and students of "Learning to Scaffold", by corpus: what they read, how they are built and trained.

The paper's pretrained teachers (ELECTRA-small, ViT-B/16, XLM-R) are replaced by what two cores can train: a small
pretrained transformer for texts and pairs, a small vision transformer from scratch for images. Students are of the
same family, with fewer layers where the teacher is pretrained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heedful import catalogue
from heedful.core.types import Batching, Corpus, Plan, UserError
from heedful.data.corpora import MLQE, SMAT_PAIRS
from heedful.data.sampling import Sampled
from heedful.data.subwords import Subwords
from heedful.models.scalarmix import ScalarMix
from heedful.models.shortened import Shortened
from heedful.models.tapping import NetworkConfig
from heedful.models.transformer import Transformer
from heedful.models.vision import SmallViT
from heedful.papers.choosing import Choice
from heedful.papers.song import checkpoint
from heedful.recipes.fit import Adam, AdamW, Fit, Select
from heedful.recipes.objectives import Supervised
from heedful.recipes.student import SCHOOLING
from heedful.recipes.subject import Subject
from heedful.recipes.teaching import Classroom

TEXTS = ("sst", "imdb-raw", "imdb")
IMAGES = ("cifar10", "cifar100", "fashion-mnist", "digits")
PAIRS: Mapping[str, Corpus] = {corpus.name: corpus for corpus in (MLQE((pair,)) for pair in SMAT_PAIRS)}
"""The language pairs one by one, by their names; the catalogue has them together."""
QUALITY = ("mlqe", *PAIRS)
LONGEST = 256
"""Units of the longest text, as in the paper."""
LAYERS = 3
"""Layers of a student whose teacher is pretrained."""
QUICK_SIZES = (150,)
QUICK_PART = (1200, 200, 400)
QUICK_EPOCHS = 12

_SIZES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(TEXTS, (500, 1000, 2000)),
    **dict.fromkeys(IMAGES, (2250, 4500, 9000)),
    **dict.fromkeys(QUALITY, (2100, 4200)),
    "mlqe": (2100, 4200, 8400),
    # Too few images for the paper's sizes.
    "digits": (125, 250, 500),
}
_PICTURES: Mapping[str, SmallViT] = {
    "cifar10": SmallViT((3, 32, 32), 4),
    "cifar100": SmallViT((3, 32, 32), 4),
    "fashion-mnist": SmallViT((1, 28, 28), 4),
    "digits": SmallViT((1, 8, 8), 2),
}
_EPOCHS: Mapping[str, int] = {
    **dict.fromkeys(TEXTS, 1),
    **dict.fromkeys(QUALITY, 2),
    **dict.fromkeys(IMAGES, 20),
    "digits": 40,
}
QUICK_VISION = 25
"""Epochs of a quick vision transformer, teacher or student: it starts from nothing."""
READING = replace(SCHOOLING, optimiser=Adam(rate=1e-4, decay=0.0, amsgrad=False, undecayed=()), epochs=50)
"""Students that read. The paper's plain descent at 5e-3 left one of MiniLM at .57 after eight epochs on SST; at 0.1 it
jumped between .81 and .48; Adam brought it to .84 in five."""
PILOT = 0.1
"""Rate of the pilot step, which is plain descent: Adam's own rate would give hypergradients too small to be heard."""
JUDGING = replace(READING, batch=16, patience=6)
"""Students of quality estimation: batch and patience are the paper's, whose code waits an epoch longer than it says."""
SEEING = replace(JUDGING, optimiser=Adam(rate=1e-3, decay=0.0, amsgrad=False, undecayed=()))
"""Students that see images start from nothing, where the paper's plain descent at 5e-3 leads nowhere."""


@dataclass(frozen=True)
class School:
    """A teacher and what its students have in common.

    Args:
        rate: of phi's optimiser. The paper's 5e-4 (2e-4 for quality) is for hundreds of epochs of descent; here there
            are few.
    """

    teacher: Subject
    plan: Plan
    room: Classroom
    sizes: tuple[int, ...]
    fit: Fit = READING
    rate: float = 2e-3


def described(name: str) -> Corpus:
    """A corpus by its name in this paper."""
    return PAIRS[name] if name in PAIRS else catalogue.CORPORA[name]


def school(corpus: str, encoder: str, choice: Choice) -> School:
    """The teacher, students and classes of a corpus.

    Args:
        encoder: for texts and pairs "minilm" or a checkpoint's folder; images have a small vision transformer.
    """
    whole = described(corpus)
    # In the paper students learn from the half of IMDB's test split that the teacher has not seen.
    room = Classroom(pool="test" if corpus == "imdb-raw" else "train", limit=choice.limit)
    part = Sampled(whole, *QUICK_PART) if choice.quick else whole
    teacher, plan = _pictured(corpus, part, choice) if corpus in IMAGES else _read(corpus, part, encoder, choice)
    fit = SEEING if corpus in IMAGES else JUDGING if corpus in QUALITY else READING
    if choice.quick:
        epochs = QUICK_VISION if corpus in IMAGES else QUICK_EPOCHS
        fit = replace(fit, epochs=epochs, patience=epochs // 3)
    return School(teacher, plan, room, sizes_of(corpus, choice), fit, 1e-3 if corpus in QUALITY else 2e-3)


def sizes_of(corpus: str, choice: Choice) -> tuple[int, ...]:
    """How many examples students see: the chosen numbers, or the paper's as far as there are so many images."""
    if choice.sizes:
        return tuple(sorted(set(choice.sizes)))
    if choice.quick:
        return QUICK_SIZES
    if corpus not in IMAGES or choice.data is None:
        return _SIZES[corpus]
    there = len(described(corpus).read(choice.data).train)
    return tuple(sorted({min(size, there) for size in _SIZES[corpus]}))


def _read(corpus: str, part: Corpus, encoder: str, choice: Choice) -> tuple[Subject, Plan]:
    source = checkpoint(encoder)
    quality = corpus in QUALITY
    # The rate is the paper's for texts (1e-5 in print for quality); its warm-up of 500 steps, and of 4000 for quality,
    # is a tenth of all steps here, where training is shorter.
    fit = Fit(
        epochs=1 if choice.quick else _EPOCHS[corpus],
        batch=16 if quality else 32,
        optimiser=AdamW(rate=5e-5),
        select=Select(),
        clip=1.0,
        reduction="mean",
    )
    return _subject(part, Subwords(source, LONGEST), ScalarMix(Transformer(source)), fit), shorter(source, LAYERS)


def shorter(source: str, layers: int) -> ScalarMix:
    """Students that start as the first layers of a checkpoint under a new head; all layers where it has no more."""
    own = Transformer(source)
    return ScalarMix(own if layers_in(source) <= layers else Shortened(own, layers))


def layers_in(source: str) -> int:
    """How many layers the checkpoint in a folder or on the hub has, from its configuration alone."""
    folder = Path(source).expanduser()
    try:
        config, _ = NetworkConfig.get_config_dict(str(folder) if folder.is_dir() else source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"no configuration could be read from {source!r} ({reason}): give a folder with it") from error
    count = config.get("num_hidden_layers", config.get("n_layers"))
    if not isinstance(count, int):
        raise UserError(
            f"{source} has no config.json that says how many layers there are: give the folder of a model as "
            "save_pretrained writes it"
        )
    return count


def _pictured(corpus: str, part: Corpus, choice: Choice) -> tuple[Subject, Plan]:
    plan = ScalarMix(_PICTURES[corpus])
    fit = Fit(
        epochs=QUICK_VISION if choice.quick else _EPOCHS[corpus],
        batch=32,
        optimiser=AdamW(rate=1e-3),
        select=Select(),
        clip=5.0,
        reduction="mean",
    )
    return _subject(part, part.batching, plan, fit), plan


def _subject(corpus: Corpus, batching: Batching, plan: Plan, fit: Fit) -> Subject:
    return Subject(corpus, batching, plan, fit, objective=Supervised(weighted=False), vectors=None)
