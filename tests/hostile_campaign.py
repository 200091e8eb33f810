"""A campaign of hostile inputs over all commands and the Python API: `python -m tests.hostile_campaign [PART]`.

A case is a call. It may succeed, or be refused: one line and exit code 2 of a command, a `UserError` in Python. Any
other exception, message or exit code, and a call without end, is a fault. Cases run in one worker process, which is
replaced when a case takes longer than `LIMIT` seconds. Counts by command and outcome are printed; the exit code is 1 if
there is a fault. `test_hostile_campaign.py` runs a part of the cases.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as OutOfTime
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from pebble import ProcessPool

LIMIT = 60.0
FINE, REFUSED, USAGE = "fine", "refused", "usage"
FAULT, ENDLESS = "FAULT", "ENDLESS"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
Make = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One call; `make` gets an empty folder, which is the current one, and gives the words of a command or a call.

    Args:
        group: the command, or `Python` and what is called.
    """

    group: str
    name: str
    make: Callable[[Path], list[object] | Callable[[], object]]
    environment: Mapping[str, str | None] = ()  # type: ignore[assignment]


# What the cases are made of


@cache
def shared() -> Path:
    """A folder with a small model and tables, made once for each worker."""
    from tests.test_hostile_inputs import CSV
    from tests.training.test_checkpoint import fine_tuned

    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    fine_tuned(folder / "model", names=("no", "yes"))
    (folder / "good.csv").write_text(CSV)
    return folder


def model() -> Path:
    return shared() / "model"


def good() -> Path:
    return shared() / "good.csv"


@cache
def explainer() -> Any:
    import heedful

    return heedful.load(str(model()))


