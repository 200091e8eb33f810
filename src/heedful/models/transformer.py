"""Hugging Face text and image classifiers whose attention and embeddings can be read and replaced.

`TransformerModel.wrap` wraps a network of the user, which stays unchanged; `Transformer` loads one from a folder or the
hub, never by unpickling; `SmallTransformer` builds one with random weights. Every network is tested on wrapping: one
that does not reproduce its own logits through our attention function is refused by name.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, cast

import torch
from safetensors import safe_open
from torch import Generator, Tensor, nn
from torch.autograd import forward_ad

from heedful.models._attention_hooks import (
    AttendedValues,
    AttentionHook,
    AttentionInputs,
    AttentionRecorder,
    compute_embeddings,
    copy_sharing_weights,
    embedding_block,
    hook_network,
    run_layers,
    set_attention_implementation,
)
from heedful.seeding import temporary_seed
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import (
    Architecture,
    Batch,
    DiskResource,
    HeadTrace,
    LayerInput,
    LayerTrace,
    Model,
    Task,
    Trace,
    UserError,
    ValueTrace,
    check_model_code,
    hash_model_folder,
    query_weights,
    read_model_settings,
    requires_unfused_attention,
)

if TYPE_CHECKING:  # imported where it is used: see _attention_hooks
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network
    from transformers.utils.generic import ModelOutput

FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "electra", "vit")
"""Families that are tested; others that go through transformers' AttentionInterface may work too."""

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SOURCE_HINT = (
    "give a folder with config.json and model.safetensors, or the id of a model on the hub that is reachable or cached"
)


WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
MAX_OUTPUTS = 100_000


@dataclass(frozen=True)
class OutputLabels:
    """The outputs of a classifier in their order.

    Args:
        names: as in the configuration; LABEL_0, LABEL_1 ... by default.
        is_regression: whether the one output is a real number.
    """

    names: tuple[str, ...]
    is_regression: bool = False


def read_config(source: str) -> dict[str, object]:
    """The configuration of a model in a folder or on the hub, as it is written."""
    from transformers import PreTrainedConfig

    folder = Path(source).expanduser()
    if (folder / "config.json").is_file():
        config = read_model_settings(folder / "config.json")
    else:
        try:
            with _silence_transformers():
                found, _ = PreTrainedConfig.get_config_dict(str(folder) if folder.is_dir() else source)
        except (OSError, ValueError) as error:
            raise _loading_error(source, error) from error
        config = cast("dict[str, object]", found)
        check_model_code(source, config)
    labels, count = config.get("id2label"), config.get("num_labels", 2)
    if labels and not (isinstance(labels, dict) and all(re.fullmatch(r"[0-9]{1,6}", str(key)) for key in labels)):
        raise UserError(f"id2label in the config.json of {source} must map the numbers of outputs to names: correct it")
    if not isinstance(count, int) or not 0 < count <= MAX_OUTPUTS:
        raise UserError(
            f"num_labels in the config.json of {source} must be 1 to {MAX_OUTPUTS}, not {count!r}: correct it"
        )
    if config.get("transformers_weights") not in (None, WEIGHTS_FILE):
        raise UserError(f"the config.json of {source} names a file of weights: leave it out; {WEIGHTS_FILE} is read")
    return config


def read_output_labels(source: str) -> OutputLabels:
    """The outputs of the checkpoint in a folder or on the hub, from its configuration alone."""
    config = read_config(source)
    labels, count, kind = config.get("id2label"), config.get("num_labels", 2), config.get("problem_type")
    assert isinstance(count, int)
    # By default the library's own names, two unless the configuration counts them.
    names = [str(labels[key]) for key in sorted(labels, key=int)] if isinstance(labels, dict) else []
    names = names or [f"LABEL_{index}" for index in range(count)]
    allowed = (
        (None, "single_label_classification") if len(names) > 1 else (None, "regression", "multi_label_classification")
    )
    if kind not in allowed:
        remedy = "set problem_type in its config.json to 'single_label_classification'"
        if len(names) == 1:
            remedy = (
                "set problem_type in its config.json to 'regression' if the output is a number, or to "
                "'multi_label_classification' if it is the logit of a class"
            )
        elif kind == "multi_label_classification":
            remedy = "save the model with one of its outputs"
        raise UserError(
            f"{source} has problem_type {kind!r} with {len(names)} output(s), which is not supported: {remedy}"
        )
    return OutputLabels(tuple(names), len(names) == 1 and kind in (None, "regression"))


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


