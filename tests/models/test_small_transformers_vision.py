"""A small vision transformer: the library's own, obedient, and able to learn what it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from heedful.data.images import Digits
from heedful.data.splitting import SubsampledCorpus
from heedful.data.tokenization import Patches
from heedful.models.small_transformers import ScalarMix, SmallViT, TruncatedTransformer
from heedful.models.transformer import TransformerModel
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification
from heedful.training.objectives import Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import AdamW, EpochSelection, Training
from heedful.types import Model, UserError
from tests.model_laws import LAWS, Case, Law, law_name, real_units
from tests.networks import eager, images, pixels

PLAN = SmallViT(image_shape=(1, 8, 8), patch_size=4, layers=2, heads=2, width=16)


def built(seed: int = 1, plan: SmallViT = PLAN) -> TransformerModel:
    return plan.build(MulticlassClassification(3), None, Generator().manual_seed(seed))


@pytest.mark.parametrize("law", LAWS, ids=law_name)
def test_a_small_vision_transformer_obeys(law: Law) -> None:
    def build(seed: int) -> Model:
        return built(seed).double()

    law(Case(build, images(), real_units))


def test_its_logits_are_those_of_the_librarys_own_network_on_the_pixels() -> None:
    model = built()
    expected = eager(model)(pixel_values=pixels().float()).logits
    batch = images()
    torch.testing.assert_close(model(batch).logits, expected)


def test_weights_have_the_spread_that_was_asked_for_and_biases_start_at_zero() -> None:
    model = built(plan=SmallViT(width=64, heads=4, layers=1, initializer_range=0.05))
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert len(linears) >= 6
    for linear in linears:
        assert 0.04 < float(linear.weight.detach().std()) < 0.06
        assert not linear.bias.any()


def test_dropout_falls_in_training_only_and_at_the_rate_that_was_asked_for() -> None:
    model, batch = built(), images()
    assert {part.p for part in model.modules() if isinstance(part, nn.Dropout)} == {0.1}
    with torch.no_grad():
        assert torch.equal(model(batch).logits, model(batch).logits)
        model.train()
        assert not torch.equal(model(batch).logits, model(batch).logits)
    still = built(plan=SmallViT((1, 8, 8), 4, 2, 2, 16, dropout=0.0)).train()
    with torch.no_grad():
        assert torch.equal(still(batch).logits, still(batch).logits)


def test_a_width_that_heads_cannot_share_and_a_patch_that_does_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="not divisible by 5 heads"):
        SmallViT(heads=5)
    with pytest.raises(UserError, match="not divisible into patches of 5"):
        SmallViT(patch_size=5)
    with pytest.raises(UserError, match="the images have 5 units of 16 numbers, but the model reads 50 of 16"):
        built(plan=SmallViT())(images())


def test_it_can_be_shortened_and_pooled_by_a_scalar_mix() -> None:
    model = ScalarMix(TruncatedTransformer(PLAN, 1)).build(
        MulticlassClassification(3), None, Generator().manual_seed(1)
    )
    assert model(images()).attention.shape[1:3] == (1, 2)
    assert model.network.get_submodule("mix").get_parameter("weights").shape == (2,)


def test_it_learns_digits_from_scratch(tmp_path: Path) -> None:
    subject = TrainedModel(
        corpus=SubsampledCorpus(Digits(), 400, 100, 200),
        tokenization=Patches(4, mean=(0.3,), std=(0.37,)),
        architecture=SmallViT(image_shape=(1, 8, 8), patch_size=4, layers=1, heads=2, width=32, dropout=0.0),
        training=Training(
            epochs=6,
            batch_size=16,
            optimizer=AdamW(lr=5e-3),
            selection=EpochSelection(),
            reduction="mean",
            max_grad_norm=1.0,
        ),
        objective=Supervised(balance_classes=False),
    )
    scores = Workspace(tmp_path).get(subject).notes["scores"]
    assert isinstance(scores, dict)
    test = scores["test"]
    assert isinstance(test, dict)
    assert float(str(test["accuracy"])) > 0.6, "chance is 0.1"
