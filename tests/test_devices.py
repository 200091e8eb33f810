"""Every method, trial, training, audit and explanation on a device that is not the CPU, against the CPU.

The device is `tests.fake_device`: apart from the CPU as a GPU is, and computed on the CPU, so that numbers must agree.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from torch import Generator, Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import heedful
from heedful import cli, devices
from heedful.attributions.attention import Flow, RawAttention
from heedful.attributions.deeplift import DeepLift
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.audits.schedule import AuditOptions
from heedful.catalogue import METHODS
from heedful.data.subwords import Subwords
from heedful.devices import check_device
from heedful.model_support import matching_kinds, read_record
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.transformer import Transformer
from heedful.store.recipe import Artefact, Recipe, canonical_json, describe_recipe, dump_compact_json
from heedful.store.workspace import Workspace
from heedful.training import smat
from heedful.training.attribution_tables import AttributionTable
from heedful.training.checkpoint import checkpoint
from heedful.training.hypergradient import hypergradient
from heedful.training.predictions import Predictions
from heedful.training.smat import SMaT
from heedful.training.teacher import LayerMaps, LearnedExplanation
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Training
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversary_search import AdversarySearchSettings
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.trials.trial import Trial
from heedful.types import UserError
from tests.fake_device import DEVICE, FakeTensor, count_operations, fake_device
from tests.given import CLASSES, Verdicts, save_model
from tests.language_models import LABELS, PROMPT, bert_tokenizer, gpt2, gpt2_tokenizer, masked_bert, save
from tests.small_models import subject as model_and_batch
from tests.small_models import targets
from tests.students import ARCHITECTURE, DATA, TEACHER, TRAINING
from tests.test_hostile_inputs import command
from tests.tiny import subject as tiny_subject
from tests.trials.test_trials import TRIALS

MODELS = ("SingleInput", "PairInput", "bert", "vit")


@pytest.fixture
def device() -> Iterator[str]:
    with fake_device() as name:
        yield name


def test_the_fake_device_refuses_what_a_gpu_refuses(device: str) -> None:
    here, there = torch.ones(3), torch.ones(3, device=device)
    assert type(there + 1) is FakeTensor
    assert (there + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]
    assert there[torch.tensor([0])].tolist() == [1.0]
    refused: tuple[Callable[[], Tensor], ...] = (
        lambda: there + here,
        lambda: torch.stack([there[0], here[0]]),
        lambda: here[torch.tensor([0], device=device)],
        lambda: torch.nn.functional.linear(here, torch.ones(2, 3, device=device)),
        lambda: there.normal_(generator=Generator()),
    )
    for each in refused:
        with pytest.raises(RuntimeError):
            each()
    with pytest.raises(RuntimeError):
        there.numpy()


def test_gradients_of_the_fake_device_are_those_of_the_cpu(device: str) -> None:
    here = torch.nn.LSTM(4, 3, batch_first=True)
    there = copy.deepcopy(here).to(device)
    inputs = torch.randn(2, 5, 4, generator=Generator().manual_seed(0))
    for cell, values in ((here, inputs), (there, inputs.to(device))):
        cell(values)[0].square().sum().backward()
    for mine, other in zip(here.parameters(), there.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(other.grad.cpu(), mine.grad)


def test_a_device_that_is_not_there_is_refused_in_one_line() -> None:
    assert check_device("cpu") == torch.device("cpu")
    for name in ("cuda:77", "xpu:9", "nonsense"):
        with pytest.raises(UserError, match="cpu"):
            check_device(name)


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_scores_of_the_cpu(name: str, model_name: str, device: str) -> None:
    model, batch = model_and_batch(model_name)
    method, target = METHODS[name](), targets(batch)
    try:
        here = method(model, batch, target)
    except UserError:
        with pytest.raises(UserError):
            method(copy.deepcopy(model).to(device), batch.to(device), target.to(device))
        return
    there = method(copy.deepcopy(model).to(device), batch.to(device), target.to(device))
    assert there.scores.device == there.mask.device == torch.device(DEVICE)
    torch.testing.assert_close(there.scores.cpu(), here.scores, rtol=1e-6, atol=1e-9)
    assert torch.equal(there.mask.cpu(), here.mask)


# Trials, trainings, audits and explanations


@dataclass(frozen=True)
class Places:
    """A workspace on the CPU and one on the fake device; both make everything themselves."""

    here: Workspace
    there: Workspace

    def compare(self, recipe: Recipe, *, tolerance: float = 1e-5) -> None:
        """Both must give the same numbers to rounding: tensors, tables and summaries."""
        one = self.here.get(recipe)
        with fake_device():
            before = count_operations()
            other = self.there.get(recipe)
            assert count_operations() > before
        assert one.tensors.keys() == other.tensors.keys()
        for name, value in one.tensors.items():
            assert_same_numbers(other.tensors[name].cpu(), value, tolerance)
        compare_tables(one.table, other.table, tolerance)
        compare_tables(one.summary, other.summary, tolerance)


def assert_same_numbers(value: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(value.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def compare_tables(one: pd.DataFrame, other: pd.DataFrame, tolerance: float) -> None:
    """Equal but for rounding, also within lists; seconds may differ."""
    assert list(one.columns) == list(other.columns)
    assert len(one) == len(other)
    for name in one.columns:
        if "seconds" in name:
            continue
        for mine, yours in zip(one[name].tolist(), other[name].tolist(), strict=True):
            left, right = flatten(mine), flatten(yours)
            assert len(left) == len(right), name
            for a, b in zip(left, right, strict=True):
                if isinstance(a, float) and isinstance(b, float):
                    assert b == pytest.approx(a, rel=tolerance, abs=tolerance, nan_ok=True), name
                else:
                    assert a == b, name


def flatten(value: object) -> list[object]:
    """The single values of nested lists and arrays."""
    if isinstance(value, list | tuple | np.ndarray):
        return [each for part in value for each in flatten(part)]
    return [float(value)] if isinstance(value, np.floating) else [value]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("devices")
    with fake_device() as name:
        return Places(Workspace(folder / "here"), Workspace(folder / "there", device=name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("given") / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_gives_the_numbers_of_the_cpu(name: str, places: Places) -> None:
    """On a BiLSTM that is trained on both devices, with its students, adversaries, guides and other seeds."""
    # Rounding moves weights a little at every step, and an adversary is trained for longer.
    places.compare(TRIALS[name], tolerance=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdversarialAttention", "Permutation", "Faithfulness", "Agreement", "Plausibility"])
def test_trials_of_a_transformer_in_a_folder_give_the_numbers_of_the_cpu(
    name: str, places: Places, folder: str
) -> None:
    """Three classes: the exact adversary searches supports of three units, that of a transformer single heads."""
    subject, methods = (
        checkpoint(folder, Verdicts(6)),
        (RawAttention(), IntegratedGradients(), LeaveOneOut()),
    )
    trials: dict[str, Trial] = {
        "AdversarialAttention": AdversarialAttention(subject, limit=3),
        "Permutation": Permutation(subject),
        "Faithfulness": Faithfulness(subject, methods),
        "Agreement": Agreement(subject, methods),
        "Plausibility": Plausibility(subject, methods),
    }
    places.compare(trials[name])


@pytest.mark.slow
def test_the_exact_adversary_of_three_classes_gives_the_numbers_of_the_cpu(places: Places) -> None:
    subject = replace(tiny_subject(), corpus=Verdicts(12), architecture=Attentive(BiLSTM(3), Additive()))
    search = AdversarySearchSettings(steps=100)
    places.compare(AdversarialAttention(subject, search=search, limit=6), tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("maps", ["heads", "layers"])
def test_smat_and_its_hypergradient_give_the_numbers_of_the_cpu(
    maps: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By central differences on both devices: torch's forward mode crashes on tensors of other backends in Python."""
    monkeypatch.setattr(smat, "hypergradient", partial(hypergradient, forward_mode=False))
    explanation = (
        LearnedExplanation(lr=0.02) if maps == "heads" else LearnedExplanation(lr=0.02, map_source=LayerMaps())
    )
    places.compare(SMaT(TEACHER, ARCHITECTURE, explanation, DATA, training=TRAINING), tolerance=1e-4)


