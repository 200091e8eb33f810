"""The report tells what is in the workspace: seeds together, print beside ours, warnings, examples; and it is safe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import pytest

from heedful.types import Corpus, Splits
from heedful.store.recipe import Artefact, Json
from heedful.store.workspace import IndexEntry, Workspace
from heedful.data.tokenization import Words
from heedful.data.splitting import SubsampledCorpus
from heedful.papers.jain_wallace import single_model_trials
from heedful.training.trainer import Adam, Training, EpochSelection
from heedful.papers._chapter import Comparison
from heedful.report.content import Section
from heedful.report.gathering import build_page, write_report
from heedful.report.runs import Run
from heedful.runner import run
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.agreement import Agreement
from heedful.trials.adversarial_training import AtteFa
from heedful.trials.imposed_attention import UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.adversarial_training import AdversarialTradeoff
from tests.tiny import Sentences, subject

HOSTILE = "<script>document.title='taken'</script> <img src=x onerror=alert(1)> \"'><b>bold</b> $x_1$ &amp; café"


@dataclass(frozen=True)
class Reviews(Corpus):
    """The tiny sentences under the name of a published corpus, each with markup in it."""

    name: ClassVar[str] = "sst"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        found = Sentences().read(data)
        train, dev, test = (
            tuple(replace(each, parts=(f"{each.parts[0]} {HOSTILE}",)) for each in part)
            for part in (found.train, found.dev, found.test)
        )
        return replace(found, train=train, dev=dev, test=test, notes={"source": HOSTILE})

    def digest(self, data: Path) -> str:
        return "generated"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two seeds of one subject, and one with markup in its texts, whose epoch was chosen on test."""
    found = Workspace(tmp_path_factory.mktemp("workspace"))
    for seed in (0, 1):
        run(single_model_trials(replace(subject(), seed=seed)), found)
    fit = Training(3, 8, Adam(lr=0.02), EpochSelection(split="test", first_epoch=2))
    run(single_model_trials(replace(subject(), corpus=Reviews(), training=fit), limit=12), found)
    return found