@cache
def explained() -> Any:
    return explainer().explain("the good film", methods="gradient")


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def listening(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as one:
        os.chdir(folder)
        one.bind("socket")
    return folder / "socket"


def loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def dangling(folder: Path) -> Path:
    (folder / "dangling").symlink_to("/nowhere/at/all")
    return folder / "dangling"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("x")
    return folder / "file" / "below"


ABSENT: Mapping[str, Make] = {
    "unknown user": lambda _: "~nosuch/x",
    "unknown user alone": lambda _: "~nosuch",
    "dots": lambda _: "../" * 50 + "nothing/at/all",
    "device": lambda _: "/dev/zero",
    "full device": lambda _: "/dev/full",
    "no memory of a process": lambda _: "/proc/self/mem",
    "below a process": lambda _: "/proc/1/fd/9999/x",
    "fifo": fifo,
    "socket": listening,
    "loop": loop,
    "below a loop": lambda folder: loop(folder) / "x" / "y",
    "dangling": dangling,
    "below a file": below_a_file,
    "long name": lambda _: "a" * 3000,
    "long path": lambda _: "/".join(["b" * 200] * 40),
    "bidi": lambda _: "\u202eevil\u2066/x",
    "surrogate": lambda _: "caf\udce9/x",
    "escapes": lambda _: "\x1b[2J[bold]\n/x",
    "percent": lambda _: "%s%n{0}{x}/x",
    "url": lambda _: "https://example.invalid/x",
    "windows": lambda _: "C:\\models\\x",
}
"""Paths at which there is nothing that a command could read."""
UNWRITABLE: Mapping[str, Make] = {
    **{
        name: ABSENT[name]
        for name in ("unknown user", "loop", "below a loop", "below a file", "long name", "long path")
    },
    "below a process": lambda _: "/proc/1/fd/9999/x",
    "in sys": lambda _: "/sys/heedful/x",
    "below a device": lambda _: "/dev/null/x",
    "below a fifo": lambda folder: fifo(folder) / "x",
}
"""Paths at which nothing can be written."""
INPUTS: Mapping[str, tuple[object, ...]] = {
    "explain model": ("explain", "{}", "a good film"),
    "explain text": ("explain", model, "{}.csv"),
    "audit model": ("audit", "{}", good),
    "audit data": ("audit", model, "{}"),
    "audit data.csv": ("audit", model, "{}.csv"),
    "audit --attributions": ("audit", model, good, "--attributions", "{}"),
    "audit --train-data": ("audit", model, good, "--train-data", "{}"),
    "models": ("models", "{}"),
    "run": ("run", "{}"),
    "run .py": ("run", "{}.py"),
    "run --data": ("run", "jain-wallace", "--data", "{}"),
    "run --checkpoint": ("run", "disagreement", "--only", "mock-1", "--dry-run", "--checkpoint", "{}"),
    "run --embeddings": ("run", "jain-wallace", "--only", "mock-1", "--dry-run", "--embeddings", "{}"),
    "attefa --data": ("attefa", "--data", "{}"),
    "attefa --dev": ("attefa", "--data", good, "--dev", "{}"),
    "learn --teacher": ("learn", "--teacher", "{}", "--data", good),
    "learn --data": ("learn", "--teacher", model, "--data", "{}"),
    "report -w": ("report", "-w", "{}"),
    "study build": ("study", "build", "--from", "{}", "--methods", "lime,gradient"),
    "study serve": ("study", "serve", "{}", "--port", "0"),
    "study rate": ("study", "rate", "{}"),
    "study erase": ("study", "erase", "token", "--study", "{}"),
    "fetch": ("fetch", "{}"),
    "fetch --source": ("fetch", "sst", "--source", "{}"),
}
"""Ways in for a path that cannot be read."""
OUTPUTS: Mapping[str, tuple[object, ...]] = {
    "explain --html": ("explain", model, "good", "--html", "{}"),
    "explain --json": ("explain", model, "good", "--json", "{}"),
    "explain --out": ("explain", model, "good", "--out", "{}"),
    "audit --out": ("audit", model, good, "--out", "{}"),
    "audit --json": ("audit", model, good, "--json", "{}"),
    "audit --card": ("audit", model, good, "--card", "{}"),
    "audit -w": ("audit", model, good, "-w", "{}"),
    "models --json": ("models", model, "--json", "{}"),
    "models --out": ("models", "--all", "--only", "bert", "--out", "{}"),
    "demo --out": ("demo", "--planted", "--out", "{}"),
    "demo -w": ("demo", "--planted", "-w", "{}"),
    "run --json": ("run", "jain-wallace", "--only", "mock-1", "--quick", "--where", "here", "--json", "{}"),
    "run -w": ("run", "jain-wallace", "--only", "mock-1", "--quick", "--where", "here", "-w", "{}"),
    "attefa --out": ("attefa", "--data", good, "--out", "{}"),
    "attefa -w": ("attefa", "--data", good, "--quick", "--where", "here", "-w", "{}"),
    "learn --out": ("learn", "--teacher", model, "--data", good, "--out", "{}"),
    "report --out": ("report", "--out", "{}"),
    "study build --out": ("study", "build", "--from", "w", "--methods", "lime,gradient", "--out", "{}"),
}


def fill(words: tuple[object, ...], value: object) -> list[object]:
    """The words with a value in the place of `{}`."""
    return [word() if callable(word) else str(word).replace("{}", str(value)) for word in words]


def path_cases() -> Iterator[Case]:
    for places, ways in ((ABSENT, INPUTS), (UNWRITABLE, OUTPUTS)):
        for way, words in ways.items():
            for name, make in places.items():
                yield Case(way.split()[0], f"{way}: {name}", lambda folder, w=words, m=make: fill(w, m(folder)))  # type: ignore[misc]


NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e400", "9" * 40, "", "1.5", "0x10", "٣", "1_000", "--", "1e-320", "None")
NUMBER_OPTIONS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("audit", "absent", "absent.csv"): ("--minutes", "--texts", "--seed", "--workers", "--batch-size"),
    ("run", "absent.py"): (
        *("--seeds", "--limit", "--workers", "--batch-size", "--error", "--lambda", "--bases", "--size"),
    ),
    ("run", "jain-wallace", "--only", "mock-1", "--dry-run"): ("--seeds", "--limit", "--error"),
    ("run", "wiegreffe-pinter", "--only", "mock-1", "--dry-run"): ("--lambda", "--seeds"),
    ("run", "scaffold", "--dry-run"): ("--size",),
    ("attefa", "--data", "absent.csv"): ("--seeds", "--bases", "--workers", "--batch-size"),
    ("learn", "--teacher", "absent", "--data", "absent.csv"): ("--size", "--seed", "--seeds", "--audit-minutes"),
    ("demo", "--out", "/dev/null/x"): ("--batch-size",),
    ("study", "build", "--from", "absent", "--methods", "lime,gradient"): (
        *("--items", "--per-person", "--people", "--max-words", "--checks", "--repeats", "--max-failed-checks"),
        "--seed",
    ),
    ("study", "serve", "absent"): ("--port",),
    ("study", "rate", "absent"): ("--seed",),
}


def number_cases() -> Iterator[Case]:
    for words, options in NUMBER_OPTIONS.items():
        for option in options:
            for number in NUMBERS:
                whole: list[object] = [*words, f"{option}={number}"]
                yield Case(words[0], f"{' '.join(words[:2])} {option}={number[:12]}", lambda _, w=whole: w)  # type: ignore[misc]


