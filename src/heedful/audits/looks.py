"""The looks at the results of an audit, which its calls record: each that decides something spends error probability.

A look is recorded before anybody sees its result. One whose record is damaged or lost counts all the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.recommendation import AUDITS
from heedful.store.atomic_write import WriteError
from heedful.store.journal import Journal
from heedful.store.workspace import Workspace

MAX_ATTEMPTS_TO_RECORD = 100
"""As often other calls may record a look at the same moment."""


@dataclass(frozen=True)
class Look:
    """One look at the results of an audit: the number of texts, and a digest of what was looked at."""

    texts: int
    evidence: str


class _Record(BaseModel):
    """What one call of an audit has recorded; `looks` are the fields of `Look`."""

    costs: dict[str, float]
    looks: list[tuple[int, str]]
    seconds: float


@dataclass
class AuditState:
    """What is known of the earlier calls of an audit.

    Args:
        costs: seconds per text of each kind of work.
        looks: in their order; None for one whose record is damaged or lost, which counts all the same: a look that is
            forgotten would let the next one err more often than it says.
        seconds: spent by the calls that added a look.
        records: how many records there are.
        damaged: documents of records that are damaged or lost.
    """

    costs: dict[str, float] = field(default_factory=dict)
    looks: list[Look | None] = field(default_factory=list)
    seconds: float = 0.0
    records: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def texts(self) -> int:
        """The most texts that a look was at."""
        return max((look.texts for look in self.looks if look is not None), default=0)


def look_number(looks: Sequence[Look | None], look: Look) -> int:
    """The number of a look among those that decide something; 1 for a look at too few texts, which spends no error.

    Args:
        looks: all that are known, in their order; None for one whose record is damaged.

    >>> early, first, second = Look(10, "a"), Look(30, "b"), Look(50, "c")
    >>> [look_number([early, first, None], look) for look in (early, first, second)]
    [1, 1, 3]
    """
    deciding = [known for known in looks if known is None or known.texts >= MIN_EXAMPLES]
    if look.texts < MIN_EXAMPLES:
        return 1
    return deciding.index(look) + 1 if look in deciding else len(deciding) + 1


def read_state(journal: Journal) -> AuditState:
    """What the records of an audit say."""
    state, records = AuditState(), journal.read()
    for number, record in enumerate(records, start=1):
        try:
            known = _Record.model_validate(record)
        except ValueError:
            state.damaged.append(journal.place(number))
            state.looks.append(None)
            continue
        looks = [Look(*look) for look in known.looks]
        state.costs |= known.costs
        state.seconds += known.seconds
        state.looks += [look for look in looks if look not in state.looks]
    state.records = len(records)
    return state


class LookJournal:
    """The records of one audit in a workspace.

    Attributes:
        state: what they said when this call began.
    """

    def __init__(self, workspace: Workspace, identity: str) -> None:
        self.workspace = workspace
        self.journal = Journal(workspace, AUDITS, f"state-{identity}")
        self.state = read_state(self.journal)
        if self.state.damaged:
            warnings.warn(
                f"records of earlier looks at this audit are damaged or lost in {workspace}: "
                f"{', '.join(self.state.damaged)}. Each counts as a look, so that the tests err no more often than "
                "they say; another seed draws other texts and begins anew",
                stacklevel=3,
            )

    def count(
        self, look: Look, costs: Mapping[str, float], seconds: float, *, writable: bool
    ) -> tuple[int, dict[str, float]]:
        """The number of a look, which is recorded if it is a new one, and the costs known after it.

        Args:
            costs: that this call measured.
            seconds: that this call spent.
            writable: whether the workspace can be written.
        """
        known = self.state
        for _ in range(MAX_ATTEMPTS_TO_RECORD if writable else 0):
            if look in known.looks:
                break
            record = _Record(costs=dict(costs), looks=[(look.texts, look.evidence)], seconds=seconds)
            # Of two calls at the same moment the first one has the number, and the other looks again.
            self.journal.append(record.model_dump(mode="json"), known.records + 1)
            known = read_state(self.journal)
        if look not in known.looks and writable:
            raise WriteError(f"what is written in {self.workspace}/{AUDITS} cannot be read: check its permissions")
        if look not in known.looks:
            warnings.warn(
                f"this look at the audit cannot be remembered, because the workspace {self.workspace} cannot be "
                "written: copy the workspace before you go on with the audit",
                stacklevel=2,
            )
        # Calls side by side measure some of them.
        return look_number(known.looks, look), {**known.costs, **costs}
