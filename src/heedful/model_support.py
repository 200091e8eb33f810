"""What works on a network: its task, its attention, every method in the catalogue, and its speed.

`examine_model` runs each method on one short text or image. `KindSupport` does so on a tiny network of one of the kinds
in the installed transformers; each kind is a recipe, so a crash becomes a row in the table.
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
from pydantic import TypeAdapter
from torch import Generator, nn

from heedful.attributions.deeplift import MAX_GAP_SHARE, OUTPUT_ROUNDING
from heedful.attributions.method import CompleteAttribution
from heedful.attributions.registry import METHODS, method_for_words
from heedful.devices import arithmetic_notes, arithmetic_of
from heedful.execution.outcome import Outcome
from heedful.execution.runner import HERE, OUT_OF_TIME, run
from heedful.explainer import Explainer
from heedful.models.label_words import LabelWords, Vocabulary
from heedful.models.network_anatomy import sample_batch
from heedful.models.tiny_networks import (
    Units,
    build_tiny_network,
    language_model_kinds,
    network_kinds,
    tiny_network_class,
)
from heedful.models.transformer import TransformerModel
from heedful.store.recipe import Artefact, Json, Recipe, to_json
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.tasks import Regression
from heedful.types import Batch, Example, NotApplicable, SupportsPreparation, UserError, first_line

TEXT = "the plot is thin , but the actors are wonderful"
REPEATS = 5
"""Number of passes; the fastest one is reported as the speed."""
MAX_NAMES = 10
"""Classes are listed by name up to this number."""
_MAX_WORDS = 9
"""Words in the random input; exact Shapley values need few."""
NOTED_GAP = 0.001
"""A method gets a note if its scores miss a larger share of the difference between the outputs."""

Status = Literal["open", "no attention", "no embeddings", "outputs only", "refused", "not built", "crashed"]
STATUSES: dict[Status, str] = {
    "open": "attention and embeddings can be read and replaced",
    "no attention": "embeddings can be read and replaced, attention cannot",
    "no embeddings": "attention can be read and replaced, embeddings cannot",
    "outputs only": "methods that read only outputs work",
    "refused": "cannot be explained",
    "not built": "the installed libraries cannot build it",
    "crashed": "the network crashed its process",
}
PATHS = {"interface": "transformers' attention interface", "softmax": "the softmax of its layers"}
PLACES = {"layers": "the input of the first layer", "words": "the word vectors", "pixels": "the pixels"}
GROUPS: dict[Units, str] = {"text": "texts", "image": "images", "causal": "prompts"}
"""What the networks read: texts or images for classifiers, prompts for causal language models."""
ROWS = {"first": "the first unit", "last": "the last unit", "all": "all units"}


@dataclass(frozen=True)
class MethodSupport:
    """Whether a method gives scores.

    Args:
        refusal: why not; empty if it does.
        note: a caveat about its scores.
        gap: for DeepLIFT, the share of |f(x) - f(x')| that the sum of its scores misses; None if it gives no scores
            or if the difference is 0 up to rounding.
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
        forward_ms: of one pass with one text or image, without gradients; 0 where it was not run.
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
        yield f"{self.name}: {self.network}, reads {self.units}, outputs {self.outputs}"
        yield f"Network: {self.architecture}; its head reads {self.decided_by}"
        yield f"Attention: {f'read and replaced through {self.attention}' if self.attention else 'not available'}"
        yield f"Embeddings: {self.embeddings or 'cannot be replaced'}"
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
        raise UserError(f"{explainer.source} is not a transformer; pass a folder written by save_pretrained")
    sample = _sample(model) if explainer.reads_images else explainer.tokenizer([Example("text", (TEXT,))])
    batch = sample.to(explainer.device)
    names = ", ".join(explainer.class_names) if len(explainer.class_names) <= MAX_NAMES else ""
    with arithmetic_of(explainer.device):
        support = examine_model(model, batch, shown_path(explainer.source))
    support = replace(support, notes=(*support.notes, *arithmetic_notes(explainer.device)))
    return replace(support, outputs=f"{support.outputs} ({names})" if names else support.outputs)


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
        embeddings = model.read_embeddings(batch).detach().requires_grad_()
        torch.autograd.grad(model.read_logits(batch, embeddings=embeddings).sum(), embeddings)[0].cpu()

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
        methods=tuple(try_method(method, model, batch, target) for method in METHODS),
        forward_ms=_milliseconds(forward),
        backward_ms=_milliseconds(backward) if embeddings else 0.0,
    )


