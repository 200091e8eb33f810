"""What heedful can do with a network: its task, its attention, every method of the catalogue, and its speed.

`examine_model` really tries each method on one short text or image. `KindSupport` does so with a tiny network of one
kind that the installed transformers knows; each kind is a recipe, so that a crash of one is a row of the table.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from importlib import metadata
from typing import ClassVar, Literal, cast

import torch
from torch import Generator, nn

from heedful.attributions._base import CompleteAttribution
from heedful.attributions.deeplift import MAX_GAP_SHARE, OUTPUT_ROUNDING
from heedful.catalogue import METHODS
from heedful.devices import arithmetic_notes, arithmetic_of
from heedful.explainer import Explainer, method_for_words
from heedful.models._network_anatomy import sample_batch
from heedful.models.label_words import LabelWords, Vocabulary
from heedful.models.tiny_networks import Units, build_tiny_network, language_model_kinds, network_class, network_kinds
from heedful.models.transformer import TransformerModel
from heedful.outcome import Outcome
from heedful.runner import HERE, OUT_OF_TIME, run
from heedful.store.recipe import Artefact, Json, Recipe, to_json
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.tasks import Regression
from heedful.types import REFUSED, Batch, Example, SupportsPreparation, UserError, describe_refusal

TEXT = "the plot is thin , but the actors are wonderful"
REPEATS = 5
"""Passes of which the quickest is the speed."""
MAX_NAMES = 10
"""Classes are named up to this number."""
MAX_WORDS = 9
"""Of the random input; exact Shapley values need few."""
NOTED_GAP = 0.001
"""A method whose scores miss a larger share of the difference of the outputs gets a note."""

Status = Literal["open", "no attention", "no embeddings", "outputs only", "refused", "not built", "crashed"]
STATUSES: dict[Status, str] = {
    "open": "attention and embeddings can be read and replaced",
    "no attention": "embeddings can be read and replaced, attention cannot",
    "no embeddings": "attention can be read and replaced, embeddings cannot",
    "outputs only": "methods that read outputs only",
    "refused": "cannot be explained",
    "not built": "the installed libraries cannot build it",
    "crashed": "it ended its process",
}
PATHS = {"interface": "transformers' attention interface", "softmax": "the softmax of its layers"}
PLACES = {"layers": "the input of the first layer", "words": "the word vectors", "pixels": "the pixels"}
GROUPS: dict[Units, str] = {"text": "texts", "image": "images", "causal": "prompts"}
"""What is read: by classifiers, or by causal language models, whose classes are label words."""
ROWS = {"first": "the first unit", "last": "the last unit", "all": "all units"}


@dataclass(frozen=True)
class MethodSupport:
    """Whether a method gives scores.

    Args:
        refusal: why not; empty if it does.
        note: what holds of its scores only in part.
        gap: of DeepLIFT, the share of |f(x) - f(x')| that the sum of its scores misses; None where it gives no scores
            or where the difference is 0 but for rounding.
    """

    name: str
    refusal: str = ""
    note: str = ""
    gap: float | None = None


@dataclass(frozen=True)
class ModelSupport:
    """What can be done with one network.

    Args:
        name: its kind, or where it was loaded from.
        network: its class.
        outputs: classes, or a number.
        on_interface: whether its class computes attention by transformers' attention interface.
        attention: how attention is read and replaced; empty if it is not.
        embeddings: what embeddings are; empty if they cannot be replaced.
        decided_by: the units whose states the head reads.
        reason: why something cannot be done.
        notes: what else is known of the model.
        forward_ms: of one pass with one text or image, without gradients; NaN where it was not run.
        backward_ms: of one pass forward and back to the embeddings.
    """

    name: str
    units: str
    status: Status
    network: str = ""
    outputs: str = ""
    architecture: str = ""
    on_interface: bool = False
    attention: str = ""
    embeddings: str = ""
    decided_by: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    methods: tuple[MethodSupport, ...] = ()
    forward_ms: float = 0.0
    backward_ms: float = 0.0

    @property
    def refused(self) -> tuple[MethodSupport, ...]:
        """The methods that give no scores."""
        return tuple(method for method in self.methods if method.refusal)

    def to_record(self) -> dict[str, Json]:
        """Plain JSON."""
        return cast("dict[str, Json]", to_json(asdict(self)))

    def lines(self) -> Iterator[str]:
        """The findings, one line each, for a terminal."""
        yield f"{self.name}: {self.network}, reads {self.units}, gives {self.outputs}"
        yield f"Network: {self.architecture}; its head reads {self.decided_by}"
        yield f"Attention: {f'read and replaced by {self.attention}' if self.attention else 'not reached'}"
        yield f"Embeddings: {self.embeddings or 'not replaceable'}"
        if self.reason:
            yield f"Restriction: {self.reason}"
        yield from (f"Note: {note}" for note in self.notes)
        backward = f", {self.backward_ms:.3g} ms with the backward pass" if self.backward_ms else ""
        threads = torch.get_num_threads()
        yield f"Speed: {self.forward_ms:.3g} ms for one short input{backward} ({threads} thread(s))"
        for method in self.methods:
            why = "yes" + (f"; {method.note}" if method.note else "")
            if method.refusal:
                why = "no: see the restriction above" if method.refusal in self.reason else f"no: {method.refusal}"
            yield f"  {method.name:22} {why}"


def examine_explainer(explainer: Explainer) -> ModelSupport:
    """What can be done with a model that was loaded; every method is tried on a short text or image."""
    model = explainer.model
    if not isinstance(model, TransformerModel):
        raise UserError(f"{explainer.source} is no transformer: give a folder that save_pretrained has written")
    sample = _sample(model) if explainer.reads_images else explainer.tokenizer([Example("text", (TEXT,))])
    batch = sample.to(explainer.device)
    names = ", ".join(explainer.class_names) if len(explainer.class_names) <= MAX_NAMES else ""
    with arithmetic_of(explainer.device):
        found = examine_model(model, batch, shown_path(explainer.source))
    found = replace(found, notes=(*found.notes, *arithmetic_notes(explainer.device)))
    return replace(found, outputs=f"{found.outputs} ({names})" if names else found.outputs)


def examine_model(model: TransformerModel, batch: Batch, name: str) -> ModelSupport:
    """What can be done with a model, tried on a batch of one."""
    attention, embeddings = model.attention_refusal is None, model.embedding_refusal is None
    status: Status = "open" if attention else "no attention"
    if not embeddings:
        status = "no embeddings" if attention else "outputs only"
    reasons = (model.attention_refusal, model.embedding_refusal, model.path_refusal)
    with torch.no_grad():
        target = model.task.probabilities(model(batch).logits).argmax(-1)

    def forward() -> None:
        with torch.no_grad():
            model.read_logits(batch).cpu()  # a GPU works on until its numbers are asked for

    def backward() -> None:
        given = model.read_embeddings(batch).detach().requires_grad_()
        torch.autograd.grad(model.read_logits(batch, embeddings=given).sum(), given)[0].cpu()

    return ModelSupport(
        name=name,
        units="images" if batch.inputs.dim() > 2 else "texts",
        status=status,
        network=type(model.network).__name__,
        outputs=_describe_outputs(model),
        architecture=model.architecture_summary,
        on_interface=bool(getattr(model.network, "_supports_attention_backend", False)),
        attention=PATHS[model.path] if model.path is not None else "",
        embeddings=PLACES[model.embeddings_at] if embeddings else "",
        decided_by=ROWS[model.deciding_row],
        notes=model.notes,
        reason="; ".join(reason for reason in reasons if reason is not None),
        methods=tuple(try_method(each, model, batch, target) for each in METHODS),
        forward_ms=_milliseconds(forward),
        backward_ms=_milliseconds(backward) if embeddings else 0.0,
    )


def _describe_outputs(model: TransformerModel) -> str:
    if isinstance(model.readout, Vocabulary):
        return f"one of {model.task.num_classes} tokens that may follow; with a prompt and label words, classes"
    return "a number" if isinstance(model.task, Regression) else f"{model.task.num_classes} classes"


def try_method(name: str, model: TransformerModel, batch: Batch, target: torch.Tensor) -> MethodSupport:
    """Whether the method of this name gives finite scores, one per unit."""
    method = method_for_words(name)
    try:
        own = method.prepare(model) if isinstance(method, SupportsPreparation) else method
        attribution = own(model, batch, target)
    except UserError as error:
        return MethodSupport(name, describe_refusal(model, str(error)).removeprefix(f"{REFUSED} "))
    except Exception as error:  # noqa: BLE001 - a network may fail in its own way
        return MethodSupport(name, f"it fails on this network ({type(error).__name__}: {_first_line(error)})")
    if not bool(attribution.scores.isfinite().all()):
        return MethodSupport(name, "its scores on this network are not finite")
    if name.startswith("deep-") and isinstance(attribution, CompleteAttribution):
        missed, difference = float(attribution.convergence_delta.abs().max()), float(attribution.difference.abs().max())
        if difference <= OUTPUT_ROUNDING:
            return MethodSupport(name)
        gap = missed / difference
        note = f"its scores miss {gap:.1%} of the difference of the outputs" if gap > NOTED_GAP else ""
        return MethodSupport(name, note=note, gap=gap)
    return MethodSupport(name)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _milliseconds(work: Callable[[], None]) -> float:
    """The time of the quickest of some runs."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - start))
    return min(found)


def _sample(model: TransformerModel) -> Batch:
    """A random input of a network; its units are words, of an image a few, behind what stands before the patches."""
    prefix = model.stack.inputs.prefix
    batch = sample_batch(model.network, prefix)
    units = torch.arange(batch.mask.shape[1], device=batch.mask.device) - prefix
    words = (units // math.ceil((len(units) - prefix) / MAX_WORDS)).clamp(min=-1)
    batch = batch.rows(torch.tensor([0], device=batch.mask.device))
    end = getattr(model.network.config, "eos_token_id", None)
    is_end = batch.inputs == end if batch.inputs.dim() == 2 and isinstance(end, int) else torch.zeros_like(batch.mask)
    return replace(batch, words=words.unsqueeze(0).masked_fill(is_end, -1))


# Every kind


@dataclass(frozen=True)
class KindSupport(Recipe):
    """What can be done with a tiny network of one kind.

    Args:
        transformers: version of the library that has the kind.
    """

    kind: ClassVar[str] = "model support"
    revision: ClassVar[int] = 2

    units: Units
    family: str
    transformers: str

    def make(self, workspace: Workspace) -> Artefact:
        """The record of `ModelSupport` as notes."""
        known = network_class(self.units, self.family)
        found = ModelSupport(self.family, GROUPS[self.units], "not built", known.__name__)
        found = replace(found, on_interface=bool(getattr(known, "_supports_attention_backend", False)))
        try:
            network = build_tiny_network(self.units, self.family, Generator().manual_seed(0))
            nn.Module.to(network, workspace.device)
        except UserError as error:
            return Artefact(notes=replace(found, reason=str(error)).to_record())
        words = LabelWords(((6,), (7,)))
        try:
            is_causal = self.units == "causal"
            model = (
                TransformerModel.wrap_language_model(network, words) if is_causal else TransformerModel.wrap(network)
            )
        except UserError as error:
            return Artefact(notes=replace(found, status="refused", reason=str(error)).to_record())
        examined = examine_model(model, _sample(model), self.family)
        return Artefact(notes=replace(examined, units=found.units).to_record())


def matching_kinds(pattern: str = "*") -> tuple[KindSupport, ...]:
    """The recipes of all kinds whose name matches a pattern as of file names."""
    version, kinds = metadata.version("transformers"), (*network_kinds(), *language_model_kinds())
    found = tuple(KindSupport(units, kind, version) for units, kind in kinds if fnmatch(kind, pattern))
    if not found:
        raise UserError(f"no kind of network in transformers {version} matches {pattern!r}: try '*bert*'")
    return found


def examine_kinds(
    kinds: Sequence[KindSupport], workspace: Workspace, *, where: str = HERE, workers: int | None = None
) -> list[ModelSupport]:
    """What can be done with each kind, in their order; one that ends its process is "crashed"."""
    made = run(kinds, workspace, where=where, workers=workers)
    outcomes: dict[Recipe, Outcome] = {each.recipe: each for each in made}
    rows = []
    for each in kinds:
        error = outcomes[each].error if each in outcomes else OUT_OF_TIME
        if error is None:
            rows.append(read_record(workspace.get(each).notes))
        else:
            rows.append(ModelSupport(each.family, GROUPS[each.units], "crashed", reason=error))
    return rows


def read_record(record: object) -> ModelSupport:
    """The support that `to_record` wrote."""
    values = dict(cast("dict[str, object]", record))
    values["notes"] = tuple(cast("list[str]", values["notes"]))
    methods = cast("list[dict[str, object]]", values.pop("methods"))
    found = ModelSupport(**values)  # type: ignore[arg-type]
    return replace(found, methods=tuple(MethodSupport(**each) for each in methods))  # type: ignore[arg-type]


def count_statuses(rows: Sequence[ModelSupport]) -> dict[tuple[str, bool], Counter[Status]]:
    """How many networks have each status, by what they read, and whether they are on the attention interface."""
    groups: dict[tuple[str, bool], Counter[Status]] = {}
    for row in rows:
        groups.setdefault((row.units, row.on_interface), Counter())[row.status] += 1
    return groups


def summary_lines(rows: Sequence[ModelSupport]) -> Iterator[str]:
    """One line for each group of `count_statuses`."""
    for (units, on_interface), counts in count_statuses(rows).items():
        where = "on the attention interface" if on_interface else "not on it"
        parts = ", ".join(f"{status} {counts[status]}" for status in STATUSES if counts[status])
        yield f"{units}, {where}: {counts.total()} kinds; {parts}"


def completeness_line(rows: Sequence[ModelSupport], name: str = "deep-lift") -> str:
    """How complete DeepLIFT is on the networks where it gives scores, and on how many it is refused."""
    tried = [(row.name, method) for row in rows for method in row.methods if method.name == name]
    gaps = sorted((method.gap, kind) for kind, method in tried if method.gap is not None)
    refused, unknown = (
        sum(bool(method.refusal) == is_refused and method.gap is None for _, method in tried)
        for is_refused in (True, False)
    )
    if not gaps:
        return f"`{name}` gives scores on none of these networks and is refused on {refused}."
    middle, (largest, kind) = gaps[len(gaps) // 2][0], gaps[-1]
    return (
        f"`{name}` is refused where the sum of its scores misses f(x) - f(x') by more than {MAX_GAP_SHARE:.0%} of "
        f"|f(x) - f(x')|: on {refused} networks. On the {len(gaps)} others the median gap is {middle:.1g} of it, the "
        f"largest {largest:.1%} ({kind}); on {unknown} more f(x) = f(x') in double precision."
    )


TABLE_HEAD = ("kind", "reads", "interface", "status", "attention by", "embeddings", "methods", "without", "because")


def markdown_table(rows: Sequence[ModelSupport]) -> str:
    """One row for each network."""
    lines = [f"| {' | '.join(TABLE_HEAD)} |", f"|{'---|' * len(TABLE_HEAD)}"]
    for row in rows:
        refusals = [row.reason, *(each.refusal for each in row.refused if each.refusal not in row.reason)]
        notes = [f"{each.name}: {each.note}" for each in row.methods if each.note]
        works = f"{len(row.methods) - len(row.refused)}/{len(row.methods)}" if row.methods else ""
        cells = (
            row.name,
            row.units,
            "yes" if row.on_interface else "no",
            row.status,
            row.attention.removeprefix("transformers' attention "),
            row.embeddings,
            works,
            ", ".join(each.name for each in row.refused),
            "; ".join(dict.fromkeys(filter(None, (*refusals, *notes)))),
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def support_page(rows: Sequence[ModelSupport]) -> str:
    """The table as a page of the documentation, in Markdown."""
    statuses = "\n".join(f"- *{status}*: {meaning}." for status, meaning in STATUSES.items())
    counts = "\n".join(f"- {line}." for line in summary_lines(rows))
    return f"""# Which networks heedful takes

`heedful models FOLDER` tries every method on a network of yours. This page is the answer for every kind of
classifier and causal language model that transformers {metadata.version("transformers")} knows, each tried as a tiny
network with random weights from its own configuration; `heedful models --all --out FILE` writes it.

There is no list of families in the code. A network is taken because it passes a trial: it gives its own logits through
our attention function, its attention put back gives the same logits, the rows of attention are distributions over what
may be attended, and its embeddings go out and back. Attention is reached by transformers' attention interface, or by
the softmax that the layers compute themselves; attention within windows of an image (Swin) is shown as maps over all
units. What is open may be a part: the encoder before a decoder, or the first stage of a network whose later stages
merge units; `heedful models FOLDER` has a note on what is not shown. A network whose attention is not reached still
gets every method that needs none, agreement of such methods, and audits; only questions about attention "cannot be
asked of this model, because ...".

{statuses}

Causal language models are read as classifiers by the log-probabilities of label words after a prompt. Networks by what
they read, and by whether their class is on transformers' attention interface
(`_supports_attention_backend`):

{counts}

"without" names the methods that give no scores, "because" says why. Rollout, flow and relevance multiply layers and are
refused where units reach each other outside attention, for instance by a convolution, a recurrence or later stages.
DeepLIFT and DeepSHAP have no rule for mixtures of experts and for a few other operations, and are not complete there.
{completeness_line(rows)}

{markdown_table(rows)}
"""
