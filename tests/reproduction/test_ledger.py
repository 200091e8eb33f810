"""The committed ledgers against the published tables, and the rules by which records are judged and merged."""

from __future__ import annotations

import csv
import json
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest

from heedful.papers import PAPERS
from heedful.papers.published import CellName
from heedful.papers.published_cells import CellStatus, PublishedCell, published_cells
from heedful.papers.tolerances import Limit
from heedful.reproduction.cell_run import read_experiments
from heedful.reproduction.ledger import (
    LedgerRecord,
    Measured,
    MeasuredRun,
    dump_records,
    ledger_file,
    make_record,
    read_ledger,
    share_inside,
    update_ledger,
)
from heedful.table_view import Band
from heedful.types import UserError

LEDGER = Path(__file__).parents[2] / "reproduction"
RUN = MeasuredRun(command="heedful run", settings={}, trial="attefa", artefacts=("AtteFa-0",))


def committed(paper: str) -> list[LedgerRecord]:
    assert ledger_file(LEDGER, paper).exists()
    return read_ledger(LEDGER, paper)


def test_every_row_of_the_file_of_numbers_has_a_record_with_its_number() -> None:
    text = files("heedful.papers").joinpath("published_tables", "numbers.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(text.splitlines())
    records = {record.id: record.print for paper in PAPERS for record in committed(paper)}
    assert len(rows) == 4699
    missing = [row for row in rows if records.get("/".join(row[:-1]).rstrip("/")) != float(row[-1])]
    assert not missing


def test_every_cell_of_the_scaffold_tables_has_a_record() -> None:
    # Three numbers in each cell of tables 1, 3, 5 (7 rows, 3 sizes) and 7 (4 rows, 4 normalizers); 8 rows of table 2;
    # 8 rows, 7 columns and 2 sides of table 6; 4 rows of rating, deviation and rank from and to in table 4.
    assert len(committed("scaffold")) == 3 * (3 * 7 * 3 + 4 * 4) + 8 + 8 * 7 * 2 + 4 * 4
    records = {record.id: record.print for record in committed("scaffold")}
    assert records["scaffold/simulability/imdb/transformer/self/median/Gradient L2/500"] == pytest.approx(0.8166)
    assert records["scaffold/plausibility/mlqe-en-de/transformer/self/auc/Gradient L2/target"] == 0.65
    assert records["scaffold/study/cifar100/transformer/self/rank_high/Gradient x Input"] == 4


@pytest.mark.parametrize("paper", PAPERS)
def test_records_have_the_order_the_tolerances_and_the_verdicts_that_follow_from_the_tables(paper: str) -> None:
    records, cells = committed(paper), published_cells(paper)
    assert [record.id for record in records] == [cell.id for cell in cells]
    assert len({cell.id for cell in cells}) == len(cells)
    for record, cell in zip(records, cells, strict=True):
        assert record == make_record(cell, record.ours, record.run), record.id
        assert (record.ours is None) == (record.run is None) == bool(record.obstacle), record.id
        if record.verdict in ("not run", "not judged"):
            assert record.obstacle or record.reason, record.id


@pytest.mark.parametrize("paper", PAPERS)
def test_the_verdict_is_a_comparison_of_two_numbers(paper: str) -> None:
    """A literal twin of the judgement."""
    for record in committed(paper):
        if record.ours is None or record.ours.value is None:
            continue
        ours = record.ours.value - (record.ours.reference or 0.0)
        if record.tolerance is not None:
            inside = abs(ours - record.print) <= record.tolerance + 1e-9
            powerless = inside and (record.print - record.tolerance) * (record.print + record.tolerance) <= 0
            assert record.verdict == ("powerless" if powerless else "inside" if inside else "outside"), record.id
        elif record.low is not None or record.high is not None:
            low = -math.inf if record.low is None else record.low
            high = math.inf if record.high is None else record.high
            assert record.verdict == ("inside" if low - 1e-9 <= ours <= high + 1e-9 else "outside"), record.id
        else:
            assert record.verdict == "not judged", record.id


@pytest.mark.parametrize("paper", PAPERS)
def test_the_committed_file_is_what_the_command_would_write(paper: str) -> None:
    text = ledger_file(LEDGER, paper).read_text(encoding="utf-8")
    assert text == dump_records(committed(paper))
    assert not re.search(r"/work|/tmp|/root|/home", text)


def test_experiments_are_about_records_and_start_from_their_numbers() -> None:
    records = {record.id: record for paper in PAPERS for record in committed(paper)}
    for experiment in read_experiments(LEDGER):
        assert any(experiment.explains(cell) for cell in records)
        assert records[experiment.cells[0]].print == experiment.print


def test_numbers_that_cannot_fail_are_told_from_those_that_can() -> None:
    status = {cell.id: cell.status for paper in PAPERS for cell in published_cells(paper)}
    assert status["attefa/attefa/sst/bilstm/additive/attefa"] is CellStatus.JUDGED
    assert status["attefa/attefa/sst/bilstm/additive/tvd"] is CellStatus.NO_TOLERANCE
    assert status["attefa/attefa/sst/bilstm/additive/population_std_tvd"] is CellStatus.NOT_JUDGED
    assert status["attefa/attefa/diabetes/bilstm/additive/attefa"] is CellStatus.CANNOT_RUN
    # The printed digits are judged; the same number with more digits in a released file is not counted again.
    twin = "jain-wallace/{}/sst/bilstm/additive/mean/attention~gradient/class 0"
    assert status[twin.format("agreement-table-2")] is CellStatus.JUDGED
    assert status[twin.format("agreement")] is CellStatus.NOT_JUDGED


def cell(limit: Limit, printed: float = 0.5) -> PublishedCell:
    return PublishedCell(CellName("attefa", "attefa", "sst", "bilstm", "additive", "attefa"), printed, "Table 3", limit)


@pytest.mark.parametrize(
    ("limit", "ours", "verdict"),
    [
        (Limit(0.1), Measured(value=0.6), "inside"),
        (Limit(0.1), Measured(value=0.61), "outside"),
        (Limit(0.6), Measured(value=0.6), "powerless"),
        (Limit(0.1), Measured(value=None), "undefined"),
        (Limit(reason="a size"), Measured(value=0.5), "not judged"),
        (Limit(band=Band(high=-0.1), minus="uniform"), Measured(value=0.6, reference=0.81), "inside"),
        (Limit(band=Band(high=-0.1), minus="uniform"), Measured(value=0.72, reference=0.81), "outside"),
        (Limit(0.1), None, "not run"),
    ],
)
def test_judgements_by_hand(limit: Limit, ours: Measured | None, verdict: str) -> None:
    record = make_record(cell(limit), ours, None if ours is None else RUN)
    assert record.verdict == verdict
    assert LedgerRecord.model_validate_json(dump_records([record])) == record


def test_a_run_replaces_its_own_cells_and_keeps_all_others(tmp_path: Path) -> None:
    name = "attefa/attefa/sst/bilstm/additive/{}"
    update_ledger(tmp_path, "attefa", {name.format("attefa"): (Measured(value=0.08), RUN)})
    update_ledger(tmp_path, "attefa", {name.format("jsd"): (Measured(value=0.9), RUN)})
    records = {record.id: record for record in read_ledger(tmp_path, "attefa")}
    # Published: .076 with a tolerance of .03, and .626 with one of .04.
    assert [records[name.format(metric)].verdict for metric in ("attefa", "jsd", "tvd")] == [
        "inside",
        "outside",
        "not run",
    ]
    assert share_inside([*records.values()]).startswith("1 of 2 inside (2 of 1631")
    first = ledger_file(tmp_path, "attefa").read_bytes()
    update_ledger(tmp_path, "attefa", {})
    assert ledger_file(tmp_path, "attefa").read_bytes() == first


def test_a_damaged_ledger_is_refused_with_its_line(tmp_path: Path) -> None:
    update_ledger(tmp_path, "attefa", {})
    path = ledger_file(tmp_path, "attefa")
    first, *others = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([first, json.dumps({**json.loads(others[0]), "better": 1}), *others[1:]]), "utf-8")
    with pytest.raises(UserError, match="line 2: better"):
        read_ledger(tmp_path, "attefa")