@pytest.mark.slow
def test_tables_and_predictions_of_a_transformer_give_the_numbers_of_the_cpu(places: Places, folder: str) -> None:
    subject = checkpoint(folder, Verdicts(6))
    places.compare(Predictions(subject))
    for method in (Flow(), DeepLift(), KernelShap(n_samples=40), Lime(n_samples=40), Shapley(feature="word")):
        places.compare(AttributionTable(subject, method))


def folders(tmp_path: Path) -> dict[str, tuple[str, dict[str, object]]]:
    """Language models in folders and how they are asked."""
    causal = save(tmp_path / "gpt2", gpt2(), gpt2_tokenizer())
    masked = save(tmp_path / "bert", masked_bert(), bert_tokenizer())
    return {
        "next word": (causal, {}),
        "label words": (causal, {"prompt": PROMPT, "labels": LABELS}),
        "long label words": (causal, {"prompt": PROMPT, "labels": {"a": " good film", "b": " bad"}}),
        "mask": (masked, {"prompt": "{text} is [MASK]", "labels": {"a": "good", "b": "bad"}}),
    }


METHOD_NAMES = ("integrated-gradients", "leave-one-out", "lime", "gradient-norm", "raw-attention", "deep-lift")


@pytest.mark.parametrize("asked", ["next word", "label words", "long label words", "mask"])
def test_explanations_of_language_models_are_those_of_the_cpu(asked: str, tmp_path: Path, device: str) -> None:
    source, question = folders(tmp_path)[asked]
    one, other = (
        heedful.load(source, device=each, **question).explain("the film is fine", methods=METHOD_NAMES[:4])  # type: ignore[arg-type]
        for each in ("cpu", device)
    )
    compare_explanations(one, other)