WORDS = (
    "", " ", "-", "--", "nothing", "\u202e\u2066", "caf\udce9", "a" * 5000, "[bold]", "{}", "%s", "\n\n", "=", ",",
    "(", ")",
)  # fmt: skip
WORD_OPTIONS: Mapping[tuple[object, ...], tuple[str, ...]] = {
    ("explain", model, "the good film"): (
        *("--method", "--target", "--contrast", "--device", "--precision", "--prompt", "--label", "--second-column"),
        *("--text-column",),
    ),
    ("audit", model, good, "--out", "/dev/null/x"): (
        *("--method", "--require", "--text-column", "--label-column", "--rationale-column", "--id-column", "--where"),
        *("--device", "--precision", "--label", "--prompt"),
    ),
    ("models", "--all"): ("--only",),
    ("run", "jain-wallace", "--dry-run"): ("--only", "--encoder", "--attention", "--embeddings", "--where", "--device"),
    ("run", "wiegreffe-pinter", "--only", "mock-1", "--dry-run"): ("--select", "--start"),
    ("run", "scaffold", "--dry-run"): ("--normalizer", "--checkpoint"),
    ("attefa", "--data", good, "--out", "/dev/null/x"): (
        *("--encoder", "--embeddings", "--start", "--text-column", "--where"),
    ),
    ("learn", "--teacher", model, "--data", good, "--out", "/dev/null/x"): (
        *("--label-column", "--text-column", "--where"),
    ),
    ("study", "build", "--from", "w"): ("--methods", "--title", "--url", "--database"),
    ("study", "build", "--from", "w", "--methods", "a,b"): ("--task", "--items-by", "--scores", "--scale", "--model"),
    ("study", "serve", "absent"): ("--host", "--database"),
    ("report",): ("--workspace",),
    ("run", "jain-wallace", "--only", "mock-1", "--dry-run"): ("--workspace",),
}
HEAVY_WORDS: Mapping[tuple[object, ...], tuple[str, ...]] = {("models", "--all"): ("",)}
PLACES = (
    "simplecache::s3://b/x", "filecache::memory://x", "data:,x", "data:text/plain;base64,eA==", "dir:///x",
    "reference://x", "zip://x::s3://b", "blockcache::x", "http://h/x", "github://o:r@main/", "s3:b/x", "s3://",
    "s3://b/../x", "S3:/b", "memory:x", "file://", "file://~nosuch/x", "://x", "gs:/x", "hf://x/y", "local::x",
    "cached://x", "a::b://c", "sftp://h/x",
)  # fmt: skip


def word_cases() -> Iterator[Case]:
    for words, options in WORD_OPTIONS.items():
        for option in options:
            for word in WORDS:
                if word in HEAVY_WORDS.get(words, ()):
                    continue
                name = f"{words[0]} {option}={ascii(word)[:16]}"
                yield Case(
                    str(words[0]),
                    name,
                    lambda _, w=words, o=option, v=word: [*fill(w, ""), f"{o}={v}"],  # type: ignore[misc]
                )
    for place in PLACES:
        for start in (("report",), ("run", "jain-wallace", "--only", "mock-1", "--dry-run")):
            yield Case(start[0], f"{start[0]} -w {place}", lambda _, s=start, p=place: [*s, "-w", p])  # type: ignore[misc]


ONE_FILE = (
    ("explain", model, "good", "--json", "x", "--html", "x"),
    ("explain", model, "good", "--json", "x", "--out", "./x"),
    ("explain", model, "good", "--html", "a/../x", "--out", "x"),
    ("explain", model, "good", "--json", "-", "--out", "-"),
    ("explain", model, "good", "--json", "-", "--html", "-"),
    ("explain", model, "good", "--json", "-"),
    ("explain", model, "good", "--html", "-"),
    ("explain", model, "good", "--out", "-"),
    ("explain", model, "-"),
    ("audit", model, good, "--json", "x", "--card", "x"),
    ("audit", model, good, "--json", "-", "--card", "-"),
    ("audit", model, good, "--out", "-"),
    ("demo", "--out", "-"),
    ("models", model, "--json", "-"),
    ("models", "--all", "--only", "bert", "--json", "x", "--out", "x"),
    ("attefa", "--data", good, "--out", "-"),
    ("learn", "--teacher", model, "--data", good, "--out", "-"),
    ("report", "--out", "-"),
    ("study", "build", "--from", "w", "--methods", "a,b", "--out", "-"),
)


def output_cases() -> Iterator[Case]:
    for words in ONE_FILE:
        name = " ".join(getattr(word, "__name__", str(word)) for word in words)
        yield Case(str(words[0]), name, lambda _, w=words: fill(w, ""))  # type: ignore[misc]


# Files of a model


def safetensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


