"""Agreement by word and with special symbols: literal sums over pieces, SciPy on them, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.tokenization import Subwords
from heedful.figures import Histogram
from heedful.models.transformer import TinyTransformer
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.trials._trial import value_of
from heedful.trials.agreement import Agreement, Level, aggregate_to_level
from heedful.types import UserError
from tests.tiny import WORDS, subject

wrapped: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
SIGNED = (InputXGradient(special_tokens=True), GradientNorm(special_tokens=True))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def pieced(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A tiny transformer that reads most words in two pieces."""
    halves = [*(word[:2] for word in WORDS), *(f"##{word[2:]}" for word in WORDS)]
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *halves])
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = tmp_path_factory.mktemp("tokenizer")
    wrapped(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    base = subject(epochs=2, count=12)
    return replace(base, tokenization=Subwords(str(folder), 32), architecture=TinyTransformer(), embeddings=None)


def sums(scores: list[float], words: list[int], *, specials: bool) -> list[float]:
    """Sizes of the sums over each word's pieces, by a loop; special symbols behind all words."""
    found: dict[int, float] = {}
    for place, (score, word) in enumerate(zip(scores, words, strict=True)):
        if word >= 0 or specials:
            key = int(word) if word >= 0 else 1000 + place
            found[key] = found.get(key, 0.0) + float(score)
    return [abs(found[key]) for key in sorted(found)]


@pytest.mark.parametrize("specials", [False, True])
def test_by_word_the_sums_over_pieces_are_correlated(
    pieced: TrainedModel,
    workspace: Workspace,
    specials: bool,  # noqa: FBT001
) -> None:
    trial = Agreement(pieced, SIGNED, (), level="word", special_tokens=specials)
    table = workspace.get(trial).table.set_index("uid")
    one, other = (workspace.get(AttributionTable(pieced, method)).table.set_index("uid") for method in SIGNED)
    assert len(table) == 12
    for uid in table.index:
        x, y = (sums(each.loc[uid, "scores"], each.loc[uid, "words"], specials=specials) for each in (one, other))
        assert table.loc[uid, "length"] == len(x) < len(one.loc[uid, "scores"])
        assert table.loc[uid, "value"] == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-9)


def test_special_symbols_stand_in_the_ranking_of_units_where_they_are_asked_for(
    pieced: TrainedModel, workspace: Workspace
) -> None:
    without, with_them = (workspace.get(Agreement(pieced, SIGNED, (), special_tokens=s)).table for s in (False, True))
    assert (with_them["length"] == without["length"] + 2).all()
    one, other = (workspace.get(AttributionTable(pieced, method)).table for method in SIGNED)
    for row, value in enumerate(with_them["value"]):
        x, y = ([abs(score) for score in each["scores"].iloc[row]] for each in (one, other))
        assert value == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-9)
    assert not with_them["value"].equals(without["value"])


@pytest.mark.parametrize(
    ("level", "specials", "axis"),
    [
        ("word", True, "Kendall's tau, by word, with special tokens"),
        ("word", False, "Kendall's tau, by word"),
        ("unit", False, "Kendall's tau"),
    ],
)
def test_settings_that_are_not_the_default_are_in_the_summary_and_on_the_axes(
    level: Level,
    specials: bool,  # noqa: FBT001
    axis: str,
    pieced: TrainedModel,
    workspace: Workspace,
) -> None:
    table = workspace.get(Agreement(pieced, SIGNED, (), level=level, special_tokens=specials)).table
    summary = Agreement.summary(table)
    assert (value_of(summary, "by_word") == 1, value_of(summary, "special_tokens") == 1) == (level == "word", specials)
    assert ("Special tokens" in Agreement.interpretation(summary)) == specials
    figure = Agreement.figures(table)[0]
    assert isinstance(figure, Histogram)
    assert figure.x.label == axis


def test_words_of_one_piece_are_their_units() -> None:
    rows = {"uid": ["a"], "predicted": [0], "scores": [[7.0, 1.0, -2.0]], "segments": [[0, 0, 1]]}
    table = pd.DataFrame({**rows, "scored": [[False, True, True]], "words": [[-1, 0, 1]]})
    assert aggregate_to_level(table, "unit", special_tokens=False) is table
    found = aggregate_to_level(table, "word", special_tokens=False)
    assert found["scores"].tolist() == [[1.0, -2.0]]
    assert found["segments"].tolist() == [[0, 1]]


def test_a_method_that_is_silent_on_special_symbols_is_not_ranked_with_them() -> None:
    with pytest.raises(UserError, match="leave-one-out: no scores"):
        Agreement(subject(), (InputXGradient(), LeaveOneOut()), (Random(),), special_tokens=True)
    assert (
        len(Agreement(subject(), (InputXGradient(), RawAttention()), (Random(),), special_tokens=True).dependencies)
        == 3
    )
    with pytest.raises(UserError, match="level 'sentence'"):
        Agreement(subject(), SIGNED, (), level="sentence")  # type: ignore[arg-type]