def reads_images(network: Network) -> bool:
    """True for networks that read pixels, False for those that read token ids."""
    return bool(network.main_input_name == "pixel_values")


def _patch_grid(config: NetworkConfig) -> tuple[int, int, int, int]:
    """Rows and columns of patches, and height and width of a patch."""
    sizes = [(size, size) if isinstance(size, int) else size for size in (config.image_size, config.patch_size)]
    (height, width), (tall, wide) = sizes
    return height // tall, width // wide, tall, wide


def _loading_error(source: str, error: Exception) -> UserError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = (
        lines[0] if lines and isinstance(error, OSError | ValueError) else " ".join([type(error).__name__, *lines[:1]])
    )
    return UserError(f"no model could be loaded from {source!r} ({reason}): {_SOURCE_HINT}")


def _pickled_weights_error(source: str) -> UserError:
    return UserError(
        f"the weights of {source} are pickled, a format that can run code and is never read here: "
        "convert them with save_pretrained (safetensors) in an environment that you trust"
    )


def embedding_inputs(network: Network, batch: Batch) -> dict[str, Tensor]:
    """The inputs of the embedding block of this family: pixels, or ids, positions and segments."""
    images = reads_images(network)
    if images != (batch.inputs.dim() == 3):
        reads, holds = ("images", "ids") if images else ("text", "image patches")
        raise UserError(f"{type(network).__name__} reads {reads}, but the batch holds {holds}")
    if images:
        return {"pixel_values": fold_images(batch, network.config).to(network.dtype)}
    block, config, first = embedding_block(network), network.config, _first_position(network)
    name, longest = type(network).__name__, int(batch.lengths.max()) if len(batch) else 0
    limit, highest = max_tokens(network), int(batch.inputs.max()) if batch.inputs.numel() else 0
    if longest > limit:
        raise UserError(f"a text has {longest} tokens, but {name} reads at most {limit}: truncate to {limit} tokens")
    if highest >= config.vocab_size:
        raise UserError(
            f"id {highest} is outside the vocabulary of {name}, which ends at {config.vocab_size - 1}: "
            "use the tokenizer that belongs to the model"
        )
    inputs = {
        "input_ids": batch.inputs,
        "position_ids": (batch.mask.cumsum(1) * batch.mask + first - 1).clamp(min=0),
        "token_type_ids": batch.segments.clamp(max=getattr(config, "type_vocab_size", 1) - 1),
    }
    known = inspect.signature(type(block).forward).parameters
    return {name: tensor for name, tensor in inputs.items() if name in known}


def _first_position(network: Network) -> int:
    """The number of the first position.

    RoBERTa's positions start behind its pad token. The library finds padding by that id; we count real tokens, so that
    a real token with the same id keeps its position.
    """
    pad_id = getattr(embedding_block(network), "padding_idx", None)
    return 0 if pad_id is None else int(pad_id) + 1


def max_tokens(network: Network) -> int:
    """The length of the longest text that a network reads, special tokens included."""
    return int(network.config.max_position_embeddings) - _first_position(network)


def fold_images(batch: Batch, config: NetworkConfig) -> Tensor:
    """Images `[batch channel height width]` from patches in row-major order behind the class token."""
    (rows, columns, tall, wide), channels = _patch_grid(config), config.num_channels
    expected = (1 + rows * columns, channels * tall * wide)
    if tuple(batch.inputs.shape[1:]) != expected:
        units, numbers = batch.inputs.shape[1:]
        raise UserError(
            f"the images have {units} units of {numbers} numbers, but the model reads {expected[0]} of "
            f"{expected[1]}: {channels} x {rows * tall} x {columns * wide} pixels in patches of {tall} x {wide}"
        )
    if not bool(batch.mask.all()):
        raise ValueError("images have no padding: blank a patch instead")
    patches = batch.inputs[:, 1:].reshape(-1, rows, columns, channels, tall, wide)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, rows * tall, columns * wide)


def _sample_batch(network: Network) -> Batch:
    """Two random rows that a network can read; of texts the second is shorter."""
    generator, config = Generator().manual_seed(0), network.config
    if reads_images(network):
        rows, columns, tall, wide = _patch_grid(config)
        shape = (2, 1 + rows * columns, config.num_channels * tall * wide)
        inputs, mask = torch.rand(shape, generator=generator), torch.ones(shape[:2], dtype=torch.bool)
    else:
        pad_id = config.pad_token_id or 0
        mask = torch.arange(6) < torch.tensor([[6], [4]])
        inputs = torch.randint(1, config.vocab_size, (2, 6), generator=generator)
        inputs = ((inputs + pad_id) % config.vocab_size).masked_fill(~mask, pad_id)
    segments = (torch.arange(mask.shape[1]) > 2) & mask
    return Batch(("0", "1"), inputs, mask, segments.long(), torch.zeros_like(mask).long() - 1).to(network.device)


