"""The report of a workspace: seeds combined, published numbers beside ours, verdicts, warnings and examples."""

from __future__ import annotations

import html
import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from heedful import catalogue
from heedful.attributions.attention import RawAttention, Rollout
from heedful.attributions.deeplift import DeepLift
from heedful.attributions.gradient import Gradient
from heedful.attributions.head_mix import HeadMix
from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
from heedful.data.splitting import SubsampledCorpus
from heedful.data.words import Words
from heedful.execution.runner import run
from heedful.figures import Figure
from heedful.papers import PAPERS
from heedful.papers.chapter import Result, SectionExtras
from heedful.papers.example_texts import example_heatmaps
from heedful.papers.jain_wallace import jain_wallace_trials, single_model_trials
from heedful.report.build import build_page, write_report
from heedful.report.page import Page, Section
from heedful.report.summaries import summary_tables
from heedful.report.text_sources import collect_texts, find_model_texts
from heedful.results import Finding, Statistic, Verdict, combine_seeds, summary_frame
from heedful.store import artefact_files as store
from heedful.store.artefact_files import CorruptArtefactWarning, IndexEntry
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.table_view import Comparison, TableView
from heedful.training.attribution_tables import AttributionTable
from heedful.training.checkpoint import checkpoint
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import Adam, EpochSelection, SelectionSplit, Training
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.trials.trial import Trial
from heedful.types import Corpus, Splits, UserError
from tests.given import Verdicts, save_model
from tests.stored import FilmModel, films, stored
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
    """Two seeds of one model, and a model on texts with markup whose epoch was selected on test."""
    found = Workspace(tmp_path_factory.mktemp("workspace"))
    for seed in (0, 1):
        run(single_model_trials(replace(subject(), seed=seed)), found)
    fit = Training(3, 8, Adam(lr=0.02), EpochSelection(split="test", first_epoch=2))
    run(single_model_trials(replace(subject(), corpus=Reviews(), training=fit), limit=12), found)
    return found


@pytest.fixture(scope="module")
def sections(workspace: Workspace) -> dict[str, Section]:
    return {section.anchor: section for chapter in build_page(workspace).papers for section in chapter.sections}


