"""The explorer: stored numbers and nothing else, safe against markup, the same bytes for the same workspace."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from dataclasses import asdict, dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.attributions.attention import AttentionXGradient, RawAttention
from heedful.attributions.controls import RandomizedModel
from heedful.attributions.gradient import Gradient
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.method import MethodTags, method_name, tags_of
from heedful.attributions.perturbation import LeaveOneOut
from heedful.formatting import page_text
from heedful.report import text_sources
from heedful.report.charts import png_pixels
from heedful.report.explorer import (
    ALL_HEADS,
    _selections,
    data_json,
    delete_stale_pages,
    explorer_parts,
    outcome_table,
    table_beside,
    write_explorer,
    write_text_page,
)
from heedful.report.text_sources import (
    _attribution_rows,
    _StoredAttributions,
    collect_texts,
    find_model_texts,
    natural_sort_key,
    tabulate_texts,
)
from heedful.report.text_table import (
    FOLDER,
    LEAST_FAITHFUL,
    MOST_MANIPULABLE,
    ScoreCell,
    ScoreColumn,
    TextMetric,
    TextRow,
    TextTable,
    decode_head_maps,
    encode_head_maps,
    read_text_table,
    write_text_table,
)
from heedful.store.artefact_files import CorruptArtefactError, IndexEntry
from heedful.store.recipe import Artefact, to_json
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import TAGS_NOTE, TrueClass, read_tags
from heedful.types import Method, Pooling, UserError
from tests.papers.results import entry
from tests.stored import COMMENT, HOSTILE, SCORES, TEXTS, THIRD, FilmAdversary, FilmModel, FilmScores, films, stored
from tests.tabs import launched, opened

MODEL = FilmModel()
ROW = ScoreColumn("attention")


@dataclass(frozen=True)
class StoredColumns:
    """An artefact with columns only."""

    columns: dict[str, list[object]]
    notes: dict[str, object] = field(default_factory=dict)


def texts_in(workspace: Workspace) -> TextTable:
    [source] = find_model_texts(workspace.entries())
    return collect_texts(source, IndexEntry.open)


def write_all(workspace: Workspace, folder: Path) -> list[Path]:
    sources = find_model_texts(workspace.entries())
    written = [write_explorer(source, sources, folder, IndexEntry.open) for source in sources]
    delete_stale_pages(folder / FOLDER, {path.name for path in written})
    return written


@pytest.fixture(scope="module")
def film_texts(tmp_path_factory: pytest.TempPathFactory) -> TextTable:
    return texts_in(films(tmp_path_factory.mktemp("films")))


def one_text(tokens: tuple[str, ...]) -> TextTable:
    text = TextRow("t", tokens, (), 0, 0, 0.5, None, (), (ScoreCell(np.full(len(tokens), 0.1)),))
    return TextTable({}, (), (ROW,), (), texts=(text,))


def explorer_html(table: TextTable) -> str:
    return "".join(explorer_parts(table))


def data_of(document: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', document, re.S)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_every_stored_row_is_in_the_page_with_four_digits(film_texts: TextTable) -> None:
    content = json.loads(data_json(film_texts))
    adversarial = [f"adversarial attention, {how}" for how in ("exact, epsilon 0.05", "exact, epsilon 0.01")]
    assert [row["name"] for row in content["rows"]] == [
        "attention", *adversarial, "gradient", "leave-one-out", "adversarial attention, search, epsilon 0.05"
    ]  # fmt: skip
    assert len(content["texts"]) == 3
    for text in content["texts"]:
        scores = SCORES[text["uid"]]
        signed = [value * (-1) ** place for place, value in enumerate(scores)]
        last = [0.0] * (len(scores) - 1) + [1.0]
        for row, weights in zip(text["rows"], [scores, last, last, signed, scores, last], strict=True):
            assert row["weights"] == pytest.approx(weights, rel=1e-3)
        adversary = text["rows"][1]
        assert [adversary[name] for name in ("divergence", "bound", "change", "certified")] == pytest.approx(
            [0.1 * len(scores), 0.6, 0.0123, text["uid"] != "t-2"]
        )


def test_special_tokens_and_numbers_that_are_not_stored_are_missing(film_texts: TextTable) -> None:
    names = [metric.name for metric in film_texts.metrics]
    assert names == ["largest attention weight", "median change under permutation"]
    assert [(text.uid, text.tokens, text.metrics) for text in film_texts.texts] == [
        ("t-2", TEXTS["t-2"], (0.7, 0.02)),
        (THIRD, TEXTS[THIRD], (0.25, None)),
        ("t-10", TEXTS["t-10"], (0.5, 0.3)),
    ]
    assert natural_sort_key("t-" + "9" * 5000) > natural_sort_key("t-2")


class Elements(HTMLParser):
    """The names of all elements, as a browser without script finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)


