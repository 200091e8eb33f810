"""The training loop: batches, resumption after a kill, random state, epoch selection."""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Generator, Tensor

from heedful.data.words import Words
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import Average, BiLSTM
from heedful.progress import SilentProgress
from heedful.seeding import temporary_seed
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, Regression
from heedful.training.attention_sources import UniformAttention
from heedful.training.objectives import ImposedAttention, Supervised, class_weights
from heedful.training.trainer import (
    INFERENCE_CELLS,
    Adam,
    AdamW,
    EpochSelection,
    Training,
    TrainingRun,
    evaluate,
    inference_batches,
    length_sorted_batches,
    predict,
    train,
)
from heedful.types import Batch, Example, Model, UserError
from tests.networks import FAMILIES, tiny

WORDS = ("good", "bad", "film", "plot", "very", "the", "a", "dull", "fine", "scene")


def some_examples(count: int, seed: int) -> list[Example]:
    """Sentences whose class is decided by the words good and bad."""
    generator = Generator().manual_seed(seed)
    found = []
    for number in range(count):
        length = int(torch.randint(3, 9, (1,), generator=generator))
        words = [WORDS[i] for i in torch.randint(2, len(WORDS), (length,), generator=generator).tolist()]
        words.insert(number % length, "good" if number % 2 else "bad")
        found.append(Example(f"e{seed}-{number}", (" ".join(words),), number % 2))
    return found


def run_of_sentences(epochs: int = 3, *, seed: int = 0, encoder: BiLSTM | Average | None = None) -> TrainingRun:
    """A tiny training on separable sentences."""
    examples = some_examples(40, 1)
    batcher = Words().fit(examples)
    generator = Generator().manual_seed(seed)
    table = torch.randn(len(batcher.vocabulary), 6, generator=generator)
    model = Attentive(encoder or BiLSTM(4), Additive()).build(BinaryClassification(), table, generator)
    whole = batcher(examples)
    loss = Supervised().loss(whole, BinaryClassification(), Workspace(Path("unused")))
    return TrainingRun(model, loss, whole, batcher(some_examples(20, 2)), Training(epochs, 8, Adam(lr=0.02)), seed)


def weights(model: Model) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_training_learns_separable_sentences(tmp_path: Path) -> None:
    run = run_of_sentences(15)
    before = evaluate(run.model, run.evaluation_batch, 16)["roc_auc"]
    state = train(run, tmp_path, SilentProgress(), 16)
    assert evaluate(run.model, run.evaluation_batch, 16)["roc_auc"] == 1.0 > before
    assert state.history[-1]["loss"] < state.history[0]["loss"] / 4


