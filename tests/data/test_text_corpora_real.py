"""The real corpora have the sizes that their README states; skipped where there is no data folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heedful.data.images import CIFAR10, FashionMNIST
from heedful.data.question_corpora import CNN, Babi
from heedful.data.text_corpora import IMDB, MLQE, MNLI, QQP, SNLI, SST, AGNews, EraserMovies, IMDBRaw, TwentyNewsSports
from heedful.types import SPLITS, Corpus, UserError
from tests.corpus_laws import lawful


def _real() -> Path:
    return Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


SIZES: dict[str, tuple[Corpus, tuple[int, int, int]]] = {
    "sst": (SST(), (6920, 872, 1821)),
    "sst, leaves": (SST(tree_leaves=True), (6920, 872, 1821)),
    "imdb": (IMDB(), (17212, 4304, 4363)),
    "imdb-raw": (IMDBRaw(), (21250, 3750, 25000)),
    "20news": (TwentyNewsSports(), (1244, 311, 389)),
    "agnews": (AGNews(), (14452, 2551, 3800)),
    "babi-1": (Babi(1), (8500, 1500, 1000)),
    "babi-2": (Babi(2), (8500, 1500, 1000)),
    "babi-3": (Babi(3), (850, 150, 1000)),
    "babi-3-v11": (Babi(3, version="v1-1"), (8500, 1500, 1000)),
    "cnn": (CNN(), (1155, 168, 328)),
    "snli": (SNLI(), (90894, 9842, 9824)),
    "mnli": (MNLI(), (53002, 8017, 5010)),
    "qqp": (QQP(), (8999, 1000, 10000)),
    "eraser-movies": (EraserMovies(), (1600, 200, 199)),
    "mlqe": (MLQE(language_pairs=(*MLQE().language_pairs, "si-en")), (49000, 7000, 7000)),
    "cifar10": (CIFAR10(), (4249, 751, 1000)),
    "fashion-mnist": (FashionMNIST(), (8500, 1500, 2000)),
}


@pytest.mark.parametrize("name", list(SIZES))
def test_the_real_corpus_has_its_published_size(name: str) -> None:
    corpus, sizes = SIZES[name]
    data = _real()
    if not (data / "MANIFEST.json").is_file():
        pytest.skip(f"no collection with a MANIFEST.json at {data}: set HEEDFUL_DATA to run on the real corpora")
    if isinstance(corpus, IMDB) and not (data / "imdb_jw").is_dir():
        pytest.skip(f"no imdb_jw at {data}, and other sources of IMDB have other sizes")
    try:
        splits = corpus.read(data)
    except UserError as error:
        if "HEEDFUL_DATA" not in str(error):
            raise
        pytest.skip(f"not in the data folder: {error}")
    assert (len(splits.train), len(splits.dev), len(splits.test)) == sizes
    assert all(lawful(example, splits) for split in SPLITS for example in splits[split][:500])
