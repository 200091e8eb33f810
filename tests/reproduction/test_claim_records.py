"""The records of claims: merging, sorting, verdicts that follow from the numbers, and the page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from heedful.papers import PAPERS
from heedful.papers.published_cells import published_cells
from heedful.reproduction.claim_records import (
    CLAIMS_FILE,
    claim_rows,
    find_claim,
    make_claim_record,
    read_claims,
    record_finding,
    sort_records,
    update_claims,
)
from heedful.reproduction.ledger import dump_records, make_record
from heedful.reproduction.ledger_page import ledger_page
from heedful.types import UserError
from tests.papers.results import named, plain, result

LEDGER = Path(__file__).parents[2] / "reproduction"


def test_committed_records_have_the_order_and_the_verdicts_that_follow_from_their_numbers() -> None:
    records = read_claims(LEDGER)
    assert records
    keys = [(record.paper, record.claim, record.model) for record in records]
    assert len(keys) == len(set(keys))
    for record in records:
        claim = find_claim(record)
        assert claim is not None, record.claim
        assert record == make_claim_record(record.paper, claim, record_finding(claim, record))
    assert records == sort_records(reversed(records))
    text = (LEDGER / CLAIMS_FILE).read_text(encoding="utf-8")
    assert text == dump_records(records)
    assert not re.search(r"/work|/tmp|/root|/home", text)


def test_a_number_of_a_committed_record_lies_on_its_side_of_the_bound() -> None:
    """A literal twin for claims with one number for which greater is worse."""
    records = [record for record in read_claims(LEDGER) if record.claim in ("weak-gradients", "weak-leave-one-out")]
    assert records
    for record in records:
        (entry,) = record.evidence
        assert entry.low is not None
        assert entry.high is not None
        assert record.verdict == ("true" if entry.high < 0.5 else "false" if entry.low >= 0.5 else "undecided")


def test_a_run_replaces_its_models_and_keeps_all_others(tmp_path: Path) -> None:
    gain = result("wiegreffe-pinter", "uniform-baseline", named("difference", {"learned": (0.05, 0.02, 0.08)}))
    permuted = result("jain-wallace", "permutation", plain({"median_change": 0.04}))
    assert update_claims(tmp_path, "wiegreffe-pinter", [gain]) == 1
    assert update_claims(tmp_path, "jain-wallace", [permuted]) == 1
    other = replace(gain, corpus="imdb", summary=gain.summary.assign(value=0.0, low=-0.005, high=0.005))
    update_claims(tmp_path, "wiegreffe-pinter", [other])
    records = read_claims(tmp_path)
    assert [(record.paper, record.model, record.verdict) for record in records] == [
        ("jain-wallace", "sst", "true"),
        ("wiegreffe-pinter", "imdb", "true"),
        ("wiegreffe-pinter", "sst", "false"),
    ]
    assert records[0].evidence[0].low is None
    rows = claim_rows("wiegreffe-pinter", records)
    assert [row.verdict for row in rows] == ["true", *["not tested"] * 4]
    update_claims(tmp_path, "wiegreffe-pinter", [replace(gain, summary=gain.summary.assign(low=-0.1))])
    assert [record.verdict for record in read_claims(tmp_path)] == ["true", "true", "undecided"]


def test_a_stored_verdict_is_derived_again_and_unknown_claims_are_dropped(tmp_path: Path) -> None:
    update_claims(tmp_path, "jain-wallace", [result("jain-wallace", "permutation", plain({"median_change": 0.3}))])
    (record,) = read_claims(tmp_path)
    assert record.verdict == "false"
    changed = record.model_copy(update={"verdict": "true"})
    other = record.evidence[0].model_copy(update={"metric": "mean"})
    unknown = [record.model_copy(update={"claim": "other"}), record.model_copy(update={"evidence": (other,)})]
    (tmp_path / CLAIMS_FILE).write_text(dump_records([changed, *unknown]), "utf-8")
    assert {row.verdict for row in claim_rows("jain-wallace", unknown)} == {"not tested"}
    update_claims(tmp_path, "attefa", [])
    assert read_claims(tmp_path) == [record]


def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path) -> None:
    update_claims(tmp_path, "jain-wallace", [result("jain-wallace", "permutation", plain({"median_change": 0.3}))])
    path = tmp_path / CLAIMS_FILE
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "verdict": "perhaps"}), "utf-8")
    with pytest.raises(UserError, match="line 1: verdict"):
        read_claims(tmp_path)


def test_the_page_shows_every_claim_of_every_paper_with_its_verdict(tmp_path: Path) -> None:
    given = result("jain-wallace", "permutation", plain({"median_change": 0.04}), corpus="<sst>")
    update_claims(tmp_path, "jain-wallace", [given])
    cells = {name: [make_record(published_cells(name)[0])] for name in PAPERS}
    page = "".join(ledger_page(cells, (), read_claims(tmp_path)))
    verdicts = re.findall(r'<td class="(?:true|false|undecided|not)">(true|false|undecided|not tested)</td>', page)
    assert len(verdicts) == sum(len(paper.claims) for paper in PAPERS.values())
    assert verdicts.count("true") == 1
    assert "&lt;sst&gt;" in page
    assert "<sst>" not in page
    assert math.isclose(float(re.findall(r"&lt;sst&gt;: ([0-9.]+)\.", page)[0]), 0.04)
