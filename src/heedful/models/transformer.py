"""Hugging Face text and image classifiers as models of this house: attention and embeddings out and in.

`TransformerModel.wrap` opens a network of the user, which stays as it is; `Transformer` loads one from a
folder or the hub, never by unpickling; `TinyTransformer` makes a little one with random weights. Each is
tried at the door: a network that does not give the library's own logits through our attention is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Generator, Tensor, nn
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
)
from transformers.utils.generic import ModelOutput

from heedful.core.carrying import Carried
from heedful.core.headscores import Heads
from heedful.core.layerstates import Given, Layers
from heedful.core.tasks import Classes, Regression
from heedful.core.types import Batch, Content, Model, Plan, Task, Trace, UserError
from heedful.models.carrying import carried_by
from heedful.models.folders import check_folder, content_hash, pickled
from heedful.models.headscores import HeadTap, described
from heedful.models.layers import watched
from heedful.models.reading import embedding_inputs, reads_images, sample
from heedful.models.tapping import (
    Network,
    NetworkConfig,
    Tap,
    Tapping,
    decided,
    embedded,
    implement,
    opened,
    run,
    twin,
)

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
        task = _task(model.config) if task is None else task
        if task.outputs != model.config.num_labels:
            raise UserError(
                f"{type(model).__name__} has {model.config.num_labels} outputs, but the task "
                f"{type(task).__name__} needs {task.outputs}; load it with num_labels={task.outputs}"
            )
        _try_out(model, task)
        return TransformerModel(opened(model), task)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; attention must be given whole, `[batch layer head query unit]`."""
        if embeddings is None:
            embeddings = embedded(self.network, embedding_inputs(self.network, batch))
        self._check(batch, embeddings, attention)
        tap = Tap(attention)
        states, logits = self._read(batch, embeddings, tap)
        scores = None
        if attention is None:
            scores, attention = tap.seen(batch.mask)
        return Trace(embeddings, states[0], attention, logits, scores)

    def carried(self, batch: Batch, *, embeddings: Tensor | None = None) -> Carried:
        """Weights, values and projections of every layer, from the first up; given embeddings are taken as they are."""
        if embeddings is None:
            embeddings = embedded(self.network, embedding_inputs(self.network, batch))
        self._check(batch, embeddings, None)
        if torch.is_grad_enabled():
            # Also a network whose weights are frozen lets its attention take a gradient.
            embeddings = embeddings.detach().requires_grad_()
        tap = Tap()
        return carried_by(self.network, tap, self._read(batch, embeddings, tap)[1])

    def read_heads(self, batch: Batch) -> Heads:
        """Mean scores of all heads, and logits, without a score for each pair of units."""
        tap = HeadTap(batch.mask)
        embeddings = embedded(self.network, embedding_inputs(self.network, batch))
        return tap.heads(self._read(batch, embeddings, tap)[1])

    def read_layers(self, batch: Batch, embeddings: Tensor, given: Given | None = None) -> Layers:
        """Inputs of all layers, and logits; an input that is given takes the place of the layer's own."""
        with watched(self.network, given) as states:
            logits = self._read(batch, embeddings.clone(), HeadTap(batch.mask))[1]
        return Layers(tuple(states), logits)

    @property
    def architecture(self) -> str:
        """Family, layers, heads and width."""
        return described(self.network.config)

    def _read(self, batch: Batch, embeddings: Tensor, tap: Tapping) -> tuple[ModelOutput, Tensor]:
        """States of the last layer, and logits; the tap sees every layer."""
        if reads_images(self.network):
            states = run(self.network, {"pixel_values": embeddings}, tap)
            logits = decided(self.network, states, {})
        else:
            attended = {"attention_mask": batch.mask | ~batch.mask.any(1, keepdim=True)}
            states = run(self.network, {"inputs_embeds": embeddings, **attended}, tap)
            logits = decided(self.network, states, attended)
        if batch.candidates is not None:
            logits = logits.masked_fill(~batch.candidates.bool(), -torch.inf)
        self._check_calls(tap.calls)
        return states, logits

    def _check(self, batch: Batch, embeddings: Tensor, attention: Tensor | None) -> None:
        rows, units = batch.mask.shape
        if embeddings.shape[:2] != (rows, units):
            raise ValueError(f"embeddings are {tuple(embeddings.shape)}, but the batch is {(rows, units)}")
        config = self.network.config
        expected = (rows, config.num_hidden_layers, config.num_attention_heads, units, units)
        if attention is not None and tuple(attention.shape) != expected:
            raise ValueError(f"attention is {tuple(attention.shape)}, but this model and batch need {expected}")

    def _check_calls(self, calls: int) -> None:
        layers, name = self.network.config.num_hidden_layers, type(self.network).__name__
        if calls != layers:
            raise UserError(
                f"{name} has {layers} layers, but {calls} let their attention be seen: it cannot be examined"
            )