JSON_FILES: Mapping[str, bytes] = {
    "empty": b"",
    "object": b"{}",
    "list": b"[]",
    "null": b"null",
    "number": b"5",
    "text": b'"text"',
    "not a number": b'{"num_labels": NaN, "hidden_size": Infinity}',
    "cut": b'{"model_type": "be',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "mark": b"\xef\xbb\xbf{}",
    "utf-16": '{"model_type": "bert"}'.encode("utf-16"),
    "zeros": bytes(1000),
    "latin-1": b'{"model_type": "caf\xe9"}',
    "twice": b'{"model_type": "bert", "model_type": 5}',
    "huge number": b'{"num_labels": ' + b"9" * 10_000 + b"}",
    "half a character": b'{"model_type": "\\ud800"}',
}
CONFIGS: Mapping[str, dict[str, object]] = {
    "type is a number": {"model_type": 5},
    "type is null": {"model_type": None},
    "type is a path": {"model_type": "../../x"},
    "layers are a text": {"num_hidden_layers": "a"},
    "layers are negative": {"num_hidden_layers": -1},
    "layers are many": {"num_hidden_layers": 10**9},
    "layers are null": {"num_hidden_layers": None},
    "size is 0": {"hidden_size": 0},
    "size is odd": {"hidden_size": 7},
    "size is a fraction": {"hidden_size": 16.5},
    "size is huge": {"hidden_size": 10**12},
    "heads are 0": {"num_attention_heads": 0},
    "heads are many": {"num_attention_heads": 10**9},
    "words are negative": {"vocab_size": -5},
    "words are a list": {"vocab_size": [16]},
    "words are few": {"vocab_size": 2},
    "positions are 0": {"max_position_embeddings": 0},
    "positions are a text": {"max_position_embeddings": "24"},
    "labels are a text": {"num_labels": "x", "id2label": None},
    "labels are a list": {"id2label": ["no", "yes"]},
    "labels are numbers": {"id2label": {"0": 5, "1": None}},
    "labels are alike": {"id2label": {"0": "x", "1": "x"}},
    "labels have holes": {"id2label": {"0": "x", "7": "y"}},
    "labels are not numbered": {"id2label": {"a": "x", "b": "y"}},
    "labels are none": {"id2label": {}},
    "labels are half characters": {"id2label": {"0": "\ud800", "1": "\u202e"}},
    "labels are long": {"id2label": {"0": "a" * 100_000, "1": "b"}},
    "classes are a number": {"architectures": 5},
    "classes are unknown": {"architectures": ["Nothing"]},
    "classes are nested": {"architectures": [["Bert"]]},
    "problem is unknown": {"problem_type": "nothing"},
    "problem is a list": {"problem_type": []},
    "activation is unknown": {"hidden_act": "nothing"},
    "activation is a number": {"hidden_act": 5},
    "dtype is unknown": {"dtype": "nothing", "torch_dtype": "nothing"},
    "dtype is a number": {"dtype": 5},
    "dropout is a text": {"hidden_dropout_prob": "x"},
    "dropout is 2": {"hidden_dropout_prob": 2},
    "pad is a text": {"pad_token_id": "x"},
    "pad is outside": {"pad_token_id": 10**6},
    "code": {"auto_map": {"AutoModel": "x.y"}},
    "quantized": {"quantization_config": {"quant_method": "nothing"}},
    "quantized by a text": {"quantization_config": "x"},
    "attention is unknown": {"_attn_implementation": "nothing", "attn_implementation": 5},
}
WEIGHTS: Mapping[str, bytes] = {
    "empty": b"",
    "short": b"\x01",
    "header of 8 EB": safetensors(b"{}", length=2**63),
    "header beyond the file": safetensors(b"{}", length=100),
    "header is no JSON": safetensors(b"{{{{"),
    "header is a list": safetensors([]),
    "header is deep": safetensors(b"[" * 50_000 + b"]" * 50_000),
    "header is not UTF-8": safetensors(b'{"\xff": 1}'),
    "no tensors": safetensors({}),
    "only metadata": safetensors({"__metadata__": {"format": "pt"}}),
    "metadata is a number": safetensors({"__metadata__": 5}),
    "other tensors": safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "unknown dtype": safetensors({"x": {"dtype": "F9", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "negative shape": safetensors({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
    "huge shape": safetensors({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}, bytes(4)),
    "offsets beyond the file": safetensors({"x": {"dtype": "F32", "shape": [10**6], "data_offsets": [0, 4 * 10**6]}}),
    "offsets turned": safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
    "pickle": b"\x80\x02cos\nsystem\nq\x00.",
    "zip": b"PK\x03\x04" + bytes(100),
}
NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "model.safetensors")
OTHER_FILES: Mapping[str, Make] = {
    "a folder": lambda path: path.mkdir(),
    "a fifo": lambda path: os.mkfifo(path),
    "a loop": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("/nowhere"),
    "absent": lambda path: None,
}
TOKENIZERS: Mapping[str, dict[str, object]] = {
    "no vocabulary": {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"}},
    "no type": {"model": {}},
    "ids beyond": {"model": {"type": "WordLevel", "vocab": {"[UNK]": 10**6}, "unk_token": "[UNK]"}},
    "ids negative": {"model": {"type": "WordLevel", "vocab": {"[UNK]": -1}, "unk_token": "[UNK]"}},
    "ids as texts": {"model": {"type": "WordLevel", "vocab": {"[UNK]": "0"}, "unk_token": "[UNK]"}},
    "unknown step": {"pre_tokenizer": {"type": "Nothing"}},
    "bad pattern": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Removed", "invert": False}
    },
    "everything removed": {"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}},
    "text grows": {"normalizer": {"type": "Replace", "pattern": {"String": "o"}, "content": "o " * 2000}},
    "cut to nothing": {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}},
    "added token beyond": {"added_tokens": [{"id": 10**9, "content": "good", "special": True}]},
}
TOKENIZER_CONFIGS: Mapping[str, dict[str, object]] = {
    "class is unknown": {"tokenizer_class": "Nothing"},
    "class is a number": {"tokenizer_class": 5},
    "pad is a number": {"pad_token": 5},
    "pad is a list": {"pad_token": []},
    "no pad": {"pad_token": None},
    "side is unknown": {"padding_side": "above"},
    "length is negative": {"model_max_length": -1},
    "length is 0": {"model_max_length": 0},
    "length is a list": {"model_max_length": []},
    "code": {"auto_map": {"AutoTokenizer": ["x.y", None]}},
    "template is a number": {"chat_template": 5},
    "added tokens are a list": {"added_tokens_decoder": [1]},
    "added tokens are odd": {"added_tokens_decoder": {"x": 5}},
}


def changed_model(folder: Path, name: str, change: bytes | Mapping[str, object] | Make) -> Path:
    """The small model with another file: its bytes, other settings in it, or something else in its place."""
    shutil.copytree(model(), folder / "model")
    path = folder / "model" / name
    if isinstance(change, Mapping):
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(change)))
        return folder / "model"
    path.unlink(missing_ok=True)
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        change(path)
    return folder / "model"


def model_cases() -> Iterator[Case]:
    changes: list[tuple[str, str, Any]] = []
    for name in NAMES:
        changes += [(name, kind, content) for kind, content in JSON_FILES.items() if name.endswith("json")]
        changes += [(name, kind, make) for kind, make in OTHER_FILES.items()]
    changes += [("config.json", kind, change) for kind, change in CONFIGS.items()]
    changes += [("model.safetensors", kind, content) for kind, content in WEIGHTS.items()]
    changes += [("tokenizer.json", kind, change) for kind, change in TOKENIZERS.items()]
    changes += [("tokenizer_config.json", kind, change) for kind, change in TOKENIZER_CONFIGS.items()]
    for number, (name, kind, change) in enumerate(changes):
        words = (("explain", "{}", "the good film", "-m", "gradient"), ("models", "{}"))[number % 7 == 0]
        yield Case(
            words[0], f"{words[0]} {name}: {kind}",
            lambda folder, w=words, n=name, c=change: fill(w, changed_model(folder, n, c)),  # type: ignore[misc]
        )  # fmt: skip


# Tables, through the commands that the table of test_hostile_inputs does not have


def more_tables() -> dict[str, Make]:
    import pyarrow
    from pyarrow import parquet

    from tests.test_hostile_inputs import COUNT, CSV, JSONL, LABELS, TABLES, TEXTS, file

    def write(name: str, columns: Mapping[str, object]) -> Make:
        def make(folder: Path) -> Path:
            parquet.write_table(pyarrow.table(dict(columns)), folder / name)
            return folder / name

        return make

    structs = pyarrow.array([{"a": {"b": [1]}}] * COUNT)
    return {
        **{name: hostile.make for name, hostile in TABLES.items() if "bomb" not in name and "endless" not in name},
        "mark": file("a.csv", b"\xef\xbb\xbf" + CSV.encode()),
        "two marks": file("a.csv", b"\xef\xbb\xbf" * 2 + CSV.encode()),
        "line ends": file("a.csv", CSV.replace("\n", "\r", 5).replace("\n", "\r\n", 5)),
        "old line ends": file("a.csv", CSV.replace("\n", "\r")),
        "zero in a text": file("a.csv", CSV.replace("word 3", "wo\0rd")),
        "bidi in a text": file("a.csv", CSV.replace("word", "\u202eword\u2066")),
        "formula": file("a.csv", CSV.replace("the good", "=cmd|' /C calc'!A0")),
        "header of spaces": file("a.csv", CSV.replace("text,label", " , ")),
        "header of numbers": file("a.csv", CSV.replace("text,label", "1,2")),
        "many columns": file("a.csv", ",".join(f"c{number}" for number in range(5000)) + "\n" + "x," * 4999 + "y\n"),
        "header alone without end": file("a.csv", "text,label"),
        "one row": file("a.csv", "text,label\ngood,no\n"),
        "long word": file("a.csv", CSV + "a" * 200_000 + ",no\n"),
        "json of NaN": file("a.jsonl", JSONL + '{"text": NaN, "label": NaN}\n'),
        "json keys": file("a.jsonl", JSONL + '{"": "x", "text": "a", "label": "no", "\\ud800": 1}\n'),
        "json twice": file("a.jsonl", JSONL + '{"text": "a", "text": 5, "label": "no"}\n'),
        "json lines empty": file("a.jsonl", "\n\n\n"),
        "json null": file("a.json", "null"),
        "nested parquet": write("a.parquet", {"text": TEXTS, "label": LABELS, "more": structs}),
        "struct as text": write("a.parquet", {"text": structs, "label": LABELS}),
        "null column": write("a.parquet", {"text": pyarrow.nulls(COUNT), "label": LABELS}),
        "map column": write(
            "a.parquet",
            {"text": TEXTS, "m": pyarrow.array([[("a", 1)]] * COUNT, pyarrow.map_(pyarrow.string(), pyarrow.int64()))},
        ),
        "decimal label": write(
            "a.parquet", {"text": TEXTS, "label": pyarrow.array([10**30] * COUNT, pyarrow.decimal128(38))}
        ),
        "no columns": write("a.parquet", {}),
    }


def table_cases() -> Iterator[Case]:
    for name, make in more_tables().items():
        yield Case(
            "explain",
            f"explain table: {name}",
            lambda folder, m=make: ["explain", model(), m(folder), "-m", "gradient"],  # type: ignore[misc]
        )
        words: list[object] = ["--out", "/dev/null/x"] if name in TABLES_THAT_ARE_FINE else []
        yield Case(
            "audit",
            f"audit table: {name}",
            lambda folder, m=make, w=words: ["audit", model(), m(folder), *QUICK, *w],  # type: ignore[misc]
        )
        yield Case(
            "audit", f"audit scores: {name}",
            lambda folder, m=make: ["audit", model(), good(), "--attributions", m(folder), *QUICK],  # type: ignore[misc]
        )  # fmt: skip


QUICK = ("--minutes", "0.02", "--texts", "1", "-m", "gradient-norm", "--only-methods", "--where", "here", "-q")
TABLES_THAT_ARE_FINE = ()


# Workspaces and studies

FOLDER = "Draw-0123456789ab"
WORKSPACES: Mapping[str, Mapping[str, bytes | Make]] = {
    "a file as artefact": {FOLDER: b"x"},
    "an empty artefact": {f"{FOLDER}/x": b""},
    **{f"manifest: {name}": {f"{FOLDER}/manifest.json": content} for name, content in JSON_FILES.items()},
    **{f"manifest: {name}": {f"{FOLDER}/manifest.json": make} for name, make in OTHER_FILES.items()},
    "manifest of numbers": {f"{FOLDER}/manifest.json": b'{"index.json":5,"notes.json":5,"recipe.json":5}'},
    "manifest of other files": {f"{FOLDER}/manifest.json": b'{"../../x":[1,"aa"]}'},
    "locks are a file": {".locks": b"x"},
    "staging is a file": {".staging": b"x"},
    "failures are a loop": {".failures": lambda path: path.symlink_to(path)},
    "audits are a file": {".audits": b"x"},
    "everything is a fifo": {FOLDER: lambda path: os.mkfifo(path)},
    "names": {"\u202e-0123456789ab/manifest.json": b"{}", "a" * 200 + "/manifest.json": b"{}"},
}
WORKSPACE_WAYS: Mapping[str, tuple[object, ...]] = {
    "report": ("report", "-w", "{}"),
    "study build": ("study", "build", "--from", "{}", "--methods", "lime,gradient"),
    "run": ("run", "jain-wallace", "--only", "mock-1", "--dry-run", "-w", "{}"),
    "explain": ("explain", model, "the good film", "-w", "{}"),
}
STUDIES: Mapping[str, Mapping[str, bytes | Make]] = {
    **{f"study: {name}": {"study.json": content} for name, content in JSON_FILES.items()},
    **{f"study: {name}": {"study.json": make} for name, make in OTHER_FILES.items()},
    "database is rubbish": {"study.json": b"{}", "answers.sqlite": bytes(range(256)) * 40},
    "database is a folder": {"study.json": b"{}", "answers.sqlite/x": b""},
    "keys are rubbish": {"study.json": b"{}", "keys.json": b"[]"},
}


def build_folder(folder: Path, files: Mapping[str, bytes | Make]) -> Path:
    place = folder / "place"
    place.mkdir()
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content) if isinstance(content, bytes) else content(path)
    return place


def folder_cases() -> Iterator[Case]:
    ways = (
        (WORKSPACES, WORKSPACE_WAYS),
        (STUDIES, {name: INPUTS[name] for name in ("study serve", "study rate", "study erase", "study build")}),
    )
    for folders, words in ways:
        for name, files in folders.items():
            for way, line in words.items():
                yield Case(
                    way.split()[0], f"{way} {name}",
                    lambda folder, f=files, w=line: fill(w, build_folder(folder, f)),  # type: ignore[misc]
                )  # fmt: skip
    for name, content in JSON_FILES.items():
        yield Case(
            "study", f"study rate answers.json: {name}",
            lambda folder, c=content: ["study", "rate", build_folder(folder, {"answers.json": c}) / "answers.json"],  # type: ignore[misc]
        )  # fmt: skip


RUBBISH = (
    "~nosuch/x",
    "\udce9\udcff",
    "/dev/null",
    "/dev/null/x",
    "data:,x",
    "\x1b[2J",
    "a" * 5000,
    "s3://",
    " ",
    "://",
)
VARIABLES = (
    "HEEDFUL_WORKSPACE",
    "HEEDFUL_DATA",
    "HEEDFUL_CACHE",
    "XDG_CACHE_HOME",
    "HEEDFUL_STUDY_DATABASE",
    "HF_HOME",
)
ENVIRONMENT_WAYS: Mapping[str, tuple[object, ...]] = {
    "list": ("list",),
    "report": ("report",),
    "run": ("run", "jain-wallace", "--dry-run"),
    "fetch": ("fetch", "sst", "--source", "absent"),
    "explain": ("explain", model, "the good film"),
    "attefa": ("attefa", "--data", "absent.csv"),
    "study": ("study", "serve", "absent"),
}


def environment_cases() -> Iterator[Case]:
    for variable in VARIABLES:
        for value in RUBBISH:
            for way, words in ENVIRONMENT_WAYS.items():
                name = f"{way} {variable}={ascii(value)[:14]}"
                yield Case(way, name, lambda _, w=words: fill(w, ""), {variable: value})  # type: ignore[misc]
    for variable in ("HOME", "PATH", "TMPDIR", "TERM", "LANG"):
        for value in (None, "", "/nowhere", "\udcff"):  # type: ignore[assignment]
            for way in ("list", "report", "explain"):
                name = f"{way} {variable}={value!a}"
                yield Case(way, name, lambda _, w=ENVIRONMENT_WAYS[way]: fill(w, ""), {variable: value})  # type: ignore[misc]
    for columns in ("1", "0", "-5", "x", "99999999"):
        for way in ("list", "explain", "report"):
            environment = {"COLUMNS": columns, "LINES": columns, "FORCE_COLOR": "1"}
            yield Case(way, f"{way} COLUMNS={columns}", lambda _, w=ENVIRONMENT_WAYS[way]: fill(w, ""), environment)  # type: ignore[misc]


# Python

VALUES: Mapping[str, object] = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "10**40": 10**40,
    "''": "",
    "'x'": "x",
    "zero byte": "a\0b",
    "half a character": "\udc80",
    "unknown user": "~nosuch/x",
    "bytes": b"x",
    "[]": [],
    "[None]": [None],
    "{}": {},
    "{'a': 1}": {"a": 1},
    "object": object(),
    "class": int,
    "function": len,
}