def _describe_outputs(model: TransformerModel) -> str:
    if isinstance(model.readout, Vocabulary):
        return f"one of {model.task.num_classes} next tokens; with a prompt and label words, classes"
    return "a number" if isinstance(model.task, Regression) else f"{model.task.num_classes} classes"


def try_method(name: str, model: TransformerModel, batch: Batch, target: torch.Tensor) -> MethodSupport:
    """Whether the method of this name gives finite scores, one per unit."""
    method = method_for_words(name)
    try:
        prepared = method.prepare(model) if isinstance(method, SupportsPreparation) else method
        attribution = prepared(model, batch, target)
    except NotApplicable as error:
        return MethodSupport(name, error.reason)
    except UserError as error:
        return MethodSupport(name, str(error))
    except Exception as error:  # noqa: BLE001 - a network may fail in its own way
        return MethodSupport(name, f"it fails on this network ({type(error).__name__}: {first_line(error)})")
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


def _milliseconds(work: Callable[[], None]) -> float:
    """The time of the quickest of some runs."""
    durations = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        durations.append(1000 * (time.perf_counter() - start))
    return min(durations)


def _sample(model: TransformerModel) -> Batch:
    """A random input of a network; its units are words, of an image a few, behind what stands before the patches."""
    prefix = model.stack.inputs.prefix
    batch = sample_batch(model.network, prefix)
    units = torch.arange(batch.mask.shape[1], device=batch.mask.device) - prefix
    words = (units // math.ceil((len(units) - prefix) / _MAX_WORDS)).clamp(min=-1)
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
        known = tiny_network_class(self.units, self.family)
        support = ModelSupport(self.family, GROUPS[self.units], "not built", known.__name__)
        support = replace(support, on_interface=bool(getattr(known, "_supports_attention_backend", False)))
        try:
            network = build_tiny_network(self.units, self.family, Generator().manual_seed(0))
            nn.Module.to(network, workspace.device)
        except UserError as error:
            return Artefact(notes=replace(support, reason=str(error)).to_record())
        words = LabelWords(((6,), (7,)))
        try:
            is_causal = self.units == "causal"
            model = (
                TransformerModel.wrap_language_model(network, words) if is_causal else TransformerModel.wrap(network)
            )
        except UserError as error:
            return Artefact(notes=replace(support, status="refused", reason=str(error)).to_record())
        examined = examine_model(model, _sample(model), self.family)
        return Artefact(notes=replace(examined, units=support.units).to_record())


def matching_kinds(pattern: str = "*") -> tuple[KindSupport, ...]:
    """The recipes of all kinds whose name matches a pattern as of file names."""
    version, kinds = metadata.version("transformers"), (*network_kinds(), *language_model_kinds())
    matches = tuple(KindSupport(units, kind, version) for units, kind in kinds if fnmatch(kind, pattern))
    if not matches:
        raise UserError(f"no kind of network in transformers {version} matches {pattern!r}; try '*bert*'")
    return matches


def examine_kinds(
    kinds: Sequence[KindSupport], workspace: Workspace, *, where: str = HERE, workers: int | None = None
) -> list[ModelSupport]:
    """What can be done with each kind, in their order; one that ends its process is "crashed"."""
    made = run(kinds, workspace, where=where, workers=workers)
    outcomes: dict[Recipe, Outcome] = {outcome.recipe: outcome for outcome in made}
    rows = []
    for kind in kinds:
        error = outcomes[kind].error if kind in outcomes else OUT_OF_TIME
        if error is None:
            rows.append(read_record(workspace.get(kind).notes))
        else:
            rows.append(ModelSupport(kind.family, GROUPS[kind.units], "crashed", reason=error))
    return rows


def read_record(record: object) -> ModelSupport:
    """The support that `to_record` wrote."""
    return TypeAdapter(ModelSupport).validate_python(record)


def count_statuses(rows: Sequence[ModelSupport]) -> dict[tuple[str, bool], Counter[Status]]:
    """How many networks have each status, by what they read, and whether they are on the attention interface."""
    groups: dict[tuple[str, bool], Counter[Status]] = {}
    for row in rows:
        groups.setdefault((row.units, row.on_interface), Counter())[row.status] += 1
    return groups


def summary_lines(rows: Sequence[ModelSupport]) -> Iterator[str]:
    """One line for each group of `count_statuses`."""
    for (units, on_interface), counts in count_statuses(rows).items():
        where = "with the attention interface" if on_interface else "without it"
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
        return f"`{name}` gives no scores on any of these networks and is refused on {refused}."
    middle, (largest, kind) = gaps[len(gaps) // 2][0], gaps[-1]
    return (
        f"`{name}` is refused on {refused} networks, where the sum of its scores misses f(x) - f(x') by more than "
        f"{MAX_GAP_SHARE:.0%} of |f(x) - f(x')|. On the other {len(gaps)}, the median gap is {middle:.1g} of it and "
        f"the largest {largest:.1%} ({kind}); on {unknown} more, f(x) = f(x') in double precision."
    )


TABLE_HEAD = ("kind", "reads", "interface", "status", "attention by", "embeddings", "methods", "without", "because")


def markdown_table(rows: Sequence[ModelSupport]) -> str:
    """One row for each network."""
    lines = [f"| {' | '.join(TABLE_HEAD)} |", f"|{'---|' * len(TABLE_HEAD)}"]
    for row in rows:
        refusals = [row.reason, *(method.refusal for method in row.refused if method.refusal not in row.reason)]
        notes = [f"{method.name}: {method.note}" for method in row.methods if method.note]
        works = f"{len(row.methods) - len(row.refused)}/{len(row.methods)}" if row.methods else ""
        cells = (
            row.name,
            row.units,
            "yes" if row.on_interface else "no",
            row.status,
            row.attention.removeprefix("transformers' attention "),
            row.embeddings,
            works,
            ", ".join(method.name for method in row.refused),
            "; ".join(dict.fromkeys(filter(None, (*refusals, *notes)))),
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def support_page(rows: Sequence[ModelSupport]) -> str:
    """The table as a page of the documentation, in Markdown."""
    statuses = "\n".join(f"- *{status}*: {meaning}." for status, meaning in STATUSES.items())
    counts = "\n".join(f"- {line}." for line in summary_lines(rows))
    return f"""# Supported networks

`heedful models FOLDER` tries every method on your network. This page shows the result for every kind of classifier and
causal language model in transformers {metadata.version("transformers")}, each tried as a tiny network with random
weights built from its own configuration. It is generated by `heedful models --all --out FILE`.

The code contains no list of families. A network is accepted if it passes these checks: it gives its own logits through
our attention function, putting its attention back gives the same logits, the rows of attention are distributions over
the units that may be attended to, and its embeddings can be read and replaced. Attention is reached through
transformers' attention interface, or through the softmax that the layers compute themselves. Attention within windows
of an image (Swin) is shown as maps over all units. Sometimes only a part of a network is open, such as the encoder
before a decoder, or the first stage of a network whose later stages merge units; `heedful models FOLDER` notes what is
not shown. If attention cannot be reached, every method that does not need it still works, and so do agreement of such
methods and audits; questions about attention are then reported as not available for this model.

{statuses}

Causal language models are used as classifiers, by the log-probabilities of label words after a prompt. Number of kinds,
by what they read and by whether their class uses transformers' attention interface (`_supports_attention_backend`):

{counts}

In the table, "without" lists the methods that give no scores, and "because" the reasons. Rollout, flow and relevance
multiply layers, so they are refused if units reach each other outside attention, for instance through a convolution, a
recurrence or later stages. DeepLIFT and DeepSHAP have no rule for mixtures of experts and a few other operations, and
are not complete there.
{completeness_line(rows)}

{markdown_table(rows)}
"""