@pytest.fixture(scope="module")
def report(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of that workspace, written where there is no corpus."""
    folder = tmp_path_factory.mktemp("report")
    write_report(Workspace(workspace.root, data_dir=folder / "absent"), folder)
    return folder


def sections(workspace: Workspace) -> Iterator[Section]:
    for chapter in build_page(workspace).papers:
        yield from chapter.sections


def test_seeds_of_one_subject_are_told_together(workspace: Workspace) -> None:
    found = {section.anchor: section for section in sections(workspace)}
    trials = ("performance", "agreement", "permutation", "adversary")
    assert list(found) == [f"{trial}-{corpus}-bilstm-additive" for corpus in ("sentences", "sst") for trial in trials]
    told = found["performance-sentences-bilstm-additive"]
    assert told.about["seeds"] == "0, 1"
    assert told.tables[0].caption == "Summary (mean of 2 seeds)"
    values = [
        Performance.flat_summary(workspace.get(Performance(replace(subject(), seed=seed))).table)["accuracy"]
        for seed in (0, 1)
    ]
    row = next(row for row in told.tables[0].rows if row[0] == "accuracy")
    assert isinstance(row[1], Comparison)
    assert row[1].ours == pytest.approx(sum(values) / 2)
    assert row[2] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def test_the_seed_of_the_subject_compared_with_parts_no_runs() -> None:
    def run_of(seed: int, other: int, corpus: str = "sst") -> Run:
        recipe = {"type": "Agreement", "subject": {"corpus": corpus, "seed": seed}, "other": {"seed": other}}
        finished = IndexEntry("Agreement-0", "Agreement", cast("dict[str, Json]", recipe), Path("nowhere"))
        return Run(Agreement, finished, Artefact(), None, {})

    assert run_of(0, 1).group_key == run_of(1, 2).group_key
    assert run_of(0, 1).group_key != run_of(0, 1, "imdb").group_key


def test_published_numbers_stand_beside_ours_where_there_are_any(workspace: Workspace) -> None:
    by_corpus = {section.about["corpus"]: section for section in sections(workspace) if "permutation" in section.anchor}
    published = {
        str(row[0]): cell.published for row in by_corpus["sst"].tables[0].rows for cell in row if isinstance(cell, Comparison)
    }
    figure_3 = {"class 0, attention 0.25 to 0.50": 0.0472, "class 1, attention 0.25 to 0.50": 0.0348}
    shown = published.keys() & figure_3.keys()
    assert shown
    assert all(published[name] == figure_3[name] for name in shown)
    ours = [cell for row in by_corpus["sentences"].tables[0].rows for cell in row if isinstance(cell, Comparison)]
    assert ours
    assert all(cell.published is None for cell in ours)


def test_a_choice_on_the_test_split_and_a_limit_are_flagged(workspace: Workspace) -> None:
    warnings = {section.anchor: section.warnings for section in sections(workspace)}
    assert warnings["permutation-sentences-bilstm-additive"] == ()
    told = " ".join(warnings["permutation-sst-bilstm-additive"])
    assert "chosen on the test split" in told
    assert "12 of 40 test instances" in told


def test_examples_are_chosen_by_what_shuffling_does(workspace: Workspace) -> None:
    section = next(s for s in sections(workspace) if s.anchor == "permutation-sentences-bilstm-additive")
    table = workspace.get(Permutation(subject())).table
    table = table[table["length"] >= 6]
    most = section.heatmaps[0]
    assert most.title == "Shuffling matters most here, seed 0 only"
    assert f"median change when shuffled {table['median_change'].max():.3f}" in most.caption
    assert "<sos>" not in most.units
    assert sum(most.rows[0].values) == pytest.approx(1.0)


def test_what_is_drawn_of_one_of_several_seeds_says_so(workspace: Workspace) -> None:
    for section in sections(workspace):
        titles = [each.title for each in (*section.figures, *section.heatmaps)]
        assert titles or section.experiment == "performance"
        assert all(title.endswith(", seed 0 only") == (section.about["seeds"] == "0, 1") for title in titles)


def test_the_data_of_a_subject_are_told_beside_its_performance(workspace: Workspace) -> None:
    section = next(s for s in sections(workspace) if s.anchor == "performance-sentences-bilstm-additive")
    data = section.tables[1]
    assert [row[0] for row in data.rows] == ["train", "dev", "test"]
    assert data.rows[0][1] == "negative: 20; positive: 20"
    assert "vocabulary: 16" in data.note


def test_an_empty_workspace_gives_a_page_with_the_next_command(tmp_path: Path) -> None:
    written = write_report(Workspace(tmp_path / "nothing"), tmp_path / "report")
    assert "heedful demo" in written.read_text(encoding="utf-8")


def test_the_report_needs_no_corpus_and_trains_nothing(workspace: Workspace, tmp_path: Path) -> None:
    before = sorted(path.name for path in workspace.root.iterdir())
    found = build_page(Workspace(workspace.root, data_dir=tmp_path / "absent"))
    assert found.provenance["finished trials"] == 12
    assert sorted(path.name for path in workspace.root.iterdir()) == before


def test_every_section_leads_to_the_texts_of_each_of_its_seeds(workspace: Workspace, report: Path) -> None:
    links = {section.anchor: section.texts for section in sections(workspace)}
    assert [link.label for link in links["agreement-sentences-bilstm-additive"]] == ["seed 0", "seed 1"]
    addresses = {link.address for several in links.values() for link in several}
    assert all(several for several in links.values())
    assert {path.relative_to(report).as_posix() for path in report.glob("texts/*")} == addresses
    index = (report / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{address}"' in index for address in addresses)


def test_the_same_workspace_gives_the_same_bytes_in_every_file(
    workspace: Workspace, report: Path, tmp_path: Path
) -> None:
    folders = [report, write_report(workspace, tmp_path).parent]
    files = [{path.relative_to(f): path.read_bytes() for path in f.rglob("*.html")} for f in folders]
    assert files[0] == files[1]
    assert len(files[0]) == 4


def test_without_stored_words_the_report_says_that_texts_cannot_be_looked_up(
    workspace: Workspace, tmp_path: Path
) -> None:
    shutil.copytree(workspace.root, tmp_path / "w", ignore=shutil.ignore_patterns("Attributed-*"))
    found = {section.anchor: section for section in sections(Workspace(tmp_path / "w"))}
    assert all(section.texts == () for section in found.values())
    assert found["permutation-sst-bilstm-additive"].texts_note.startswith("Texts cannot be looked up here")
    assert found["performance-sst-bilstm-additive"].texts_note == ""


@pytest.mark.browser
def test_markup_in_a_review_does_nothing_in_the_browser(report: Path, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's chromium on the PATH")
    # The page alone, as somebody may send it.
    path = Path(shutil.copy(report / "index.html", tmp_path))
    trouble: list[str] = []
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page(viewport={"width": 400, "height": 800})
        tab.on("console", lambda message: trouble.append(message.text))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("dialog", lambda dialog: trouble.append(dialog.message))
        tab.goto(path.as_uri())
        text = tab.inner_text("main")
        width = tab.evaluate("document.documentElement.scrollWidth")
        title, images = tab.title(), tab.locator("img").count()
        browser.close()
    assert trouble == []
    assert "<script>document.title='taken'</script>" in text
    assert title != "taken"
    assert images == 0
    assert width <= 400


def test_a_trained_adversary_stands_beside_the_free_weights_of_its_base(tmp_path: Path) -> None:
    place = Workspace(tmp_path)
    fit = Training(2, 8, Adam(lr=0.02), EpochSelection(metric="deception"))
    curve = AdversarialTradeoff(subject(), (0.0, 0.1), adversary_training=fit)
    run([curve, AtteFa(subject(), (1,), adversary_training=fit), AdversarialAttention(subject(epochs=2))], place)
    found = [
        section for chapter in build_page(place).papers for section in chapter.sections if section.experiment == "adversary"
    ]
    caption = "What a trained attention module reaches beside free weights"
    tables = [table for section in found for table in section.tables if table.caption == caption]
    # The base's search and exact sections have it; the other training's section has no adversary to show.
    assert (len(found), len(tables)) == (3, 2)
    beside = tables[0]
    rows = place.get(curve).table
    expected = rows[(rows["kind"] == "lambda") & (rows["setting"] == 0.1)]["jsd"].mean()
    told = {str(row[0]): row[1] for row in beside.rows}
    assert told["trained adversary, lambda 0.1"] == pytest.approx(expected)
    assert "trained adversary of AtteFa, mean of 1" in told


def test_every_paper_has_its_chapter_and_a_quick_version_says_so(tmp_path: Path) -> None:
    place = Workspace(tmp_path)
    small = replace(subject(), corpus=SubsampledCorpus(Sentences(), 30, 20, 20))
    run([UniformBaseline(small, (0, 1)), AtteFa(small, (1,), adversary_training=Training(1, 8, selection=EpochSelection(metric="deception")))], place)
    chapters = {chapter.name: chapter for chapter in build_page(place).papers}
    assert set(chapters) == {"wiegreffe-pinter", "attefa"}
    for chapter in chapters.values():
        assert chapter.tables
        assert any("quick version" in warning for warning in chapter.sections[0].warnings)