def python_calls() -> dict[str, Callable[[Any], object]]:
    """Calls with one argument that is to be wrong, by the name of the function and the argument."""
    import heedful
    from heedful.audits.schedule import AuditOptions
    from heedful.data import EvaluationTable, SavedDataset, Table, TableColumns, detect_columns, fetch
    from heedful.execution.runner import recipes_from_file
    from heedful.report import write_report
    from heedful.types import Example
    from tests.test_hostile_inputs import file
    from tests.tiny import subject

    def audit(**changes: object) -> object:
        data = changes.pop("data", good())
        options = AuditOptions(0.02, ("gradient-norm",), texts=1, where="here", only_methods=True)
        return heedful.audit(explainer(), data, **{"options": options, "workspace": "w", **changes})  # type: ignore[arg-type]

    calls: dict[str, Callable[[Any], object]] = {
        "load source": lambda value: heedful.load(value),
        "load network": lambda value: heedful.load((value, explainer().tokenizer)),
        "load tokenizer": lambda value: heedful.load((explainer().model, value)),
        **{
            f"load {name}": lambda value, n=name: heedful.load(str(model()), **{n: value})  # type: ignore[misc]
            for name in ("task", "class_names", "labels", "device", "precision")
        },
        "explain model": lambda value: heedful.explain(value, "good"),
        "explain text": lambda value: explainer().explain(value, methods="gradient"),
        "explain texts": lambda value: explainer().explain(["good", value], methods="gradient"),
        "explain second": lambda value: explainer().explain("good", value, methods="gradient"),
        "explain methods": lambda value: explainer().explain("good", methods=value),
        "explain [methods]": lambda value: explainer().explain("good", methods=[value]),
        "explain contrast": lambda value: explainer().explain("good", methods="gradient", contrast=value),
        "explain workspace": lambda value: explainer().explain("good", workspace=value),
        "Explanation.show": lambda value: explained().show(pieces=value),
        "Explanation.to_html": lambda value: explained().to_html(pieces=value),
        "Explanation.to_frame": lambda value: explained().to_frame(pieces=value),
        "audit data": lambda value: audit(data=value),
        "audit methods": lambda value: heedful.audit(explainer(), good(), minutes=0.01, methods=value, workspace="w"),
        **{
            f"audit {name}": lambda value, n=name: audit(**{n: value})  # type: ignore[misc]
            for name in ("workspace", "options", "out", "say", "device", "precision")
        },
        "AuditOptions workers": lambda value: AuditOptions(workers=value),
        "AuditOptions where": lambda value: AuditOptions(where=value),
        "run recipes": lambda value: heedful.run(value, heedful.Workspace("w")),
        "run [recipes]": lambda value: heedful.run([value], heedful.Workspace("w")),
        "run workspace": lambda value: heedful.run([], value),
        **{
            f"run {name}": lambda value, n=name: heedful.run([], heedful.Workspace("w"), **{n: value})  # type: ignore[misc]
            for name in ("where", "workers", "deadline")
        },
        "recipes_from_file": lambda value: recipes_from_file(value),
        "Workspace": lambda value: heedful.Workspace(value).entries(),
        **{
            f"Workspace {name}": lambda value, n=name: heedful.Workspace("w", **{n: value})  # type: ignore[misc]
            for name in ("data_dir", "device", "batch_size")
        },
        "Workspace.get": lambda value: heedful.Workspace("w").get(value),
        "Workspace.has": lambda value: heedful.Workspace("w").has(value),
        "write_report": lambda value: write_report(heedful.Workspace("w"), value),
        "SavedDataset": lambda value: SavedDataset(value).read(Path("d")),
        "detect_columns": lambda value: detect_columns(value, outputs=("no", "yes")),
        "fetch corpus": lambda value: fetch(value, Path("d"), source="absent"),
        "fetch source": lambda value: fetch("sst", Path("d"), source=value) if value is not None else None,
    }
    del Example, EvaluationTable, TableColumns, Table, file, subject
    return calls


