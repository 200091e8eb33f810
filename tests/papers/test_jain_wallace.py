"""Attention is not Explanation: the recipes of its 72 models."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.embeddings import FileEmbeddings, RandomEmbeddings
from heedful.models.attentive import Attentive
from heedful.models.encoders import Average, BiLSTM, Convolution
from heedful.models.input_forms import QuestionAnswering, SingleInput
from heedful.papers._options import find_embeddings
from heedful.papers.jain_wallace import JainWallaceOptions, jain_wallace_model
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trained_model import TrainedModel
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.types import UserError


def model(corpus: str, encoder: str, attention: str) -> TrainedModel:
    return jain_wallace_model(
        JainWallaceOptions.known_corpora[corpus], encoder, attention, JainWallaceOptions(embeddings="random")
    )


def subjects(options: JainWallaceOptions) -> list[ModelRecipe]:
    """The subjects that are examined, without the second trainings that their attention is compared with."""
    examined = [recipe.subject for recipe in options.recipes() if isinstance(recipe, Performance)]
    return [subject for subject in examined if isinstance(subject, TrainedModel)]


def test_jain_wallace_has_every_corpus_encoder_and_attention_once() -> None:
    found = subjects(JainWallaceOptions())
    names = {(s.about["corpus"], s.about["encoder"], s.about["attention"]) for s in found}
    assert len(found) == len(names) == 72
    assert ("babi-2", "convolution", "dot") in names


def test_seeds_limit_and_quick_reach_the_recipes() -> None:
    options = JainWallaceOptions(("sst",), n_seeds=3, encoders=("bilstm",), attentions=("additive",), limit=50)
    assert [subject.seed for subject in subjects(options)] == [0, 1, 2]
    limits = [recipe.limit for recipe in options.recipes() if isinstance(recipe, Permutation)]
    assert limits == [50, 50, 50]
    (quick,) = subjects(JainWallaceOptions(("babi-1",), 3, quick=True, encoders=("bilstm",), attentions=("additive",)))
    assert isinstance(quick, TrainedModel)
    assert quick.training.epochs == 3


def test_sizes_and_training_are_those_of_the_released_code() -> None:
    sst = model("sst", "bilstm", "additive")
    assert isinstance(sst.architecture, Attentive)
    assert sst.architecture.encoder == BiLSTM(128)
    assert sst.architecture.input_format == SingleInput()
    assert (
        sst.training.epochs,
        sst.training.batch_size,
        sst.training.reduction,
        sst.training.selection.first_epoch,
    ) == (8, 32, "sum", 2)
    babi = model("babi-1", "convolution", "dot")
    assert isinstance(babi.architecture, Attentive)
    assert babi.architecture.encoder == Convolution(8)
    assert babi.architecture.input_format == QuestionAnswering()
    assert (babi.training.epochs, babi.training.batch_size, babi.training.reduction) == (100, 50, "mean")
    assert babi.embeddings == RandomEmbeddings(50, std=1.0)
    snli = model("snli", "average", "additive")
    assert isinstance(snli.architecture, Attentive)
    assert snli.architecture.encoder == Average(128)
    assert (snli.training.epochs, snli.training.batch_size) == (25, 128)


def test_vectors_are_pretrained_where_the_data_folder_has_some_but_never_for_babi(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    assert find_embeddings(tmp_path) == "random"
    for name, size in (("small", 10), ("large", 20)):
        (tmp_path / "vectors" / f"{name}.npz").write_bytes(b"0" * size)
    options = JainWallaceOptions(("sst", "babi-1"), encoders=("average",), attentions=("dot",), data_dir=tmp_path)
    assert [s.embeddings for s in subjects(options)] == [FileEmbeddings("large"), RandomEmbeddings(50, std=1.0)]


@pytest.mark.parametrize("name", tuple(JainWallaceOptions.known_corpora))
def test_real_corpora_have_the_classes_and_shapes_that_their_models_expect(name: str) -> None:
    subject = model(name, "average", "additive")
    data = Workspace(Path("unused")).data_dir
    shared = Path(__file__).parents[3] / "shared" / "data"
    try:
        splits = subject.corpus.read(shared if shared.is_dir() else data)
    except UserError as absent:
        pytest.skip(f"needs real data: {absent}")
    assert isinstance(subject.architecture, Attentive)
    assert len(splits.train[0].parts) == (2 if subject.architecture.input_format == QuestionAnswering() else 1)
    batch = subject.tokenization.fit(splits.train[:200])(splits.train[:20])
    assert batch.content_mask.any(1).all()