def find_layers(network: Network) -> nn.ModuleList:
    """The stack of layers of a network, lowest first."""
    count = network.config.num_hidden_layers
    stacks = [part for part in network.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(stacks) != 1:
        raise UserError(f"the {count} layers of {type(network).__name__} were not found: this family is not supported")
    return stacks[0]


@contextmanager
def _capture_layer_inputs(network: Network, replacement: LayerInput | None) -> Iterator[list[Tensor]]:
    """A list that collects the inputs of the layers while the network runs in this thread."""
    states: list[Tensor] = []
    caller = get_ident()

    def capture(layer: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        if get_ident() != caller:
            return
        state = cast("Tensor", inputs[0] if inputs else named["hidden_states"])
        if replacement is not None and len(states) == replacement.layer:
            # In place: other holders of the tensor, such as a head over all layers, must see the same states.
            state.copy_(replacement.states)
        states.append(state)

    with ExitStack() as hooks:
        for layer in find_layers(network):
            handle = layer.register_forward_pre_hook(capture, with_kwargs=True)
            hooks.callback(handle.remove)
        yield states


def find_output_projection(network: Network, name: str) -> nn.Linear:
    """The output projection of the attention module of this name."""
    modules = dict(network.named_modules())
    # Beside the values (`out_lin` of DistilBERT, `o_proj` of newer ViTs) or in the next block (BERT and its kin).
    names = (*(f"{name}.{own}" for own in ("out_lin", "o_proj", "out_proj")), f"{name.rpartition('.')[0]}.output.dense")
    for place in names:
        module = modules.get(place)
        if isinstance(module, nn.Linear):
            return module
    raise UserError(
        f"the output projection of {type(network).__name__} was not found beside {name}: "
        f"use one of the families {', '.join(FAMILIES)}"
    )


@dataclass
class HeadScoreRecorder(AttentionHook):
    """Records the mean scores `[batch head unit]` of each layer, without a score for each pair of units.

    The mean over query rows of q k is mean(q) k, and attention itself runs through the fused kernel of torch. That
    kernel has neither forward-mode nor second derivatives: with tangents on the queries, or inside
    `unfused_attention()`, attention is computed by plain matrix products.

    Args:
        mask: real units `[batch unit]`.
    """

    mask: Tensor
    scores: list[Tensor] = field(default_factory=list)

    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, None]:
        """The attended values; weights are not kept, and get dropout in training."""
        self.scores.append(self._mean_scores(inputs).masked_fill(~self.mask[:, None], 0.0))
        tensors = (inputs.query, inputs.key, inputs.value)
        if requires_unfused_attention() or any(
            forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
            for tensor in tensors
        ):
            scores = inputs.scores()
            weights = (scores if inputs.mask is None else scores + inputs.mask).softmax(-1)
            return torch.matmul(nn.functional.dropout(weights, inputs.dropout), inputs.value), None
        attended = nn.functional.scaled_dot_product_attention(
            *tensors, attn_mask=inputs.mask, dropout_p=inputs.dropout, scale=inputs.scale
        )
        return attended, None

    def _mean_scores(self, inputs: AttentionInputs) -> Tensor:
        rows, mask = query_weights(self.mask, inputs.query.shape[2], inputs.query.dtype), inputs.mask
        if mask is None or bool((mask == mask[:, :, :1]).all()):
            query = torch.einsum("bq,bhqd->bhd", rows, inputs.query)
            return torch.einsum("bhd,bhud->bhu", query, inputs.key) * inputs.scale
        # Sliding-window attention: rows differ in the units that they see, and a score that is not seen counts as 0.
        seen = (mask > torch.finfo(mask.dtype).min).to(rows.dtype)
        return torch.einsum("bq,bhqu->bhu", rows, inputs.scores() * seen)


class TransformerModel(Model):
    """A transformer whose embeddings and attention can be read and replaced; made by `wrap` or by an architecture.

    Embeddings are the input of the first layer: words, positions and segments, normalised, and projected where word
    vectors are narrower than the states (ELECTRA, ALBERT). Scores are scaled; attention is taken before dropout; both
    are zero on padding and where the query is padding.
    """

    def __init__(self, network: Network, task: Task) -> None:
        super().__init__()
        self.network, self.task = network, task
        self.training = network.training

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
        _check_same_logits(model, task)
        return TransformerModel(hook_network(model), task)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; attention, if passed in, is that of all layers `[batch layer head query unit]`."""
        embeddings = self._embed(batch) if embeddings is None else embeddings
        self._check_shapes(batch, embeddings, attention)
        recorder = AttentionRecorder(attention)
        states, logits = self._run(batch, embeddings, recorder)
        scores = None
        if attention is None:
            scores, attention = recorder.stack_layers(batch.mask)
        return Trace(embeddings, states[0], attention, logits, scores)

    def read_values(
        self, batch: Batch, *, embeddings: Tensor | None = None, with_projections: bool = True
    ) -> ValueTrace:
        """Weights, values and, where they are asked for, projections of every layer, lowest first."""
        embeddings = self._embed(batch) if embeddings is None else embeddings
        self._check_shapes(batch, embeddings, None)
        if torch.is_grad_enabled():
            # The attention of a network with frozen weights can take a gradient too.
            embeddings = embeddings.detach().requires_grad_()
        recorder = AttentionRecorder()
        _, logits = self._run(batch, embeddings, recorder)
        if not with_projections:
            return ValueTrace(tuple(recorder.attention), tuple(value for _, value in recorder.values), (), (), logits)
        names = {id(module): name for name, module in self.network.named_modules()}
        linears = [find_output_projection(self.network, names[id(module)]) for module, _ in recorder.values]
        values = tuple(value for _, value in recorder.values)
        projections = (
            linear.weight.t().reshape(value.shape[1], value.shape[3], -1)
            for linear, value in zip(linears, values, strict=True)
        )
        offsets = (
            linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears
        )
        return ValueTrace(tuple(recorder.attention), values, tuple(projections), tuple(offsets), logits)

    def read_heads(self, batch: Batch) -> HeadTrace:
        """Mean scores of all heads, and logits, without a score for each pair of units."""
        recorder = HeadScoreRecorder(batch.mask)
        _, logits = self._run(batch, self._embed(batch), recorder)
        return HeadTrace(torch.stack(recorder.scores, 1), logits)

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """Inputs of all layers and logits, optionally with the input of one layer replaced."""
        with _capture_layer_inputs(self.network, replacement) as states:
            _, logits = self._run(batch, embeddings.clone(), HeadScoreRecorder(batch.mask))
        return LayerTrace(tuple(states), logits)

    def layers_from(self, layer: int) -> TransformerModel:
        """A model of the layers from this one on, with shared weights: its embeddings are the input of that layer."""
        network = copy_sharing_weights(self.network)
        del find_layers(network)[:layer]
        config = network.config
        config.num_hidden_layers -= layer
        if isinstance(kinds := getattr(config, "layer_types", None), list):
            config.layer_types = kinds[layer:]
        return TransformerModel(network, self.task)

    def decode_attended(self, batch: Batch, states: Tensor, attended: Tensor) -> Tensor:
        """Logits of a model of one layer whose attention gives these values `[batch head query dim]`.

        Units that the head does not read may be left out of the batch, the states and the values.
        """
        if self.network.config.num_hidden_layers != 1:
            raise ValueError("attended values can be given to a model of one layer: see layers_from")
        return self._run(batch, states, AttendedValues(attended))[1]

    @property
    def architecture_summary(self) -> str:
        """Family, layers, heads and width, for instance "bert, 12 layers, 12 heads, width 768"."""
        config = self.network.config
        heads, width = config.num_attention_heads, config.hidden_size
        return f"{config.model_type}, {config.num_hidden_layers} layers, {heads} heads, width {width}"

    def _embed(self, batch: Batch) -> Tensor:
        return compute_embeddings(self.network, embedding_inputs(self.network, batch))

    def _run(self, batch: Batch, embeddings: Tensor, hook: AttentionHook) -> tuple[ModelOutput, Tensor]:
        """States of the last layer, and logits; the hook sees every layer."""
        name, mask = "pixel_values", {}
        if not reads_images(self.network):
            name, mask = "inputs_embeds", {"attention_mask": batch.mask | ~batch.mask.any(1, keepdim=True)}
        states = run_layers(self.network, {name: embeddings, **mask}, hook)
        # Heads that pool over units need the mask too.
        logits = cast("Tensor", self.network(**mask, given=states).logits)
        if batch.candidates is not None:
            logits = logits.masked_fill(~batch.candidates.bool(), -torch.inf)
        layers = self.network.config.num_hidden_layers
        if hook.layers_run != layers:
            raise UserError(
                f"{type(self.network).__name__} has {layers} layers, but the attention of {hook.layers_run} was seen: "
                "this family is not supported"
            )
        return states, logits

    def _check_shapes(self, batch: Batch, embeddings: Tensor, attention: Tensor | None) -> None:
        rows, units = batch.mask.shape
        if embeddings.shape[:2] != (rows, units):
            raise ValueError(f"embeddings are {tuple(embeddings.shape)}, but the batch is {(rows, units)}")
        config = self.network.config
        expected = (rows, config.num_hidden_layers, config.num_attention_heads, units, units)
        if attention is not None and tuple(attention.shape) != expected:
            raise ValueError(f"attention is {tuple(attention.shape)}, but this model and batch need {expected}")


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


def _check_same_logits(network: Network, task: Task) -> None:
    """Raise a `UserError` for a network whose logits through our attention differ from the library's own."""
    name = type(network).__name__
    ours, plain = TransformerModel(hook_network(network), task).eval(), nn.Module.eval(copy_sharing_weights(network))
    set_attention_implementation(plain, "eager")
    batch = _sample_batch(network)
    try:
        with torch.no_grad():
            inputs = embedding_inputs(network, batch)
            inputs.pop("position_ids", None)
            mask = {} if reads_images(network) else {"attention_mask": batch.mask}
            expected, logits = plain(**inputs, **mask).logits, ours(batch).logits
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{name} is not supported ({error}); families that work: {', '.join(FAMILIES)}") from error
    tolerance = 1e-4 if network.dtype in (torch.float32, torch.float64) else 5e-2
    if not torch.allclose(logits, expected, rtol=tolerance, atol=tolerance):
        raise UserError(
            f"{name} gives different logits through our attention function; families that work: {', '.join(FAMILIES)}"
        )


@dataclass(frozen=True)
class Transformer(Architecture, DiskResource):
    """A pretrained transformer from a folder or the hub, with a head for the task.

    The head is the checkpoint's own if it has one of the right size, else a new one; the `notes` of the model say
    which. Only safetensors are read.
    """

    source: str

    def digest(self, data: Path) -> str:
        """A hash of all files in a folder that may be read; the name itself for a hub id."""
        folder = Path(self.source).expanduser()
        return hash_model_folder(folder, with_weights=True) if folder.is_dir() else self.source

    def describe(self) -> dict[str, str]:
        """The name of the folder, or of its parent if it is a generic name such as `model` or `checkpoint`."""
        path = Path(self.source)
        generic = path.name in ("model", "checkpoint", "best", "final")
        return {"encoder": (path.parent.name if generic else "") or path.name, "attention": "self"}

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The pretrained model, in eval mode."""
        if embeddings is not None and len(embeddings):
            raise UserError("a transformer has its own word vectors: leave the word vectors out (embeddings=None)")
        with temporary_seed(int(torch.randint(2**62, (), generator=generator))):
            network, notes = _load_network(self.source, task.num_outputs)
        model = TransformerModel.wrap(network, task).eval()
        model.notes = notes
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
        return _classifier_class(config, config.model_type)(config)


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Suppress the progress bars and load reports of transformers, and restore its settings afterwards."""
    from transformers.utils import logging as transformers_logging

    verbosity, progress_bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)  # each attempt to reach the hub is a line
    try:
        yield
    finally:
        hub.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if progress_bar:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _classifier_class(config: NetworkConfig, source: str) -> type[Network]:
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    for mapping in (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING):
        if type(config) in mapping:
            kind = mapping[type(config)]
            return cast("type[Network]", kind[0] if isinstance(kind, tuple) else kind)
    raise UserError(
        f"{source} holds a {type(config).__name__}: transformers has no sequence or image classifier for it"
    )


