"""Acceptance by proof: a network becomes a model if it computes the same logits through our hooks.

A network that does not reproduce its own logits is refused by name; what else it cannot show (attention, embeddings,
layers that can be multiplied) is a refusal of the model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from heedful.models.attention_hooks import (
    AttentionRecorder,
    PlainAttention,
    WeightGuard,
    WeightsRewritten,
    copy_sharing_weights,
    hook_layers,
    hook_words,
    set_attention_implementation,
)
from heedful.models.label_words import Readout
from heedful.models.network_anatomy import (
    ATTENTION_PATHS,
    AttentionMaps,
    AttentionPath,
    NetworkInputs,
    Stack,
    find_attention,
    find_stack,
    find_windows,
    open_network,
    reads_both,
    reads_images,
    sample_batch,
)
from heedful.seeding import keep_random_state
from heedful.types import OWN_MODELS_PAGE, Batch, DecidingRow, Trace, UserError, evaluation_mode, first_line

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import PreTrainedModel as Network

    from heedful.models.transformer import TransformerModel


EmbeddingPlace = Literal["layers", "words", "pixels"]
"""Where embeddings are read and replaced."""
EMBEDDING_PLACES: tuple[EmbeddingPlace, ...] = ("layers", "words", "pixels")


class NoWindows(UserError):
    """A network does not attend within windows of its units."""


class OtherLogits(UserError):
    """A network gives other logits through our attention function than through the library's."""


@dataclass(frozen=True)
class OpenedNetwork:
    """A copy of a network with hooked layers, and what was found in it.

    Args:
        maps: the attention of its layers; None where it cannot be reached.
        path: how it is reached.
    """

    network: Network
    stack: Stack
    maps: AttentionMaps | None
    path: AttentionPath | None


def open_windows(network: Network, path: AttentionPath) -> OpenedNetwork:
    """The network with hooked layers that attend within windows of an image, as all or the first stage of Swin does.

    Stages above merge units, and their attention is not that of the units. Raises a `UserError` for other networks.
    """
    opened = open_network(network, path)
    with evaluation_mode(opened):
        stages = find_stack(opened)
        layers = find_stack(opened, f"{stages.name}.0") if stages.name else stages
        if not layers.name or not layers.is_uniform:
            raise NoWindows("its layers compute no attention within windows of its units")
        hook_layers(opened, layers.name)
        maps = find_windows(opened, path, layers)
    return OpenedNetwork(opened, layers, maps, path)


def open_layers(network: Network, path: AttentionPath | None) -> OpenedNetwork:
    """The network with hooked layers; raises a `UserError` where its attention is not reached by this path."""
    opened = open_network(network, path)
    with evaluation_mode(opened):
        stack = find_stack(opened)
        if stack.name:
            hook_layers(opened, stack.name)
        if stack.words:
            hook_words(opened, stack.words)
        if path is None:
            return OpenedNetwork(opened, stack, None, None)
        if not stack.name:
            raise UserError("no stack of layers was found that reads its units")
        maps = find_attention(opened, path, stack)
    if maps.others and not network.config.is_encoder_decoder:
        raise UserError(f"{maps.others} of its attention maps are not over its units")
    return OpenedNetwork(opened, stack, maps, path)


