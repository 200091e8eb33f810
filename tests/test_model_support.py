"""What `heedful models` says of networks of which it is known: methods yes and no, reasons, rows of the table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from torch import Generator, nn
from typer.testing import CliRunner

from heedful import model_support
from heedful.catalogue import METHODS
from heedful.cli import app
from heedful.model_support import (
    KindSupport,
    MethodSupport,
    ModelSupport,
    completeness_line,
    count_statuses,
    examine_kinds,
    examine_model,
    markdown_table,
    matching_kinds,
    read_record,
    summary_lines,
    support_page,
)
from heedful.models.tiny_networks import Units, build_tiny_network
from heedful.models.transformer import TransformerModel
from heedful.store.workspace import Workspace
from heedful.types import UserError
from tests.given import save_untrained
from tests.language_models import LABELS, PROMPT, gpt2, gpt2_tokenizer, save

NEEDS_ATTENTION = {
    "raw-attention",
    "gradient",  # attention is detached
    "head-attention",
    "static-attention",
    "rollout",
    "flow",
    "value-norm",
    "kobayashi-norm",
    "attention-x-gradient",
    "relevance",
    "permuted-attention",
    "randomized",  # of raw attention
}
MULTIPLIES_LAYERS = {"rollout", "flow", "relevance"}


def examined(units: Units, kind: str) -> ModelSupport:
    model = TransformerModel.wrap(build_tiny_network(units, kind, Generator().manual_seed(0)))
    return examine_model(model, model_support._sample(model), kind)


@pytest.mark.parametrize(
    ("units", "kind", "refused"),
    [
        ("text", "bert", set()),
        ("text", "gpt2", set()),
        ("text", "fnet", NEEDS_ATTENTION),
        # layers without attention, which are recurrent, and mixtures of experts, which have no rule in DeepLIFT
        ("text", "jamba", {*MULTIPLIES_LAYERS, "deep-lift", "deep-shap"}),
        ("text", "zamba", {*MULTIPLIES_LAYERS}),
        ("image", "resnet", {*NEEDS_ATTENTION, "layer-mix"}),
        ("image", "swin", {*MULTIPLIES_LAYERS}),  # stages that merge units
    ],
)
def test_a_method_is_refused_where_it_needs_what_a_network_does_not_show(
    units: Units, kind: str, refused: set[str]
) -> None:
    support = examined(units, kind)
    assert [method.name for method in support.methods] == list(METHODS)
    assert {each.name for each in support.refused} == refused
    assert all(each.refusal for each in support.refused)
    assert support.status == ("no attention" if refused >= NEEDS_ATTENTION else "open")
    assert min(support.forward_ms, support.backward_ms) > 0
    assert read_record(json.loads(json.dumps(support.to_record()))) == support
    assert len(list(support.lines())) == 5 + bool(support.reason) + len(support.notes) + len(METHODS)


def test_the_embeddings_of_a_network_without_layers_over_its_units_are_pixels_or_word_vectors() -> None:
    assert examined("image", "resnet").embeddings == model_support.PLACES["pixels"]
    assert examined("text", "squeezebert").embeddings == model_support.PLACES["words"]


def test_every_kind_is_a_row_whatever_becomes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = build_tiny_network

    def build_or_fail(units: Units, kind: str, generator: Generator) -> nn.Module:
        if kind == "bert":
            raise MemoryError("no room | left")
        return build(units, kind, generator)

    monkeypatch.setattr(model_support, "build_tiny_network", build_or_fail)
    version = matching_kinds("bert")[0].transformers
    kinds = [KindSupport("text", kind, version) for kind in ("bert", "reformer", "layoutlmv2")]
    rows = examine_kinds(kinds, Workspace(tmp_path))
    assert [row.status for row in rows] == ["crashed", "refused", "not built"]
    assert all(row.reason for row in rows)
    table = markdown_table(rows).splitlines()
    assert len(table) == 2 + 3
    assert {line.count("|") for line in table} == {10}


def test_networks_are_counted_by_what_they_read_and_by_the_interface() -> None:
    methods = (MethodSupport("lime"), MethodSupport("rollout", "layers mix"))
    rows = [
        ModelSupport("a", "texts", "open", on_interface=True, methods=methods),
        ModelSupport("b", "texts", "open", on_interface=True),
        ModelSupport("c", "texts", "refused"),
        ModelSupport("d", "images", "no attention", on_interface=True, reason="it has none"),
    ]
    counts = count_statuses(rows)
    assert counts["texts", True] == {"open": 2}
    assert counts["texts", False] == {"refused": 1}
    assert counts["images", True] == {"no attention": 1}
    assert len(list(summary_lines(rows))) == 3
    assert "| a | texts | yes | open |  |  | 1/2 | rollout | layers mix |" in support_page(rows)


def test_the_page_tells_how_complete_deeplift_is() -> None:
    gaps = (("a", 0.0), ("b", 0.012), ("c", 2e-6), ("d", None))
    rows = [ModelSupport(name, "texts", "open", methods=(MethodSupport("deep-lift", gap=gap),)) for name, gap in gaps]
    rows += [ModelSupport("e", "texts", "open", methods=(MethodSupport("deep-lift", "experts"),))]
    line = completeness_line(rows)
    assert re.findall(r"\b\d\S*(?= network|,| of it| \(b\)| more,)", line) == ["1", "3", "2e-06", "1.2%", "1"]
    assert line in support_page(rows)
    assert re.findall(r"\d+", completeness_line(rows[-1:])) == ["1"]
    known = examined("text", "bert").methods
    assert all((method.gap is not None and method.gap < 1e-4) == method.name.startswith("deep-") for method in known)


def test_kinds_are_chosen_by_a_pattern() -> None:
    assert {match.family for match in matching_kinds("deberta*")} == {"deberta", "deberta-v2"}
    with pytest.raises(UserError, match="no kind"):
        matching_kinds("no-such-network")


def test_the_command_tells_what_can_be_done_with_a_folder(tmp_path: Path) -> None:
    folder = save_untrained(tmp_path / "model", ("the", "plot", "is", "thin"), ("bad", "good"))
    shown = CliRunner().invoke(app, ["models", str(folder), "--json", "-"])
    assert shown.exit_code == 0, shown.output
    support = read_record(json.loads(shown.stdout))
    assert (support.status, support.network, support.outputs) == (
        "open",
        "BertForSequenceClassification",
        "2 classes (bad, good)",
    )
    assert not support.refused
    for wrong in (["models"], ["models", str(folder), "--all"], ["models", str(folder), "--only", "x"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


def test_the_command_reads_a_language_model_by_a_prompt(tmp_path: Path) -> None:
    folder = save(tmp_path / "gpt2", gpt2(), gpt2_tokenizer())
    words = [option for name, word in LABELS.items() for option in ("--label", f"{name}={word}")]
    asked = {"tokens": [], "classes": ["--prompt", PROMPT, *words]}
    supports = {}
    for name, options in asked.items():
        shown = CliRunner().invoke(app, ["models", folder, *options, "--json", "-"])
        assert shown.exit_code == 0, shown.output
        supports[name] = read_record(json.loads(shown.stdout))
    assert supports["classes"].outputs == "2 classes (negative, positive)"
    assert str(len(gpt2_tokenizer())) in supports["tokens"].outputs
    assert not supports["classes"].refused
    assert CliRunner().invoke(app, ["models", "--all", "--prompt", PROMPT]).exit_code == 2


def test_a_reason_is_told_once() -> None:
    lines = list(examined("image", "swin").lines())
    assert len([line for line in lines if "stages above merge them" in line]) == 1
    assert len([line for line in lines if line.endswith("see the restriction above")]) == len(MULTIPLIES_LAYERS)