def test_equal_seeds_give_equal_weights_and_other_seeds_others(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((0, 0, 1)):
        run = run_of_sentences(seed=seed)
        folder = tmp_path / str(number)
        folder.mkdir()
        train(run, folder, SilentProgress(), 16)
        found.append(weights(run.model))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


class Killed(Exception):
    """Stands for a kill between two steps."""


@pytest.mark.parametrize("moment", [5, *(pytest.param(moment, marks=pytest.mark.slow) for moment in (0, 4, 9, 14))])
def test_a_training_that_stopped_at_any_step_ends_with_bit_identical_weights(tmp_path: Path, moment: int) -> None:
    whole = run_of_sentences()
    state = train(whole, tmp_path, SilentProgress(), 16)
    checkpoint_in(tmp_path).unlink()
    broken = run_of_sentences()
    calls = 0

    def failing(model: Model, batch: Batch) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > moment:
            raise Killed
        return broken.loss(model, batch)

    with pytest.raises(Killed):
        train(replace(broken, loss=failing), tmp_path, SilentProgress(), 16)
    again = run_of_sentences()
    resumed = train(again, tmp_path, SilentProgress(), 16)
    assert same(weights(whole.model), weights(again.model))
    assert resumed.history == state.history
    assert resumed.best_epoch == state.best_epoch


def checkpoint_in(folder: Path) -> Path:
    """The one checkpoint of a training."""
    (path,) = folder.glob("*.safetensors")
    return path


def interrupted(folder: Path, epochs: int = 2) -> bytes:
    """The checkpoint of a training that was interrupted after some epochs."""
    broken, calls = run_of_sentences(), 0

    def failing(model: Model, batch: Batch) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 5 * epochs:
            raise Killed
        return broken.loss(model, batch)

    with pytest.raises(Killed):
        train(replace(broken, loss=failing), folder, SilentProgress(), 16)
    return checkpoint_in(folder).read_bytes()


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def zeroed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes(min(512, len(content) - place)) + content[place + 512 :]


@pytest.mark.slow
def test_after_any_damage_to_the_checkpoint_training_starts_again_and_ends_the_same(tmp_path: Path) -> None:
    whole = run_of_sentences()
    (tmp_path / "whole").mkdir()
    history = train(whole, tmp_path / "whole", SilentProgress(), 16).history
    folder = tmp_path / "interrupted"
    folder.mkdir()
    content = interrupted(folder)
    path = checkpoint_in(folder)
    flips = [flipped(content, place) for place in range(0, len(content), len(content) // 24)]
    blocks = [zeroed(content, place) for place in range(0, len(content), len(content) // 6)]
    different = 0
    for damaged in (*flips, *blocks, content[: len(content) // 2], b""):
        for other in folder.iterdir():
            other.unlink()
        path.write_bytes(damaged)
        resumed = run_of_sentences()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            state = train(resumed, folder, SilentProgress(), 16)
        said = [str(each.message) for each in seen]
        different += not (
            same(weights(whole.model), weights(resumed.model))
            and state.history == history
            and len(said) == (damaged != content)
            and all(each.endswith("is damaged; training starts again") for each in said)
        )
    assert different == 0


def test_a_checkpoint_of_another_shape_warns_and_training_starts_again(tmp_path: Path) -> None:
    content = interrupted(tmp_path)
    path = checkpoint_in(tmp_path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load(content)
    whole = run_of_sentences()
    (tmp_path / "whole").mkdir()
    train(whole, tmp_path / "whole", SilentProgress(), 16)
    changes: tuple[dict[str, Tensor], ...] = (
        {"model/decoder.bias": torch.zeros(7)},
        {"model/unknown": torch.zeros(1)},
        {"best/model/unknown": torch.zeros(1)},
        {"optimiser/0/exp_avg": torch.zeros(7)},
        {"optimiser/99/exp_avg": torch.zeros(7)},
    )
    for change in changes:
        for other in tmp_path.glob("*.safetensors"):
            other.unlink()
        written = save(tensors | change, metadata)
        path.with_name(f"epoch-2-{hashlib.sha256(written).hexdigest()}.safetensors").write_bytes(written)
        resumed = run_of_sentences()
        with pytest.warns(UserWarning, match="is of another shape; training starts again"):
            train(resumed, tmp_path, SilentProgress(), 16)
        assert same(weights(whole.model), weights(resumed.model))


def test_a_checkpoint_of_other_examples_warns_and_training_starts_again(tmp_path: Path) -> None:
    interrupted(tmp_path)
    run = run_of_sentences()
    labels = run.train_batch.labels
    assert labels is not None
    other = replace(run, train_batch=replace(run.train_batch, labels=1 - labels))
    with pytest.warns(UserWarning, match="is of other data; training starts again"):
        state = train(other, tmp_path, SilentProgress(), 16)
    assert state.epoch == run.training.epochs


def test_an_interrupted_write_leaves_no_file_after_the_next_start(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "new-12.safetensors").write_bytes(b"half")
    train(run_of_sentences(), tmp_path, SilentProgress(), 16)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_global_generator_and_the_training_mode_are_restored(tmp_path: Path) -> None:
    run = run_of_sentences()
    run.model.eval()
    before = torch.get_rng_state()
    train(run, tmp_path, SilentProgress(), 16)
    assert torch.equal(before, torch.get_rng_state())
    assert not run.model.training
    with temporary_seed(3):
        torch.rand(5)
    assert torch.equal(before, torch.get_rng_state())


def test_every_row_is_in_one_batch_and_batches_hold_rows_of_like_length() -> None:
    lengths = torch.randint(5, 60, (333,), generator=Generator().manual_seed(0))
    cut = length_sorted_batches(lengths, 32, 0.1, Generator().manual_seed(1))
    assert torch.cat(cut).sort().values.tolist() == list(range(333))
    wasted = sum(int(lengths[rows].max()) * len(rows) for rows in cut) / int(lengths.sum())
    assert wasted < 1.25
    other = length_sorted_batches(lengths, 32, 0.1, Generator().manual_seed(2))
    assert any(not torch.equal(a, b) for a, b in zip(cut, other, strict=True))


def test_noise_of_zero_sorts_exactly() -> None:
    lengths = torch.tensor([3, 1, 2, 1])
    cut = length_sorted_batches(lengths, 2, 0.0, Generator().manual_seed(0))
    assert sorted(sorted(lengths[rows].tolist()) for rows in cut) == [[1, 1], [2, 3]]


def test_the_best_epoch_is_kept_and_the_first_only_if_eligible(tmp_path: Path) -> None:
    run = run_of_sentences(4)
    state = train(run, tmp_path, SilentProgress(), 16)
    scores = [row["roc_auc"] for row in state.history]
    losses = [row["loss"] for row in state.history]
    assert state.best_epoch == 2 + max(range(3), key=lambda i: (scores[i + 1], -losses[i + 1]))
    assert evaluate(run.model, run.evaluation_batch, 16)["roc_auc"] == pytest.approx(scores[state.best_epoch - 1])


def test_patience_stops_training(tmp_path: Path) -> None:
    run = replace(run_of_sentences(30), training=Training(30, 8, Adam(lr=0.02), EpochSelection(), patience=2))
    state = train(run, tmp_path, SilentProgress(), 16)
    assert state.epoch == state.best_epoch + 2 < 30


def test_an_unknown_score_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    run = replace(run_of_sentences(), training=Training(2, 8, selection=EpochSelection(metric="bleu")))
    with pytest.raises(UserError, match=r"score 'bleu'.*accuracy"):
        train(run, tmp_path, SilentProgress(), 16)


def test_a_nan_loss_is_an_error(tmp_path: Path) -> None:
    run = replace(run_of_sentences(), loss=lambda model, batch: torch.full((len(batch),), math.nan, requires_grad=True))
    with pytest.raises(UserError, match="the loss became nan"):
        train(run, tmp_path, SilentProgress(), 16)


def test_parameter_groups_of_one_adam_equal_three_adams() -> None:
    """J&W's code has three optimisers: decay on encoder and decoder, none on attention."""
    one, three = run_of_sentences().model, run_of_sentences().model
    assert isinstance(three, AttentiveModel)
    single = Adam(weight_decay=0.1).build(one)
    parts = [[*three.embedding_tables.parameters(), *three.encoders.parameters()], [*three.attention.parameters()]]
    separate = [
        torch.optim.Adam(parts[0], lr=1e-3, amsgrad=True, weight_decay=0.1),
        torch.optim.Adam(parts[1], lr=1e-3, amsgrad=True),
        torch.optim.Adam(three.decoder.parameters(), lr=1e-3, amsgrad=True, weight_decay=0.1),
    ]
    batch = run_of_sentences().train_batch
    for _ in range(3):
        for model, optimisers in ((one, [single]), (three, separate)):
            for optimiser in optimisers:
                optimiser.zero_grad()
            assert batch.labels is not None
            model.task.losses(model(batch).logits, batch.labels).sum().backward()  # type: ignore[no-untyped-call]
            for optimiser in optimisers:
                optimiser.step()
    for (name, mine), theirs in zip(one.named_parameters(), three.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6), name


def test_warm_up_rises_then_falls_to_zero() -> None:
    rates = [AdamW(lr=1.0, warmup_ratio=0.2).lr_at(step, 10) for step in range(10)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


def test_class_weights_are_negatives_per_positive_and_balance_many_classes() -> None:
    batch = replace(run_of_sentences().train_batch, labels=torch.tensor([0] * 30 + [1] * 10))
    found = class_weights(batch, BinaryClassification())
    assert found is not None
    assert found.tolist() == [1.0, 3.0]
    assert class_weights(batch, Regression()) is None


def test_weighted_loss_multiplies_positives_only() -> None:
    run = run_of_sentences()
    skewed = replace(run.train_batch, labels=torch.tensor([0] * 30 + [1] * 10))
    plain = Supervised(balance_classes=False).loss(skewed, BinaryClassification(), Workspace(Path("unused")))(
        run.model, skewed
    )
    weighted = Supervised().loss(skewed, BinaryClassification(), Workspace(Path("unused")))(run.model, skewed)
    ratio = (weighted / plain).tolist()
    assert ratio == pytest.approx([1.0] * 30 + [3.0] * 10)


def test_imposed_uniform_attention_is_used_unless_another_is_given() -> None:
    run = run_of_sentences(encoder=Average(4))
    learned = run.model(run.train_batch)
    ImposedAttention(UniformAttention()).prepare_model(run.model, Workspace(Path("unused")))
    imposed = run.model(run.train_batch)
    counts = run.train_batch.content_mask.sum(1, keepdim=True)
    assert torch.allclose(imposed.attention[:, 0, 0, 0], run.train_batch.content_mask / counts)
    assert torch.equal(run.model(run.train_batch, attention=learned.attention).logits, learned.logits)


def test_predictions_come_in_the_order_of_the_batch() -> None:
    run = run_of_sentences()
    alone = torch.cat(
        [predict(run.model, run.train_batch.rows(torch.tensor([i])), 1) for i in range(len(run.train_batch))]
    )
    assert torch.allclose(predict(run.model, run.train_batch, 7), alone, atol=1e-6)


def test_a_training_without_an_epoch_to_keep_is_refused() -> None:
    with pytest.raises(UserError, match="epochs=1, but the first epoch that may be kept is 2"):
        Training(1)


def texts(lengths: list[int]) -> Batch:
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    words = torch.arange(max(lengths)).expand_as(mask).masked_fill(~mask, -1)
    uids = tuple(str(number) for number in range(len(lengths)))
    return Batch(uids, mask.long(), mask, torch.zeros_like(mask, dtype=torch.int64), words)


def test_inference_batches_hold_every_row_once_and_batch_size_short_texts() -> None:
    found = list(inference_batches(texts([3, 1, 2, 5, 4]), 2))
    assert [rows.tolist() for rows, _ in found] == [[1, 2], [0, 4], [3]]
    assert [part.mask.shape[1] for _, part in found] == [2, 4, 5]


def test_inference_batches_of_long_texts_hold_fewer_rows() -> None:
    batch = texts([10, 1000, 1000, 1000, 1000, 2000])
    found = list(inference_batches(batch, 256))
    assert sorted(number for rows, _ in found for number in rows.tolist()) == list(range(6))
    assert all(len(part) == 1 or len(part) * part.mask.shape[1] ** 2 <= INFERENCE_CELLS for _, part in found)
    assert max(len(part) for _, part in found) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_adamw_decays_matrices_and_tables_but_no_bias_and_no_normalisation(family: str) -> None:
    model = tiny(family)
    decays = {id(p): group["weight_decay"] for group in AdamW().build(model).param_groups for p in group["params"]}
    names = {name: decays[id(parameter)] for name, parameter in model.named_parameters()}
    # By shape, not by name: a vector is a bias or the weight of a normalisation.
    vectors = [name for name, parameter in model.named_parameters() if parameter.squeeze().dim() < 2]
    vectors = [name for name in vectors if not name.endswith("cls_token")]
    assert {names[name] for name in vectors} == {0.0}, [name for name in vectors if names[name]]
    assert {names[name] for name in names if name not in vectors} == {0.01}