def check_model_source(source: str) -> NetworkConfig:
    """The configuration of a model that can be loaded: its settings and the names and sizes of its weights fit.

    Nothing is allocated, unpickled or run: the network is built without memory, and of the weights only the headers are
    read. Raises a `UserError` otherwise.
    """
    from transformers import AutoConfig
    from transformers.utils.hub import cached_file

    read_config(source)
    folder = Path(source).expanduser()
    files = _list_weights(folder) if folder.is_dir() else []
    try:
        if not folder.is_dir() and (
            index := cached_file(source, INDEX_FILE, _raise_exceptions_for_missing_entries=False)
        ):
            _read_index(Path(index), source)
        with _silence_transformers():
            config: NetworkConfig = AutoConfig.from_pretrained(
                str(folder) if files else source, trust_remote_code=False
            )
            kind, sizes = _classifier_class(config, source), [_tensor_sizes(path) for path in files]
            for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
                value = getattr(config, name, None)
                if not isinstance(value, int) or value < 1:
                    raise UserError(f"{name} in the config.json of {source} is {value!r}: it must be at least 1")
            if files and config.num_hidden_layers > 100 + sum(map(len, sizes)):
                raise UserError(_sizes_message(source, f"{config.num_hidden_layers} layers", sizes))
            with torch.device("meta"):
                trunk = kind(config).base_model
    except UserError:
        raise
    except Exception as error:  # the configuration decides which lines of the library fail, and how
        raise _loading_error(source, error) from error
    numbers = sum(parameter.numel() for parameter in trunk.parameters())
    # The load report names single weights that are missing; here it is about memory.
    if files and numbers > 2 * sum(map(sum, sizes)):
        raise UserError(_sizes_message(source, f"{numbers} numbers", sizes))
    return config