@keep_random_state()
def accept_network(
    network: Network, outputs: int, readout: Readout, make_model: Callable[[OpenedNetwork], TransformerModel]
) -> TransformerModel:
    """The model of a network that proves that it computes the same through our hooks, by the first way in that does.

    Without a way to its attention the model has none. Where padding changes the logits, texts of unequal length run
    apart. A network whose logits differ even then is refused.

    Args:
        outputs: how many logits the task needs.
        make_model: a model of an opened network with this readout.
    """
    name, units = type(network).__name__, "an image" if reads_images(network) else "a text"
    if reads_both(network):
        raise UserError(f"{name} reads an image and a text together: give a model that reads one of them")
    notes: tuple[str, ...] = ()
    try:
        try:
            with WeightGuard(network):
                expected = _library_logits(network, readout)
        except WeightsRewritten:
            network, notes = _run_once(network, readout), (f"{name} rewrites its weights: the model has its own copy",)
            expected = _library_logits(network, readout)
        again = _library_logits(network, readout)
    except _NETWORK_ERRORS as error:
        raise UserError(f"{name} cannot be run on {units} alone: {first_line(error)}") from error
    if expected.shape[1:] != (outputs,):
        raise UserError(f"{name} gives {tuple(expected.shape[1:])} numbers for {units}, not {outputs}")
    if not torch.equal(expected, again):
        raise UserError(f"{name} gives other logits for {units} each time: it cannot be explained")
    trial, reasons = AcceptanceTrial(expected), list[str]()
    implementation_note = _implementation_note(network, readout, trial)
    ways = [partial(open_layers, network, path) for path in ATTENTION_PATHS]
    if reads_images(network):
        ways += [partial(open_windows, network, path) for path in ATTENTION_PATHS]
    for way in (*ways, partial(open_layers, network, None)):
        for separates_lengths in (False, True):
            try:
                model = make_model(way())
                model.separates_lengths = separates_lengths
                with evaluation_mode(model):
                    trial.examine(model)
            except NoWindows:
                break
            except (UserError, *_NETWORK_ERRORS) as error:
                reasons.append(first_line(error))
                if not isinstance(error, OtherLogits) or reads_images(network):
                    break
                continue
            model.implementation_note = implementation_note
            model.notes = (*notes, *([implementation_note] if implementation_note else []), *model.notes)
            if [type(module) for module in model.network.modules()] != [type(module) for module in network.modules()]:
                model.notes = (
                    *model.notes,
                    f"{name} computes attention between all units, however long a text is",
                )
            if model.path is None:
                unread = reasons[: len(reasons) - separates_lengths]
                model.attention_refusal = f"the attention of {name} cannot be read: {'; '.join(dict.fromkeys(unread))}"
            return model
    raise UserError(f"{name} is not supported: {reasons[-1]} (see {OWN_MODELS_PAGE})")


CAUSAL_NOTE = (
    "attention is causal: tokens attend to themselves and earlier tokens, and other weights are tried only there"
)
_NETWORK_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _run_once(network: Network, readout: Readout) -> Network:
    """A copy of a network with weights of its own, which it has rewritten for inference (RWKV rescales its layers)."""
    copied, batch = copy.deepcopy(network), readout.prepare_sample(sample_batch(network))
    alone = batch.rows(torch.zeros(1, dtype=torch.long, device=network.device))
    with torch.no_grad(), evaluation_mode(copied):
        readout.library_logits(copied, NetworkInputs().arguments(copied, alone), alone)
    return copied


def _implementation_note(network: Network, readout: Readout, trial: AcceptanceTrial) -> str:
    """Where the attention implementation that a network is set to gives other logits than eager attention; or empty."""
    name, implementation = type(network).__name__, network.config._attn_implementation
    if implementation in (None, "eager"):
        return ""
    try:
        logits = _library_logits(network, readout, None)
    except _NETWORK_ERRORS:
        return ""
    if trial.is_close(logits, trial.expected):
        return ""
    return (
        f"{name} gives other logits with the attention implementation {implementation!r} than with 'eager': the "
        "explained network is the eager one (attn_implementation='eager')"
    )


def _library_logits(network: Network, readout: Readout, implementation: str | None = "eager") -> Tensor:
    """The logits of the sample, each example alone and without padding, in the library's attention, None in its own."""
    plain, batch = copy_sharing_weights(network), readout.prepare_sample(sample_batch(network))
    set_attention_implementation(plain, implementation)
    rows = []
    for row in range(len(batch)):
        alone = batch.rows(torch.tensor([row], device=network.device))
        with torch.no_grad(), evaluation_mode(plain):
            rows.append(readout.library_logits(plain, NetworkInputs().arguments(plain, alone), alone))
    return torch.cat(rows)


