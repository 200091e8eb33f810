"""What a checkpoint says about its own outputs: how many, what they are called, a number or classes.

Folders that hold a transformer: what may be read from them, and a hash of what they hold.

The inputs of a transformer's layers, read and replaced during one call.

The input is watched by hooks that are gone when the call ends and that only the thread of the call obeys.

What the attention of a network's layers carries: values, and the projection that puts them into the states.

The library's families keep the output projection in three places: beside the values (`out_lin` of DistilBERT, `o_proj`
of newer ViTs), or in the block behind the attention (`output.dense` of BERT and its kin).

The fast way to the maps of a transformer's heads: the mean over query rows of q k is mean(q) k.

No score is computed for a pair of units: attention itself runs through the fused kernel of torch, which keeps none
either. That kernel has neither forward-mode nor second derivatives: with tangents on the queries, or inside
`plain_attention()`, attention is written out in plain products.

What a network reads of a batch: ids with positions and segments, or pixels folded from patches.

Hugging Face text and image classifiers as models of this house: attention and embeddings out and in.

`TransformerModel.wrap` opens a network of the user, which stays as it is; `Transformer` loads one from a
folder or the hub, never by unpickling; `TinyTransformer` makes a little one with random weights. Each is
tried at the door: a network that does not give the library's own logits through our attention is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Generator, Tensor, nn
from torch.autograd import forward_ad
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
)
from transformers.utils.generic import ModelOutput

from heedful.models._attention_hooks import (
    AttentionHook,
    AttentionInputs,
    AttentionRecorder,
    Network,
    NetworkConfig,
    compute_embeddings,
    compute_logits,
    copy_sharing_weights,
    embedding_block,
    hook_network,
    run_layers,
    set_attention_implementation,
)
from heedful.store.recipe import hash_files
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
    query_weights,
    requires_unfused_attention,
)


@dataclass(frozen=True)
class OutputLabels:
    """The outputs of a classifier in their order.

    Args:
        names: as the configuration calls them; LABEL_0, LABEL_1 ... where nobody named them.
        number: whether the one output is a real number.
    """

    names: tuple[str, ...]
    is_regression: bool = False


def read_output_labels(source: str) -> OutputLabels:
    """The outputs of the checkpoint in a folder or on the hub, from its configuration alone."""
    folder = Path(source).expanduser()
    try:
        config, _ = NetworkConfig.get_config_dict(str(folder) if folder.is_dir() else source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"no configuration could be read from {source!r} ({reason}): give a folder with config.json and "
            "model.safetensors, or the id of a model on the hub that can be reached or is in the cache"
        ) from error
    names = _label_names(config)
    kind = config.get("problem_type")
    _check_problem_type(source, kind, len(names))
    return OutputLabels(names, len(names) == 1 and kind in (None, "regression"))


def _check_problem_type(source: str, kind: object, count: int) -> None:
    """Refuses outputs that are neither classes of which one is right, nor one number, nor one yes or no."""
    several, one = (None, "single_label_classification"), (None, "regression", "multi_label_classification")
    if kind in (several if count > 1 else one):
        return
    if kind == "multi_label_classification":
        raise UserError(
            f"{source} answers {count} questions at once ({kind}), each with yes or no: heedful reads models of which "
            "one class is right or that give one number; save the model with one of its outputs"
        )
    raise UserError(
        f"{source} says problem_type {kind!r} with {count} output(s), which cannot be read: it is "
        "'single_label_classification' for two or more classes and 'regression' for one number; mend its config.json"
    )


def _label_names(config: Mapping[str, object]) -> tuple[str, ...]:
    """The names by index; without any, the library's own: two unless the configuration counts them."""
    given = config.get("id2label")
    if isinstance(given, Mapping) and given:
        return tuple(str(given[key]) for key in sorted(given, key=int))
    count = config.get("num_labels", 2)
    return tuple(f"LABEL_{place}" for place in range(count if isinstance(count, int) else 2))


def hash_checkpoint(folder: Path) -> str:
    """A hash of the configuration and the weights in a folder."""
    return hash_files(sorted((*folder.glob("config.json"), *folder.glob("*.safetensors*"))))


def check_checkpoint_folder(folder: Path) -> None:
    """Refuses a folder with an adapter only, or with weights in a format that can run code."""
    names = sorted(path.name for path in folder.iterdir())
    if "adapter_config.json" in names:
        raise UserError(f"{folder} holds an adapter: merge it into its model and save that with save_pretrained")
    unsafe = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if unsafe and not any(name.endswith(".safetensors") for name in names):
        raise pickled_weights_error(f"{folder / unsafe[0]}")