def test_markup_in_tokens_uids_and_classes_stays_text(film_texts: TextTable) -> None:
    document = explorer_html(film_texts)
    names = Elements(document).names
    assert (names.count("script"), names.count("img"), names.count("style")) == (2, 0, 1)
    assert document.count("</script") == 2
    assert COMMENT not in document
    content = data_of(document)
    assert content["classes"] == ["bad", f"good {HOSTILE}"]
    assert content["texts"][1]["uid"] == THIRD
    assert content["texts"][1]["tokens"] == list(TEXTS[THIRD])


@given(st.lists(st.text(max_size=6), max_size=6))
def test_json_cannot_leave_its_element_and_gives_the_tokens_back(tokens: list[str]) -> None:
    safe = tuple(page_text(token) for token in tokens)
    block = data_json(one_text(safe))
    assert not set("<>&\u2028\u2029") & set(block)
    assert json.loads(block)["texts"][0]["tokens"] == list(safe)


def test_undefined_and_infinite_weights_are_null(tmp_path: Path) -> None:
    texts = json.loads(data_json(texts_in(stored(tmp_path, FilmScores(MODEL, sign=float("inf"))))))["texts"]
    assert [text["rows"][0]["weights"][0] for text in texts] == [0.7, 0.25, 0.2]
    assert {weight for text in texts for weight in text["rows"][0]["weights"][1:]} == {None}


def test_the_same_workspace_gives_the_same_bytes_and_unchanged_pages_are_not_rewritten(tmp_path: Path) -> None:
    workspace = films(tmp_path / "w")
    pages = [write_all(workspace, tmp_path / name)[0] for name in ("a", "b")]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert table_beside(pages[0]).read_bytes() == table_beside(pages[1]).read_bytes()
    before = pages[0].stat().st_mtime_ns
    write_all(workspace, tmp_path / "a")
    assert pages[0].stat().st_mtime_ns == before
    workspace.get(FilmScores(MODEL, "lime"))
    write_all(workspace, tmp_path / "a")
    assert pages[0].stat().st_mtime_ns > before
    assert "lime" in pages[0].read_text(encoding="utf-8")


def test_of_two_samples_the_larger_one_is_shown(tmp_path: Path) -> None:
    found = texts_in(stored(tmp_path, FilmScores(MODEL, limit=2, texts=2), FilmScores(MODEL, limit=None)))
    assert (len(found.texts), len(found.rows)) == (3, 1)


def test_attention_comes_from_the_adversary_where_no_attribution_has_it(tmp_path: Path) -> None:
    found = texts_in(stored(tmp_path, FilmScores(MODEL, "gradient"), FilmAdversary(MODEL)))
    assert found.rows[0].name == "attention"
    row = found.texts[0].rows[0]
    assert row is not None
    assert row.weights.tolist() == [*SCORES["t-2"]]


def test_the_attention_that_is_replaced_in_a_transformer_has_a_row_of_its_own(tmp_path: Path) -> None:
    whole = FilmScores(MODEL, sign=-1.0)
    found = texts_in(
        stored(tmp_path / "one", whole, FilmAdversary(MODEL, layer=-1), FilmAdversary(MODEL, "search", layer=-1))
    )
    names = [row.name for row in found.rows]
    assert [name.partition(",")[0] for name in names] == [
        "attention", "replaced attention", "adversarial attention", "adversarial attention",
    ]  # fmt: skip
    own = found.texts[0].rows[1]
    assert own is not None
    assert own.weights.tolist() == [*SCORES["t-2"]]
    two = stored(
        tmp_path / "two", FilmScores(MODEL, "gradient"), *(FilmAdversary(MODEL, layer=layer) for layer in (0, 1))
    )
    assert [row.name for row in texts_in(two).rows][:2] == [
        f"replaced attention, layer {layer}, head None" for layer in (0, 1)
    ]