OWN_CODE = ("explain methods", "explain [methods]", "audit say", "audit methods")
"""Arguments that may be a function of the user: what it raises is not ours."""


def python_cases() -> Iterator[Case]:
    for name, call in python_calls().items():
        for shown, value in VALUES.items():
            if name in OWN_CODE and callable(value):
                continue
            yield Case(f"Python {name.split()[0]}", f"{name} = {shown}", lambda _, c=call, v=value: partial(c, v))  # type: ignore[misc]


def method_cases() -> Iterator[Case]:
    """Every option of every method of the catalogue with wrong values: made, and then used."""
    from heedful.catalogue import METHODS

    for name, make in METHODS.items():
        method: Any = make()
        kind: Any = type(method)
        for each in fields(method) if is_dataclass(method) else ():
            for shown in ("None", "-1", "0", "nan", "inf", "'x'", "[]", "object"):
                yield Case(
                    "Python methods", f"{name}({each.name}={shown})",
                    lambda _, m=kind, n=each.name, v=VALUES[shown]: lambda: explainer().explain(  # type: ignore[misc]
                        "the good film", methods=m(**{n: v})
                    ),
                )  # fmt: skip


PARTS: Mapping[str, Callable[[], Iterator[Case]]] = {
    "paths": path_cases,
    "numbers": number_cases,
    "words": word_cases,
    "outputs": output_cases,
    "models": model_cases,
    "tables": table_cases,
    "folders": folder_cases,
    "environment": environment_cases,
    "python": python_cases,
    "methods": method_cases,
}