def _sizes_message(source: str, described: str, sizes: list[list[int]]) -> str:
    return (
        f"the config.json of {source} describes a network of {described}, but there are {sum(map(len, sizes))} weights "
        f"of {sum(map(sum, sizes))} numbers: they do not belong together"
    )


def _list_weights(folder: Path) -> list[Path]:
    """The files of weights in a folder, which must be safetensors in the folder itself."""
    try:
        files = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): check its permissions") from error
    if "adapter_config.json" in files:
        raise UserError(f"{folder} holds an adapter: merge it into its model and save that with save_pretrained")
    shards = _read_index(folder / INDEX_FILE, str(folder)) if INDEX_FILE in files else []
    names = [WEIGHTS_FILE] if WEIGHTS_FILE in files else shards
    pickled = [name for name in files if name.endswith(_PICKLED)]
    if not names and pickled:
        raise _pickled_weights_error(f"{folder / pickled[0]}")
    if not names:
        raise UserError(f"no model could be loaded from {str(folder)!r} (it has no {WEIGHTS_FILE}): {_SOURCE_HINT}")
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is not a file: save the model again with save_pretrained")
    return [folder / name for name in names]


def _read_index(path: Path, source: str) -> list[str]:
    """The files that an index of weights names; a pickle or a file elsewhere is refused."""
    names = read_model_settings(path).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{path} has no weight_map from weights to files: save the model again with save_pretrained")
    for name in sorted(set(names.values())):
        if name.endswith(_PICKLED):
            raise _pickled_weights_error(f"{source} ({name}, named by {path.name})")
        if not name.endswith(".safetensors") or re.search(r"[/\\\0]", name):
            raise UserError(
                f"{path} names {name!r}, which is not a safetensors file in the folder itself: save the model again "
                "with save_pretrained"
            )
    return sorted(set(names.values()))