def test_weights_of_other_tokens_are_left_out_and_missing_rows_are_none(tmp_path: Path) -> None:
    workspace = stored(
        tmp_path, FilmScores(MODEL), FilmScores(MODEL, "lime", cut=1), FilmScores(MODEL, "flow", texts=1)
    )
    found = texts_in(workspace)
    assert [row.name for row in found.rows] == ["attention", "flow", "lime"]
    present = {text.uid: [row is not None for row in text.rows] for text in found.texts}
    assert present == {"t-10": [True, True, False], "t-2": [True, False, False], THIRD: [True, False, False]}


def test_each_split_and_each_seed_has_its_page_with_links_to_the_other_seeds(tmp_path: Path) -> None:
    models = [FilmModel(0), FilmModel(1)]
    workspace = stored(tmp_path / "w", *map(FilmScores, models), FilmScores(models[0], split="dev"))
    pages = write_all(workspace, tmp_path / "r")
    stems = [path.name.rpartition("-")[0] for path in pages]
    assert stems == [f"films-bilstm-additive-seed-{end}" for end in ("0", "0-dev", "1")]
    assert f'href="{pages[2].name}"' in pages[0].read_text(encoding="utf-8")
    assert f'href="{pages[1].name}"' not in pages[0].read_text(encoding="utf-8")


def test_pages_of_models_that_are_gone_are_deleted_and_foreign_files_stay(tmp_path: Path) -> None:
    [old] = write_all(films(tmp_path / "one"), tmp_path / "report")
    foreign = old.with_name("notes-0123456789ab.html")
    foreign.write_text("mine")
    [new] = write_all(films(tmp_path / "two", seed=1), tmp_path / "report")
    assert sorted(new.parent.iterdir()) == sorted([foreign, new, table_beside(new)])


def test_a_sample_and_a_missing_adversary_are_warned_of(tmp_path: Path) -> None:
    found = texts_in(stored(tmp_path, FilmScores(MODEL, total=50)))
    assert len(found.warnings) == 2
    assert "3 of 50" in found.warnings[0]


def test_of_too_many_texts_some_are_shown_the_same_of_every_table_and_those_of_small_tables_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FilmModel()
    recipes = (
        FilmScores(model),
        FilmScores(model, "gradient"),
        FilmScores(model, "lime", texts=1),
        FilmAdversary(model),
    )
    workspace = stored(tmp_path, *recipes)
    everything = texts_in(workspace)
    monkeypatch.setattr(text_sources, "MAX_SHOWN_TEXTS", 2)
    found = texts_in(workspace)
    assert "2 of 3 texts; the others are not shown." in found.warnings
    uids = [text.uid for text in found.texts]
    assert len(uids) == 2
    assert "t-10" in uids  # the only one with scores of LIME
    assert repr(found.texts) == repr(tuple(text for text in everything.texts if text.uid in uids))
    assert found.rows == everything.rows


def test_a_large_table_is_read_from_disk_and_gives_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = films(tmp_path)
    expected = texts_in(workspace)
    monkeypatch.setattr("heedful.store.artefact_files.LARGE_FILE", 0)
    assert repr(texts_in(workspace)) == repr(expected)
    (entry,) = [each for each in workspace.entries() if each.facts.get("method") == "gradient"]
    table = entry.path / "table.parquet"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(bytes(content))
    with pytest.raises(CorruptArtefactError, match=r"table\.parquet differs"):
        texts_in(workspace)
    with pytest.raises(CorruptArtefactError):
        entry.open().verify()


def without_script(table: TextTable) -> str:
    return explorer_html(table).split("<noscript>")[1].split("</noscript>")[0]


def test_the_first_texts_are_there_without_a_script(film_texts: TextTable) -> None:
    fallback = without_script(film_texts)
    assert fallback.count("<figure") == 3
    assert 'title="0.700"' in fallback
    one = one_text(("good", "film"))
    many = replace(one, texts=one.texts * 25)
    assert without_script(many).count("<figure") == 20


def test_a_corpus_with_a_long_name_has_pages_of_its_own(tmp_path: Path) -> None:
    model = FilmModel(corpus="very long " * 60)
    workspace = stored(tmp_path / "work", FilmScores(model), FilmScores(model, split="dev"))
    names = [path.name for path in write_all(workspace, tmp_path / "report")]
    assert len({*names}) == 2
    assert max(map(len, names)) < 200


