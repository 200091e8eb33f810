"""Hugging Face text and image classifiers whose attention and embeddings can be read and replaced.

`TransformerModel.wrap` wraps a network of the user, which stays unchanged; `Transformer` loads one from a folder or the
hub, never by unpickling; `SmallTransformer` builds one with random weights. Every network is tested on wrapping: one
that does not reproduce its own logits through our attention function is refused by name.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Generator, Tensor, nn

from heedful.devices import Precision, arithmetic_notes
from heedful.models._attention_hooks import (
    AttendedValues,
    AttentionHook,
    AttentionRecorder,
    EmbeddingsReached,
    ForwardPass,
    FusedAttention,
    HeadScoreRecorder,
    PlainAttention,
    WeightGuard,
    WeightsRewritten,
    copy_sharing_weights,
    evaluating,
    hook_layers,
    hook_words,
    running,
    set_attention_implementation,
)
from heedful.models._attention_windows import WindowedAttention
from heedful.models._network_anatomy import (
    ATTENTION_PATHS,
    AttentionMaps,
    AttentionPath,
    InputForm,
    Stack,
    find_attention,
    find_stack,
    find_windows,
    open_network,
    projection_matrix,
    reads_both,
    reads_images,
    sample_batch,
    text_config,
)
from heedful.models._softmax_hooks import SoftmaxInterception
from heedful.models.label_words import ClassifierHead, LabelWords, Readout, Vocabulary
from heedful.models.model_files import OutputLabels, first_line, load_network, network_class, read_output_labels
from heedful.seeding import keep_random_state, temporary_seed
from heedful.store.recipe import added_field
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import (
    Architecture,
    Batch,
    DecidingRow,
    DiskResource,
    HeadTrace,
    LayerInput,
    LayerTrace,
    Model,
    Task,
    TextPrefix,
    Trace,
    UserError,
    ValueTrace,
    check_attention,
    check_embeddings,
    hash_model_folder,
    mean_over_queries,
    user_path,
)

if TYPE_CHECKING:  # imported where it is used: see _attention_hooks
    from transformers import DynamicLayer
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network


EmbeddingPlace = Literal["layers", "words", "pixels"]
"""Where embeddings are read and replaced."""
EMBEDDING_PLACES: tuple[EmbeddingPlace, ...] = ("layers", "words", "pixels")


def output_names(network: Network) -> tuple[str, ...]:
    """The names of the outputs of a network in memory, in their order."""
    labels = {int(output): str(name) for output, name in (network.config.id2label or {}).items()}
    return tuple(labels[output] for output in sorted(labels))


def _infer_task(config: NetworkConfig) -> Task:
    kind, labels = config.problem_type, int(config.num_labels or 0)
    if labels == 1 and kind in (None, "regression"):
        return Regression()
    if labels > 1 and kind in (None, "single_label_classification"):
        return MulticlassClassification(labels)
    raise UserError(
        f"the task is unclear: problem_type {kind} with {labels} output(s); "
        "pass task=BinaryClassification(), MulticlassClassification(n) or Regression()"
    )


class TransformerModel(Model):
    """A transformer whose embeddings and attention can be read and replaced; made by `wrap` or by an architecture.

    Embeddings are the input of the first layer: words, positions and segments, normalised, and projected where word
    vectors are narrower than the states (ELECTRA, ALBERT). Scores are scaled; attention is taken before dropout; both
    are zero on padding and where the query is padding.

    Attributes:
        stack: the layers, and the form of the inputs.
        maps: the attention of the layers; None where it cannot be read.
        path: how it is reached.
        separates_lengths: texts of unequal length run apart, because padding would change the logits.
        embeddings_at: the input of the first layer; or the word vectors or the pixels, where the network reads its
            input in other ways too, or has no layers over its units.
        readout: how logits are read from the network.
        implementation_note: that eager attention, which is explained, has other logits than the one the network is set
            to; else empty.
        continues_prefixes: the network gives the same logits from keys and values of the beginning of a text.
    """

    # States of more tokens leave the cache of a core: 5 % slower at 8 192 tokens, at every length of text.
    tokens_per_pass = 1 << 11

    def __init__(self, opened: OpenedNetwork, task: Task, readout: Readout | None = None) -> None:
        super().__init__()
        self.network, self.task = opened.network, task
        self.readout: Readout = ClassifierHead() if readout is None else readout
        self.stack, self.maps, self.path = opened.stack, opened.maps, opened.path
        self.training = opened.network.training
        self.has_rows_first = not self.stack.transposed
        self.separates_lengths = self.continues_prefixes = False
        self.implementation_note = ""
        self.embeddings_at: EmbeddingPlace = "layers" if self.stack.name else "words" if self.stack.words else "pixels"
        if self.maps is None:
            self.attention_refusal = "its attention was not found"

    @staticmethod
    def wrap(model: Network, task: Task | None = None) -> TransformerModel:
        """A model that shares the weights of a network of the user; the network itself stays unchanged.

        Gradient checkpointing, which would run a layer twice, is off in the model.

        Args:
            task: by default inferred from the configuration: classes, or regression for one label.
        """
        from transformers import PreTrainedModel

        if not isinstance(model, PreTrainedModel):
            raise UserError(f"expected a transformers model, got {type(model).__name__}; merge adapters first")
        task = _infer_task(model.config) if task is None else task
        if task.num_outputs != model.config.num_labels:
            raise UserError(
                f"{type(model).__name__} has {model.config.num_labels} outputs, but the task "
                f"{type(task).__name__} needs {task.num_outputs}; load it with num_labels={task.num_outputs}"
            )
        _check_finite(model)
        return accept_network(model, task)

    @staticmethod
    def wrap_language_model(model: Network, words: LabelWords | Vocabulary) -> TransformerModel:
        """The same for a causal or masked language model, whose classes are label words, or all tokens."""
        from transformers import PreTrainedModel

        if not isinstance(model, PreTrainedModel):
            raise UserError(f"expected a transformers model, got {type(model).__name__}; merge adapters first")
        _check_finite(model)
        task = words.task if isinstance(words, LabelWords) else MulticlassClassification(text_config(model).vocab_size)
        return accept_network(model, task, words)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; attention, if passed in, is that of all layers `[batch layer head query unit]`."""
        self._check_given(batch, embeddings, attention)
        if self._must_separate(batch):
            return self._forward_by_length(batch, embeddings, attention)
        recorder = PlainAttention() if self.maps is None else AttentionRecorder(attention)
        forward_pass, logits = self._run(batch, recorder, embeddings)
        scores = None
        rows, units = batch.mask.shape
        if isinstance(recorder, PlainAttention):
            attention = logits.new_zeros(rows, 0, 0, units, units)
        elif attention is None:
            scores, attention = recorder.stack_layers(batch.mask)
        seen, hidden = forward_pass.embeddings, forward_pass.hidden
        hidden = forward_pass.states if hidden is None or hidden.shape[:2] != (rows, units) else hidden
        nothing = logits.new_zeros(rows, units, 0)
        embeddings = seen if embeddings is None and self.embedding_refusal is None else embeddings
        return Trace(
            nothing if embeddings is None else embeddings,
            nothing if hidden is None or hidden.shape[:2] != (rows, units) else hidden,
            attention,
            logits,
            scores,
        )

    def read_logits(self, batch: Batch, *, embeddings: Tensor | None = None) -> Tensor:
        """Logits alone, with fused attention where the network calls our attention function, else with its own."""
        if self._is_hooked:
            return super().read_logits(batch, embeddings=embeddings)
        self._check_given(batch, embeddings, None)
        if self._must_separate(batch):
            logits = dict[int, Tensor]()
            for index, part in _parts_of_one_length(batch):
                given = None if embeddings is None else embeddings[index, : part.mask.shape[1]]
                logits.update(zip(index.tolist(), self.read_logits(part, embeddings=given), strict=True))
            return torch.stack([logits[row] for row in range(len(batch))])
        return self._run(batch, FusedAttention(), embeddings, intercepts=False)[1]

    def read_embeddings(self, batch: Batch) -> Tensor:
        """The input of the first layer; the layers do not run."""
        if self._is_hooked or self.embedding_refusal is not None or self._must_separate(batch):
            return super().read_embeddings(batch)
        return self._embed(batch)

    @property
    def reuses_prefixes(self) -> bool:
        """Whether texts with the same beginning can be read without reading it again."""
        return self.continues_prefixes and not self._is_hooked

    @torch.no_grad()
    def read_prefix(self, text: Batch) -> TextPrefix:
        """The keys and values of a batch of one text."""
        from transformers import DynamicCache

        cache = DynamicCache()
        with running(ForwardPass(FusedAttention(), text.mask.shape[1], transposed=self.stack.transposed)):
            inputs = self._arguments(text)
            self.network.base_model(**inputs, past_key_values=cache, use_cache=True)
        layers = cast("list[DynamicLayer]", cache.layers)
        return TextPrefix(tuple((cast("Tensor", each.keys), cast("Tensor", each.values)) for each in layers))

    @torch.no_grad()
    def read_logits_after(self, prefix: TextPrefix, shared: int, batch: Batch) -> Tensor:
        """The logits of texts whose first `shared` units, fewer than all, are those of the prefix."""
        from transformers import DynamicCache

        rows, cache = len(batch), DynamicCache()
        for number, layer in enumerate(prefix.layers):
            keys, values = (each[:, :, :shared].expand(rows, -1, -1, -1) for each in layer)
            cache.update(keys, values, number)
        rest = batch.drop_units(shared)
        inputs = self._arguments(rest)
        before = inputs["attention_mask"].new_ones(rows, shared)
        inputs["attention_mask"] = torch.cat([before, inputs["attention_mask"]], 1)
        if "position_ids" in inputs:
            inputs["position_ids"] = inputs["position_ids"] + shared
        given = cast("dict[str, Tensor]", {**inputs, "past_key_values": cache})
        with running(ForwardPass(FusedAttention(), rest.mask.shape[1], transposed=self.stack.transposed)):
            logits = self.readout.logits(self.network, given, rest)
        return logits if batch.candidates is None else logits.masked_fill(~batch.candidates.bool(), -torch.inf)

    @property
    def _is_hooked(self) -> bool:
        """Whether `forward` is to be called as a module, because somebody imposes attention on it or looks on."""
        return bool(self.has_imposed_attention or self._forward_pre_hooks or self._forward_hooks)

    def _must_separate(self, batch: Batch) -> bool:
        if bool(batch.mask.all()):
            return False
        window: object = getattr(self.network.config, "sliding_window", None)
        size = window if isinstance(window, int) else None
        return self.separates_lengths or self.readout.is_joint_beyond(size, batch.mask.shape[1])

    def _forward_by_length(self, batch: Batch, embeddings: Tensor | None, attention: Tensor | None) -> Trace:
        """The trace of texts of unequal length, of which those of one length run together and without padding."""
        units, traces, groups = batch.mask.shape[1], [], []
        for index, part in _parts_of_one_length(batch):
            groups.append(index)
            own = slice(part.mask.shape[1])
            traces.append(
                self.forward(
                    part,
                    embeddings=None if embeddings is None else embeddings[index, own],
                    attention=None if attention is None else attention[index][..., own, own],
                )
            )
        order = torch.cat(groups).argsort()

        def merge(parts: list[Tensor], axes: int, others: int) -> Tensor:
            """Parts padded to all units on `axes` axes before the last `others`, in the order of the batch."""
            padded = [
                nn.functional.pad(part, (*(0, 0) * others, *(0, units - part.shape[-1 - others]) * axes))
                for part in parts
            ]
            return torch.cat(padded)[order]

        scores = [trace.scores for trace in traces if trace.scores is not None]
        return Trace(
            merge([trace.embeddings for trace in traces], 1, 1) if embeddings is None else embeddings,
            merge([trace.hidden for trace in traces], 1, 1),
            merge([trace.attention for trace in traces], 2, 0) if attention is None else attention,
            torch.cat([trace.logits for trace in traces])[order],
            merge(scores, 2, 0) if scores else None,
        )

    def _check_one_length(self, batch: Batch) -> None:
        if self._must_separate(batch):
            raise UserError(
                f"padding changes the logits of {type(self.network).__name__}, so that its layers are read from texts "
                f"of one length only: give one text at a time, or {_OTHER_METHODS}"
            )

    def read_values(
        self, batch: Batch, *, embeddings: Tensor | None = None, with_projections: bool = True
    ) -> ValueTrace:
        """Weights, values and, where they are asked for, projections of every layer, lowest first."""
        check_attention(self)
        self._check_one_length(batch)
        self._check_given(batch, embeddings, None)
        if torch.is_grad_enabled() and self.stack.name:
            # The attention of a network with frozen weights can take a gradient too.
            embeddings = self._embed(batch) if embeddings is None else embeddings
            embeddings = embeddings.detach().requires_grad_()
        recorder = AttentionRecorder()
        _, logits = self._run(batch, recorder, embeddings)
        weights, values = tuple(recorder.attention), tuple(recorder.values)
        if not with_projections:
            return ValueTrace(weights, values, (), (), logits)
        assert self.maps is not None
        name = type(self.network).__name__
        if len(values) != len(weights):
            raise UserError(f"the values that the attention of {name} weighs were not found: {_OTHER_METHODS}")
        modules = [self.network.get_submodule(each) for each in self.maps.projections if each]
        if len(modules) != len(weights):
            raise UserError(
                f"no linear map follows the attention of {name} directly, so that the contributions of units cannot "
                f"be read: {_OTHER_METHODS}"
            )
        matrices = [cast("Tensor", projection_matrix(module)) for module in modules]
        projections = tuple(
            matrix.reshape(value.shape[1], value.shape[3], -1) for matrix, value in zip(matrices, values, strict=True)
        )
        biases = (cast("Tensor | None", module.bias) for module in modules)
        offsets = tuple(
            matrix.new_zeros(matrix.shape[1]) if bias is None else bias
            for matrix, bias in zip(matrices, biases, strict=True)
        )
        return ValueTrace(weights, values, projections, offsets, logits)

    def read_heads(self, batch: Batch) -> HeadTrace:
        """Mean scores of all heads, and logits, without a score for each pair of units."""
        check_attention(self)
        if self._must_separate(batch):
            trace = self(batch)
            assert trace.scores is not None
            return HeadTrace(mean_over_queries(trace.scores, batch.mask), trace.logits)
        recorder = HeadScoreRecorder(batch.mask)
        _, logits = self._run(batch, recorder)
        return HeadTrace(torch.stack(recorder.scores, 1), logits)

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """Inputs of all layers and logits, optionally with the input of one layer replaced."""
        self._check_one_length(batch)
        self._check_given(batch, embeddings, None)
        self._check_layers()
        if not self.stack.is_uniform:
            raise UserError(
                f"the layers of {type(self.network).__name__} read states of several shapes: {_OTHER_METHODS}"
            )
        hook = PlainAttention() if self.maps is None else HeadScoreRecorder(batch.mask)
        forward_pass, logits = self._run(batch, hook, embeddings, replacement, keeps_inputs=True)
        return LayerTrace(tuple(forward_pass.inputs), logits)

    def layers_from(self, layer: int) -> TransformerModel:
        """A model of the layers from this one on, with shared weights: its embeddings are the input of that layer."""
        if self.path_refusal is not None or self.maps is None or len(self.layers) != self.stack.layers:
            raise UserError(f"the layers of {type(self.network).__name__} cannot be run apart: {self.path_refusal}")
        network = copy_sharing_weights(self.network)
        del cast("nn.ModuleList", network.get_submodule(self.stack.name))[:layer]
        config = text_config(network)
        config.num_hidden_layers -= layer
        if isinstance(kinds := getattr(config, "layer_types", None), list):
            config.layer_types = kinds[layer:]
        stack = replace(self.stack, layers=self.stack.layers - layer)
        names = (  # members of a list are named by their place in it
            name.replace(f"{self.stack.name}.{place + layer}.", f"{self.stack.name}.{place}.", 1)
            for place, name in enumerate(self.maps.projections[layer:])
        )
        maps = replace(self.maps, count=self.maps.count - layer, projections=tuple(names))
        upper = TransformerModel(OpenedNetwork(network, stack, maps, self.path), self.task, self.readout)
        upper.deciding_row, upper.separates_lengths = self.deciding_row, self.separates_lengths
        return upper

    def decode_attended(self, batch: Batch, states: Tensor, attended: Tensor) -> Tensor:
        """Logits of a model of one layer whose attention gives these values `[batch head query dim]`.

        Units that the head does not read may be left out of the batch, the states and the values.
        """
        if self.stack.layers != 1:
            raise ValueError("attended values can be given to a model of one layer: see layers_from")
        if isinstance(self.readout, LabelWords) and self.readout.is_joint:
            raise ValueError("attended values are not enough for label words of several tokens")
        if reads_images(self.network):  # an image is read whole, whatever units are asked for
            blank = sample_batch(self.network, self.stack.inputs.prefix).rows(torch.zeros_like(batch.lengths))
            batch = replace(blank, candidates=batch.candidates)
        return self._run(batch, AttendedValues(attended), states)[1]

    @property
    def architecture_summary(self) -> str:
        """Family, layers, heads and width, for instance "bert, 12 layers, 12 heads, width 768"."""
        layers, heads = self.stack.layers, 0 if self.maps is None else self.maps.heads
        return f"{self.network.config.model_type}, {layers} layers, {heads} heads, width {self.stack.width}"

    @property
    def layers(self) -> nn.ModuleList:
        """The stack of layers, lowest first; a layer that is shared is there once."""
        self._check_layers()
        return cast("nn.ModuleList", self.network.get_submodule(self.stack.name))

    def check_single_stack(self) -> None:
        """Raise a `UserError` for a network in stages, whose first one is not all of its layers."""
        if self.maps is not None and self.maps.windows is not None:
            raise UserError(
                f"{type(self.network).__name__} has stages of layers: only one stack of equal layers can be truncated "
                "or mixed; choose another architecture"
            )

    def count_layers(self) -> None:
        """Count layers and their attention again, after some were taken away."""
        with evaluating(self.network):
            self.stack = find_stack(self.network)
            self.maps = None if self.path is None else find_attention(self.network, self.path, self.stack)

    @property
    def max_tokens(self) -> int | None:
        """The length of the longest text, special tokens included; None without a limit."""
        return self.stack.inputs.max_tokens(self.network)

    def _check_layers(self) -> None:
        if not self.stack.name:
            raise UserError(f"the layers of {type(self.network).__name__} were not found: {_OTHER_METHODS}")

    def _arguments(self, batch: Batch) -> dict[str, Tensor]:
        """What the network reads; a prompt is one sequence, however many texts stand in it."""
        if not isinstance(self.readout, ClassifierHead):
            batch = replace(batch, segments=torch.zeros_like(batch.segments))
        return self.stack.inputs.arguments(self.network, batch)

    def _embed(self, batch: Batch) -> Tensor:
        if self.embeddings_at == "pixels":
            return batch.inputs.to(self.network.dtype)
        forward_pass = ForwardPass(
            PlainAttention(),
            batch.mask.shape[1],
            transposed=self.stack.transposed,
            ends_at_embeddings=True,
            at_words=self.embeddings_at == "words",
        )
        with suppress(EmbeddingsReached), running(forward_pass):
            self.network(**self._arguments(batch))
        assert forward_pass.embeddings is not None
        return forward_pass.embeddings

    def _run(
        self,
        batch: Batch,
        hook: AttentionHook,
        embeddings: Tensor | None = None,
        replacement: LayerInput | None = None,
        *,
        keeps_inputs: bool = False,
        intercepts: bool = True,
    ) -> tuple[ForwardPass, Tensor]:
        """What was exchanged in one forward pass, and logits; the hook sees every layer.

        Args:
            intercepts: let the hook see also layers that normalise attention themselves.
        """
        rows, units = batch.mask.shape
        pixels = self._embed(batch) if self.embeddings_at == "pixels" and embeddings is None else embeddings
        if self.embeddings_at == "pixels" and pixels is not None:
            batch, embeddings = replace(batch, inputs=pixels), None
        windows = None if self.maps is None else self.maps.windows
        hook = hook if windows is None else WindowedAttention(hook, windows)
        forward_pass = ForwardPass(
            hook,
            units,
            embeddings,
            self.stack.transposed,
            at_words=self.embeddings_at == "words",
            replacement=replacement,
            keeps_inputs=keeps_inputs,
        )
        inputs = self._arguments(batch)
        intercepts = intercepts and self.path == "softmax"
        height, width = (rows, units) if windows is None else (rows * windows.shape[0], windows.shape[1])
        with running(forward_pass), SoftmaxInterception(height, width) if intercepts else nullcontext():
            logits = self.readout.logits(self.network, inputs, batch)
        if self.embeddings_at == "pixels":
            forward_pass.embeddings = pixels
        if batch.candidates is not None:
            logits = logits.masked_fill(~batch.candidates.bool(), -torch.inf)
        counts = self.path == "interface" or intercepts
        if counts and self.maps is not None and hook.layers_run != self.maps.count:
            raise UserError(
                f"{type(self.network).__name__} computed {hook.layers_run} attention maps over its units on this "
                f"batch, but {self.maps.count} when it was opened: shorten the texts"
            )
        return forward_pass, logits

    def _check_given(self, batch: Batch, embeddings: Tensor | None, attention: Tensor | None) -> None:
        rows, units = batch.mask.shape
        if embeddings is not None:
            check_embeddings(self)
            if embeddings.shape[:2] != (rows, units):
                raise ValueError(f"embeddings are {tuple(embeddings.shape)}, but the batch is {(rows, units)}")
        if attention is not None:
            check_attention(self)
            assert self.maps is not None
            expected = (rows, self.maps.count, self.maps.heads, units, units)
            if tuple(attention.shape) != expected:
                raise ValueError(f"attention is {tuple(attention.shape)}, but this model and batch need {expected}")


