"""Scores made elsewhere: each format by hand, alignment with words, matching of texts, and the method itself."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor

from heedful.attributions.method import method_name
from heedful.audits.external_attributions import ExternalAttributions, external_methods, read_external
from heedful.audits.score_alignment import Exclusion, align_scores
from heedful.audits.score_files import read_score_records
from heedful.data import EvaluationTable, detect_columns
from heedful.store.recipe import canonical_json
from heedful.types import Batch, Example, UserError
from tests.claimed_arrays import claiming

OUTPUTS = ("negative", "positive")
FIRST = Example("t0", ("a fine film",))
EXAMPLES = (FIRST, Example("t1", ("Unkind words, café",)), Example("t2", ("so long", "is it?")))


def write(folder: Path, name: str, value: object) -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def lines(rows: list[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def scores_of(path: Path, method: str, uid: str, target: int = 0) -> tuple[float, ...] | None:
    return read_external(path, EXAMPLES, OUTPUTS)[method].find(uid, target)


# Alignment


@pytest.mark.parametrize(
    ("tokens", "scores", "words", "expected"),
    [
        (["a", "fine"], [1, 2], ["a", "fine"], (1, 2)),
        (["[CLS]", "un", "##kind", "words", "[SEP]", "[PAD]"], [9, 1, 2, 4, 9, 9], ["Unkind", "words"], (3, 4)),
        (["<s>", "Un", "kind", "\u0120words", "</s>"], [9, 1, 2, 4, 9], ["Unkind", "words"], (3, 4)),
        (["caf", "\u00c3", "\u00a9", "\u0120au"], [1, 2, 4, 8], ["café", "au"], (7, 8)),
        (["\u2581Un", "kind", "\u2581", "words", "</s>"], [1, 2, 4, 8, 9], ["Unkind", "words"], (3, 12)),
        (["a ", "fine film"], [1, 8], ["a", "fine", "film"], (1, 4, 4)),
        (["", "a ", "fine ", "film", ""], [9, 1, 2, 4, 9], ["a", "fine", "film"], (1, 2, 4)),
        (["un@@", "kind</w>"], [1, 2], ["unkind"], (3,)),
        (["a", "[UNK]", "film"], [1, 2, 4], ["a", "\u4e2d\u6587", "film"], (1, 2, 4)),
        (["a", "[UNK]", "[UNK]"], [1, 2, 4], ["a", "\u4e2d", "\u6587"], (1, 2, 4)),
        (["[UNK]", "a"], [5, 1], ["banana", "a"], (5, 1)),
        (["[UNK]", "a", "[SEP]"], [5, 1, 9], ["banana", "a", "day"], (5, 1, 0)),
        (["<unk>", "\u2581a"], [5, 1], ["banana", "a"], (5, 1)),
        (["[UNK]"] * 3, [1, 2, 4], ["one", "two", "three"], (1, 2, 4)),
        (["[UNK]"] * 2, [1, 2], ["one", "two", "three"], (1, 2, 0)),
        (["[UNK]"] * 4, [1, 2, 4, 8], ["\u4e2d\u6587", "\u65e5\u672c"], (3, 12)),
        (["[UNK]", "!", "so"], [1, 2, 4], ["oh!", "so"], (3, 4)),
        (["[UNK]", "so"], [1, 4], ["oh!", "so"], (1, 4)),
        (["T", "<unk>", "r", "\u2581a"], [1, 2, 4, 8], ["Tzr", "a"], (7, 8)),
        (["a", "<0xE4>", "<0xB8>", "<0xAD>", "b"], [1, 2, 4, 8, 16], ["a", "\u4e2d", "b"], (1, 14, 16)),
        (["[UNK]"] * 3, [1, 2, 4], ["one", "two"], Exclusion.AMBIGUOUS),
        (["[UNK]", "a", "[UNK]"], [1, 2, 4], ["ba", "aa"], Exclusion.AMBIGUOUS),
        (["[UNK]"] * 3000, [1] * 3000, ["ab" * 3000, "c"], Exclusion.AMBIGUOUS),
        (["[UNK]", "film"], [2, 4], ["film"], Exclusion.OTHER_TOKENS),
        (["[UNK]", "a"], [2, 4], ["banana", "split"], Exclusion.OTHER_TOKENS),
        (["cafe", "..."], [1, 2], ["Café…"], (3,)),
        (["a", "fine"], [1, 2], ["a", "fine", "film"], (1, 2, 0)),
        (["a", "bad"], [1, 2], ["a", "fine"], Exclusion.OTHER_TOKENS),
        (["[CLS]", "[SEP]"], [1, 2], ["a"], Exclusion.OTHER_TOKENS),
        (["a", "film"], [1, 2], ["a", "fine", "film"], Exclusion.OTHER_TOKENS),
    ],
)
def test_scores_of_tokens_are_added_up_by_word(
    tokens: list[str], scores: list[float], words: list[str], expected: tuple[float, ...] | Exclusion
) -> None:
    found = align_scores(tokens, scores, words)
    assert found == (expected if isinstance(expected, Exclusion) else pytest.approx(expected))


def tilings(tokens: list[str], words: list[str], place: tuple[int, int] = (0, 0)) -> list[tuple[list[int], bool, bool]]:
    """Every way to lay tokens of one word along words of letters, literally.

    The word of each token, whether every unknown token stands for a whole word, and whether the text is used up.
    """
    number, start = place
    if number < len(words) and start == len(words[number]):
        return tilings(tokens, words, (number + 1, 0))
    if not tokens:
        return [([], True, number == len(words))]
    if number == len(words):
        return []
    first, found = tokens[0], []
    for end in range(start + 1, len(words[number]) + 1):
        if first == "[UNK]" or first == words[number][start:end]:
            whole = first != "[UNK]" or (start == 0 and end == len(words[number]))
            for rest, others, full in tilings(tokens[1:], words, (number, end)):
                found.append(([number, *rest], whole and others, full))
    return found


@settings(deadline=None, max_examples=300)
@given(
    words=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4),
    tokens=st.lists(st.sampled_from(["[UNK]", "[UNK]", "b", "aa"]), min_size=1, max_size=5),
)
def test_alignment_is_the_only_tiling_of_the_text_or_none(words: list[str], tokens: list[str]) -> None:
    # "aa" over two words is divided: the twin has no such tokens.
    assume(not any("aa" in tokens and left[-1] == right[0] == "a" for left, right in pairwise(words)))
    every = tilings(tokens, words)
    ranked = [
        [owners for owners, whole, full in every if whole and full],
        [owners for owners, _, full in every if full],
        [owners for owners, whole, _ in every if whole],
    ]
    fitting = next((owners for owners in ranked if owners), [])
    expected: object = Exclusion.OTHER_TOKENS if not fitting else Exclusion.AMBIGUOUS
    scores = [float(2**place) for place in range(len(tokens))]
    if fitting and all(owners == fitting[0] for owners in fitting):
        expected = tuple(
            sum(score for score, owner in zip(scores, fitting[0], strict=True) if owner == word)
            for word in range(len(words))
        )
    assert align_scores(tokens, scores, words) == expected


@settings(deadline=None, max_examples=50)
@given(
    words=st.lists(st.text("abcé", min_size=1, max_size=6), min_size=1, max_size=6),
    cut=st.integers(1, 3),
    data=st.data(),
)
def test_alignment_keeps_the_sum_of_each_word(words: list[str], cut: int, data: st.DataObject) -> None:
    pieces = [[word[i : i + cut] for i in range(0, len(word), cut)] for word in words]
    tokens = [piece if n == 0 else f"##{piece}" for word in pieces for n, piece in enumerate(word)]
    numbers = data.draw(st.lists(st.integers(-9, 9), min_size=len(tokens), max_size=len(tokens)))
    rest = iter(numbers)
    expected = [sum(next(rest) for _ in word) for word in pieces]
    assert align_scores(["[CLS]", *tokens], [5.0, *numbers], words) == pytest.approx(tuple(expected))


# Formats


def test_the_documented_schema(tmp_path: Path) -> None:
    rows: list[Mapping[str, object]] = [
        {"uid": "t0", "method": "x", "words": ["a", "fine", "film"], "scores": [0.5, 2, -1]},
        {"uid": "t1", "method": "x", "tokens": ["un", "##kind", "words", ",", "cafe"], "scores": [1, 2, 3, 4, 5]},
        {"text": "so long", "second_text": "is it?", "method": "x", "scores": [1, 2, 3, 4]},
        {"text": "a fine film", "method": "y", "scores": [1, 2, 3], "target": "positive"},
        {"uid": "t0", "method": "y", "scores": [4, 5, 6], "target": 0},
        {"uid": "t1", "method": "y", "scores": [7, 8, 9], "target": 1},
        {"uid": "t2", "method": "y", "scores": [7, 8]},
    ]
    for path in (write(tmp_path, "s.jsonl", lines(rows)), write(tmp_path, "s.json", rows)):
        found = read_external(path, EXAMPLES, OUTPUTS)
        assert list(found) == ["x", "y"]
        assert dict(found["x"].scores) == {
            "t0": {None: (0.5, 2, -1)},
            "t1": {None: (3, 7, 5)},
            "t2": {None: (1, 2, 3, 4)},
        }
        assert [found["y"].find("t0", target) for target in (0, 1)] == [(4, 5, 6), (1, 2, 3)]
        assert found["y"].find("t1", 0) is None
        assert found["y"].find("t2", 1) == (7, 8, 0, 0)


def test_a_csv_file_has_lists_in_its_cells_and_gives_its_name_to_the_method(tmp_path: Path) -> None:
    content = (
        'uid,words,scores\nt0,"[\'a\', \'fine\', \'film\']","[0.5, 2, -1]"\nt1,,"[1, 2, 3]"\nt2,,"[0, 0, 1, 2.5]"\n'
    )
    path = write(tmp_path, "occlusion-of-me.csv", content)
    assert scores_of(path, "occlusion-of-me", "t0") == (0.5, 2, -1)
    assert scores_of(path, "occlusion-of-me", "t2") == (0, 0, 1, 2.5)


def test_a_name_of_ours_is_marked_as_given(tmp_path: Path) -> None:
    rows = [{"uid": each.uid, "method": "lime", "scores": [1] * 3} for each in EXAMPLES[:2]]
    path = write(tmp_path, "s.json", [*rows, {"uid": "t2", "method": "lime", "scores": [1] * 4}])
    assert list(read_external(path, EXAMPLES, OUTPUTS)) == ["lime (given)"]


CAPTUM_TOKENS = [
    ["[CLS]", "a", "fine", "film", "[SEP]", "[PAD]", "[PAD]"],
    ["[CLS]", "un", "##kind", "words", ",", "cafe", "[SEP]"],
    ["[CLS]", "so", "long", "[SEP]", "is", "it", "?"],
]
CAPTUM_SCORES = np.arange(3 * 7 * 2).reshape(3, 7, 2).astype(np.float32)
CAPTUM_SUMS = {
    "t0": (2 + 3, 4 + 5, 6 + 7),
    "t1": (16 + 17 + 18 + 19, 20 + 21 + 22 + 23, 24 + 25),
    "t2": (30 + 31, 32 + 33, 36 + 37, 38 + 39 + 40 + 41),
}


@pytest.mark.parametrize("form", ["npz", "npz with uid", "json"])
def test_captum_arrays(form: str, tmp_path: Path) -> None:
    path = tmp_path / "ig.npz"
    if form == "json":
        path = write(tmp_path, "ig.json", {"tokens": CAPTUM_TOKENS, "attributions": CAPTUM_SCORES.sum(-1).tolist()})
    elif form == "npz":
        np.savez(path, tokens=np.array(CAPTUM_TOKENS), attributions=CAPTUM_SCORES, method=np.array("ig"))
    else:
        uid = np.array(["t0", "t1", "t2"])
        np.savez_compressed(path, tokens=np.array(CAPTUM_TOKENS), scores=CAPTUM_SCORES, uid=uid, target=np.array(1))
    target = 1 if "uid" in form else 0
    assert {uid: scores_of(path, "ig", uid, target) for uid in CAPTUM_SUMS} == CAPTUM_SUMS
    assert scores_of(path, "ig", "t0", 1 - target) == (None if "uid" in form else CAPTUM_SUMS["t0"])


def test_one_text_of_captum_is_a_batch_of_one(tmp_path: Path) -> None:
    path = tmp_path / "ig.npz"
    np.savez(path, tokens=np.array(CAPTUM_TOKENS[0]), attributions=CAPTUM_SCORES[:1])
    assert read_external(path, [FIRST], OUTPUTS)["ig"].find("t0", 0) == CAPTUM_SUMS["t0"]


def test_shap_explanations_have_scores_of_every_output(tmp_path: Path) -> None:
    data = [["", "a ", "fine ", "film", ""], ["Un", "kind ", "words, ", "café"], ["so ", "long ", "is ", "it", "?"]]
    values = [[[0, 0], [1, -1], [2, -2], [3, -3], [0, 0]], [[1, 2]] * 4, [[4, 5]] * 5]
    whole = {"values": values, "data": data, "base_values": [[0.5, 0.5]] * 3, "output_names": ["NEGATIVE", "POSITIVE"]}
    path = write(tmp_path, "s.json", whole)
    assert [scores_of(path, "shap", "t0", target) for target in (0, 1)] == [(1, 2, 3), (-1, -2, -3)]
    assert [scores_of(path, "shap", "t1", target) for target in (0, 1)] == [(2, 1, 1), (4, 2, 2)]
    assert scores_of(path, "shap", "t2", 1) == (5, 5, 5, 10)
    assert read_external(path, EXAMPLES, ("LABEL_0", "LABEL_1"))["shap"].find("t0", 1) == (-1, -2, -3)
    swapped = read_external(path, EXAMPLES, ("positive", "negative"))["shap"]
    assert swapped.find("t0", 0) == (-1, -2, -3)
    sliced = {**whole, "values": [[row[1] for row in each] for each in values], "output_names": "POSITIVE"}
    path = write(tmp_path, "one.json", sliced)
    assert [scores_of(path, "shap", "t0", target) for target in (0, 1)] == [None, (-1, -2, -3)]
    single = {"values": values[0], "data": data[0], "output_names": None}
    assert read_external(write(tmp_path, "s1.json", single), [FIRST], OUTPUTS)["shap"].find("t0", 1) == (-1, -2, -3)


def as_array(values: object, *, compressed: bool) -> dict[str, object]:
    """An array as json-tricks writes it."""
    array = np.array(values, dtype=np.float32)
    raw = gzip.compress(array.tobytes()) if compressed else array.tobytes()
    text = ("b64.gz:" if compressed else "b64:") + base64.b64encode(raw).decode()
    return {"__ndarray__": text, "dtype": "float32", "shape": list(array.shape), "Corder": True}


def instance(name: str, attributes: Mapping[str, object]) -> dict[str, object]:
    return {"__instance_type__": ["inseq.data", name], "attributes": attributes}


@pytest.mark.parametrize("form", ["plain", "array", "compressed"])
def test_inseq_outputs_are_summed_over_steps(form: str, tmp_path: Path) -> None:
    nan = float("nan")
    # One score per source token and step; vectors [token step width] count with their length.
    sources = [["\u2581a", "\u2581fine", "\u2581film", "</s>"], ["\u2581Unkind", "\u2581words", ",", "\u2581café"]]
    values: list[list[list[object]]] = [
        [[1, 2], [3, 4], [5, nan], [7, 8]],
        [[[3, 4]], [[0, 1]], [[0, 2]], [[6, 8]]],
    ]
    sequences = []
    for tokens, scores in zip(sources, values, strict=True):
        named = [{"token": token, "id": 5} for token in tokens]
        if form == "plain":
            sequences.append({"source": named, "target": [], "source_attributions": scores})
        else:
            wrapped = [instance("TokenWithId", each) for each in named]
            array = as_array(scores, compressed=form == "compressed")
            attributes = {"source": wrapped, "source_attributions": array, "target_attributions": None}
            sequences.append(instance("FeatureAttributionSequenceOutput", attributes))
    info = {"attribution_method": "saliency", "input_texts": ["a fine film", "Unkind words, café"]}
    output = {"sequence_attributions": sequences, "step_attributions": None, "info": info}
    whole = output if form == "plain" else instance("FeatureAttributionOutput", output)
    found = read_external(write(tmp_path, "out.json", whole), EXAMPLES[:2], OUTPUTS)["saliency"]
    assert found.find("t0", 0) == (3, 7, 5)
    assert found.find("t1", 0) == pytest.approx((5, 3, 10))


def test_ferret_explanations(tmp_path: Path) -> None:
    def explanation(explainer: str, target: int) -> dict[str, object]:
        tokens, scores = ["[CLS]", "a", "fine", "film", "[SEP]"], [0.0, 0.1 * target, 0.2, 0.3, 0.0]
        head = {"text": "a fine film", "tokens": tokens, "scores": scores, "explainer": explainer}
        return {**head, "target_pos_idx": target, "helper_type": "text-classification", "target": None}

    value = [[explanation("LIME", 1), explanation("Gradient", 1)], [{"explanation": explanation("LIME", 0)}]]
    found = read_external(write(tmp_path, "f.json", value), [FIRST], OUTPUTS)
    assert found["LIME"].find("t0", 1) == pytest.approx((0.1, 0.2, 0.3))
    assert found["LIME"].find("t0", 0) == pytest.approx((0.0, 0.2, 0.3))
    assert found["Gradient"].find("t0", 0) is None


def test_eraser_predictions(tmp_path: Path) -> None:
    soft = {"docid": "t0", "soft_rationale_predictions": [0.1, 0.9, 0.5], "hard_rationale_predictions": []}
    hard = {"docid": "t1", "hard_rationale_predictions": [{"start_token": 1, "end_token": 3}]}
    pair = {"docid": "t2", "soft_rationale_predictions": [1.0, 2.0]}
    rows: list[Mapping[str, object]] = [
        {"annotation_id": uid, "rationales": [each], "classification": "positive"}
        for uid, each in (("t0", soft), ("t1", hard), ("t2", pair))
    ]
    path = write(tmp_path, "model-a.jsonl", lines(rows))
    assert scores_of(path, "model-a", "t0", 1) == (0.1, 0.9, 0.5)
    assert scores_of(path, "model-a", "t1", 1) == (0, 1, 1)
    assert scores_of(path, "model-a", "t2", 1) == (1, 2, 0, 0)
    assert scores_of(path, "model-a", "t2", 0) is None


# Matching


def many(count: int) -> tuple[Example, ...]:
    return tuple(Example(f"u{number}", (f"text number {number}",)) for number in range(count))


def test_what_is_not_matched_is_counted_and_too_few_matches_are_an_error(tmp_path: Path) -> None:
    examples = many(30)
    rows: list[Mapping[str, object]] = [{"uid": f"u{number}", "scores": [1, 2, 3]} for number in range(12)]
    rows += [
        {"uid": "elsewhere", "scores": [1]},
        {"text": "another text", "scores": [1, 2]},
        {"uid": "u20", "tokens": ["other", "words"], "scores": [1, 2]},
        {"uid": "u3", "scores": [4, 5, 6]},
        # The ids of this row count in another way than those of the data.
        {"uid": "u21", "text": "text number 22", "scores": [7, 8, 9]},
    ]
    found = read_external(write(tmp_path, "s.jsonl", lines(rows)), examples)["s"]
    assert set(found.scores) == {*(f"u{number}" for number in range(12)), "u22"}
    assert found.find("u3", 0) == (1, 2, 3)
    assert found.notes[0].endswith("13 of 30 texts")
    assert sorted(note.split()[0] for note in found.notes[1:]) == ["1", "1", "2"]
    with pytest.raises(UserError, match=r"9 of 30 texts.*at least 10"):
        read_external(write(tmp_path, "few.jsonl", lines(rows[:9])), examples)


def numbered(folder: Path, header: str) -> EvaluationTable:
    """Forty texts of three words in a CSV file, with their numbers in a column of this name."""
    rows = "".join(f"{number + 100},text number n{number},{number % 2}\n" for number in range(40))
    path = write(folder, "texts.csv", f"{header},text,label\n{rows}")
    return EvaluationTable(str(path), detect_columns(path, outputs=OUTPUTS))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_line_number_alone_does_not_prove_which_text_has_the_scores(first: int, tmp_path: Path) -> None:
    table = numbered(tmp_path, "number")
    assert table.columns.uid is None
    rows: list[Mapping[str, object]] = [{"uid": number + first, "scores": [1, 2, number]} for number in range(40)]
    path = write(tmp_path, "s.jsonl", lines(rows))
    with pytest.raises(UserError, match="40 rows"):
        external_methods(path, table, tmp_path)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("proof", ["text", "tokens"])
def test_with_a_line_number_the_text_or_the_tokens_decide(proof: str, first: int, tmp_path: Path) -> None:
    table = numbered(tmp_path, "number")
    rows: list[Mapping[str, object]] = []
    for number in range(40):
        text = f"text number n{number}"
        rows.append({"uid": number + first, "scores": [1, 2, number], proof: text if proof == "text" else text.split()})
    path = write(tmp_path, "s.jsonl", lines(rows))
    scores = external_methods(path, table, tmp_path)["s"].read().scores
    examples = table.read(tmp_path).test
    assert {example.uid: scores[example.uid][None][2] for example in examples} == {
        example.uid: float(str(example.parts[0]).split("n")[-1]) for example in examples
    }


def test_unknown_tokens_alone_do_not_prove_a_line_number(tmp_path: Path) -> None:
    table = numbered(tmp_path, "number")
    rows: list[Mapping[str, object]] = [
        {"uid": number + 2, "tokens": ["[UNK]"] * 3, "scores": [1, 2, 3]} for number in range(40)
    ]
    with pytest.raises(UserError, match="40 rows"):
        external_methods(write(tmp_path, "s.jsonl", lines(rows)), table, tmp_path)


def test_an_id_column_of_the_data_names_the_texts(tmp_path: Path) -> None:
    table = numbered(tmp_path, "id")
    rows: list[Mapping[str, object]] = [{"uid": number + 100, "scores": [1, 2, number]} for number in range(40)]
    found = external_methods(write(tmp_path, "s.jsonl", lines(rows)), table, tmp_path)["s"].read()
    assert {uid: scores[None][2] for uid, scores in found.scores.items()} == {f"{n + 100}": n for n in range(40)}


def test_tokens_that_spell_two_texts_are_left_out(tmp_path: Path) -> None:
    examples = (*many(12), Example("x", ("now here",)), Example("y", ("nowhere",)))
    rows: list[Mapping[str, object]] = [
        {"tokens": ["text", "number", str(number)], "scores": [1, 2, 3]} for number in range(12)
    ]
    rows += [{"tokens": ["now", "##here"], "scores": [1, 2]}]
    found = read_external(write(tmp_path, "s.jsonl", lines(rows)), examples)["s"]
    assert set(found.scores) == {example.uid for example in many(12)}
    rows[-1] = {**rows[-1], "text": "nowhere"}
    assert read_external(write(tmp_path, "s.jsonl", lines(rows)), examples)["s"].find("y", 0) == (3,)


# The method


@dataclass(frozen=True)
class Subject:
    table: EvaluationTable
    folder: Path


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    path = write(tmp_path, "texts.csv", "id,text,label\nt0,a fine film,1\nt1,Unkind words,0\n")
    return Subject(EvaluationTable(str(path), detect_columns(path, outputs=OUTPUTS)), tmp_path)


def a_batch(uids: tuple[str, ...], words: list[list[int]]) -> Batch:
    units = torch.tensor(words)
    return Batch(uids, units + 10, torch.ones_like(units, dtype=torch.bool), torch.zeros_like(units), units)


def explain(method: ExternalAttributions, batch: Batch, target: list[int]) -> tuple[Tensor, Tensor]:
    found = method(torch.nn.Module(), batch, torch.tensor(target))  # type: ignore[arg-type] # no model is asked
    return found.scores, found.mask


def test_the_score_of_a_word_is_divided_among_its_units(subject: Subject) -> None:
    rows: list[Mapping[str, object]] = [
        {"uid": "t0", "method": "x", "scores": [1, 6, -3], "target": "negative"},
        {"uid": "t1", "method": "x", "tokens": ["Un", "##kind", "words"], "scores": [1, 2, 5]},
    ]
    path = write(subject.folder, "s.jsonl", lines(rows))
    methods = external_methods(str(path), subject.table, subject.folder)
    method = methods["x"]
    assert isinstance(method, ExternalAttributions)
    assert method_name(method) == "x"
    batch = a_batch(("t0", "t1", "t9"), [[-1, 0, 1, 1, 1, 2], [-1, 0, 0, 1, -1, -1], [-1, 0, 1, 2, 3, -1]])
    scores, mask = explain(method, batch, [0, 1, 0])
    assert scores.tolist() == [[0, 1, 2, 2, 2, -3], [0, 1.5, 1.5, 5, 0, 0], [0] * 6]
    assert mask.tolist() == [[False, *[True] * 5], [False, True, True, True, False, False], [False] * 6]
    scores, mask = explain(method, batch, [1, 1, 0])  # the file has no scores of t0 for output 1
    assert not mask[0].any()
    assert not scores[0].any()
    assert method.covered_uids() == {"t0", "t1"}
    assert method.covered_uids({"t0": 1, "t1": 1, "t9": 0}) == {"t1"}


def test_the_content_of_the_file_enters_the_fingerprint(subject: Subject) -> None:
    rows: list[Mapping[str, object]] = [{"uid": "t0", "scores": [1, 6, -3]}, {"uid": "t1", "scores": [1, 2]}]
    path = write(subject.folder, "s.jsonl", lines(rows))
    method = external_methods(path, subject.table, subject.folder)["s"]
    before = canonical_json(method, subject.folder)
    assert canonical_json(method, subject.folder / "elsewhere") == before
    write(subject.folder, "s.jsonl", lines([rows[0], {"uid": "t1", "scores": [1, 7]}]))
    assert canonical_json(method, subject.folder) != before
    assert isinstance(method, ExternalAttributions)
    assert method.read().find("t1", 0) == (1, 7)
    text = Path(subject.table.path).read_text()
    Path(subject.table.path).write_text(text.replace("a fine film", "a fine movie"))
    changed = replace(method, corpus=subject.table)
    assert canonical_json(changed, subject.folder) != before


# Hostile inputs


def saved(tokens: object, scores: object = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        if scores is None:
            np.savez(folder / "a.npz", tokens=np.array(tokens))
        else:
            np.savez(folder / "a.npz", tokens=np.array(tokens), scores=np.array(scores))
        return folder / "a.npz"

    return make


def content(name: str, value: object) -> Callable[[Path], Path]:
    return lambda folder: write(folder, name, value)


def inseq_array(**changes: object) -> dict[str, object]:
    array = {**as_array([[1.0]], compressed=True), **changes}
    return {"sequence_attributions": [{"source": [{"token": "a"}], "source_attributions": array}], "info": {}}


SPAN_OF_9 = {"start_token": 0, "end_token": 9}
BAD: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "absent": (lambda folder: folder / "absent.jsonl", "no such file"),
    "absent npz": (lambda folder: folder / "absent.npz", "no such file"),
    "absent json": (lambda folder: folder / "absent.json", "unreadable"),
    "unknown type": (content("a.pkl", "x"), "unknown file type"),
    "no npz": (content("a.npz", "plain"), "not an .npz file"),
    "pickled tokens": (saved(tokens=np.array([["a"], ["b", "c"]], dtype=object), scores=[[1.0], [2.0]]), "not an .npz"),
    "npz without scores": (saved(tokens=[["a"]]), "no scores"),
    "npz of other lengths": (saved(tokens=[["a", "b"]], scores=[[1.0, 2.0], [3.0, 4.0]]), "1 texts, but scores of 2"),
    "empty": (content("a.json", ""), "no scores"),
    "empty list": (content("a.json", []), "has no scores"),
    "a number": (content("a.json", 5), "no scores"),
    "a list of words": (content("a.json", ["a"]), "no scores"),
    "deep lists": (content("a.json", [[[[[[[]]]]]]]), "no scores"),
    "no scores": (content("a.json", [{"uid": "t0"}]), "no scores; the columns are"),
    "scores of words": (content("a.json", [{"uid": "t0", "scores": ["x"]}]), "give a list of numbers"),
    "scores that are no list": (content("a.json", [{"uid": "t0", "scores": 3}]), "give a list of numbers"),
    "NaN": (content("a.json", '[{"uid": "t0", "scores": [NaN, 1, 2]}]'), "score of token 1 is not a finite"),
    "infinite": (content("a.json", '[{"uid": "t0", "scores": [1, [Infinity, -Infinity], 2]}]'), "token 2 is not a"),
    "huge": (content("a.json", '[{"uid": "t0", "scores": [1' + "0" * 400 + "]}]"), "token 1 is not a finite"),
    "tokens of numbers": (content("a.json", [{"uid": "t0", "tokens": [1], "scores": [1]}]), "the tokens are [1]"),
    "fewer scores than tokens": (
        content("a.json", [{"uid": "t0", "tokens": ["a", "fine"], "scores": [1]}]),
        "2 tokens, but 1 scores",
    ),
    "fewer scores than words": (content("a.json", [{"uid": "t0", "scores": [1]}]), "1 scores, but the text"),
    "long name": (content("a.json", [{"uid": "t0", "scores": [1], "method": "x" * 100}]), "give a short name"),
    "name of a number": (content("a.json", [{"uid": "t0", "scores": [1], "method": 5}]), "the method is 5"),
    "many methods": (
        content("a.json", [{"uid": "t0", "scores": [1, 2, 3], "method": f"m{n}"} for n in range(60)]),
        "more than 50 methods",
    ),
    "unknown target": (content("a.json", [{"uid": "t0", "scores": [1, 2, 3], "target": "cat"}]), "'cat'"),
    "target of a list": (content("a.json", [{"uid": "t0", "scores": [1, 2, 3], "target": [1]}]), "the target is [1]"),
    "nothing matches": (content("a.json", [{"uid": "zz", "scores": [1]}]), "0 of 1 texts"),
    "shap of other lengths": (content("a.json", {"values": [1], "data": ["a", "b"]}), "lists of the same length"),
    "shap of a number": (content("a.json", {"values": [3], "data": [["a"]]}), "the values are 3"),
    "shap with ragged outputs": (content("a.json", {"values": [[1, 2], [1]], "data": ["a", "b"]}), "text 1"),
    "inseq of nothing": (content("a.json", {"sequence_attributions": 5}), "sequence_attributions is 5"),
    "inseq of numbers": (content("a.json", {"sequence_attributions": [5]}), "text 1: 5"),
    "inseq without scores": (content("a.json", {"sequence_attributions": [{}]}), "neither source_attributions"),
    "inseq array of objects": (content("a.json", inseq_array(dtype="object")), "has the type 'object'"),
    "inseq array, other shape": (content("a.json", inseq_array(shape=[10**3, 10**3])), "bytes instead of"),
    "inseq array, huge shape": (content("a.json", inseq_array(shape=[10**6, 10**6])), str(10**12)),
    "inseq array, huge shape in line 2": (
        content("a.jsonl", lines([inseq_array(), inseq_array(shape=[10**6, 10**6])])),
        str(10**12 + 1),
    ),
    "score of 1e308": (content("a.json", '[{"uid": "t0", "scores": [1e308, 1e308, -1e308]}]'), "1e+308"),
    "vector of 1e308": (content("a.json", '[{"uid": "t0", "scores": [1, [1e308, 1e308], 2]}]'), "token 2"),
    "inseq score of 1e308": (
        content("a.json", {"sequence_attributions": [{"source": ["a"], "source_attributions": [[[1e308, 1e308]]]}]}),
        "1e+308",
    ),
    "inseq array, no base64": (content("a.json", inseq_array(__ndarray__="b64.gz:***")), "cannot be decoded"),
    "inseq array, a bomb": (
        content("a.json", inseq_array(__ndarray__="b64.gz:" + base64.b64encode(gzip.compress(bytes(10**7))).decode())),
        "has 5 bytes instead of 4",
    ),
    "eraser without documents": (content("a.json", [{"rationales": [], "annotation_id": "t0"}]), "of 0 documents"),
    "eraser without spans": (content("a.json", [{"rationales": [{"docid": "t0"}]}]), "no start_token"),
    "eraser beyond the text": (
        content("a.json", [{"rationales": [{"docid": "t0", "hard_rationale_predictions": [SPAN_OF_9]}]}]),
        "words 0 to 9 are predicted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD))
def test_bad_files_end_in_one_line(name: str, tmp_path: Path) -> None:
    make, word = BAD[name]
    with pytest.raises(UserError) as error:
        read_external(make(tmp_path), [FIRST], OUTPUTS)
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def claimed(shape: tuple[int, ...], descr: str = "<f8", body: int = 8) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "a.npz"
        path.write_bytes(claiming(shape, "scores", "uid", descr=descr, body=body))
        return path

    return make


def zeros(rows: int) -> Callable[[Path], Path]:
    """Arrays of a million zeros each in base64, compressed to a kilobyte."""
    array = as_array(np.zeros((1000, 1000)), compressed=True)
    sequence = {"source": [{"token": "a"}] * 1000, "source_attributions": array}
    return content("a.json", [{"sequence_attributions": [sequence], "info": {}}] * rows)


LARGE: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "8 TiB": (claimed((1 << 40,)), str(1 << 40)),
    "negative": (claimed((-1,)), "-1"),
    "a text of 8 GB": (claimed((1,), "<U500000000"), "8 bytes"),
    "256 MB of zeros": (claimed((4, 1 << 23), body=1 << 28), str(1 << 25)),
    "256 MB of blanks": (claimed((1, 1), f"<U{1 << 26}", body=1 << 28), str(1 << 21)),
    "256 MB in four dimensions": (claimed((2, 2, 2, 1 << 22), body=1 << 28), str(1 << 25)),
    "many arrays in base64": (zeros(5), str(5 * 10**6)),
}


@pytest.mark.parametrize("name", list(LARGE))
@pytest.mark.slow
def test_arrays_that_are_too_large_are_refused_before_they_are_read(name: str, tmp_path: Path) -> None:
    make, word = LARGE[name]
    path = make(tmp_path)
    examples = [*many(3), Example("x", ("a " * 1000,))]
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            read_external(path, examples, OUTPUTS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert peak < 1 << 28, peak


def test_arrays_as_large_as_the_texts_are_read(tmp_path: Path) -> None:
    """Padded to the longest text, with a vector for each token."""
    examples = tuple(Example(f"u{number}", ("a " * (10 + number),)) for number in range(12))
    tokens = np.array([["a"] * (10 + number) + ["[PAD]"] * (490 - number) for number in range(12)])
    scores = np.ones((12, 500, 32), np.float32)
    np.savez_compressed(tmp_path / "s.npz", tokens=tokens, scores=scores, uid=np.array([e.uid for e in examples]))
    found = read_external(tmp_path / "s.npz", examples)["s"]
    assert found.find("u3", 0) == (32.0,) * 13


KEYS = (
    *("uid", "tokens", "scores", "values", "data", "rationales", "sequence_attributions", "source", "target", "text"),
    *("source_attributions", "__ndarray__", "dtype", "shape", "explanation", "method"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["a", "t0", "b64:AAAA", "[1]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_any_json_is_scores_or_refused(value: object, tmp_path: Path) -> None:
    path = write(tmp_path, "any.json", value)
    with suppress(UserError):
        read_external(path, [FIRST], OUTPUTS)


def test_records_carry_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, "s.json", [{"uid": "t0", "scores": [1]}, {"uid": "t1", "scores": [2]}])
    assert [record.location for record in read_score_records(path)] == [f"{path}, row 1", f"{path}, row 2"]


def test_images_have_no_words() -> None:
    with pytest.raises(UserError, match="texts only"):
        read_external(Path("absent.json"), [Example("i", (torch.zeros(1, 2, 2),))], OUTPUTS)


def test_alignment_agrees_with_the_offsets_of_a_tokenizer() -> None:
    texts = ["Un café très cher, vraiment…", "so naïve ; 中文 words", "a fine film"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet))
    for text in texts:
        encoded, words = tokenizer.encode(text), text.split()
        ends = np.cumsum([len(word) + 1 for word in words])
        scores = [float(2**place) for place in range(len(encoded.tokens))]
        expected = [0.0] * len(words)
        for score, (start, end) in zip(scores, encoded.offsets, strict=True):
            visible = next((place for place in range(start, end) if text[place] != " "), start + 1)
            expected[int(np.searchsorted(ends, visible, side="right"))] += score
        assert align_scores(encoded.tokens, scores, words) == pytest.approx(tuple(expected))
