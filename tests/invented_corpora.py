"""Invented editions of the published corpora, written into a data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from heedful.catalogue import CORPORA
from heedful.data.images import Digits, ImageCorpus
from heedful.data.io import write_rows
from heedful.data.text_corpora import MLQE
from heedful.types import SPLITS, Corpus

Rows = list[dict[str, object]]
OPENINGS = ("a kind film about", "a dull film about", "nobody forgets", "everybody forgets")
THINGS = ("rain", "trains", "an old goat", "seven bakers", "the sea", "chess", "winter", "a lost shoe")
SENTENCES = [f"{opening} {thing} and salt" for thing in THINGS for opening in OPENINGS]


def texts(split: str, count: int) -> Rows:
    shift = {"train": 0, "dev": 20, "test": 26}.get(split, 0)
    return [{"id": f"{split}-{n}", "text": SENTENCES[shift + n], "label": n % 2} for n in range(count)]


def pairs(split: str, labels: tuple[object, ...]) -> Rows:
    rows = texts(split, 6)
    return [
        {
            "id": row["id"],
            "premise": row["text"],
            "hypothesis": "there is salt",
            "label": labels[n % len(labels)],
        }
        for n, row in enumerate(rows)
    ]


def stories(split: str) -> Rows:
    places = ("attic", "barn", "attic", "barn", "attic")
    return [
        {
            "id": f"{split}-{n}",
            "document": f"Ida ran to the {room} . Otto slept {'very ' * n}long",
            "question": "Where is Ida",
            "answer": room,
            "rationale": [[0, 1, 2, 3, 4]],
        }
        for n, room in enumerate(places)
    ]


def clozes(split: str) -> Rows:
    return [
        {
            "id": f"{split}-{n}",
            "document": f"@entity{n} met @entity{n + 1} in {split} " + "again " * n,
            "question": "@placeholder met somebody",
            "answer": f"@entity{n}",
        }
        for n in range(4)
    ]


def translations(split: str) -> Rows:
    return [
        {
            "id": f"{pair}-{split}-{n}", "lp": pair, "label": n - 0.5,
            "src": f"der alte Baum {n}", "mt": f"the old beam {n} {split}",
            "src_rationale": [2], "mt_rationale": [2, 3],
        }
        for pair in (*MLQE().language_pairs, "si-en")
        for n in range(2)
    ]  # fmt: skip


def evidence(split: str) -> Rows:
    return [{**row, "rationale": [[1, 2], [4]]} for row in texts(split, 6)]


def leaves(split: str) -> Rows:
    return [{**row, "tokens": ["A", "n't", "bad", "."], "token_label5": [2, 1, 0, 2]} for row in texts(split, 6)]


def news(split: str) -> Rows:
    return [{**row, **({"description": f"{row['text']} today"} if n else {})} for n, row in enumerate(texts(split, 6))]


MAKERS: dict[str, tuple[str, Callable[[str], Rows], tuple[str, ...]]] = {
    "sst": ("sst", leaves, SPLITS),
    "imdb": ("imdb_jw", lambda split: texts(split, 6), SPLITS),
    "imdb-raw": ("imdb_raw", lambda split: texts(split, 20 if split == "train" else 6), ("train", "test")),
    "20news": ("20news_sports", lambda split: texts(split, 6), SPLITS),
    "agnews": ("agnews_wb", news, SPLITS),
    "eraser-movies": ("eraser_movies", evidence, SPLITS),
    "snli": ("snli", lambda split: pairs(split, ("neutral", "contradiction", "entailment")), SPLITS),
    "mnli": (
        "mnli",
        lambda split: pairs(split, ("neutral", "contradiction", "entailment")),
        (*SPLITS, "xnli_en_dev"),
    ),
    "qqp": ("qqp", lambda split: pairs(split, (1, 0)), SPLITS),
    "mlqe": ("mlqe_pe", translations, SPLITS),
    "babi-1": ("babi_qa1", stories, SPLITS),
    "babi-2": ("babi_qa2", stories, SPLITS),
    "babi-3": ("babi_qa3", stories, SPLITS),
    "babi-3-v11": ("babi_qa3_v11_10k", stories, SPLITS),
    "cnn": ("cnndm_cloze", clozes, SPLITS),
}


PUBLISHED = [name for name, corpus in CORPORA.items() if name in MAKERS or isinstance(corpus, ImageCorpus | Digits)]


def written(name: str, data: Path) -> Path:
    """The folder of an invented edition of the corpus."""
    folder, rows, files = MAKERS[name]
    (data / folder).mkdir(parents=True)
    for file in files:
        write_rows(data / folder / f"{file}.jsonl.gz", rows(file))
    return data / folder


def pictures(corpus: Corpus, data: Path) -> None:
    count = {"cifar100": 100}.get(corpus.name, 10)
    shape = (28, 28) if corpus.name == "fashion-mnist" else (32, 32, 3)
    random = np.random.default_rng(0)
    arrays: dict[str, np.typing.NDArray[np.generic]] = {}
    for part, size in (("train", 4), ("test", 1)):
        arrays[f"y_{part}"] = np.repeat(np.arange(count, dtype=np.uint8), size)
        arrays[f"x_{part}"] = random.integers(0, 256, (size * count, *shape), dtype=np.uint8)
    (data / "images").mkdir()
    names = np.array([f"kind {n}" for n in range(count)])
    path = data / "images" / f"{corpus.name.replace('-', '_')}_tiny.npz"
    np.savez(path, class_names=names, **arrays)  # type: ignore[arg-type]


def prepared(corpus: Corpus, data: Path) -> Corpus:
    if corpus.name in MAKERS:
        written(corpus.name, data)
    elif not isinstance(corpus, Digits):
        pictures(corpus, data)
    return corpus