def _parts_of_one_length(batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
    """The rows of each length, without padding, and their numbers."""
    for length in sorted(set(batch.lengths.tolist())):
        index = (batch.lengths == length).nonzero().flatten()
        yield index, batch.rows(index)


def _check_finite(network: Network) -> None:
    """Raise a `UserError` that names the first weight with a value that is not a finite number."""
    for name, weight in network.named_parameters():
        # The sum is quick but can overflow.
        if not bool(weight.detach().sum().isfinite()) and not bool(weight.isfinite().all()):
            count = int((~weight.isfinite()).sum())
            raise UserError(
                f"{count} of the {weight.numel()} numbers in {name} of {type(network).__name__} are NaN or infinite: "
                "the training has diverged or the file is damaged; take an earlier checkpoint"
            )


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
    with evaluating(opened):
        stages = find_stack(opened)
        layers = find_stack(opened, f"{stages.name}.0") if stages.name else stages
        if not layers.name or not layers.is_uniform:
            raise UserError(NO_WINDOWS)
        hook_layers(opened, layers.name)
        maps = find_windows(opened, path, layers)
    return OpenedNetwork(opened, layers, maps, path)


def open_layers(network: Network, path: AttentionPath | None) -> OpenedNetwork:
    """The network with hooked layers; raises a `UserError` where its attention is not reached by this path."""
    opened = open_network(network, path)
    with evaluating(opened):
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
def accept_network(network: Network, task: Task, readout: Readout | None = None) -> TransformerModel:
    """The model of a network that proves that it computes the same through our hooks, by the first way in that does.

    Without a way to its attention the model has none. Where padding changes the logits, texts of unequal length run
    apart. A network whose logits differ even then is refused.
    """
    name, units = type(network).__name__, "an image" if reads_images(network) else "a text"
    if reads_both(network):
        raise UserError(f"{name} reads an image and a text together: give a model that reads one of them")
    readout = ClassifierHead() if readout is None else readout
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
    if expected.shape[1:] != (task.num_outputs,):
        raise UserError(f"{name} gives {tuple(expected.shape[1:])} numbers for {units}, not {task.num_outputs}")
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
                model = TransformerModel(way(), task, readout)
                model.separates_lengths = separates_lengths
                with evaluating(model):
                    trial.examine(model)
            except (UserError, *_NETWORK_ERRORS) as error:
                if str(error) != NO_WINDOWS:
                    reasons.append(first_line(error))
                if str(error) != OTHER_LOGITS or reads_images(network):
                    break
                continue
            model.implementation_note = implementation_note
            model.notes = (*notes, *([implementation_note] if implementation_note else []), *model.notes)
            if [type(part) for part in model.network.modules()] != [type(part) for part in network.modules()]:
                model.notes = (
                    *model.notes,
                    f"{name} computes attention between all units, however long a text is",
                )
            if model.path is None:
                unread = reasons[: len(reasons) - separates_lengths]
                model.attention_refusal = f"the attention of {name} cannot be read: {'; '.join(dict.fromkeys(unread))}"
            return model
    raise UserError(f"{name} is not supported: {reasons[-1]}")


CAUSAL_NOTE = (
    "attention is causal: tokens attend to themselves and earlier tokens, and other weights are tried only there"
)
NO_WINDOWS = "its layers compute no attention within windows of its units"
OTHER_LOGITS = "it gives different logits through our attention function"
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
_OTHER_METHODS = "choose a method that reads outputs or gradients, such as LeaveOneOut or IntegratedGradients"


def _run_once(network: Network, readout: Readout) -> Network:
    """A copy of a network with weights of its own, which it has rewritten for inference (RWKV rescales its layers)."""
    own, batch = copy.deepcopy(network), readout.prepare_sample(sample_batch(network))
    alone = batch.rows(torch.zeros(1, dtype=torch.long, device=network.device))
    with torch.no_grad(), evaluating(own):
        readout.library_logits(own, InputForm().arguments(own, alone), alone)
    return own


def _implementation_note(network: Network, readout: Readout, trial: AcceptanceTrial) -> str:
    """Where the attention implementation that a network is set to gives other logits than eager attention; or empty."""
    name, implementation = type(network).__name__, network.config._attn_implementation
    if implementation in (None, "eager"):
        return ""
    try:
        own = _library_logits(network, readout, None)
    except _NETWORK_ERRORS:
        return ""
    if trial.is_close(own, trial.expected):
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
        with torch.no_grad(), evaluating(plain):
            rows.append(readout.library_logits(plain, InputForm().arguments(plain, alone), alone))
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
        is_apart = model._must_separate(batch)
        with torch.no_grad():
            trace = model(batch)
            self._compare(trace.logits, self.expected, OTHER_LOGITS)
            if batch.inputs.dim() == 2:
                limit = model.max_tokens or math.inf
                padded = _with_more_padding(batch, int(min(MORE_PADDING, max(0, limit - batch.mask.shape[1]))))
                self._compare(model(padded).logits, self.expected, OTHER_LOGITS)
            if model.maps is not None:
                self._examine_attention(model, batch, trace)
            trace = self._find_embeddings(model, batch, trace)
            if model.maps is not None:
                if model.maps.windows is not None:
                    self._examine_windows(model, batch, trace)
                other = self._other_path(model, batch, trace)
                if other is not None:
                    model.path_refusal = f"attention is not the only path between the units of {name}: {other}"
                if model.maps.others:
                    model.notes = (*model.notes, _describe_other_maps(model.maps))
            if model.maps is not None and not bool(trace.attention.triu(1).any()):
                model.notes = (*model.notes, CAUSAL_NOTE)
        if model.stack.name:
            # Texts that must run apart are asked one at a time.
            some = batch.rows(torch.zeros(1, dtype=torch.long, device=batch.mask.device)) if is_apart else batch
            model.deciding_row = self._deciding_row(model, some, trace)
        if model.stack.name and not is_apart:
            with suppress(UserError, *_NETWORK_ERRORS), torch.no_grad():
                model.continues_prefixes = model.deciding_row == "last" and self._continues_prefixes(model, batch)

    def _continues_prefixes(self, model: TransformerModel, batch: Batch) -> bool:
        """Whether a text without its fourth unit gets its logits from keys and values of the first three."""
        text = batch.rows(torch.zeros(1, dtype=torch.long, device=batch.mask.device))
        kept = text.mask.clone()
        kept[:, 3] = False
        shorter = text.keep_units(kept)
        return self.is_close(model.read_logits_after(model.read_prefix(text), 3, shorter), model.read_logits(shorter))

    def is_close(self, found: Tensor, expected: Tensor) -> bool:
        """Whether logits are the same up to rounding."""
        return found.shape == expected.shape and torch.allclose(
            found, expected, rtol=self.tolerance, atol=self.tolerance
        )

    def _compare(self, found: Tensor, expected: Tensor, reason: str) -> None:
        if not self.is_close(found, expected):
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
        """A trace with embeddings that can be put back, of which the model takes note; else why there are none."""
        found = {"layers": model.stack.name, "words": model.stack.words, "pixels": reads_images(model.network)}
        for place in (place for place in EMBEDDING_PLACES if found[place]):
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
            forward_pass, _ = model._run(batch, AttentionRecorder(_own_attention(trace.attention)), embeddings)
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
        given = trace.embeddings.detach().requires_grad_()
        with torch.enable_grad():
            both = (model(batch, embeddings=given).logits, model.read_logits(batch, embeddings=given))
            found, expected = (torch.autograd.grad(logits[:, 0].sum(), given)[0] for logits in both)
        if float((found - expected).abs().max()) > self.tolerance * float(expected.abs().max()):
            raise UserError("its attention as maps over all units has other gradients")

    def _deciding_row(self, model: TransformerModel, batch: Batch, trace: Trace) -> DecidingRow:
        with torch.enable_grad():
            embeddings = trace.embeddings[: len(batch)].detach().requires_grad_()
            forward_pass, logits = model._run(batch, PlainAttention(), embeddings)
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
        nn.functional.pad(each, (0, columns)) for each in (batch.inputs, batch.segments, batch.words)
    )
    mask = nn.functional.pad(batch.mask, (0, columns), value=False)
    return replace(batch, inputs=inputs, mask=mask, segments=segments, words=words)