@pytest.mark.parametrize(
    ("method", "pooling"),
    [
        (RawAttention(), "mean"),
        (RandomizedModel(), "mean"),
        (RandomizedModel(Gradient()), "sum"),
        (AttentionXGradient(), "mean"),
        (AttentionXGradient(positive=False), "sum"),
        (LayerMix(score_type="distribution"), "mean"),
        (LayerMix(), "sum"),
        (TrueClass(LeaveOneOut("distribution")), "mean"),
    ],
)
def test_a_row_follows_the_tags_that_are_stored_with_it(method: Method, pooling: Pooling) -> None:
    source = entry("scores", "attributions", facts={"method": method_name(method)})
    tags = read_tags({TAGS_NOTE: to_json(asdict(tags_of(method)))})
    [row] = [each.row for each in _attribution_rows([_StoredAttributions(source, {"uid": [], "scores": []}, tags)])]
    assert row == ScoreColumn(row.name, tags.caption, is_visible=not tags.is_control, pooling=pooling)


def test_the_note_on_a_method_that_samples_until_it_is_accurate_has_the_mean_of_its_samples() -> None:
    source = entry("scores", "attributions", facts={"method": "lime(error=0.05)"})
    cells: dict[str, list[object]] = {"uid": ["a", "b"], "scores": [np.ones(1), np.ones(1)]}
    plain, sampled = (
        _StoredAttributions(source, table, MethodTags()) for table in (cells, cells | {"samples": [40, 62]})
    )
    notes = [weights.row.note for weights in _attribution_rows([plain, sampled])]
    assert ["51 samples" in note for note in notes] == [False, True]


PIECES = {
    "t-1": (["[CLS]", "un", "##watch", "##able", "film", "[SEP]"], [-1, 0, 0, 0, 1, -1]),
    "t-2": (["[CLS]", "a", "fine", "film", "[SEP]"], [-1, 0, 1, 2, -1]),
}
ROWS = (ScoreColumn("lime", pooling="sum"), ScoreColumn("attention"), ScoreColumn("gradient", pooling="sum"))
FAITHFULNESS, CHANGE = TextMetric("share", LEAST_FAITHFUL), TextMetric("change", MOST_MANIPULABLE, is_descending=True)


def audited() -> TextTable:
    """Two texts in pieces of words, one with a wrong prediction, one with words that people marked."""
    scores = {
        "lime": {"t-1": [9.0, 0.2, -0.5, 0.1, 0.4, 9.0], "t-2": [0.0, 0.1, 0.2, 0.3, 0.0]},
        "attention": {"t-1": [0.4, 0.1, 0.2, 0.0, 0.3, 0.0], "t-2": [0.1, 0.3, 0.2, 0.1, 0.3]},
        "gradient": {"t-1": [0.0, 0.1, 0.1, 0.1, 0.5, 0.0], "t-2": [0.0, 0.2, 0.2, 0.9, 0.0]},
    }
    tables = {
        name: pd.DataFrame([
            {"uid": uid, "units": units, "scores": own[uid], "scored": [word >= 0 for word in words], "words": words,
             "segments": [0] * len(words), "predicted": 1, "probability": 0.9, "label": int(uid == "t-2")}
            for uid, (units, words) in PIECES.items()
        ])
        for name, own in scores.items()
    }  # fmt: skip
    metrics = {FAITHFULNESS: {"t-1": 0.2, "t-2": 0.8}, CHANGE: {"t-1": 0.01234567}}
    return tabulate_texts(tables, ROWS, {"model": "m", "corpus": "c"}, ("bad", "good"), metrics, {"t-1": {0}})


def test_texts_of_an_audit_have_words_marks_and_numbers() -> None:
    first, second = audited().texts
    assert first.tokens == ("un", "watch", "able", "film")
    assert (first.words, second.words) == ((0, 0, 0, 1), ())
    assert (first.marked, second.marked) == ((0, 1, 2), None)
    assert (first.metrics, second.metrics) == ((0.2, 0.01235), (0.8, None))
    assert first.rows[0] is not None
    assert first.rows[0].weights.tolist() == [0.2, -0.5, 0.1, 0.4]


