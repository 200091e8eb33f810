"""Where the public corpora are on the hub and how their rows become rows of the layout.

One `Piece` per file that is written. A conversion gives None for a row that the corpus does not have (another
class, no gold label). Some sets were once scripts; of these the hub's own Parquet conversion is read, so no
code runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heedful.data.hub import Repository

Values = Mapping[str, object]
Convert = Callable[[Values], list[dict[str, object]]]
PARQUET = "refs/convert/parquet"
_NON_WORDS = re.compile(r"\W+")
SENTIMENT = {"neg": 0, "pos": 1, "NEG": 0, "POS": 1, "negative": 0, "positive": 1, "0": 0, "1": 1}


@dataclass(frozen=True)
class Piece:
    """One file of the layout and the split of a hub dataset that it is made of."""

    file: str
    repository: Repository
    split: str
    convert: Convert


@dataclass(frozen=True)
class Pictures:
    """One image archive and the hub dataset that it is made of."""

    file: str
    repository: Repository
    image: str
    label: str


def _labelled(label: str, known: Mapping[str, int], text: str = "text") -> Convert:
    """Rows of one text whose label is known; others are no part of the corpus."""

    def convert(values: Values) -> list[dict[str, object]]:
        word, content = str(values[label]), str(values[text])
        return [{"text": content, "label": known[word]}] if word in known and content.strip() else []

    return convert


def _cleaned(label: str, known: Mapping[str, int]) -> Convert:
    """As Jain & Wallace clean SST: lower case, words only."""
    whole = _labelled(label, known)

    def convert(values: Values) -> list[dict[str, object]]:
        rows = [{**row, "text": _NON_WORDS.sub(" ", str(row["text"])).strip().lower()} for row in whole(values)]
        return [row for row in rows if row["text"]]

    return convert


def _newsgroup(values: Values) -> list[dict[str, object]]:
    """As Jain & Wallace clean 20 Newsgroups: lower case, digits as qqq, runs of signs as one sign."""
    groups = {"rec.sport.baseball": 0, "rec.sport.hockey": 1}
    tokens = re.findall(r"\w+|[^\w\s]+", str(values["text"]).lower())
    words = ["qqq" if re.search(r"\d", token) else token if token[0].isalnum() else token[0] for token in tokens]
    label = groups.get(str(values["label_text"]))
    return [{"text": " ".join(words), "label": label}] if words and label is not None else []


def _entailment(values: Values) -> list[dict[str, object]]:
    label = values["label"]
    if label not in ("entailment", "neutral", "contradiction"):
        return []
    return [{"premise": values["premise"], "hypothesis": values["hypothesis"], "label": label}]


def _questions(values: Values) -> list[dict[str, object]]:
    """Pairs of at most 200 words, as in "A Song of (Dis)agreement"."""
    first, second = str(values["question1"]), str(values["question2"])
    known = {"not_duplicate": 0, "duplicate": 1, "0": 0, "1": 1}
    label = known.get(str(values["label"]))
    fits = first.strip() and second.strip() and len(first.split()) + len(second.split()) <= 200
    return [{"premise": first, "hypothesis": second, "label": label}] if fits and label is not None else []


def _evidence(values: Values) -> list[dict[str, object]]:
    """A review whose evidence is found again, each span at its first exact match, over `text.split(' ')`."""
    words = str(values["review"]).split()
    spans = values["evidences"]
    found = [_located(words, str(span).split()) for span in spans] if isinstance(spans, list) else []
    label = SENTIMENT.get(str(values["label"]))
    row: dict[str, object] = {"text": " ".join(words), "label": label}
    row["rationale"] = [span for span in found if span]
    return [row] if words and label is not None else []


def _located(words: list[str], span: list[str]) -> list[int]:
    starts = range(len(words) - len(span) + 1) if span else range(0)
    first = next((start for start in starts if words[start : start + len(span)] == span), None)
    return [] if first is None else list(range(first, first + len(span)))


def _translation(pair: str) -> Convert:
    """Source, translation and mean judgement; the hub's edition has no marks on wrong words."""
    source, target = pair.split("-")

    def convert(values: Values) -> list[dict[str, object]]:
        texts, label = values["translation"], values["z_mean"]
        if not isinstance(texts, Mapping) or not isinstance(label, float):
            return []
        return [{"lp": pair, "src": texts[source], "mt": texts[target], "label": label}]

    return convert