@pytest.fixture(scope="module")
def report(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report, written where there is no corpus."""
    folder = tmp_path_factory.mktemp("report")
    write_report(Workspace(workspace.root, data_dir=folder / "absent"), folder)
    return folder


def test_seeds_of_one_model_share_a_section_with_mean_and_deviation(
    workspace: Workspace, sections: dict[str, Section]
) -> None:
    trials = ("performance", "agreement", "permutation", "adversarial-attention")
    assert list(sections) == [
        f"{trial}-{corpus}-bilstm-additive" for corpus in ("sentences", "sst") for trial in trials
    ]
    section = sections["performance-sentences-bilstm-additive"]
    assert section.about["seeds"] == "0, 1"
    summaries = [workspace.get(Performance(replace(subject(), seed=seed))).summary for seed in (0, 1)]
    values = [float(each.loc[each["metric"] == "accuracy", "value"].iloc[0]) for each in summaries]
    _, cell, deviation = next(row for row in section.tables[0].rows if row[0] == "accuracy")[:3]
    assert isinstance(cell, Comparison)
    assert cell.ours == pytest.approx(sum(values) / 2)
    assert deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


def published_numbers(section: Section) -> set[float | None]:
    """The published numbers in the tables of a section."""
    cells = (cell for table in section.tables for row in table.rows for cell in row)
    return {cell.published for cell in cells if isinstance(cell, Comparison)}


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A model by the rules of Jain & Wallace, all of their trials on it, and one trial of Neely et al."""
    workspace = Workspace(tmp_path_factory.mktemp("replicated"))
    model = replace(subject(), corpus=Reviews(), training=Training(3, 8, Adam(lr=0.02)))
    trials = jain_wallace_trials(model, replace(model, seed=1))
    run([*trials, Faithfulness(model, (RawAttention(), Gradient()))], workspace)
    return build_page(workspace)


def test_published_numbers_are_beside_results_of_their_corpus_and_protocol(
    sections: dict[str, Section], replicated: Page
) -> None:
    found = {
        (part.experiment, part.about.get("solver"), part.about.get("epsilon")): published_numbers(part)
        for section in replicated.papers[0].sections
        for part in section.variants or (section,)
    }
    assert {0.0472, 0.0348} & found["permutation", None, None]
    assert found["performance", None, None] >= {0.78352}
    assert found["adversarial-attention", "search", "0.05"] > {None}
    for solver, epsilon in (("search", "0.01"), ("exact", "0.05"), ("exact", "0.01")):
        assert found["adversarial-attention", solver, epsilon] == {None}
    # The same corpus, but its epoch was selected on the test split; and another corpus.
    assert published_numbers(sections["permutation-sst-bilstm-additive"]) == {None}
    assert published_numbers(sections["permutation-sentences-bilstm-additive"]) == {None}


def test_one_trial_of_another_paper_takes_nothing_out_of_a_chapter(replicated: Page) -> None:
    first, other = replicated.papers
    assert (first.name, other.name) == ("jain-wallace", "disagreement")
    assert [section.experiment for section in other.sections] == ["faithfulness"]
    captions = [table.caption.partition(":")[0] for table in first.tables]
    assert captions == ["What the paper claims", "Table 1", "Table 2", "How epochs were selected"]
    assert [figure.title.partition(":")[0] for figure in first.figures] == ["Figure 6", "Figure 7"]
    (row,) = first.tables[1].rows
    assert row[0] == "sst (random vectors)"


def test_the_page_says_which_epoch_was_kept_from_the_settings_of_the_training(
    sections: dict[str, Section], replicated: Page
) -> None:
    by_dev, by_test = (
        str(section.about["epoch of models"])
        for section in (replicated.papers[0].sections[0], sections["permutation-sst-bilstm-additive"])
    )
    assert "dev" in by_dev
    assert "test" in by_test
    (row,) = replicated.papers[0].tables[-1].rows
    assert row[2:5] == (by_dev, "3", "none")


def test_models_that_differ_in_their_selection_alone_have_different_titles(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    splits: tuple[SelectionSplit, ...] = ("dev", "test")
    for split in splits:
        training = Training(2, 8, Adam(lr=0.02), EpochSelection(split=split))
        workspace.get(Performance(replace(subject(), training=training)))
    titles = [section.title for chapter in build_page(workspace).papers for section in chapter.sections]
    assert len(set(titles)) == 2
    assert sorted(title.rpartition(" ")[2] for title in titles) == ["dev", "test"]


def test_selection_on_the_test_split_and_samples_are_warned_of(sections: dict[str, Section]) -> None:
    assert sections["permutation-sentences-bilstm-additive"].warnings == ()
    warnings = " ".join(sections["permutation-sst-bilstm-additive"].warnings)
    assert "test split" in warnings
    assert "12 of 40" in warnings


def test_every_trial_but_performance_has_a_verdict(sections: dict[str, Section]) -> None:
    for section in sections.values():
        assert bool(section.findings) == (section.experiment != "performance")
        assert all(isinstance(finding.verdict, Verdict) for finding in section.findings)
        assert section.claim
        assert section.interpretation
        assert section.limits


def test_examples_are_chosen_by_the_effect_of_permutation(workspace: Workspace, sections: dict[str, Section]) -> None:
    table = workspace.get(Permutation(subject())).table
    largest = table[table["length"] >= 6]["median_change"].max()
    example = sections["permutation-sentences-bilstm-additive"].heatmaps[0]
    assert f"{largest:.3f}" in example.caption
    assert "<sos>" not in example.units
    assert sum(example.rows[0].values) == pytest.approx(1.0)


def test_figures_of_one_of_several_seeds_say_so(sections: dict[str, Section]) -> None:
    for section in sections.values():
        titles = [each.title for each in (*section.figures, *section.heatmaps)]
        assert titles
        assert all(title.endswith(", seed 0 only") == (section.about["seeds"] == "0, 1") for title in titles)


def test_the_data_of_a_model_are_beside_its_performance(sections: dict[str, Section]) -> None:
    data = sections["performance-sentences-bilstm-additive"].tables[-1]
    assert [row[0] for row in data.rows] == ["train", "dev", "test"]
    assert data.rows[0][1] == "negative: 20; positive: 20"
    assert "vocabulary: 16" in data.note


def test_a_workspace_without_trials_is_refused_and_an_existing_report_stays(tmp_path: Path) -> None:
    stored(tmp_path / "model only", FilmModel())
    (tmp_path / "empty").mkdir()
    report = write_report(films(tmp_path / "films"), tmp_path / "report")
    before = {path: path.read_bytes() for path in report.parent.rglob("*.html")}
    for name in ("absent", "empty", "model only"):
        with pytest.raises(UserError, match="no finished trial"):
            write_report(Workspace(tmp_path / name), tmp_path / "report")
    assert {path: path.read_bytes() for path in report.parent.rglob("*.html")} == before


def count_reads(patch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is read from now on, but for summaries, which are small and read where they are used."""
    loads: Counter[str] = Counter()
    read = store.StoredArtefact._read

    def counted(artefact: store.StoredArtefact, name: str) -> bytes:
        loads[f"{artefact.path.name} {name}"] += name != store.SUMMARY
        return read(artefact, name)

    patch.setattr(store.StoredArtefact, "_read", counted)
    return loads


@pytest.fixture(scope="module")
def second(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[str]]:
    """The report written again where no summary can be computed, and how often each file was read."""

    def refuse(*_: object) -> None:
        raise AssertionError("a summary was computed or weights were read")

    with pytest.MonkeyPatch.context() as patch:
        loads = count_reads(patch)
        patch.setattr(store, "load_file", refuse)
        for trial in catalogue.TRIALS.values():
            patch.setattr(trial, "summary", refuse)
        return write_report(workspace, tmp_path_factory.mktemp("second")).parent, loads


def test_every_file_is_read_once_and_no_summary_is_computed(
    workspace: Workspace, second: tuple[Path, Counter[str]]
) -> None:
    _, loads = second
    assert max(loads.values()) == 1
    needed = {entry.name for entry in workspace.entries() if entry.kind in ("trial", "attributions")}
    assert {name.removesuffix(" table.parquet") for name in loads} >= needed


def test_a_second_report_opens_only_what_its_sections_show(
    workspace: Workspace, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = count_reads(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in report.glob("texts/*")}
    write_report(workspace, report)
    assert {path: path.stat().st_mtime_ns for path in report.glob("texts/*")} == before
    assert max(loads.values()) == 1
    methods = {entry.name: entry.facts["method"] for entry in workspace.entries() if entry.kind == "attributions"}
    opened = {name.removesuffix(" table.parquet") for name in loads}
    assert {methods[name] for name in opened if name in methods} == {"attention", "gradient"}


@pytest.fixture
def copied(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the workspace, which may be damaged."""
    shutil.copytree(workspace.root, tmp_path / "w")
    return Workspace(tmp_path / "w")


def flip_bit(path: Path) -> None:
    altered = bytearray(path.read_bytes())
    altered[len(altered) // 2] ^= 1
    path.write_bytes(altered)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TrainedModel", "AttributionTable", "Permutation", "Agreement"])
@pytest.mark.parametrize("file", ["notes.json", "manifest.json"])
def test_a_damaged_artefact_is_left_out_with_a_warning_and_a_remark(copied: Workspace, kind: str, file: str) -> None:
    trials = {entry.name for entry in copied.entries() if entry.kind == "trial"}
    folder = next(copied.root.glob(f"{kind}-*"))
    flip_bit(folder / file)
    with pytest.warns(CorruptArtefactWarning, match=folder.name) as caught:
        page = write_report(copied, copied.root / "report").read_text(encoding="utf-8")
    assert len(caught) == 1
    assert f"the artefact {folder} is damaged" in page
    assert f"<bdi>{len(trials - {folder.name})}</bdi>" in page.partition("finished trials")[2][:60]


@pytest.mark.parametrize("kind", ["AttributionTable", "Permutation"])
@pytest.mark.parametrize("file", ["notes.json", "table.parquet"])
def test_an_artefact_that_is_damaged_after_it_was_opened_is_left_out(
    copied: Workspace, kind: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = next(copied.root.glob(f"{kind}-*"))
    open_entry = store.IndexEntry.open

    def opened_and_damaged(entry: store.IndexEntry) -> store.StoredArtefact:
        artefact = open_entry(entry)
        if entry.path == folder:
            flip_bit(folder / file)
        return artefact

    monkeypatch.setattr(store.IndexEntry, "open", opened_and_damaged)
    with pytest.warns(CorruptArtefactWarning, match=folder.name) as caught:
        page = write_report(copied, copied.root / "report").read_text(encoding="utf-8")
    assert len(caught) == 1
    assert f"the artefact {folder} is damaged" in page


def test_many_damaged_artefacts_are_left_out_together(copied: Workspace) -> None:
    folders = [*copied.root.glob("AttributionTable-*"), *copied.root.glob("Permutation-*")]
    assert len(folders) > 5
    for folder in folders:
        flip_bit(folder / "table.parquet")
    with pytest.warns(CorruptArtefactWarning) as caught:
        page = build_page(copied, copied.root / "report")
    assert {folder.name for folder in folders} == {
        folder.name for folder in folders if any(folder.name in str(warning.message) for warning in caught)
    }
    assert len(caught) == len(folders)
    assert {section.experiment for section in page.papers[0].sections} == {
        "performance", "agreement", "adversarial-attention"
    }  # fmt: skip
    assert not list((copied.root / "report").glob("texts/*"))


def test_a_trial_that_is_damaged_before_its_paper_reads_it_is_left_out(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def damage_first(result: Result, _: Sequence[store.IndexEntry]) -> SectionExtras:
        if not read:
            flip_bit(result.entries[0].path / "table.parquet")
        read.append(result.entries[0].name)
        result.entries[0].load()
        return SectionExtras()

    monkeypatch.setitem(PAPERS, "jain-wallace", replace(PAPERS["jain-wallace"], section=damage_first))
    with pytest.warns(CorruptArtefactWarning) as caught:
        [chapter] = build_page(copied).papers
    assert [read[0] in str(each.message) for each in caught] == [True]
    assert len(chapter.sections) == 8
    assert chapter.sections[0].about["seeds"] == "1"


def test_the_first_intact_seed_shows_the_figures(copied: Workspace) -> None:
    [first] = [
        entry.path
        for entry in copied.entries()
        if (entry.facts.get("trial"), entry.facts.get("corpus"), entry.facts.get("seed"))
        == ("permutation", "sentences", 0)
    ]
    (first / "table.parquet").write_bytes((first / "table.parquet").read_bytes()[::-1])
    with pytest.warns(CorruptArtefactWarning):
        sections = {section.anchor: section for chapter in build_page(copied).papers for section in chapter.sections}
    section = sections["permutation-sentences-bilstm-additive"]
    assert section.about["seeds"] == "1"
    assert section.figures
    assert section.heatmaps


@pytest.mark.slow  # it imports torch in a new process
def test_reports_and_lists_do_without_transformers_and_most_of_scipy() -> None:
    code = (
        "import sys, heedful.report.build, heedful.papers; print(*sorted({n.partition('.')[0] for n in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"transformers", "scipy", "sklearn", "PIL", "sympy"} & {*loaded} == set()


def test_every_section_links_the_texts_of_each_of_its_seeds(sections: dict[str, Section], report: Path) -> None:
    labels = [link.label for link in sections["agreement-sentences-bilstm-additive"].texts]
    assert labels == ["seed 0", "seed 1"]
    addresses = {link.address for section in sections.values() for link in section.texts}
    assert {path.relative_to(report).as_posix() for path in report.glob("texts/*.html")} == addresses
    pages = "".join(path.read_text(encoding="utf-8") for path in report.glob("models/*.html"))
    assert all(f'href="../{address}"' in pages for address in addresses)


def test_each_model_has_a_page_and_the_index_links_every_section(sections: dict[str, Section], report: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in report.glob("models/*.html")}
    assert {*pages} == {section.model for section in sections.values()}
    assert len(pages) == 2
    index = (report / "index.html").read_text(encoding="utf-8")
    addresses = set(re.findall(r'href="models/([^"#]+)#([^"]+)"', index))
    assert all(f'id="{anchor}"' in pages[name] for name, anchor in addresses)
    assert len({anchor for _, anchor in addresses} - {"at-jain-wallace"}) == len(sections)
    for section in sections.values():
        assert html.escape(section.claim, quote=False) in pages[section.model]
        assert all((section.title in page) == (name == section.model) for name, page in pages.items())


def test_runs_that_differ_in_settings_alone_share_a_section_with_the_published_one_first(replicated: Page) -> None:
    [section] = [each for each in replicated.papers[0].sections if each.experiment == "adversarial-attention"]
    settings = [(variant.about["solver"], variant.about["epsilon"]) for variant in section.variants]
    assert settings[0] == ("search", "0.05")
    assert sorted(settings[1:]) == [("exact", "0.01"), ("exact", "0.05"), ("search", "0.01")]
    assert len(section.findings) == 4
    [side_by_side] = section.tables
    assert len(side_by_side.columns) == 5
    shares = next(row for row in side_by_side.rows if row[0] == side_by_side.rows[1][0])
    values = [cell.ours for cell in shares[1:] if isinstance(cell, Comparison)]
    for value, variant in zip(values, section.variants, strict=True):
        own = [row[1] for table in variant.tables for row in table.rows if row[0] == shares[0]]
        assert [cell.ours for cell in own if isinstance(cell, Comparison)] == [value]


def test_the_same_workspace_gives_the_same_bytes_in_every_file(report: Path, second: tuple[Path, Counter[str]]) -> None:
    files = [{path.relative_to(f): path.read_bytes() for path in f.rglob("*.html")} for f in (report, second[0])]
    assert files[0] == files[1]
    assert len(files[0]) == 6


def test_without_attributions_a_section_says_that_there_is_no_explorer(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.root, tmp_path / "w", ignore=shutil.ignore_patterns("AttributionTable-*"))
    [chapter] = build_page(Workspace(tmp_path / "w")).papers
    assert all(section.texts == () for section in chapter.sections)
    assert {section.experiment for section in chapter.sections if section.texts_note} >= {
        "permutation",
        "adversarial-attention",
    }


def test_trials_outside_the_catalogue_have_sections_too(tmp_path: Path) -> None:
    [chapter] = build_page(films(tmp_path)).papers
    assert {section.experiment for section in chapter.sections} == {"film-adversary", "film-permutation"}


@dataclass(frozen=True)
class Length(Trial):
    """A trial of a user's own file."""

    subject: ModelRecipe
    name: ClassVar[str] = "length"
    paper: ClassVar[str] = "mine"
    title: ClassVar[str] = "Lengths of texts:"
    claim: ClassVar[str] = "Texts are <short>."
    source: ClassVar[str] = "Own work"
    limits: ClassVar[str] = "Nothing about attention."

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(table=pd.DataFrame({"length": [3, 4 + len(self.subject.describe())]}), notes={"n": 2, "of": 2})

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> tuple[Statistic, ...]:
        return (Statistic("mean_length", value=float(table["length"].mean())),)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        return (Finding(Verdict.NOT_SUPPORTED, "mean", reason="too long"),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        return f"The mean length is {summary['value'][0]:.1f}."

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        return ()


def test_a_users_own_trial_is_shown_as_it_was_stored(tmp_path: Path) -> None:
    trials = [Length(subject(seed=seed)) for seed in (0, 1)]
    place = Workspace(tmp_path)
    [chapter] = build_page(stored(tmp_path, *trials)).papers
    [section] = chapter.sections
    assert section.title.startswith(Length.title)
    assert (section.claim, section.source, section.limits) == (Length.claim, Length.source, Length.limits)
    assert section.interpretation == Length.interpretation(place.get(trials[0]).summary)
    assert section.findings == Length.findings(place.get(trials[0]).summary) * 2
    assert "explanation" not in place.get(Performance(subject())).notes


def test_a_quick_version_is_warned_of(tmp_path: Path) -> None:
    place = Workspace(tmp_path)
    run([Performance(replace(subject(), corpus=SubsampledCorpus(Sentences(), 30, 20, 20)))], place)
    [chapter] = build_page(place).papers
    assert any("Quick" in warning for warning in chapter.sections[0].warnings)


def test_incomplete_methods_are_warned_of_and_sampling_error_is_not(tmp_path: Path) -> None:
    place = Workspace(tmp_path)
    methods = (RawAttention(), IntegratedGradients(n_steps=1), GradientShap(), DeepLift())
    run([Agreement(subject(), methods)], place)
    notes = [place.get(AttributionTable(subject(), method)).notes["missed"] for method in methods[1:]]
    path, sampled, rules = (float(str(each["largest"])) for each in notes if isinstance(each, dict))
    assert (path > 1e-3, sampled > 1e-3, rules > 1e-4) == (True, True, False)
    [chapter] = build_page(place).papers
    found = [warning for section in chapter.sections for warning in section.warnings if "not complete" in warning]
    assert len(found) == 1
    assert found[0].startswith("integrated-gradients(n_steps-1)")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Trials on a transformer that was not trained here, with three classes."""
    model = checkpoint(str(save_model(tmp_path_factory.mktemp("given") / "opinions")), Verdicts(40))
    place = Workspace(tmp_path_factory.mktemp("workspace"))
    mix = HeadMix(tuple(0.25 + place / 1e6 for place in range(4)), 2, 2)
    methods = (Rollout(), RawAttention(), Gradient(), mix)
    trials = [
        Performance(model),
        Permutation(model, permutations=4),
        Agreement(model, methods),
        Faithfulness(model, methods[1:], limit=10, steps=2, samples=2),
        Plausibility(model, methods[1:]),
    ]
    assert [each.error for each in run(trials, place) if each.error] == []
    return place


@pytest.fixture(scope="module")
def pages(given: Workspace, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of all pages about it, without markup."""
    folder = write_report(given, tmp_path_factory.mktemp("report")).parent
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html"))]
    hidden = re.compile(r"<(style|script)[^>]*>.*?</\1>|<[^>]*>", re.S)
    assert len(texts) == 2
    return [html.unescape(hidden.sub(" ", text)) for text in texts]


@pytest.mark.slow
def test_a_given_model_has_no_option_of_a_training_on_any_page(given: Workspace, pages: list[str]) -> None:
    for page in pages:
        assert not re.findall(r".{20}\b(?:seeds?|epochs?|vectors?|objective|vocabulary)\b.{20}", page, re.S)
        assert "given, not trained here" in page
    for chapter in build_page(given).papers:
        for section in chapter.sections:
            assert section.about["training"] == "given, not trained here"
            assert [link.label for link in section.texts] == ["this model"]


@pytest.mark.slow
def test_words_that_people_marked_are_in_the_explorer(given: Workspace) -> None:
    [source] = find_model_texts(given.entries())
    data = collect_texts(source, IndexEntry.open)
    examples = {example.uid: example for example in Verdicts(40).read(given.data_dir)["test"]}
    for text in data.texts:
        numbers = text.words or tuple(range(len(text.tokens)))
        expected = {place for place, mark in enumerate(examples[text.uid].rationale or ()) if mark}
        assert {numbers[place] for place in text.marked or ()} == expected
    assert any(text.marked for text in data.texts)
    assert "comprehensiveness of attention" in {metric.name for metric in data.metrics if metric.finding}
    assert data.facts == {"corpus": "verdicts", "model": "opinions", "training": "given, not trained here"}


@pytest.mark.slow
def test_a_learned_mix_is_not_named_by_its_weights(pages: list[str]) -> None:
    for page in pages:
        assert "learned-head-mix(4-of-4-heads," in page
        assert "0.250001" not in page


@pytest.mark.slow
def test_sentences_name_the_attention_that_was_compared_and_the_classes(given: Workspace) -> None:
    sections = {each.experiment: each for chapter in build_page(given).papers for each in chapter.sections}
    assert "rollout agrees with gradient" in sections["agreement"].interpretation
    assert sections["permutation"].about["classes"] == "0 awful, 1 middling, 2 splendid"


@pytest.mark.slow
def test_no_claim_of_neely_et_al_denies_the_transformer(given: Workspace) -> None:
    [chapter] = [each for each in build_page(given).papers if each.name == "disagreement"]
    assert {section.experiment for section in chapter.sections} == {"performance", "agreement", "faithfulness"}
    tables = {table.caption: table for table in chapter.tables}
    assert not any("BiLSTM" in caption for caption in tables)


def test_an_example_is_said_to_change_little_only_if_it_does() -> None:
    def titles(change: float) -> list[str]:
        table = pd.DataFrame({"uid": ["a", "b"], "length": [8, 80], "predicted": 0})
        table = table.assign(maximum_attention=0.9, median_change=[change, 0.6])
        columns: dict[str, list[object]] = {"uid": ["a", "b"], "units": [["x"] * 8] * 2, "scores": [[0.1] * 8] * 2}
        columns |= {"scored": [[True] * 8] * 2, "probability": [0.9] * 2, "label": [0] * 2}
        return [each.title for each in example_heatmaps(table, {"attention": columns}, ["no", "yes"])]

    assert ["little" in title for title in titles(0.4)] == [False, False, False]
    assert ["little" in title for title in titles(0.04)] == [False, True, False]
    assert all(title.endswith("(of texts with 6 to 60 tokens)") for title in titles(0.4)), "b is longer"


def test_an_example_of_a_transformer_shows_the_weights_that_are_replaced() -> None:
    columns: dict[str, list[object]] = {"uid": ["a"], "units": [["<cls>", "x", "y"]], "scores": [[0.2, 0.3, 0.5]]}
    columns |= {"scored": [[False, True, True]], "probability": [0.9], "label": [0]}
    cells = {"uid": ["a"], "length": [2], "predicted": [0], "maximum_attention": [0.6], "epsilon_max": [0.5]}
    cells |= {"bound": [0.6], "change": [0.01], "units": [[0, 1, 2]], "attention": [[0.3, 0.6, 0.1]]}
    table = pd.DataFrame({**cells, "adversary": [[0.0, 0.0, 1.0]]})
    for given, expected in ((table, (0.3, 0.5)), (table.assign(queries=1), (0.6, 0.1))):
        first, second = example_heatmaps(given, {"attention": columns}, ["no", "yes"])[0].rows[:2]
        assert (first.values, second.values) == (expected, (0.0, 1.0))


def tables_of(*statistics: Statistic, seeds: int = 1) -> tuple[TableView, ...]:
    summaries = tuple(summary_frame(statistics) for _ in range(seeds))
    return summary_tables(
        Result("agreement", "none", "films", "bilstm", "additive", combine_seeds(summaries), len(summaries))
    )


def test_a_summary_is_a_table_for_each_set_of_metrics() -> None:
    whole, methods, others = tables_of(
        Statistic("texts", value=60.0),
        Statistic("tau", "lime", value=0.5, low=0.4, high=0.6, n=60),
        Statistic("auc", "lime", value=math.nan, n=60),
        Statistic("tau", "flow", value=0.25, low=0.1, high=0.3, n=60),
        Statistic("auc", "flow", value=0.75, n=60),
        Statistic("tau", "lime", "class 1", value=0.125, n=7),
    )
    assert (whole.columns, whole.rows[0]) == (("metric", "value"), ("texts", Comparison(60, None)))
    assert methods.columns == ("method", "tau", "95 % interval", "auc")
    assert methods.rows[0] == ("lime", Comparison(0.5, None), "0.400 to 0.600", Comparison(None, None))
    assert "n = 60" in methods.caption
    assert others.columns == ("method", "subset", "tau")
    assert "n = 7" in others.caption


def test_a_mark_of_controls_is_no_number_of_a_summary() -> None:
    [table] = tables_of(
        Statistic("control", "random", value=1.0),
        Statistic("auc", "lime", value=0.5, n=60),
        Statistic("auc", "random", value=0.4, n=60),
    )
    assert [row[0] for row in table.rows] == ["lime", "random (control)"]
    assert table.columns == ("method", "auc")


def test_a_count_stands_only_beside_the_numbers_it_belongs_to() -> None:
    [table] = tables_of(
        Statistic("auc", "lime", value=0.5, n=60),
        Statistic("tau", "lime", value=0.25, n=60),
        Statistic("auc_right", "lime", value=0.75, n=42),
        Statistic("auc_wrong", "lime", value=0.125, n=18),
    )
    assert table.columns == ("method", "auc", "tau", "n", "auc right", "n", "auc wrong", "n")
    assert [cell for cell in table.rows[0] if isinstance(cell, int)] == [60, 42, 18]
    assert "n =" not in table.caption
    assert "to its left" in table.note


def test_a_setting_that_does_not_count_is_not_shown(sections: dict[str, Section]) -> None:
    assert "k" not in sections["agreement-sentences-bilstm-additive"].about
    assert sections["agreement-sentences-bilstm-additive"].about["measure"] == "kendall"


def test_several_seeds_add_their_deviation() -> None:
    [table] = tables_of(Statistic("tau", "lime", value=0.5), seeds=3)
    assert table.columns == ("method", "tau", "SD")
    assert table.rows[0][2] == 0.0