def compare_explanations(one: heedful.Explanation, other: heedful.Explanation, tolerance: float = 1e-5) -> None:
    assert (one.predicted, one.target, one.words, one.tokens) == (
        other.predicted,
        other.target,
        other.words,
        other.tokens,
    )
    assert other.probability == pytest.approx(one.probability, rel=tolerance)
    for mine, yours in zip(one.rows, other.rows, strict=True):
        assert mine.method == yours.method
        assert yours.word_scores == pytest.approx(mine.word_scores, rel=tolerance, abs=tolerance, nan_ok=True), (
            mine.method
        )


def test_explanations_of_a_folder_are_those_of_the_cpu(folder: str, device: str) -> None:
    one = heedful.explain(folder, "the plot is wonderful", methods=METHOD_NAMES)
    other = heedful.explain(folder, "the plot is wonderful", methods=METHOD_NAMES, device=device)
    compare_explanations(one, other)
    contrasted = [
        heedful.load(folder, device=each).explain("the plot is wonderful", target="awful", contrast="splendid")
        for each in ("cpu", device)
    ]
    compare_explanations(contrasted[0], contrasted[1])


def test_a_network_in_memory_stays_where_it_is(device: str, folder: str) -> None:
    network = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = heedful.load((network, tokenizer), device=device)
    assert loaded.device == torch.device(DEVICE)
    assert {weight.device.type for weight in network.parameters()} == {"cpu"}
    compare_explanations(heedful.load((network, tokenizer)).explain("a long end"), loaded.explain("a long end"))
    with pytest.raises(UserError, match="load it again"):
        heedful.load(loaded, device="cpu")


@pytest.mark.parametrize("kind", ["vit", "swin", "swinv2"])
@pytest.mark.slow
def test_networks_of_images_support_the_same_methods_as_on_the_cpu(kind: str, places: Places) -> None:
    """Every method is tried on each: those that fail on a device would be refusals of their own."""
    recipe = next(match for match in matching_kinds(kind) if match.units == "image")
    here, there = read_record(places.here.get(recipe).notes), None
    with fake_device():
        there = read_record(places.there.get(recipe).notes)
    assert here.status == there.status
    assert here.methods == there.methods
    assert len(there.methods) > 20


@pytest.mark.slow
def test_an_audit_gives_the_numbers_of_the_cpu(folder: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    rows = [f"{example.parts[0]},{CLASSES[int(example.label or 0)]}" for example in Verdicts(12).read(Path()).test]
    texts.write_text("\n".join(["text,label", *rows]) + "\n")
    methods = ("raw-attention", "leave-one-out")
    options = AuditOptions(minutes=5.0, methods=methods, texts=2, where="here", only_methods=True)
    one = heedful.audit(folder, texts, workspace=tmp_path / "here", options=options)
    with fake_device() as name:
        there = Workspace(tmp_path / "there", device=name)
        other = heedful.audit(folder, texts, workspace=there, options=options, out=tmp_path / "pages")
    assert (tmp_path / "pages" / "index.html").exists()
    left, right = (numbers_of(json.loads(each.to_json())["methods"]) for each in (one, other))
    assert len(left) > 30
    assert left.keys() == right.keys()
    for key, value in left.items():
        if not any(word in key for word in ("seconds", "cost")):
            assert right[key] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), key
    assert {entry.device for entry in there.entries()} == {DEVICE.partition(":")[0]}