def pickled_weights_error(source: str) -> UserError:
    """The refusal of weights that would have to be unpickled."""
    return UserError(
        f"the weights of {source} are pickled, a format that can run code and is never read here: "
        "convert them with save_pretrained (safetensors) in an environment that you trust"
    )


def find_layers(network: Network) -> nn.ModuleList:
    """The stack of layers of a network, from the first up."""
    count = network.config.num_hidden_layers
    stacks = [part for part in network.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(stacks) != 1:
        raise UserError(f"{type(network).__name__} keeps its {count} layers in a way that is not known here")
    return stacks[0]


@contextmanager
def capture_layer_inputs(network: Network, replacement: LayerInput | None) -> Iterator[list[Tensor]]:
    """The list that the inputs of the layers come into while the network runs; the given one is put in its place."""
    states: list[Tensor] = []
    caller = get_ident()

    def watch(layer: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        if get_ident() != caller:
            return
        coming = cast("Tensor", inputs[0] if inputs else named["hidden_states"])
        if replacement is not None and len(states) == replacement.layer:
            # In place: whoever has kept the tensor, as a head over all layers does, shall see the same states.
            coming.copy_(replacement.states)
        states.append(coming)

    with ExitStack() as hooks:
        for layer in find_layers(network):
            handle = layer.register_forward_pre_hook(watch, with_kwargs=True)
            hooks.callback(handle.remove)
        yield states


_PROJECTIONS = ("out_lin", "o_proj", "out_proj")
_BLOCK_PROJECTION = "output.dense"


def collect_value_trace(network: Network, recorder: AttentionRecorder, logits: Tensor) -> ValueTrace:
    """What the tap of a finished call saw, with the output projection of each layer cut into its heads."""
    names = {id(module): name for name, module in network.named_modules()}
    linears = [_find_output_projection(network, names[id(module)]) for module, _ in recorder.values]
    values = tuple(value for _, value in recorder.values)
    return ValueTrace(
        attention=tuple(recorder.attention),
        values=values,
        projections=tuple(
            linear.weight.t().reshape(value.shape[1], value.shape[3], -1)
            for linear, value in zip(linears, values, strict=True)
        ),
        offsets=tuple(
            linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears
        ),
        logits=logits,
    )


def _find_output_projection(network: Network, name: str) -> nn.Linear:
    """The output projection that belongs to the attention module of this name."""
    parent = name.rpartition(".")[0]
    modules = dict(network.named_modules())
    for place in (*(f"{name}.{own}" for own in _PROJECTIONS), f"{parent}.{_BLOCK_PROJECTION}"):
        found = modules.get(place)
        if isinstance(found, nn.Linear):
            return found
    raise UserError(
        f"the output projection of {type(network).__name__} was not found beside {name}: norms of what attention "
        "carries need a family such as BERT, DistilBERT, RoBERTa, XLM-R, ELECTRA or ViT"
    )


@dataclass
class HeadScoreRecorder(AttentionHook):
    """What one call shows of its heads: the mean scores `[batch head unit]` of each layer so far.

    Args:
        mask: real units `[batch unit]`: the query rows that count, and the units that get a score.
    """

    mask: Tensor
    scores: list[Tensor] = field(default_factory=list)

    @property
    def layers_run(self) -> int:
        """Layers whose heads were read."""
        return len(self.scores)

    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, None]:
        """Dropout falls on the weights in training; the weights themselves are not kept."""
        self.scores.append(self._mean_scores(inputs).masked_fill(~self.mask[:, None], 0.0))
        return _attend(inputs), None

    def head_scores(self, logits: Tensor) -> HeadTrace:
        """The maps of all layers, with the logits of the same reading."""
        return HeadTrace(torch.stack(self.scores, 1), logits)

    def _mean_scores(self, inputs: AttentionInputs) -> Tensor:
        rows, mask = query_weights(self.mask, inputs.query.shape[2], inputs.query.dtype), inputs.mask
        if mask is None or bool((mask == mask[:, :, :1]).all()):
            query = torch.einsum("bq,bhqd->bhd", rows, inputs.query)
            return torch.einsum("bhd,bhud->bhu", query, inputs.key) * inputs.scale
        # Attention in a window: rows differ in the units that they may see, and a score that is not seen is 0.
        seen = (mask > torch.finfo(mask.dtype).min).to(rows.dtype)
        return torch.einsum("bq,bhqu->bhu", rows, inputs.scores() * seen)


def describe_architecture(config: NetworkConfig) -> str:
    """Family, layers, heads and width: what two networks share whose heads can be told one to one."""
    heads, width = config.num_attention_heads, config.hidden_size
    return f"{config.model_type}, {config.num_hidden_layers} layers, {heads} heads, width {width}"


def _attend(attention_inputs: AttentionInputs) -> Tensor:
    """softmax(q k scale + mask) v, `[batch head query dim]`."""
    inputs = (attention_inputs.query, attention_inputs.key, attention_inputs.value)
    if not requires_unfused_attention() and not any(_has_tangent(part) for part in inputs):
        return nn.functional.scaled_dot_product_attention(
            *inputs, attn_mask=attention_inputs.mask, dropout_p=attention_inputs.dropout, scale=attention_inputs.scale
        )
    scores = attention_inputs.scores()
    weights = (scores if attention_inputs.mask is None else scores + attention_inputs.mask).softmax(-1)
    return torch.matmul(nn.functional.dropout(weights, attention_inputs.dropout), attention_inputs.value)


def _has_tangent(tensor: Tensor) -> bool:
    """True where forward-mode differentiation runs through this tensor."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def embedding_inputs(network: Network, batch: Batch) -> dict[str, Tensor]:
    """What the embedding block of this family reads of a batch: pixels, or ids, positions and segments."""
    images = reads_images(network)
    if images != (batch.inputs.dim() == 3):
        reads, holds = ("images", "ids") if images else ("text", "image patches")
        raise UserError(f"{type(network).__name__} reads {reads}, but the batch holds {holds}")
    if images:
        return {"pixel_values": fold_images(batch, network.config).to(network.dtype)}
    block, config = embedding_block(network), network.config
    # RoBERTa's positions start behind its padding symbol. The library finds padding by that id; we count real
    # units, so that a real unit with the same id keeps its place.
    symbol = getattr(block, "padding_idx", None)
    first = 0 if symbol is None else int(symbol) + 1
    _check_text(batch, network, limit=config.max_position_embeddings - first)
    inputs = {
        "input_ids": batch.inputs,
        "position_ids": (batch.mask.cumsum(1) * batch.mask + first - 1).clamp(min=0),
        "token_type_ids": batch.segments.clamp(max=getattr(config, "type_vocab_size", 1) - 1),
    }
    known = inspect.signature(type(block).forward).parameters
    return {name: tensor for name, tensor in inputs.items() if name in known}


def fold_images(batch: Batch, config: NetworkConfig) -> Tensor:
    """Images `[batch channel height width]` from patches in row-major order behind the class unit."""
    (height, width), (tall, wide) = _as_pair(config.image_size), _as_pair(config.patch_size)
    rows, columns, channels = height // tall, width // wide, config.num_channels
    expected = (1 + rows * columns, channels * tall * wide)
    if tuple(batch.inputs.shape[1:]) != expected:
        units, numbers = batch.inputs.shape[1:]
        raise UserError(
            f"the images have {units} units of {numbers} numbers, but the model reads {expected[0]} of "
            f"{expected[1]}: {channels} x {height} x {width} pixels in patches of {tall} x {wide}"
        )
    if not bool(batch.mask.all()):
        raise ValueError("images have no padding: blank a patch instead")
    patches = batch.inputs[:, 1:].reshape(-1, rows, columns, channels, tall, wide)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, rows * tall, columns * wide)


def _as_pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def reads_images(network: Network) -> bool:
    """True for networks that read pixels, False for those that read ids."""
    return bool(network.main_input_name == "pixel_values")


def _check_text(batch: Batch, network: Network, limit: int) -> None:
    name, longest = type(network).__name__, int(batch.lengths.max()) if len(batch) else 0
    if longest > limit:
        raise UserError(f"a text has {longest} units, but {name} reads at most {limit}: cut the texts to {limit} units")
    vocabulary = network.config.vocab_size
    highest = int(batch.inputs.max()) if batch.inputs.numel() else 0
    if highest >= vocabulary:
        raise UserError(
            f"id {highest} is outside the vocabulary of {name}, which ends at {vocabulary - 1}: "
            "use the tokenizer that belongs to the model"
        )


def sample_batch(network: Network) -> Batch:
    """Two rows that a network can read; of texts the second is shorter."""
    draw, config = Generator().manual_seed(0), network.config
    if reads_images(network):
        (height, width), (tall, wide) = _as_pair(config.image_size), _as_pair(config.patch_size)
        shape = (2, 1 + (height // tall) * (width // wide), config.num_channels * tall * wide)
        inputs, mask = torch.rand(shape, generator=draw), torch.ones(shape[:2], dtype=torch.bool)
    else:
        filler = config.pad_token_id or 0
        mask = torch.arange(6) < torch.tensor([[6], [4]])
        inputs = torch.randint(1, config.vocab_size, (2, 6), generator=draw)
        inputs = ((inputs + filler) % config.vocab_size).masked_fill(~mask, filler)
    segments = (torch.arange(mask.shape[1]) > 2) & mask
    return Batch(("0", "1"), inputs, mask, segments.long(), torch.zeros_like(mask).long() - 1).to(network.device)


FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "electra", "vit")


class TransformerModel(Model):
    """A transformer whose embeddings and attention can be read and replaced; made by `wrap` or by a plan.

    Embeddings are the output of the whole embedding block: words, positions and segments, normalised. Scores
    are scaled; attention is taken before dropout; both are zero on padding and where the query is padding.

    `notes` say in plain words which weights loading had to draw at random.
    """

    def __init__(self, network: Network, task: Task) -> None:
        super().__init__()
        self.network, self.task = network, task
        self.training = network.training

    @staticmethod
    def wrap(model: Network, task: Task | None = None) -> TransformerModel:
        """A model that shares the weights of a network of the user; nothing else of that network is touched.

        Gradient checkpointing, which would run a layer twice, is off in the model.

        Args:
            task: by default what the configuration says: classes, or a number where there is one label.
        """
        if not isinstance(model, Network):
            raise UserError(f"a transformers model is needed, not {type(model).__name__}; merge adapters beforehand")
        task = _infer_task(model.config) if task is None else task
        if task.num_outputs != model.config.num_labels:
            raise UserError(
                f"{type(model).__name__} has {model.config.num_labels} outputs, but the task "
                f"{type(task).__name__} needs {task.num_outputs}; load it with num_labels={task.num_outputs}"
            )
        _check_same_logits(model, task)
        return TransformerModel(hook_network(model), task)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; attention must be given whole, `[batch layer head query unit]`."""
        if embeddings is None:
            embeddings = compute_embeddings(self.network, embedding_inputs(self.network, batch))
        self._check_shapes(batch, embeddings, attention)
        tap = AttentionRecorder(attention)
        states, logits = self._run(batch, embeddings, tap)
        scores = None
        if attention is None:
            scores, attention = tap.stack_layers(batch.mask)
        return Trace(embeddings, states[0], attention, logits, scores)

    def read_values(self, batch: Batch, *, embeddings: Tensor | None = None) -> ValueTrace:
        """Weights, values and projections of every layer, from the first up; given embeddings are taken as they are."""
        if embeddings is None:
            embeddings = compute_embeddings(self.network, embedding_inputs(self.network, batch))
        self._check_shapes(batch, embeddings, None)
        if torch.is_grad_enabled():
            # Also a network whose weights are frozen lets its attention take a gradient.
            embeddings = embeddings.detach().requires_grad_()
        tap = AttentionRecorder()
        return collect_value_trace(self.network, tap, self._run(batch, embeddings, tap)[1])

    def read_heads(self, batch: Batch) -> HeadTrace:
        """Mean scores of all heads, and logits, without a score for each pair of units."""
        tap = HeadScoreRecorder(batch.mask)
        embeddings = compute_embeddings(self.network, embedding_inputs(self.network, batch))
        return tap.head_scores(self._run(batch, embeddings, tap)[1])

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """Inputs of all layers, and logits; an input that is given takes the place of the layer's own."""
        with capture_layer_inputs(self.network, replacement) as states:
            logits = self._run(batch, embeddings.clone(), HeadScoreRecorder(batch.mask))[1]
        return LayerTrace(tuple(states), logits)

    @property
    def architecture_summary(self) -> str:
        """Family, layers, heads and width."""
        return describe_architecture(self.network.config)

    def _run(self, batch: Batch, embeddings: Tensor, hook: AttentionHook) -> tuple[ModelOutput, Tensor]:
        """States of the last layer, and logits; the tap sees every layer."""
        if reads_images(self.network):
            states = run_layers(self.network, {"pixel_values": embeddings}, hook)
            logits = compute_logits(self.network, states, {})
        else:
            attended = {"attention_mask": batch.mask | ~batch.mask.any(1, keepdim=True)}
            states = run_layers(self.network, {"inputs_embeds": embeddings, **attended}, hook)
            logits = compute_logits(self.network, states, attended)
        if batch.candidates is not None:
            logits = logits.masked_fill(~batch.candidates.bool(), -torch.inf)
        self._check_layer_count(hook.layers_run)
        return states, logits

    def _check_shapes(self, batch: Batch, embeddings: Tensor, attention: Tensor | None) -> None:
        rows, units = batch.mask.shape
        if embeddings.shape[:2] != (rows, units):
            raise ValueError(f"embeddings are {tuple(embeddings.shape)}, but the batch is {(rows, units)}")
        config = self.network.config
        expected = (rows, config.num_hidden_layers, config.num_attention_heads, units, units)
        if attention is not None and tuple(attention.shape) != expected:
            raise ValueError(f"attention is {tuple(attention.shape)}, but this model and batch need {expected}")

    def _check_layer_count(self, calls: int) -> None:
        layers, name = self.network.config.num_hidden_layers, type(self.network).__name__
        if calls != layers:
            raise UserError(
                f"{name} has {layers} layers, but {calls} let their attention be seen: it cannot be examined"
            )


def _infer_task(config: NetworkConfig) -> Task:
    kind, labels = config.problem_type, int(config.num_labels or 0)
    if labels == 1 and kind in (None, "regression"):
        return Regression()
    if labels > 1 and kind in (None, "single_label_classification"):
        return MulticlassClassification(labels)
    raise UserError(
        f"the configuration says {kind} with {labels} output(s), which leaves the task open: "
        "say task=Binary(), task=Classes(n) or task=Regression()"
    )


def _check_same_logits(network: Network, task: Task) -> None:
    """Refuses a network whose logits through our attention are not the library's own."""
    name = type(network).__name__
    ours, plain = TransformerModel(hook_network(network), task).eval(), nn.Module.eval(copy_sharing_weights(network))
    set_attention_implementation(plain, "eager")
    batch = sample_batch(network)
    try:
        with torch.no_grad():
            inputs = embedding_inputs(network, batch)
            inputs.pop("position_ids", None)
            mask = {} if reads_images(network) else {"attention_mask": batch.mask}
            expected, found = plain(**inputs, **mask).logits, ours(batch).logits
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{name} cannot be opened ({error}); families known to work: {', '.join(FAMILIES)}") from error
    tolerance = 1e-4 if network.dtype in (torch.float32, torch.float64) else 5e-2
    if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise UserError(
            f"{name} gives other logits through our attention than by itself and cannot be examined; "
            f"families known to work: {', '.join(FAMILIES)}"
        )


@dataclass(frozen=True)
class Transformer(Architecture, DiskResource):
    """A pretrained transformer from a folder or the hub, with a head for the task.

    The head is the checkpoint's own where it has one of the right size, else a fresh one; the `notes` of the
    model say which. Only safetensors are read.
    """

    source: str

    def digest(self, data: Path) -> str:
        """A hash of the configuration and the weights in a folder; a hub name stands for itself."""
        folder = Path(self.source).expanduser()
        return hash_checkpoint(folder) if folder.is_dir() else self.source

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The pretrained model, in eval mode."""
        _refuse_embeddings(embeddings)
        folder = Path(self.source).expanduser()
        if folder.is_dir():
            check_checkpoint_folder(folder)
        with _seed_global_generator(generator):
            network, notes = _load_network(str(folder) if folder.is_dir() else self.source, task.num_outputs)
        model = TransformerModel.wrap(network, task).eval()
        model.notes = notes
        return model

    def describe(self) -> dict[str, str]:
        """The name of the folder, or of the folder around it where it is called `model`, `checkpoint` and the like."""
        path = Path(self.source)
        generic = path.name in ("model", "checkpoint", "best", "final")
        return {"encoder": path.parent.name if generic else path.name, "attention": "self"}


@dataclass(frozen=True)
class TinyTransformer(Architecture):
    """A little transformer with random weights, for trying things out.

    Args:
        positions: units that it can read, if it reads text.
        image: channels, height and width that it reads in patches of `patch` x `patch`, if it is a ViT.
        spread: standard deviation of its weights; the usual 0.02 would give nearly uniform attention.
    """

    family: str = "bert"
    layers: int = 2
    heads: int = 2
    width: int = 16
    vocab_size: int = 50
    max_positions: int = 32
    image_shape: tuple[int, int, int] = (1, 8, 8)
    patch_size: int = 4
    initializer_range: float = 0.2

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        _refuse_embeddings(embeddings)
        config = self._config(task)
        with _seed_global_generator(generator):
            network = _classifier_class(config, self.family)(config)
        return TransformerModel.wrap(network, task).eval()

    def _config(self, task: Task) -> NetworkConfig:
        if self.family not in FAMILIES:
            raise UserError(f"there is no family {self.family!r}; choose one of {', '.join(FAMILIES)}")
        settings: dict[str, int | float | tuple[int, int]] = {
            "num_labels": task.num_outputs,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "hidden_dim" if self.family == "distilbert" else "intermediate_size": 2 * self.width,
            "initializer_range": self.initializer_range,
        }
        if self.family == "vit":
            settings |= {
                "num_channels": self.image_shape[0],
                "image_size": self.image_shape[1:],
                "patch_size": self.patch_size,
            }
        else:
            behind = 2 if "roberta" in self.family else 0
            settings |= {"vocab_size": self.vocab_size, "max_position_embeddings": self.max_positions + behind}
        if self.family == "electra":
            settings["embedding_size"] = 2 * self.width
        return AutoConfig.for_model(self.family, **settings)


@dataclass(frozen=True)
class SmallTransformer(Architecture):
    """A small transformer trained from scratch on whole words, whose embedding starts at the given word vectors.

    Args:
        positions: the longest text that it can read, special symbols included.
        dropout: share of states and attention weights dropped in training.
    """

    layers: int = 1
    heads: int = 4
    width: int = 64
    max_positions: int = 512
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"SmallTransformer: a width of {self.width} cannot be divided among {self.heads} heads")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model whose word table is `embeddings`, projected to `width`; the other weights are drawn."""
        if embeddings is None or not len(embeddings):
            raise UserError("SmallTransformer reads word ids and needs a starting table of vectors: batch with Words()")
        vocabulary, width = embeddings.shape
        # ELECTRA alone lets vectors and states differ in size, whatever size the vectors have.
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
        )
        with _seed_global_generator(generator):
            network = _classifier_class(config, "electra")(config)
        with torch.no_grad():
            table = network.get_input_embeddings().get_parameter("weight")
            table.copy_(embeddings)
            table[0].zero_()
        return TransformerModel.wrap(network, task).eval()