@dataclass(frozen=True)
class AcceptanceTrial:
    """What a network must show before it is a model: its own logits, and the same ones from what was put back.

    Args:
        expected: logits of the library on the sample.
    """

    expected: Tensor

    @property
    def tolerance(self) -> float:
        """Of rounding."""
        return 1e-4 if self.expected.dtype in (torch.float32, torch.float64) else 5e-2

    def examine(self, model: TransformerModel) -> None:
        """Raise a `UserError` if the logits differ, and set what the model refuses."""
        batch, name = sample_batch(model.network, model.stack.inputs.prefix), type(model.network).__name__
        batch = model.readout.prepare_sample(batch)
        is_apart = model.must_separate(batch)
        with torch.no_grad():
            trace = model(batch)
            self._compare_with_library(trace.logits)
            if batch.inputs.dim() == 2:
                limit = model.max_tokens or math.inf
                padded = _with_more_padding(batch, int(min(MORE_PADDING, max(0, limit - batch.mask.shape[1]))))
                self._compare_with_library(model(padded).logits)
            if model.maps is not None:
                self._examine_attention(model, batch, trace)
            trace = self._find_embeddings(model, batch, trace)
            if model.maps is not None:
                if model.maps.windows is not None:
                    self._examine_windows(model, batch, trace)
                other_path = self._other_path(model, batch, trace)
                if other_path is not None:
                    model.path_refusal = f"attention is not the only path between the units of {name}: {other_path}"
                if model.maps.others:
                    model.notes = (*model.notes, _describe_other_maps(model.maps))
            if model.maps is not None and not bool(trace.attention.triu(1).any()):
                model.notes = (*model.notes, CAUSAL_NOTE)
        if model.stack.name:
            # Texts that must run apart are asked one at a time.
            examined = batch.rows(torch.zeros(1, dtype=torch.long, device=batch.mask.device)) if is_apart else batch
            model.deciding_row = self._deciding_row(model, examined, trace)
        if model.stack.name and not is_apart:
            with suppress(UserError, *_NETWORK_ERRORS), torch.no_grad():
                model.continues_prefixes = model.deciding_row == "last" and self._continues_prefixes(model, batch)

    def _continues_prefixes(self, model: TransformerModel, batch: Batch) -> bool:
        """Whether a text without its fourth unit gets its logits from keys and values of the first three."""
        text = batch.rows(torch.zeros(1, dtype=torch.long, device=batch.mask.device))
        is_kept = text.mask.clone()
        is_kept[:, 3] = False
        shorter = text.keep_units(is_kept)
        return self.is_close(model.read_logits_after(model.read_prefix(text), 3, shorter), model.read_logits(shorter))

    def is_close(self, actual: Tensor, expected: Tensor) -> bool:
        """Whether logits are the same up to rounding."""
        return actual.shape == expected.shape and torch.allclose(
            actual, expected, rtol=self.tolerance, atol=self.tolerance
        )

    def _compare_with_library(self, logits: Tensor) -> None:
        if not self.is_close(logits, self.expected):
            raise OtherLogits("it gives different logits through our attention function")

    def _compare(self, actual: Tensor, expected: Tensor, reason: str) -> None:
        if not self.is_close(actual, expected):
            raise UserError(reason)

    def _examine_attention(self, model: TransformerModel, batch: Batch, trace: Trace) -> None:
        attention = trace.attention
        if bool((attention < 0).any()) or bool((attention.sum(-1) > 1 + self.tolerance).any()):
            raise UserError("its attention weights are not distributions")
        if bool((attention * ~batch.mask[:, None, None, None]).any()):
            raise UserError("it attends to padding")
        again = model(batch, attention=attention).logits
        self._compare(again, trace.logits, "its own attention, put back, gives other logits")
        if torch.equal(model(batch, attention=_own_attention(attention)).logits, trace.logits):
            raise UserError("attention that is put in does not reach its logits")

    def _find_embeddings(self, model: TransformerModel, batch: Batch, trace: Trace) -> Trace:
        """A trace with replaceable embeddings, recorded in the model, or else the reason why there are none."""
        is_available = {"layers": model.stack.name, "words": model.stack.words, "pixels": reads_images(model.network)}
        for place in (place for place in EMBEDDING_PLACES if is_available[place]):
            model.embeddings_at, model.embedding_refusal = place, None
            try:
                with_embeddings = model(batch)
                self._examine_embeddings(model, batch, with_embeddings)
            except (UserError, *_NETWORK_ERRORS) as error:
                name = type(model.network).__name__
                model.embedding_refusal = f"the embeddings of {name} cannot be replaced: {first_line(error)}"
            else:
                return with_embeddings
        return trace

    def _examine_embeddings(self, model: TransformerModel, batch: Batch, trace: Trace) -> None:
        others = batch.inputs * 0.5
        if batch.inputs.dim() == 2:  # the first and the last unit may have a role of their own
            others = torch.cat([batch.inputs[:, :1], batch.inputs[:, 1:4].flip(1), batch.inputs[:, 4:]], 1)
        again = model(replace(batch, inputs=others), embeddings=trace.embeddings).logits
        self._compare(again, trace.logits, "its logits depend on its input in other ways too")
        if torch.equal(model(batch, embeddings=trace.embeddings.flip(-1)).logits, trace.logits):
            raise UserError("they do not reach its logits")

    def _other_path(self, model: TransformerModel, batch: Batch, trace: Trace) -> str | None:
        """What else carries one unit to another: under attention of every unit to itself, none may reach another."""
        assert model.maps is not None
        if model.embedding_refusal is not None:
            return model.embedding_refusal
        if model.maps.others and model.maps.windows is not None:
            return f"stages above merge them, with attention of their own (maps: {model.maps.others})"
        if model.maps.others:
            return f"a decoder reads them by {model.maps.others} attention maps of its own"
        if model.maps.count != model.stack.layers:
            return f"it has {model.maps.count} attention maps in {model.stack.layers} layers"
        return "its layers mix units outside attention too" if self._mixes_units(model, batch, trace) else None

    def _mixes_units(self, model: TransformerModel, batch: Batch, trace: Trace) -> bool:
        """Whether one unit reaches another in the layers under attention of every unit to itself."""
        changed, states = trace.embeddings.clone(), []
        changed[:, 1] = changed[:, 1].flip(-1)
        for embeddings in (trace.embeddings, changed):
            forward_pass, _ = model.run(batch, AttentionRecorder(_own_attention(trace.attention)), embeddings)
            assert forward_pass.states is not None
            states.append(forward_pass.states)
        # More than rounding, which depends on how many units go to one expert.
        moved = (states[0] - states[1]).abs().amax(-1) > self.tolerance * states[0].abs().max()
        moved[:, 1] = False
        return bool(moved.any())

    def _examine_windows(self, model: TransformerModel, batch: Batch, trace: Trace) -> None:
        """Raise a `UserError` if units are not where they were found, or gradients by way of the maps are others."""
        if model.embedding_refusal is not None:
            raise UserError(model.embedding_refusal)
        if self._mixes_units(model, batch, trace):
            raise UserError("what is attended in its windows reaches other units")
        embeddings = trace.embeddings.detach().requires_grad_()
        with torch.enable_grad():
            both = (model(batch, embeddings=embeddings).logits, model.read_logits(batch, embeddings=embeddings))
            actual, expected = (torch.autograd.grad(logits[:, 0].sum(), embeddings)[0] for logits in both)
        if float((actual - expected).abs().max()) > self.tolerance * float(expected.abs().max()):
            raise UserError("its attention as maps over all units has other gradients")

    def _deciding_row(self, model: TransformerModel, batch: Batch, trace: Trace) -> DecidingRow:
        with torch.enable_grad():
            embeddings = trace.embeddings[: len(batch)].detach().requires_grad_()
            forward_pass, logits = model.run(batch, PlainAttention(), embeddings)
            assert forward_pass.states is not None
            weights = torch.arange(1, logits.shape[1] + 1).to(logits)
            (slopes,) = torch.autograd.grad((logits * weights).sum(), forward_pass.states, allow_unused=True)
        if slopes is None or slopes.dim() != 3:
            return "all"
        return model.readout.deciding_row(slopes.abs().amax(-1) > 0, batch)


def _describe_other_maps(maps: AttentionMaps) -> str:
    """A note on attention that is not shown."""
    if maps.windows is None:
        return f"attention is that of the encoder; that of the decoder (maps: {maps.others}) is not shown"
    return (
        f"attention is that of the first stage (layers: {maps.count}), within windows of {maps.windows.shape[1]} units;"
        f" the stages above merge units, and their attention (maps: {maps.others}) is not shown"
    )


MORE_PADDING = 9
"""Columns of padding that may not change the logits either: CANINE reads its texts in strides."""


def _with_more_padding(batch: Batch, columns: int) -> Batch:
    inputs, segments, words = (
        nn.functional.pad(tensor, (0, columns)) for tensor in (batch.inputs, batch.segments, batch.words)
    )
    mask = nn.functional.pad(batch.mask, (0, columns), value=False)
    return replace(batch, inputs=inputs, mask=mask, segments=segments, words=words)


def _own_attention(attention: Tensor) -> Tensor:
    """Attention of every unit to itself only, in the shape of another."""
    return torch.eye(attention.shape[-1], dtype=attention.dtype, device=attention.device).expand_as(attention)
