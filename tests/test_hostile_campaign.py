"""A part of the campaign of hostile inputs; `python -m tests.hostile_campaign` runs all of it."""

from __future__ import annotations

import pytest

from tests import hostile_campaign
from tests.hostile_campaign import ENDLESS, FAULT, PARTS, cases, run_campaign

SHARE = 12
"""Cases of each part, evenly spread."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.slow
def test_hostile_inputs_are_refused_in_one_line_and_in_time(part: str) -> None:
    step = max(1, len(cases(part)) // SHARE)
    seen = [*run_campaign({part: lambda number: number % step == 0})]
    assert len(seen) >= SHARE
    assert [(case.name, what) for case, outcome, what in seen if outcome in (FAULT, ENDLESS)] == []


def test_a_traceback_and_a_call_without_end_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign itself can fail."""
    import time

    from heedful.types import UserError

    def fail() -> None:
        raise ZeroDivisionError

    def refuse() -> None:
        raise UserError("one line")

    calls = {"fails": fail, "refuses": refuse, "works": lambda: None, "endless": lambda: time.sleep(100)}
    own = [hostile_campaign.Case("Python", name, lambda _, call=call: call) for name, call in calls.items()]  # type: ignore[misc]
    own.append(hostile_campaign.Case("list", "command", lambda _: ["list", "--nothing"]))
    monkeypatch.setattr(hostile_campaign, "PARTS", {"own": lambda: iter(own)})
    monkeypatch.setattr(hostile_campaign, "LIMIT", 2.0)
    monkeypatch.setattr(hostile_campaign, "shared", lambda: None)
    monkeypatch.setattr(hostile_campaign, "explained", lambda: None)
    outcomes = {case.name: outcome for case, outcome, _ in run_campaign()}
    assert outcomes == {
        "fails": FAULT, "refuses": "refused", "works": "fine", "endless": ENDLESS, "command": "usage",
    }  # fmt: skip