def _refuse_embeddings(embeddings: Tensor | None) -> None:
    if embeddings is not None and len(embeddings):
        raise UserError("a transformer brings word vectors of its own: leave the word vectors out (vectors=None)")


@contextmanager
def _seed_global_generator(generator: Generator) -> Iterator[None]:
    """The library draws from the global generator only: seeds that one, and puts it back afterwards."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _classifier_class(config: NetworkConfig, source: str) -> type[Network]:
    for mapping in (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            return cast("type[Network]", found[0] if isinstance(found, tuple) else found)
    raise UserError(f"{source} holds a {type(config).__name__}: no sequence or image classifier is known for it")


def _load_network(source: str, outputs: int) -> tuple[Network, tuple[str, ...]]:
    try:
        config = AutoConfig.from_pretrained(source)
        if config.num_labels != outputs:
            config.num_labels = outputs
        loaded: object = _classifier_class(config, source).from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        if "use_safetensors" in str(error):
            raise pickled_weights_error(source) from error
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"no model could be loaded from {source!r} ({reason}): give a folder with config.json and "
            "model.safetensors, or the id of a model on the hub that can be reached or is in the cache"
        ) from error
    network, report = cast("tuple[Network, dict[str, set[str | tuple[str, ...]]]]", loaded)
    unmet = report["missing_keys"] | report["mismatched_keys"]
    fresh = {entry if isinstance(entry, str) else entry[0] for entry in unmet}
    return network, _loading_notes(network, source, fresh)


def _loading_notes(network: Network, source: str, fresh: set[str]) -> tuple[str, ...]:
    """One sentence that names the weights drawn afresh; only the head and its pooler may be."""
    trunk = network.base_model_prefix + "."
    lost = sorted(name for name in fresh if name.startswith(trunk) and ".pooler." not in name)
    if lost:
        raise UserError(
            f"{source} lacks {len(lost)} weights of {type(network).__name__}, the first is {lost[0]}: "
            "its config.json and its weights do not belong together"
        )
    if not fresh:
        return (f"all weights are those of {source}, head included",)
    return (f"{source} has no head of this size: drawn at random were {', '.join(sorted(fresh))}",)