def numbers_of(value: object, place: str = "") -> dict[str, object]:
    """The single values of nested JSON by their place."""
    if isinstance(value, dict):
        return {key: each for name, part in value.items() for key, each in numbers_of(part, f"{place}/{name}").items()}
    if isinstance(value, list):
        return {
            key: each
            for number, part in enumerate(value)
            for key, each in numbers_of(part, f"{place}/{number}").items()
        }
    return {place: value}


# A device without double precision


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The fake device as mps is: any tensor in float64 on it is an error."""
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {"fake"})
    with fake_device(float64=False) as name:
        yield name


def test_double_precision_is_refused_by_the_device_and_single_stands_in_for_it(single: str) -> None:
    with pytest.raises(TypeError, match="no float64"):
        torch.ones(2, device=single).double()
    whole = torch.ones(2, dtype=torch.float64)
    with devices.arithmetic_of(single):
        there = [
            torch.ones(2, device=single).double(),
            torch.ones(2, device=single).to(torch.float64),
            torch.zeros(2, dtype=torch.float64, device=single),
            torch.ones(2, device=single).sum(dtype=torch.float64),
            torch.ones(2, device=single).new_zeros(2, dtype=torch.float64),
            whole.to(single),
            torch.ones(2).to(torch.ones(2, device=single)),
        ]
        assert {each.dtype for each in there} == {torch.float32}
        assert {each.device.type for each in there} == {"fake"}
        assert (
            (whole * 2).dtype == whole.cpu().dtype == torch.ones(2).double().dtype == torch.float64
        )  # the CPU keeps both
    with pytest.raises(TypeError, match="no float64"):
        torch.ones(2, device=single).double()


def test_explanations_in_single_precision_are_close_and_say_so(folder: str, single: str) -> None:
    one = heedful.explain(folder, "the plot is wonderful", methods=METHOD_NAMES)
    other = heedful.explain(folder, "the plot is wonderful", methods=METHOD_NAMES, device=single)
    compare_explanations(one, other, tolerance=2e-3)
    assert not any("precision" in note for note in one.notes)
    assert any("no double precision" in note for note in other.notes)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_without_double_precision(name: str, single: str) -> None:
    model, batch = model_and_batch("bert")
    method, target = METHODS[name](), targets(batch)
    here = method(model.float(), batch, target)
    with devices.arithmetic_of(single):
        there = method(copy.deepcopy(model).to(single), batch.to(single), target.to(single))
    torch.testing.assert_close(there.scores.cpu().double(), here.scores.double(), rtol=1e-2, atol=1e-3)


# Half precision


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_asked_for_recorded_and_said(precision: devices.Precision, folder: str) -> None:
    whole, half = heedful.load(folder), heedful.load(folder, precision=precision)
    assert {weight.dtype for weight in half.model.parameters()} == {devices.torch_dtype(precision)}
    assert whole.digest != half.digest
    recipes = [each.recipe(Verdicts(6)) for each in (whole, half)]
    texts = [dump_compact_json(describe_recipe(recipe, Path())) for recipe in recipes]
    assert "precision" not in texts[0]
    assert f'"precision":"{precision}"' in texts[1]
    one, other = (each.explain("the plot is wonderful", methods=METHOD_NAMES) for each in (whole, half))
    assert any(precision in note for note in other.notes)
    assert not any("precision" in note for note in one.notes)
    assert one.predicted == other.predicted
    assert other.probability == pytest.approx(one.probability, abs=0.05)
    assert other.probability != one.probability
    for mine, yours in zip(one.rows, other.rows, strict=True):
        assert np.isfinite(yours.word_scores).all(), yours.method
        assert np.corrcoef(mine.word_scores, yours.word_scores)[0, 1] > 0.9, yours.method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_finite_scores_in_bfloat16_or_says_why_not(name: str) -> None:
    model, batch = model_and_batch("bert")
    method = METHODS[name]()
    if name in ("deep-lift", "deep-shap"):  # complete only to three digits
        with pytest.raises(UserError, match="rounding of half precision"):
            method(model.bfloat16(), batch, targets(batch))
        return
    assert bool(method(model.bfloat16(), batch, targets(batch)).scores.isfinite().all())


def test_the_name_of_a_model_in_single_precision_is_that_of_older_workspaces() -> None:
    """A field that was added later may not rename artefacts."""
    assert canonical_json(Transformer("a"), Path()).keys() == {"type", "source", "content"}  # type: ignore[union-attr]


def test_half_precision_is_refused_where_it_would_be_wrong(folder: str, tmp_path: Path) -> None:
    network, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    with pytest.raises(UserError, match="own precision"):
        heedful.load((network, tokenizer), precision="bfloat16")
    with pytest.raises(UserError, match="float32, bfloat16"):
        heedful.load(folder, precision="float8")  # type: ignore[arg-type]
    trained = TrainedModel(Verdicts(6), Subwords(folder), Transformer(folder, "bfloat16"), Training(2, 4))
    with pytest.raises(UserError, match="nothing is trained in half precision"):
        Workspace(tmp_path).get(trained)


# Memory


def test_an_automatic_batch_size_is_halved_and_another_one_is_not(tmp_path: Path) -> None:
    asked = Workspace(tmp_path / "auto", batch_size=8, automatic_batch_size=True)
    with pytest.warns(UserWarning, match="batch size of 2"):
        assert asked.get(Greedy()).notes["batch_size"] == 2
    with pytest.raises(UserError, match="8 texts"):
        Workspace(tmp_path / "fixed", batch_size=8).get(Greedy())


@dataclass(frozen=True)
class Greedy(Recipe):
    """Runs out of memory above two texts."""

    def make(self, workspace: Workspace) -> Artefact:
        if workspace.batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Artefact(notes={"batch_size": workspace.batch_size})


# Commands

COMPUTES_NOTHING = {
    "list", "report", "fetch", "study build", "study serve", "study erase", "study rate",
    "workspace list", "workspace show", "workspace size", "workspace remove",
}  # fmt: skip
"""Commands that run no network: they read what is stored, or download it."""
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "explain": ("folder", "a text"),
    "audit": ("folder", "texts.csv"),
    "models": ("folder",),
    "demo": (),
    "run": ("jain-wallace",),
    "attefa": ("--data", "texts.csv"),
    "learn": ("--teacher", "folder", "--data", "texts.csv"),
    "reproduce": ("--cell", "attefa/attefa/mock-3q/average/additive/attefa"),
}


def commands(group: typer.core.TyperGroup, prefix: str = "") -> dict[str, list[str]]:
    """The options of every command, by its name."""
    options: dict[str, list[str]] = {}
    for name, member in group.commands.items():
        if isinstance(member, typer.core.TyperGroup):
            options |= commands(member, f"{prefix}{name} ")
        else:
            options[f"{prefix}{name}"] = [option for parameter in member.params for option in parameter.opts]
    return options


def all_commands() -> dict[str, list[str]]:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    return commands(group)


def test_every_command_that_computes_takes_a_device() -> None:
    without = {name for name, options in all_commands().items() if "--device" not in options}
    assert without == COMPUTES_NOTHING
    assert ARGUMENTS.keys() == all_commands().keys() - COMPUTES_NOTHING


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("value", ["cuda:77", "nonsense", "mps", "", "--batch-size=0", "--precision=float8"])
def test_a_device_that_is_not_there_is_one_line_and_exit_code_2(name: str, value: str, tmp_path: Path) -> None:
    option = value.partition("=")[0] if value.startswith("--") else "--device"
    if option not in all_commands()[name]:
        return
    words = value.split("=") if value.startswith("--") else ["--device", value]
    where = () if name == "models" else ("-w", str(tmp_path / "work"))
    code, _, err = command(name, *ARGUMENTS[name], *words, *where)
    assert (code, err.count("\n")) == (2, 1), err
    assert "choose" in err or "batch size" in err
    assert not (tmp_path / "work").exists()