# Running


@contextmanager
def somewhere(case: Case) -> Iterator[Path]:
    """An empty folder as the current one, and the environment of a case."""
    changes = {**ENVIRONMENT, "HEEDFUL_DATA": "data", "HEEDFUL_CACHE": "cache", **dict(case.environment)}
    before, start = dict(os.environ), os.getcwd()
    with tempfile.TemporaryDirectory(prefix="case-", ignore_cleanup_errors=True) as name:
        os.chdir(name)
        for variable, value in changes.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value
        try:
            yield Path(name)
        finally:
            os.environ.clear()
            os.environ.update(before)
            os.chdir(start)


def attempt(part: str, number: int) -> tuple[str, str]:
    """The outcome of a case and, of a fault, what was seen."""
    from heedful.types import UserError
    from tests.test_hostile_inputs import command

    case = cases(part)[number]
    warnings.simplefilter("ignore")
    shared()
    with somewhere(case) as folder:
        try:
            call = case.make(folder)
            if not isinstance(call, list):
                call()
                return FINE, ""
            code, _, said = command(*call)
        except UserError as error:
            return (REFUSED, "") if "\n" not in str(error) else (FAULT, f"several lines: {error}")
        except Exception:  # noqa: BLE001 - every other exception is a fault
            return FAULT, traceback.format_exc()
    lines = [line for line in said.splitlines() if not line.startswith("heedful: warning: ")]
    if code == 2 and said.startswith(("Usage:", "\nUsage:")):
        return USAGE, ""
    if code == 2 and len(lines) == 1 and lines[0].startswith("heedful: "):
        return REFUSED, ""
    if code in (0, 3) and "Traceback" not in said:
        return FINE, ""
    return FAULT, f"exit code {code}: {said}"