def test_a_word_has_the_sum_of_contributions_and_the_mean_of_weights_without_a_script() -> None:
    parts = without_script(audited()).split('class="tokens"')[1:]
    strips = [re.findall(r'title="([^"]+)">([^<]+)</span>', part) for part in parts]
    assert strips[0] == [("1.00", "unwatchable"), ("0", "film")]
    assert strips[1] == [("−0.200", "unwatchable"), ("0.400", "film")]
    assert strips[2] == [("0.100", "unwatchable"), ("0.300", "film")]


def test_right_and_wrong_predictions_are_apart_and_selections_have_their_order() -> None:
    table = outcome_table(audited())
    assert table is not None
    assert table.rows == (
        ("texts", 1, 1), ("probability of the prediction", 0.9, 0.9), ("share", 0.8, 0.2), ("change", None, 0.01235)
    )  # fmt: skip
    found = {each.label: (each.outcome, each.order, each.direction) for each in _selections(audited())}
    assert found == {
        "Wrong predictions, surest first (1)": ("wrong", "probability", "-1"),
        "Strongest disagreement": ("", "disagreement", "-1"),
        LEAST_FAITHFUL: ("", "metric 0", "1"),
        MOST_MANIPULABLE: ("", "metric 1", "-1"),
    }


def test_faithfulness_of_a_trial_is_a_number_of_each_text_and_method(tmp_path: Path) -> None:
    workspace = films(tmp_path)
    [source] = find_model_texts(workspace.entries())
    columns = {"uid": ["t-2", "t-2", "t-10"], "method": ["lime", "random", "lime"], "control": [False, True, False]}
    table = pd.DataFrame(columns | {"aopc_comprehensiveness": [0.25, 0.1, 0.5]})
    trial = entry("erasure", artefact=Artefact(table=table), links={"subject": ["model"]})
    artefact = StoredColumns({str(name): list(cells) for name, cells in table.items()})
    found = collect_texts(
        replace(source, trials=(trial,)), lambda each: artefact if each is trial else each.open()  # type: ignore[return-value, arg-type]
    )  # fmt: skip
    assert found.metrics[-1] == TextMetric("comprehensiveness of lime", LEAST_FAITHFUL)
    assert {text.uid: text.metrics[-1] for text in found.texts} == {"t-2": 0.25, "t-10": 0.5, THIRD: None}


@pytest.mark.browser
@pytest.mark.slow
def test_words_pieces_marks_and_selections_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "texts.html"
    path.write_text(explorer_html(audited()), encoding="utf-8")
    with launched() as browser:
        tab, faults = opened(browser.new_context(viewport={"width": 1000, "height": 800}), path.as_uri())

        def shown(uid: str) -> list[list[str]]:
            script = "(strips) => strips.map((strip) => [...strip.children].map((e) => `${e.textContent} ${e.title}`))"
            strips: list[list[str]] = tab.locator(f'figure[data-uid="{uid}"] .tokens').evaluate_all(script)
            return strips

        assert shown("t-1") == [
            ["unwatchable marked", "film not marked"],
            ["unwatchable −0.200", "film 0.400"],
            ["unwatchable 0.100", "film 0.300"],
            ["unwatchable 0.300", "film 0.500"],
        ]
        assert len(shown("t-2")) == 3
        tab.locator("#units").select_option("pieces")
        assert shown("t-1")[1] == ["un 0.200", "watch −0.500", "able 0.100", "film 0.400"]
        tab.get_by_role("button", name="Wrong predictions").click()
        assert tab.locator("#count").inner_text() == "1 to 1 of 1 texts (of 2)"
        tab.get_by_role("button", name="Strongest disagreement").click()
        assert [each.get_attribute("data-uid") for each in tab.locator("#list figure").all()] == ["t-2", "t-1"]
        # lime ~ attention -1, lime ~ gradient and attention ~ gradient by scipy.stats.spearmanr
        expected = 1 - (-1 + 0.8660254 - 0.8660254) / 3
        value = tab.locator('figure[data-uid="t-2"] dl div', has_text="disagreement").locator("dd").inner_text()
        assert float(value) == pytest.approx(expected, abs=0.005)
        tab.goto(f"{path.as_uri()}#t-1")
        assert tab.locator(".target").get_attribute("data-uid") == "t-1"
        assert faults == []