def _own_attention(attention: Tensor) -> Tensor:
    """Attention of every unit to itself only, in the shape of another."""
    return torch.eye(attention.shape[-1], dtype=attention.dtype, device=attention.device).expand_as(attention)


@dataclass(frozen=True)
class Transformer(Architecture, DiskResource):
    """A pretrained transformer from a folder or the hub, with a head for the task.

    The head is the checkpoint's own if it has one of the right size, else a new one; the `notes` of the model say
    which. Only safetensors are read.

    Args:
        source: a folder or a hub id.
        precision: of weights and states; nothing is trained in half precision.
    """

    source: str
    precision: Precision = added_field("float32")

    def digest(self, data: Path) -> str:
        """A hash of all files in a folder that may be read; the name itself for a hub id."""
        folder = user_path(self.source)
        return hash_model_folder(folder, with_weights=True) if folder.is_dir() else self.source

    def describe(self) -> dict[str, str]:
        """The name of the folder, or of its parent if it is a generic name such as `model` or `checkpoint`.

        A home directory, which is called like its owner, does not name a model.
        """
        path = Path(self.source)
        generic = path.name in ("model", "checkpoint", "best", "final") and path.parent != Path.home()
        return {"encoder": (path.parent.name if generic else "") or path.name, "attention": "self"}

    def read_outputs(self) -> OutputLabels:
        """The outputs of its checkpoint."""
        return read_output_labels(self.source)

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The pretrained model, in eval mode."""
        if embeddings is not None and len(embeddings):
            raise UserError("a transformer has its own word vectors: leave the word vectors out (embeddings=None)")
        with temporary_seed(int(torch.randint(2**62, (), generator=generator))):
            network, notes = load_network(self.source, task.num_outputs, "classifier", self.precision)
        model = TransformerModel.wrap(network, task).eval()
        model.notes = (*notes, *model.notes, *arithmetic_notes("cpu", self.precision))
        return model


@dataclass(frozen=True)
class SmallTransformer(Architecture):
    """A small transformer trained from scratch on whole words, initialised with word vectors.

    Args:
        max_positions: longest text in tokens, special tokens included.
        dropout: of states and attention weights, in training.
        initializer_range: standard deviation of the weights.
    """

    layers: int = 1
    heads: int = 4
    width: int = 64
    max_positions: int = 512
    dropout: float = 0.1
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"SmallTransformer: width {self.width} is not divisible by {self.heads} heads")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model whose word table is `embeddings`, projected to `width`; the other weights are random."""
        from transformers import AutoConfig

        if embeddings is None or not len(embeddings):
            raise UserError("SmallTransformer reads word ids and needs word vectors: use the tokenization Words()")
        vocabulary, width = embeddings.shape
        # ELECTRA is the only family whose word vectors can differ in width from the states.
        config = AutoConfig.for_model(
            "electra",
            num_labels=task.num_outputs,
            vocab_size=vocabulary,
            embedding_size=width,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.max_positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            initializer_range=self.initializer_range,
        )
        network = build_network(config, generator)
        with torch.no_grad():
            table = network.get_input_embeddings().get_parameter("weight")
            table.copy_(embeddings)
            table[0].zero_()
        return TransformerModel.wrap(network, task).eval()


def build_network(config: NetworkConfig, generator: Generator) -> Network:
    """A classifier with this configuration and weights drawn from the generator."""
    with temporary_seed(int(torch.randint(2**62, (), generator=generator))):
        return network_class(config, config.model_type)(config)
