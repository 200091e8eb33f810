"""The program of a process of its own that renders a chat template, within limits of time and memory.

A chat template is a program that comes with a tokenizer, and its sandbox bounds neither its time nor its memory. The
request is JSON on standard input, the answer JSON on standard output. Nothing of heedful is imported here: the process
must start quickly.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import cast

SECONDS = 2
"""Of a processor, for rendering alone."""
MEMORY = 1 << 30
"""Bytes, for rendering alone."""
MAX_CHARACTERS = 1_000_000


def limit_resources() -> None:
    """Bound what this process may take from now on; where the system has no such limits, the caller ends it."""
    if find_spec("resource") is None:
        return
    resource = import_module("resource")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limits = {"RLIMIT_CPU": int(usage.ru_utime + usage.ru_stime) + SECONDS}
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limits["RLIMIT_AS"] = pages * resource.getpagesize() + MEMORY
    for name, limit in limits.items():
        with suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (limit, limit))


def render(messages: list[dict[str, str]], template: str, tokens: dict[str, str]) -> str:
    """The messages in the template, with the beginning of the answer behind them.

    Args:
        tokens: special tokens by their roles.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_resources()
    answer: object = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **tokens)  # type: ignore[arg-type]
    (rendered,), _ = cast("tuple[list[str], object]", answer)
    if len(rendered) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(rendered)} characters, more than {MAX_CHARACTERS}")
    return rendered


def main() -> None:
    """Answer one request."""
    try:
        answer = {"text": render(**json.load(sys.stdin))}
    except BaseException as error:  # noqa: BLE001 - a template may fail in any way
        line = (str(error).strip().splitlines() or [""])[0]
        answer = {"error": line or type(error).__name__}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