MAPS = {
    # [layer head word]: layer 1, head 0 looks at "film" only, and weakly
    "t-1": np.array([[[0.2, 0.1], [0.1, 0.4]], [[0.0, 2**-9], [0.2, 0.2]]]),
    "t-2": np.full((2, 2, 3), 0.25),
}


def with_heads() -> TextTable:
    """The first text has three pieces in its first word, so that its weight counts three times in a share."""
    units = {uid: (list(own), list(words)) for uid, (own, words) in PIECES.items()}
    table = pd.DataFrame([
        {"uid": uid, "units": own, "scores": [0.1] * len(own), "scored": [word >= 0 for word in words], "words": words}
        for uid, (own, words) in units.items()
    ])  # fmt: skip
    return tabulate_texts({"attention": table}, [ScoreColumn("attention")], {}, (), head_maps=MAPS)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(1e-4, 1))
def test_maps_of_heads_are_kept_to_a_small_part_of_their_largest_weight(weights: list[float], scale: float) -> None:
    maps = np.array([[weights, [scale * weight for weight in weights]]])
    found = decode_head_maps(encode_head_maps(maps), (1, 2))
    peaks = maps.max(-1, keepdims=True)
    assert np.all(np.abs(found - maps) <= np.maximum(peaks / 488, 1e-7))


def test_maps_of_heads_are_in_the_page_and_their_mean_without_a_script() -> None:
    data = with_heads()
    assert data.heads == (2, 2)
    assert decode_head_maps(data.texts[0].maps, data.heads) == pytest.approx(MAPS["t-1"], abs=1e-3)
    shown = without_script(data).split(ALL_HEADS)[1].split('class="tokens"')[1]
    assert re.findall(r'title="([^"]+)">([^<]+)</span>', shown)[:2] == [("0.125", "unwatchable"), ("0.175", "film")]


def test_maps_of_other_texts_and_of_a_single_head_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_heads()
    with monkeypatch.context() as patch:
        patch.setattr(text_sources, "MAX_MAP_CHARACTERS", len(data.texts[0].maps))
        cut = with_heads()
    assert [bool(text.maps) for text in cut.texts] == [True, False]
    assert len(cut.warnings) == 1
    monkeypatch.setitem(MAPS, "t-1", np.ones((2, 2, 5)))
    assert [bool(text.maps) for text in with_heads().texts] == [False, True]
    for uid, words in (("t-1", 2), ("t-2", 3)):
        monkeypatch.setitem(MAPS, uid, np.ones((1, 1, words)))
    assert with_heads().heads == (0, 0)


def with_images() -> TextTable:
    """An image of 2 x 4 pixels in two patches, of which the second speaks against the prediction."""
    row = {
        "uid": "i-1", "units": ["<class>", "0,0", "0,1"], "scores": [0.0, 0.5, -0.25], "scored": [False, True, True],
        "words": [-1, 0, 1], "predicted": 1, "probability": 0.9, "label": 0,
    }  # fmt: skip
    tables = {"lime": pd.DataFrame([row])}
    images = {"i-1": np.full((2, 4, 3), 51, dtype=np.uint8)}
    return tabulate_texts(tables, [ScoreColumn("lime")], {}, ("bad", "good"), images=images)


def test_an_image_is_shown_beside_the_scores_of_its_patches_without_a_script() -> None:
    data = with_images()
    assert data.patches == (1, 2)
    images = re.findall(r'href="data:image/png;base64,([^"]+)"', without_script(data))
    shown, scores = (np.asarray(png_pixels(each).rows) for each in images)
    assert shown == pytest.approx(np.full((2, 4, 3), 0.2))
    assert scores.shape == (1, 2, 3)
    assert "img-src data:" in explorer_html(data)