def _story(values: Values) -> list[dict[str, object]]:
    """One row per question of a story: the sentences before it and the words of its supporting facts."""
    told: list[tuple[str, list[str]]] = []
    rows: list[dict[str, object]] = []
    for line in _story_lines(values["story"]):
        if str(line["type"]) in ("context", "0"):
            told.append((str(line["id"]), str(line["text"]).rstrip(". ").split()))
            continue
        document = " . ".join(" ".join(words) for _, words in told)
        question = str(line["text"]).rstrip("? ")
        facts = _facts(told, line["supporting_ids"])
        rows.append({"document": document, "question": question, "answer": line["answer"], "rationale": facts})
    return rows


def _story_lines(story: object) -> list[Values]:
    """The lines of a story; `datasets` gives them as a list of rows or, in older files, as columns."""
    if isinstance(story, Mapping):
        return [dict(zip(story, line, strict=True)) for line in zip(*story.values(), strict=True)]
    return list(story) if isinstance(story, list) else []


def _facts(told: list[tuple[str, list[str]]], facts: object) -> list[list[int]]:
    spans: dict[str, list[int]] = {}
    place = 0
    for number, words in told:
        spans[number] = list(range(place, place + len(words)))
        place += len(words) + 1
    chosen = facts if isinstance(facts, list) else []
    return [spans[str(fact)] for fact in chosen if str(fact) in spans]


_SST = Repository("SetFit/sst2")
_IMDB = Repository("stanfordnlp/imdb")
_NEWS = Repository("SetFit/20_newsgroups")
_AG = Repository("fancyzhx/ag_news")
_SNLI = Repository("stanfordnlp/snli")
_MNLI = Repository("nyu-mll/multi_nli")
_XNLI = Repository("facebook/xnli", "en")
_QQP = Repository("nyu-mll/glue", "qqp")
_MOVIES = Repository("eraser-benchmark/movie_rationales", revision=PARQUET)
_THREE = (("train", "train"), ("dev", "validation"), ("test", "test"))
_TOPICS = {"World": 0, "Business": 1}


def _pieces(
    folder: str, repository: Repository, splits: tuple[tuple[str, str], ...], convert: Convert
) -> tuple[Piece, ...]:
    return tuple(Piece(f"{folder}/{ours}", repository, theirs, convert) for ours, theirs in splits)


def _babi(task: int) -> tuple[Piece, ...]:
    repository = Repository("facebook/babi_qa", f"en-10k-qa{task}", PARQUET)
    return _pieces(f"babi_qa{task}", repository, (("train", "train"), ("test", "test")), _story)


def _quality(pair: str) -> tuple[Piece, ...]:
    return _pieces("mlqe_pe", Repository("wmt/wmt20_mlqe_task1", pair), _THREE, _translation(pair))


_TRAIN_TEST = (("train", "train"), ("test", "test"))
TEXTS: Mapping[str, tuple[Piece, ...]] = {
    "sst": _pieces("sst", _SST, _THREE, _cleaned("label", SENTIMENT)),
    "imdb-raw": _pieces("imdb_raw", _IMDB, _TRAIN_TEST, _labelled("label", SENTIMENT)),
    "imdb": _pieces("imdb_raw", _IMDB, _TRAIN_TEST, _labelled("label", SENTIMENT)),
    "20news": _pieces("20news_sports", _NEWS, _TRAIN_TEST, _newsgroup),
    "agnews": _pieces("agnews_wb", _AG, _TRAIN_TEST, _labelled("label", _TOPICS)),
    "snli": _pieces("snli", _SNLI, _THREE, _entailment),
    "mnli": (
        *_pieces("mnli", _MNLI, (("train", "train"), ("dev", "validation_matched")), _entailment),
        *_pieces("mnli", _XNLI, (("test", "test"), ("xnli_en_dev", "validation")), _entailment),
    ),
    # The hub hides the labels of its test part: our test is its validation part, and dev is carved.
    "qqp": _pieces("qqp", _QQP, (("train", "train"), ("test", "validation")), _questions),
    "eraser-movies": _pieces("eraser_movies", _MOVIES, _THREE, _evidence),
    "mlqe": tuple(
        piece for pair in ("en-de", "en-zh", "et-en", "ne-en", "ro-en", "ru-en", "si-en") for piece in _quality(pair)
    ),
    **{f"babi-{task}": _babi(task) for task in (1, 2, 3)},
}
IMAGES: Mapping[str, Pictures] = {
    "cifar10": Pictures("cifar10", Repository("uoft-cs/cifar10"), "img", "label"),
    "cifar100": Pictures("cifar100", Repository("uoft-cs/cifar100"), "img", "fine_label"),
    "fashion-mnist": Pictures("fashion_mnist", Repository("zalando-datasets/fashion_mnist"), "image", "label"),
}
