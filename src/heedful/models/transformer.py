"""Hugging Face text and image classifiers whose attention and embeddings can be read and replaced.

`TransformerModel.wrap` wraps a network of the user, which stays unchanged; `Transformer` loads one from a folder or the
hub, never by unpickling. Every network is tested on wrapping (see `acceptance`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Generator, Tensor, nn

from heedful.capabilities import (
    HeadTrace,
    LayerInput,
    LayerTrace,
    TextPrefix,
    ValueTrace,
    check_attention,
    check_embeddings,
    mean_over_queries,
)
from heedful.devices import Precision, arithmetic_notes
from heedful.models._attention_windows import WindowedAttention
from heedful.models._softmax_hooks import SoftmaxInterception
from heedful.models.acceptance import EmbeddingPlace, OpenedNetwork, accept_network
from heedful.models.attention_hooks import (
    AttendedValues,
    AttentionHook,
    AttentionRecorder,
    EmbeddingsReached,
    ForwardPass,
    FusedAttention,
    HeadScoreRecorder,
    PlainAttention,
    copy_sharing_weights,
    running,
)
from heedful.models.label_words import ClassifierHead, LabelWords, Readout, Vocabulary
from heedful.models.model_files import OutputLabels, load_network, read_output_labels
from heedful.models.network_anatomy import (
    find_attention,
    find_stack,
    projection_matrix,
    reads_images,
    sample_batch,
    text_config,
)
from heedful.seeding import temporary_seed
from heedful.store.model_folder import hash_model_folder
from heedful.store.recipe import added_field
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import (
    OWN_MODELS_PAGE,
    Architecture,
    Batch,
    DiskResource,
    Model,
    Task,
    Trace,
    UserError,
    evaluation_mode,
    user_path,
)

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import DynamicLayer
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network


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
        has_new_head: the weights of its head are randomly initialized.
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
        self.separates_lengths = self.continues_prefixes = self.has_new_head = False
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
        _check_network(model)
        task = _infer_task(model.config) if task is None else task
        if task.num_outputs != model.config.num_labels:
            raise UserError(
                f"{type(model).__name__} has {model.config.num_labels} outputs, but the task "
                f"{type(task).__name__} needs {task.num_outputs}; load it with num_labels={task.num_outputs}"
            )
        return TransformerModel._accept(model, task, ClassifierHead())

    @staticmethod
    def wrap_language_model(model: Network, words: LabelWords | Vocabulary) -> TransformerModel:
        """The same for a causal or masked language model, whose classes are label words, or all tokens."""
        _check_network(model)
        task = words.task if isinstance(words, LabelWords) else MulticlassClassification(text_config(model).vocab_size)
        return TransformerModel._accept(model, task, words)

    @staticmethod
    def _accept(network: Network, task: Task, readout: Readout) -> TransformerModel:
        return accept_network(
            network, task.num_outputs, readout, lambda opened: TransformerModel(opened, task, readout)
        )

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; attention, if passed in, is that of all layers `[batch layer head query unit]`."""
        self._check_given(batch, embeddings, attention)
        if self.must_separate(batch):
            return self._forward_by_length(batch, embeddings, attention)
        recorder = PlainAttention() if self.maps is None else AttentionRecorder(attention)
        forward_pass, logits = self.run(batch, recorder, embeddings)
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
        if self.must_separate(batch):
            logits = dict[int, Tensor]()
            for index, group in _parts_of_one_length(batch):
                group_embeddings = None if embeddings is None else embeddings[index, : group.mask.shape[1]]
                logits.update(zip(index.tolist(), self.read_logits(group, embeddings=group_embeddings), strict=True))
            return torch.stack([logits[row] for row in range(len(batch))])
        return self.run(batch, FusedAttention(), embeddings, intercepts=False)[1]

    def read_embeddings(self, batch: Batch) -> Tensor:
        """The input of the first layer; the layers do not run."""
        if self._is_hooked or self.embedding_refusal is not None or self.must_separate(batch):
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
        return TextPrefix(tuple((cast("Tensor", layer.keys), cast("Tensor", layer.values)) for layer in layers))

    @torch.no_grad()
    def read_logits_after(self, prefix: TextPrefix, shared: int, batch: Batch) -> Tensor:
        """The logits of texts whose first `shared` units, fewer than all, are those of the prefix."""
        from transformers import DynamicCache

        rows, cache = len(batch), DynamicCache()
        for number, layer in enumerate(prefix.layers):
            keys, values = (tensor[:, :, :shared].expand(rows, -1, -1, -1) for tensor in layer)
            cache.update(keys, values, number)
        rest = batch.drop_units(shared)
        inputs = self._arguments(rest)
        before = inputs["attention_mask"].new_ones(rows, shared)
        inputs["attention_mask"] = torch.cat([before, inputs["attention_mask"]], 1)
        if "position_ids" in inputs:
            inputs["position_ids"] = inputs["position_ids"] + shared
        arguments = cast("dict[str, Tensor]", {**inputs, "past_key_values": cache})
        with running(ForwardPass(FusedAttention(), rest.mask.shape[1], transposed=self.stack.transposed)):
            logits = self.readout.logits(self.network, arguments, rest)
        return logits if batch.candidates is None else logits.masked_fill(~batch.candidates.bool(), -torch.inf)

    @property
    def _is_hooked(self) -> bool:
        """Whether `forward` is to be called as a module, because somebody imposes attention on it or looks on."""
        return bool(self.has_imposed_attention or self._forward_pre_hooks or self._forward_hooks)

    def must_separate(self, batch: Batch) -> bool:
        """Whether texts of unequal length in this batch run apart."""
        if bool(batch.mask.all()):
            return False
        window: object = getattr(self.network.config, "sliding_window", None)
        size = window if isinstance(window, int) else None
        return self.separates_lengths or self.readout.is_joint_beyond(size, batch.mask.shape[1])

    def _forward_by_length(self, batch: Batch, embeddings: Tensor | None, attention: Tensor | None) -> Trace:
        """The trace of texts of unequal length; texts of one length run together, without padding."""
        units, traces, groups = batch.mask.shape[1], [], []
        for index, group in _parts_of_one_length(batch):
            groups.append(index)
            real = slice(group.mask.shape[1])
            traces.append(
                self.forward(
                    group,
                    embeddings=None if embeddings is None else embeddings[index, real],
                    attention=None if attention is None else attention[index][..., real, real],
                )
            )
        order = torch.cat(groups).argsort()

        def merge(parts: list[Tensor], axes: int, others: int) -> Tensor:
            """Parts padded to all units on `axes` axes before the last `others`, in the order of the batch."""
            padded = [
                nn.functional.pad(group, (*(0, 0) * others, *(0, units - group.shape[-1 - others]) * axes))
                for group in parts
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
        if self.must_separate(batch):
            raise UserError(
                f"padding changes the logits of {type(self.network).__name__}, so its layers can only be read from "
                f"texts of one length: give one text at a time, or {_OTHER_METHODS}"
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
        _, logits = self.run(batch, recorder, embeddings)
        weights, values = tuple(recorder.attention), tuple(recorder.values)
        if not with_projections:
            return ValueTrace(weights, values, (), (), logits)
        assert self.maps is not None
        name = type(self.network).__name__
        if len(values) != len(weights):
            raise UserError(f"the values that the attention of {name} weighs were not found: {_OTHER_METHODS}")
        modules = [self.network.get_submodule(path) for path in self.maps.projections if path]
        if len(modules) != len(weights):
            raise UserError(
                f"no linear map follows the attention of {name} directly, so the contributions of units cannot "
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
        if self.must_separate(batch):
            trace = self(batch)
            assert trace.scores is not None
            return HeadTrace(mean_over_queries(trace.scores, batch.mask), trace.logits)
        recorder = HeadScoreRecorder(batch.mask)
        _, logits = self.run(batch, recorder)
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
        forward_pass, logits = self.run(batch, hook, embeddings, replacement, keeps_inputs=True)
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
            name.replace(f"{self.stack.name}.{position + layer}.", f"{self.stack.name}.{position}.", 1)
            for position, name in enumerate(self.maps.projections[layer:])
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
        return self.run(batch, AttendedValues(attended), states)[1]

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
        with evaluation_mode(self.network):
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

    def run(
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


def _check_network(network: Network) -> None:
    """Raise a `UserError` for something else than a network, and for a weight that is not a finite number."""
    from transformers import PreTrainedModel

    if not isinstance(network, PreTrainedModel):
        raise UserError(
            f"expected a transformers model, got {type(network).__name__}; merge adapters first, or make a heedful "
            f"model of your own network ({OWN_MODELS_PAGE})"
        )
    for name, weight in network.named_parameters():
        # The sum is quick but can overflow.
        if not bool(weight.detach().sum().isfinite()) and not bool(weight.isfinite().all()):
            count = int((~weight.isfinite()).sum())
            raise UserError(
                f"{count} of the {weight.numel()} numbers in {name} of {type(network).__name__} are NaN or infinite: "
                "the training has diverged or the file is damaged; take an earlier checkpoint"
            )


_OTHER_METHODS = "choose a method that reads outputs or gradients"


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
            loaded = load_network(self.source, task.num_outputs, "classifier", self.precision)
        model = TransformerModel.wrap(loaded.network, task).eval()
        model.has_new_head = bool(loaded.new_weights)
        model.notes = (*loaded.notes, *model.notes, *arithmetic_notes("cpu", self.precision))
        return model


def check_trained_head(model: Model, source: str) -> None:
    """Raise a `UserError` for a model from a folder or the hub that got a new head."""
    if isinstance(model, TransformerModel) and model.has_new_head:
        raise UserError(f"{source} has no trained head ({'; '.join(model.notes)}): fine-tune it as a TrainedModel")