@pytest.mark.browser
@pytest.mark.slow
def test_layers_heads_and_images_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "texts.html"
    path.write_text(explorer_html(with_heads()), encoding="utf-8")
    with launched() as browser:
        tab, faults = opened(browser.new_context(viewport={"width": 1000, "height": 800}), path.as_uri())
        card = tab.locator('figure[data-uid="t-1"]')

        def row() -> list[str]:
            """The name of the last row of the first text, and its words with their weights."""
            strip = card.locator(".strip").last
            words: list[str] = strip.locator(".tokens span").evaluate_all("(e) => e.map((w) => w.title)")
            return [strip.locator(".strip-name bdi").inner_text(), *words]

        assert row() == [ALL_HEADS, "0.125", "0.175"]
        tab.locator("#layer").select_option("0")
        assert row() == ["attention, layer 0, all heads", "0.150", "0.250"]
        tab.locator("#head").select_option("1")
        assert row()[0] == "attention, layer 0, head 1"
        assert [float(weight) for weight in row()[1:]] == pytest.approx([0.1, 0.4], abs=2e-3)
        card.locator("summary", has_text="Layers and heads").click()
        cells = card.locator(".head-grid button")
        cells.nth(3).wait_for()  # the grid is built when it is opened
        # 3 x 0.2 + 0.1 in the first head: a word has the mean of its three pieces
        assert cells.all_inner_texts() == ["70", "70", "0", "80"]
        assert [cell.get_attribute("aria-pressed") for cell in cells.all()] == ["false", "true", "false", "false"]
        cells.nth(1).focus()
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("ArrowLeft")
        tab.keyboard.press("Enter")
        assert row() == ["attention, layer 1, head 0", "0", "0.00195"]
        assert tab.locator("#layer").input_value() + tab.locator("#head").input_value() == "10"
        assert tab.evaluate("document.activeElement.ariaLabel").startswith("layer 1, head 0: 0 %")
        tab.locator("#head-shown").uncheck()
        assert row()[0] == "attention"
        path.write_text(explorer_html(with_images()), encoding="utf-8")
        tab.goto(path.as_uri())
        assert tab.locator("#count").inner_text() == "1 to 1 of 1 images"
        pixels = tab.locator("canvas").evaluate("(c) => [...c.getContext('2d').getImageData(0, 0, 2, 1).data]")
        # as opaque as the score is large, in another hue where it speaks against the prediction
        assert pixels[3] == pytest.approx(2 * pixels[7], abs=1)
        assert pixels[0] > pixels[2]
        assert pixels[4] < pixels[6]
        assert tab.locator("canvas").get_attribute("aria-label") == "lime, highest in row 0, column 0: 0.500"
        assert tab.locator("img").last.bounding_box() == tab.locator("canvas").bounding_box()
        assert tab.locator("img").first.evaluate("(i) => i.naturalWidth") == 4
        assert faults == []


def test_a_table_is_read_as_it_was_written_and_gives_the_same_page(film_texts: TextTable, tmp_path: Path) -> None:
    hostile = replace(audited(), facts={"corpus": HOSTILE, "seed": 3}, classes=(HOSTILE, "\ud800"))
    tables = [film_texts, hostile, with_heads(), with_images(), one_text(())]
    for number, table in enumerate(tables):
        page = write_text_page(table, tmp_path / f"{number}.html")
        found = read_text_table(table_beside(page))
        assert explorer_html(found) == page.read_text(encoding="utf-8")
        assert (found.title, len(found.texts)) == (table.title, len(table.texts))
    frame = pd.read_parquet(tmp_path / "0.parquet")
    scores = dict(zip(frame["uid"], frame["scores: attention"], strict=True))
    assert [*scores["t-2"]] == [*SCORES["t-2"]]


@given(st.integers(0, 10_000), st.binary(max_size=4))
def test_a_damaged_table_is_refused_or_read(place: int, damage: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_text_table(audited(), Path(folder) / "t.parquet")
        content = path.read_bytes()
        start = place % len(content)
        path.write_bytes(content[:start] + damage + content[start + len(damage) + 1 :])
        with contextlib.suppress(UserError):
            for text in read_text_table(path).texts:
                assert all(cell is None or len(cell.weights) == len(text.tokens) for cell in text.rows)


def test_tables_whose_columns_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    table = audited()
    first = table.texts[0]
    odd = [
        first._replace(tokens=first.tokens[1:]),
        first._replace(words=(0,)),
        first._replace(rows=(ScoreCell(np.ones(9)), *first.rows[1:])),
    ]
    for text in odd:
        path = write_text_table(replace(table, texts=(text,)), tmp_path / "t.parquet")
        with pytest.raises(UserError, match="t-1"):
            read_text_table(path)
    path = write_text_table(replace(table, texts=(first,), patches=(1, 4)), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="t-1"):
        read_text_table(path)
    pd.DataFrame({"uid": ["a"]}).to_parquet(path)
    with pytest.raises(UserError, match=re.escape(str(path))):
        read_text_table(path)