def _task(config: NetworkConfig) -> Task:
    kind, labels = config.problem_type, int(config.num_labels or 0)
    if labels == 1 and kind in (None, "regression"):
        return Regression()
    if labels > 1 and kind in (None, "single_label_classification"):
        return Classes(labels)
    raise UserError(
        f"the configuration says {kind} with {labels} output(s), which leaves the task open: "
        "say task=Binary(), task=Classes(n) or task=Regression()"
    )


def _try_out(network: Network, task: Task) -> None:
    """Refuses a network whose logits through our attention are not the library's own."""
    name = type(network).__name__
    ours, plain = TransformerModel(opened(network), task).eval(), nn.Module.eval(twin(network))
    implement(plain, "eager")
    batch = sample(network)
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
class Transformer(Plan, Content):
    """A pretrained transformer from a folder or the hub, with a head for the task.

    The head is the checkpoint's own where it has one of the right size, else a fresh one; the `notes` of the
    model say which. Only safetensors are read.
    """

    source: str

    def digest(self, data: Path) -> str:
        """A hash of the configuration and the weights in a folder; a hub name stands for itself."""
        folder = Path(self.source).expanduser()
        return content_hash(folder) if folder.is_dir() else self.source

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The pretrained model, in eval mode."""
        _refuse_vectors(embeddings)
        folder = Path(self.source).expanduser()
        if folder.is_dir():
            check_folder(folder)
        with _drawn_from(generator):
            network, notes = _loaded(str(folder) if folder.is_dir() else self.source, task.outputs)
        model = TransformerModel.wrap(network, task).eval()
        model.notes = notes
        return model


@dataclass(frozen=True)
class TinyTransformer(Plan):
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
    vocabulary: int = 50
    positions: int = 32
    image: tuple[int, int, int] = (1, 8, 8)
    patch: int = 4
    spread: float = 0.2

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        _refuse_vectors(embeddings)
        config = self._config(task)
        with _drawn_from(generator):
            network = _kind(config, self.family)(config)
        return TransformerModel.wrap(network, task).eval()

    def _config(self, task: Task) -> NetworkConfig:
        if self.family not in FAMILIES:
            raise UserError(f"there is no family {self.family!r}; choose one of {', '.join(FAMILIES)}")
        settings: dict[str, int | float | tuple[int, int]] = {
            "num_labels": task.outputs,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "hidden_dim" if self.family == "distilbert" else "intermediate_size": 2 * self.width,
            "initializer_range": self.spread,
        }
        if self.family == "vit":
            settings |= {
                "num_channels": self.image[0],
                "image_size": self.image[1:],
                "patch_size": self.patch,
            }
        else:
            behind = 2 if "roberta" in self.family else 0
            settings |= {"vocab_size": self.vocabulary, "max_position_embeddings": self.positions + behind}
        if self.family == "electra":
            settings["embedding_size"] = 2 * self.width
        return AutoConfig.for_model(self.family, **settings)


@dataclass(frozen=True)
class SmallTransformer(Plan):
    """A small transformer trained from scratch on whole words, whose embedding starts at the given word vectors.

    Args:
        positions: the longest text that it can read, special symbols included.
        dropout: share of states and attention weights dropped in training.
    """

    layers: int = 1
    heads: int = 4
    width: int = 64
    positions: int = 512
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
            num_labels=task.outputs,
            vocab_size=vocabulary,
            embedding_size=width,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )
        with _drawn_from(generator):
            network = _kind(config, "electra")(config)
        with torch.no_grad():
            table = network.get_input_embeddings().get_parameter("weight")
            table.copy_(embeddings)
            table[0].zero_()
        return TransformerModel.wrap(network, task).eval()


def _refuse_vectors(embeddings: Tensor | None) -> None:
    if embeddings is not None and len(embeddings):
        raise UserError("a transformer brings word vectors of its own: leave the word vectors out (vectors=None)")


@contextmanager
def _drawn_from(generator: Generator) -> Iterator[None]:
    """The library draws from the global generator only: seeds that one, and puts it back afterwards."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _kind(config: NetworkConfig, source: str) -> type[Network]:
    for mapping in (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            return cast("type[Network]", found[0] if isinstance(found, tuple) else found)
    raise UserError(f"{source} holds a {type(config).__name__}: no sequence or image classifier is known for it")


def _loaded(source: str, outputs: int) -> tuple[Network, tuple[str, ...]]:
    try:
        config = AutoConfig.from_pretrained(source)
        if config.num_labels != outputs:
            config.num_labels = outputs
        loaded: object = _kind(config, source).from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        if "use_safetensors" in str(error):
            raise pickled(source) from error
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"no model could be loaded from {source!r} ({reason}): give a folder with config.json and "
            "model.safetensors, or the id of a model on the hub that can be reached or is in the cache"
        ) from error
    network, report = cast("tuple[Network, dict[str, set[str | tuple[str, ...]]]]", loaded)
    unmet = report["missing_keys"] | report["mismatched_keys"]
    fresh = {entry if isinstance(entry, str) else entry[0] for entry in unmet}
    return network, _notes(network, source, fresh)


def _notes(network: Network, source: str, fresh: set[str]) -> tuple[str, ...]:
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
