"""What the audits in a workspace say of the methods of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from heedful.attributions.method import Feature
from heedful.attributions.registry import find_method
from heedful.results import Verdict
from heedful.store.model_folder import ModelIdentity
from heedful.store.workspace import Workspace
from heedful.types import UserError

AUDITS = ".audits"
"""Folder of a workspace with the results of audits, each as `<digest of the model>-....json`."""
DECIDED = (Verdict.SUPPORTED.value, Verdict.NOT_SUPPORTED.value)


@dataclass(frozen=True)
class Recommendation:
    """What the best finished audit of a model says of its methods.

    Args:
        methods: names of those of the catalogue that may be shown, best first.
        date: of the audit; empty if unknown.
        not_passed: each method that was audited and may not be shown alone, and why.
        exceptions: the predicted classes for which a method is not faithful, by method.
        feature: what was explained and removed together.
    """

    methods: tuple[str, ...]
    date: str
    not_passed: Mapping[str, str]
    exceptions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    feature: Feature = "word"

    @property
    def audit(self) -> str:
        """The audit in words."""
        return f"the audit of {self.date}" if self.date else "the audit"


def find_recommendation(model: ModelIdentity, workspace: Path | str) -> Recommendation | None:
    """The recommendation of the best finished audit of a model in `<workspace>/.audits`; None if there is none.

    The best audit has examined most: the number of texts times the number of methods of the catalogue. Of equal ones
    that with most decided answers counts, then the latest. Its results do not decide before that, because an audit that
    is chosen by its results errs more often than it says. Weights are hashed only if there is an audit.
    """
    store = Workspace(workspace)
    names = [name for name in store.list_documents(AUDITS) if name.endswith(".json")]
    prefix = model.digest[:16] if names else ""
    documents = [store.read_document(f"{AUDITS}/{name}") for name in names if name.startswith(prefix)]
    audits = [audit for written in documents if (audit := _read_audit(written or b"")) is not None]
    return max(audits, key=lambda audit: audit[0])[1] if audits else None


_AuditRank = tuple[int, int, str]
"""Texts times methods, decided answers, date."""


def _read_audit(written: bytes) -> tuple[_AuditRank, Recommendation] | None:
    """The rank of a stored audit and what it recommends; None if it is not finished, or damaged."""
    try:
        audit = json.loads(written)
        if not audit["finished"]:
            return None
        methods = [entry for entry in audit["methods"] if not entry["control"]]
        listed = [entry for entry in methods if _is_in_catalogue(entry["name"])]
        decided = sum(answer["verdict"] in DECIDED for entry in listed for answer in entry["answers"])
        not_passed = {
            entry["name"]: str(entry["reason"]) for entry in methods if entry["name"] not in audit["recommended"]
        }
        exceptions = {
            entry["name"]: tuple(
                str(label)
                for label, answer in entry.get("by_class", {}).items()
                if answer["verdict"] == Verdict.NOT_SUPPORTED.value
            )
            for entry in methods
        }
        recommended = tuple(name for name in audit["recommended"] if _is_in_catalogue(name))
        known: tuple[Feature, ...] = get_args(Feature)
        feature: Feature = next((each for each in known if each == audit["data"].get("feature")), "word")
        rank = (len(listed) * int(audit["data"]["texts"]), decided, str(audit["date"]))
        return rank, Recommendation(recommended, str(audit["date"]), not_passed, exceptions, feature)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_in_catalogue(name: str) -> bool:
    """Whether a name is that of a method of the catalogue: audits also have scores made elsewhere."""
    try:
        find_method(name)
    except UserError:
        return False
    return True
