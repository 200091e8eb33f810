"""Fetching: hub-shaped datasets, saved locally, become the layout that the corpus classes read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value

from heedful.catalogue import CORPORA
from heedful.data.download import FETCHABLE, IMAGE_SOURCES, TEXT_SOURCES, fetch
from heedful.data.text_corpora import IMDB, MLQE
from heedful.testing.checks import check_corpus
from heedful.types import Splits, UserError
from tests.invented_corpora import SENTENCES

Columns = dict[str, list[object]]


def _dict(columns: Callable[[int], Columns], *names: str, classes: list[str] | None = None) -> DatasetDict:
    """Splits from the number of their first sentence; with class names the column `label` holds indices of classes."""
    splits = {name: Dataset.from_dict(columns(10 * n)) for n, name in enumerate(names or ("train", "test"))}
    made = DatasetDict(splits)
    return made if classes is None else made.cast_column("label", ClassLabel(names=classes))


def _sentences(start: int, count: int = 10) -> list[object]:
    return list(SENTENCES[start : start + count])


THREE = ("train", "validation", "test")


def _classified(classes: list[str], *names: str) -> DatasetDict:
    labels: list[object] = [n % len(classes) for n in range(10)]
    return _dict(lambda start: {"text": _sentences(start), "label": labels}, *names, classes=classes)


def _entailments(*names: str) -> DatasetDict:
    labels: list[object] = [0, 1, 2, -1, 0, 1, 2, -1, 0, 1]
    return _dict(
        lambda start: {"premise": _sentences(start), "hypothesis": ["salt is there"] * 10, "label": labels},
        *names,
        classes=["entailment", "neutral", "contradiction"],
    )


def _sst() -> DatasetDict:
    return _dict(
        lambda start: {"text": [f"{s}, it's {start}!" for s in _sentences(start)], "label": [1, 0] * 5}, *THREE
    )


def _groups() -> DatasetDict:
    names: list[object] = ["rec.sport.baseball", "rec.sport.hockey", "sci.space", "rec.sport.hockey", "talk.misc"]

    def columns(start: int) -> Columns:
        return {"text": [f"{s} 3-2 !!! {start}" for s in _sentences(start)], "label_text": names * 2}

    return _dict(columns)


def _questions() -> DatasetDict:
    return _dict(
        lambda start: {
            "question1": ["long " * 200, *_sentences(start, 9)],
            "question2": ["is it so"] * 10,
            "label": [0, 1] * 5,
        },
        "train",
        "validation",
        classes=["not_duplicate", "duplicate"],
    )


def _movies() -> DatasetDict:
    return _dict(
        lambda start: {
            "review": [f"{s}\nthe end" for s in _sentences(start)],
            "label": [0, 1] * 5,
            "evidences": [["film about", "never there", "the end"]] * 10,
        },
        *THREE,
        classes=["NEG", "POS"],
    )


def _translations(pair: str) -> DatasetDict:
    one, two = pair.split("-")
    return _dict(
        lambda start: {
            "translation": [{one: f"der Baum {n}", two: f"the beam {n + start}"} for n in range(5)],
            "z_mean": [n / 4 for n in range(5)],
        },
        *THREE,
    )


def _stories() -> DatasetDict:
    text = Value("string")
    kinds = ClassLabel(names=["context", "question"])
    fields = {"id": text, "type": kinds, "text": text, "supporting_ids": datasets.List(text), "answer": text}

    def story(n: int) -> list[dict[str, object]]:
        room = "barn" if n % 2 else "attic"
        lines: tuple[tuple[object, ...], ...] = (
            ("1", 0, f"Ida ran to the {room}.", [], ""),
            ("2", 0, "Otto slept.", [], ""),
            ("3", 1, "Where is Ida? ", ["1"], room),
            ("4", 0, f"Otto ran to the barn {'again ' * n}.", [], ""),
            ("5", 1, "Where is Otto?", ["4"], "barn"),
        )
        return [dict(zip(fields, line, strict=True)) for line in lines]

    features = Features({"story": datasets.List(fields)})
    return _dict(lambda _: {"story": [story(n) for n in range(8)]}).cast(features)


def _images(label: str, image: str, shape: tuple[int, ...], count: int) -> DatasetDict:
    names = [f"kind {n}" for n in range(count)]
    random = np.random.default_rng(0)

    def columns(_: int) -> Columns:
        pixels: list[object] = [random.integers(0, 256, shape, dtype=np.uint8) for _ in range(3 * count)]
        return {image: pixels, label: [n % count for n in range(3 * count)]}

    features = Features({image: Image(), label: ClassLabel(names=names)})
    splits = {name: Dataset.from_dict(columns(0), features=features) for name in ("train", "test")}
    return DatasetDict(splits)


SOURCES: dict[str, Callable[[], dict[str, DatasetDict]]] = {
    "sst": lambda: {"sst2": _sst()},
    "imdb": lambda: {"imdb": _classified(["neg", "pos"])},
    "imdb-raw": lambda: {"imdb": _classified(["neg", "pos"])},
    "20news": lambda: {"20_newsgroups": _groups()},
    "agnews": lambda: {"ag_news": _classified(["World", "Sports", "Business", "Sci/Tech"])},
    "snli": lambda: {"snli": _entailments(*THREE)},
    "mnli": lambda: {"multi_nli": _entailments("train", "validation_matched"), "xnli-en": _entailments(*THREE)},
    "qqp": lambda: {"glue-qqp": _questions()},
    "eraser-movies": lambda: {"movie_rationales": _movies()},
    "mlqe": lambda: {f"wmt20_mlqe_task1-{pair}": _translations(pair) for pair in (*MLQE().language_pairs, "si-en")},
    "babi-1": lambda: {"babi_qa-en-10k-qa1": _stories()},
    "babi-2": lambda: {"babi_qa-en-10k-qa2": _stories()},
    "babi-3": lambda: {"babi_qa-en-10k-qa3": _stories()},
    "cifar10": lambda: {"cifar10": _images("label", "img", (32, 32, 3), 10)},
    "cifar100": lambda: {"cifar100": _images("fine_label", "img", (32, 32, 3), 100)},
    "fashion-mnist": lambda: {"fashion_mnist": _images("label", "image", (28, 28), 10)},
}


def fetched(name: str, tmp_path: Path) -> Splits:
    for folder, dataset in SOURCES[name]().items():
        dataset.save_to_disk(str(tmp_path / "source" / folder))
    fetch(name, tmp_path / "data", source=str(tmp_path / "source"))
    return CORPORA[name].read(tmp_path / "data")


def test_every_fetchable_corpus_is_tried_here() -> None:
    assert set(SOURCES) == set(FETCHABLE) == {*TEXT_SOURCES, *IMAGE_SOURCES}
    assert set(FETCHABLE) <= set(CORPORA)


@pytest.mark.parametrize("name", list(SOURCES))
def test_what_was_fetched_is_what_the_corpus_reads(name: str, tmp_path: Path) -> None:
    fetched(name, tmp_path)
    assert check_corpus(CORPORA[name], tmp_path / "data")
    assert not [path for path in (tmp_path / "data").rglob("*") if path.name.startswith(".")]


def test_sentences_are_cleaned_as_jain_and_wallace_clean_sst(tmp_path: Path) -> None:
    assert fetched("sst", tmp_path).train[0].parts == ("a kind film about rain and salt it s 0",)


def test_newsgroups_keep_baseball_and_hockey_and_hide_digits(tmp_path: Path) -> None:
    splits = fetched("20news", tmp_path)
    assert [example.label for example in splits.test] == [0, 1, 1, 0, 1, 1]
    assert str(splits.test[0].parts[0]).endswith("qqq - qqq ! qqq")


def test_agnews_keeps_world_and_business(tmp_path: Path) -> None:
    splits = fetched("agnews", tmp_path)
    assert [example.label for example in splits.test] == [0, 1, 0, 1, 0]
    assert splits.test[1].parts == (SENTENCES[12],)


def test_pairs_without_a_gold_label_and_long_questions_are_dropped(tmp_path: Path) -> None:
    snli = fetched("snli", tmp_path / "snli")
    assert [snli.class_names[int(example.label or 0)] for example in snli.train[:3]] == [
        "entailment",
        "neutral",
        "contradiction",
    ]
    assert len(snli.train) == 8
    qqp = fetched("qqp", tmp_path / "qqp")
    assert len(qqp.test) == 9
    assert qqp.notes["dev held out from train"] == len(qqp.dev)


def test_mnli_takes_its_test_from_xnli(tmp_path: Path) -> None:
    splits = fetched("mnli", tmp_path)
    assert splits.test[0].parts[0] == SENTENCES[20]
    assert splits.dev[0].parts[0] == SENTENCES[10]


def test_evidence_is_found_again_at_its_first_match(tmp_path: Path) -> None:
    example = fetched("eraser-movies", tmp_path).train[0]
    words = str(example.parts[0]).split()
    assert words == ["a", "kind", "film", "about", "rain", "and", "salt", "the", "end"]
    marked = [word for word, mark in zip(words, example.rationale or (), strict=True) if mark]
    assert marked == ["film", "about", "the", "end"]


def test_a_story_gives_one_example_per_question_with_its_facts(tmp_path: Path) -> None:
    splits = fetched("babi-1", tmp_path)
    first, second = splits.test[:2]
    assert first.parts == ("Ida ran to the attic . Otto slept", "Where is Ida")
    assert first.rationale == (True,) * 5 + (False,) * 3 + (False,) * 3
    assert second.parts[0] == "Ida ran to the attic . Otto slept . Otto ran to the barn"
    assert sum(second.rationale or ()) == 5
    assert splits.class_names[int(second.label or 0)] == "barn"


def test_pixels_survive_the_way_through_the_archive(tmp_path: Path) -> None:
    splits = fetched("cifar10", tmp_path)
    source = datasets.load_from_disk(str(tmp_path / "source" / "cifar10"))["test"]
    image = splits.test[4].parts[0]
    assert isinstance(image, torch.Tensor)
    expected = torch.from_numpy(np.asarray(source[4]["img"]).copy()).permute(2, 0, 1) / 255
    assert torch.equal(image, expected)


def test_fetching_imdb_serves_imdb_and_imdb_raw(tmp_path: Path) -> None:
    fetched("imdb", tmp_path)
    assert str(IMDB().read(tmp_path / "data").notes["source"]).startswith("imdb_raw")


def test_fetching_twice_does_nothing_and_gives_the_same_bytes_elsewhere(tmp_path: Path) -> None:
    fetched("sst", tmp_path)
    before = (tmp_path / "data" / "sst" / "train.jsonl.gz").stat().st_mtime_ns
    again = fetch("sst", tmp_path / "data", source=str(tmp_path / "no such source"))
    assert again == tmp_path / "data" / "sst"
    assert (again / "train.jsonl.gz").stat().st_mtime_ns == before
    other = fetch("sst", tmp_path / "other", source=str(tmp_path / "source"))
    assert (other / "train.jsonl.gz").read_bytes() == (again / "train.jsonl.gz").read_bytes()
    assert (other / "train.jsonl.gz").read_bytes()[4:8] == bytes(4)  # no time in the gzip header


@pytest.mark.parametrize(
    ("splits", "complaint"),
    [
        (("train",), "stanfordnlp/imdb: no split test; there are train"),
        (("train", "test"), "no row for imdb_raw/test"),
    ],
)
def test_a_source_that_does_not_fit_leaves_nothing_behind(
    splits: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    _classified(["a", "b"], *splits).save_to_disk(str(tmp_path / "source"))
    with pytest.raises(UserError, match=complaint):
        fetch("imdb-raw", tmp_path / "data", source=str(tmp_path / "source"))
    assert list((tmp_path / "data").iterdir()) == []


def test_a_changed_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    _sst().rename_column("text", "sentence").save_to_disk(str(tmp_path / "source"))
    with pytest.raises(UserError, match=r"SetFit/sst2, row 1: no column 'text'; the columns are sentence, label"):
        fetch("sst", tmp_path / "data", source=str(tmp_path / "source"))


def test_an_unknown_name_gives_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'mimic'.* sst, imdb-raw"):
        fetch("mimic", tmp_path)


def test_a_failing_download_gives_a_remedy_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("snli", "cifar10"):
        with pytest.raises(UserError, match=r"could not be loaded from the hub .*check the id and the connection"):
            fetch(name, tmp_path / "data")
    assert not (tmp_path / "data").exists()