@cache
def cases(part: str) -> list[Case]:
    return list(PARTS[part]())


def run_campaign(parts: Mapping[str, Callable[[int], bool]] | None = None) -> Iterator[tuple[Case, str, str]]:
    """Every case with its outcome; a filter of numbers may choose some of each part."""
    if hasattr(os, "fork"):  # workers then need neither import nor train anything
        torch.set_num_threads(1)
        explained()
    with ProcessPool(max_workers=1) as pool:
        for part, wanted in (parts or dict.fromkeys(PARTS, lambda _: True)).items():
            numbers = [number for number in range(len(cases(part))) if wanted(number)]
            futures = [(number, pool.schedule(attempt, args=(part, number), timeout=LIMIT)) for number in numbers]
            for number, future in futures:
                try:
                    outcome, seen = future.result()
                except OutOfTime:
                    outcome, seen = ENDLESS, f"no end within {LIMIT:.0f} seconds"
                except Exception as error:  # noqa: BLE001 - the worker has died
                    outcome, seen = FAULT, f"{type(error).__name__}: {error}"
                yield cases(part)[number], outcome, seen


def main() -> None:
    """Print faults as they come, then the counts by command and outcome."""
    counts: Counter[tuple[str, str]] = Counter()
    names = sys.argv[1:]
    chosen = {name: (lambda _: True) for name in names} if names else None
    for case, outcome, seen in run_campaign(chosen):
        counts[case.group.split(" ", 1)[0] if not case.group.startswith("Python") else case.group, outcome] += 1
        if outcome in (FAULT, ENDLESS):
            last = seen.strip().splitlines()[-1] if seen.strip() else ""
            sys.stdout.write(f"{outcome} {case.name!a}: {last[:300]!a}\n")
            sys.stdout.flush()
            if "--verbose" in os.environ.get("CAMPAIGN", ""):
                sys.stdout.write(seen + "\n")
    outcomes = (FINE, REFUSED, USAGE, FAULT, ENDLESS)
    sys.stdout.write(f"{'':24}" + "".join(f"{outcome:>10}" for outcome in outcomes) + "\n")
    for group in sorted({group for group, _ in counts}):
        sys.stdout.write(f"{group:24}" + "".join(f"{counts[group, outcome]:10}" for outcome in outcomes) + "\n")
    totals = [sum(count for (_, kind), count in counts.items() if kind == outcome) for outcome in outcomes]
    sys.stdout.write(f"{'all':24}" + "".join(f"{total:10}" for total in totals) + "\n")
    sys.exit(1 if totals[-1] or totals[-2] else 0)


if __name__ == "__main__":
    from tests import hostile_campaign  # workers find the functions by the name of the module

    hostile_campaign.main()