def _tensor_sizes(path: Path) -> list[int]:
    """The number of entries of each tensor in a file of weights, from its header."""
    with safe_open(path, "pt") as weights:
        return [math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118


def _load_network(source: str, outputs: int) -> tuple[Network, tuple[str, ...]]:
    """The network, and a note on randomly initialised weights; only the head and its pooler may be."""
    config = check_model_source(source)
    folder = Path(source).expanduser()
    try:
        with _silence_transformers():
            if config.num_labels != outputs:
                config.num_labels = outputs
            loaded: object = _classifier_class(config, source).from_pretrained(
                str(folder) if folder.is_dir() else source,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=False,
            )
    except Exception as error:
        if "use_safetensors" in str(error):
            raise _pickled_weights_error(source) from error
        raise _loading_error(source, error) from error
    network, report = cast("tuple[Network, dict[str, set[str | tuple[str, ...]]]]", loaded)
    unmet = report["missing_keys"] | report["mismatched_keys"]
    new = {entry if isinstance(entry, str) else entry[0] for entry in unmet}
    trunk = network.base_model_prefix + "."
    missing = sorted(name for name in new if name.startswith(trunk) and ".pooler." not in name)
    if missing:
        raise UserError(
            f"{source} lacks {len(missing)} weights of {type(network).__name__}, the first is {missing[0]}: "
            "its config.json and its weights do not belong together"
        )
    if not new:
        return network, (f"all weights are those of {source}, head included",)
    return network, (f"{source} has no head of this size; randomly initialised: {', '.join(sorted(new))}",)
