"""A journal in a workspace: small records that are only ever added, in order, by any number of processes.

Every record is a document of its own, numbered from 1 and created only if there is none of that number: writers side by
side, on one machine or on several, cannot overwrite each other. Each has a checksum. A damaged or deleted record is
still one record, so that nothing that is counted by records starts anew. The looks of an audit are kept in one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from heedful.store.recipe import Json, dump_compact_json, json_digest
from heedful.store.workspace import Workspace

_CHECKSUM = "sha256"
Record = dict[str, Json]


class Journal:
    """The records `<folder>/<name>-1.json`, `<folder>/<name>-2.json` and so on beside the artefacts."""

    def __init__(self, workspace: Workspace, folder: str, name: str) -> None:
        self.workspace, self.folder, self.name = workspace, folder, name

    def place(self, number: int) -> str:
        """The document of a record."""
        return f"{self.folder}/{self.name}-{number}.json"

    def read(self) -> list[Record | None]:
        """All records in order; None for one that is damaged, or that is missing before a later one."""
        pattern = re.compile(re.escape(self.name) + r"-(\d{1,9})\.json")
        names = self.workspace.list_documents(self.folder)
        numbers = [int(match[1]) for name in names if (match := pattern.fullmatch(name))]
        return [
            _parse(self.workspace.read_document(self.place(number)) or b"")
            for number in range(1, max(numbers, default=0) + 1)
        ]

    def append(self, record: Mapping[str, Json], number: int) -> bool:
        """Add a record under the next number; False if another process was quicker: read again, and decide anew."""
        text = dump_compact_json({**record, _CHECKSUM: json_digest({**record})})
        self.workspace.create_document(self.place(number), text)
        return self.workspace.read_document(self.place(number)) == text.encode()


def _parse(written: bytes) -> Record | None:
    try:
        content = json.loads(written)
        checksum = content.pop(_CHECKSUM)
        whole = dump_compact_json({**content, _CHECKSUM: checksum}).encode()
        return content if whole == written and checksum == json_digest(content) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
