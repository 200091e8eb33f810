"""The claims of the ledger: one record per claim and model in `claims.jsonl`, in the order of the papers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from heedful.papers import PAPERS
from heedful.papers.chapter import Result
from heedful.papers.claims import CLAIM_VERDICTS, ClaimRow, PaperClaim, claim_row
from heedful.reproduction.ledger import LedgerEntry, dump_records, locked_ledger, parse_line, read_lines
from heedful.results import Finding, Statistic
from heedful.store.atomic_write import replace_text

CLAIMS_FILE = "claims.jsonl"


class ClaimEvidence(LedgerEntry):
    """One number that a claim rests on; None where it is undefined."""

    metric: str
    method: str = ""
    subset: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: float | None = None


class ClaimRecord(LedgerEntry):
    """What one model says about a claim.

    Args:
        claim: the name of the claim within its paper.
        model: what was tested: a model, or the models that are compared.
    """

    paper: str
    claim: str
    model: str
    verdict: Literal["true", "false", "undecided"]
    evidence: tuple[ClaimEvidence, ...]


def find_claim(record: ClaimRecord) -> PaperClaim | None:
    """The claim that a record is about; None if the paper no longer has it, or decides it by other numbers."""
    paper, metrics = PAPERS.get(record.paper), {entry.metric for entry in record.evidence}
    claims = () if paper is None else paper.claims
    return next((claim for claim in claims if claim.name == record.claim and metrics <= claim.criteria.keys()), None)


def read_claims(folder: Path) -> list[ClaimRecord]:
    """The records of all papers; none if the file is missing."""
    path = folder / CLAIMS_FILE
    return [parse_line(ClaimRecord, line, path, number) for number, line in read_lines(path)]


def update_claims(folder: Path, paper: str, results: Sequence[Result]) -> int:
    """Replace the records of the models in these results, keep all others; returns how many were written.

    The verdicts of all records are derived anew from their evidence.
    """
    path = folder / CLAIMS_FILE
    measured = [
        make_claim_record(paper, claim, finding) for claim in PAPERS[paper].claims for finding in claim.find(results)
    ]
    with locked_ledger(folder, path):
        merged: dict[tuple[str, str, str], ClaimRecord] = {}
        for record in (*read_claims(folder), *measured):
            if claim := find_claim(record):
                merged[record.paper, record.claim, record.model] = make_claim_record(
                    record.paper, claim, record_finding(claim, record)
                )
        replace_text(path, dump_records(sort_records(merged.values())))
    return len(measured)


def sort_records(records: Iterable[ClaimRecord]) -> list[ClaimRecord]:
    """Records in the order of papers, of their claims, and of the names of models."""
    order = {(name, claim.name): number for name, paper in PAPERS.items() for number, claim in enumerate(paper.claims)}
    papers = list(PAPERS)
    return sorted(
        records,
        key=lambda record: (papers.index(record.paper), order[record.paper, record.claim], record.model),
    )


def make_claim_record(paper: str, claim: PaperClaim, finding: Finding) -> ClaimRecord:
    """The record of a finding, its numbers with nine digits as in the other records."""
    evidence = tuple(
        ClaimEvidence(
            metric=statistic.metric,
            method=statistic.method,
            subset=statistic.subset,
            value=_plain(statistic.value),
            low=_plain(statistic.low),
            high=_plain(statistic.high),
            n=_plain(statistic.n),
        )
        for statistic in finding.evidence
    )
    return ClaimRecord.model_validate(
        {
            "paper": paper,
            "claim": claim.name,
            "model": finding.method,
            "verdict": CLAIM_VERDICTS[finding.verdict],
            "evidence": evidence,
        }
    )


def record_finding(claim: PaperClaim, record: ClaimRecord) -> Finding:
    """The finding that follows from the numbers of a record."""
    numbers = [
        Statistic(
            entry.metric,
            entry.method,
            entry.subset,
            *(math.nan if number is None else number for number in (entry.value, entry.low, entry.high, entry.n)),
        )
        for entry in record.evidence
    ]
    return claim.judge_model(record.model, numbers)


def claim_rows(paper: str, records: Sequence[ClaimRecord]) -> tuple[ClaimRow, ...]:
    """All claims of a paper with their verdicts by these records."""
    return tuple(
        claim_row(
            claim,
            [
                record_finding(claim, record)
                for record in records
                if record.paper == paper and find_claim(record) is claim
            ],
        )
        for claim in PAPERS[paper].claims
    )


def _plain(number: float) -> float | None:
    return None if math.isnan(number) else float(f"{number:.9g}")
