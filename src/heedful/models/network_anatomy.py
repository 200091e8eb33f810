"""Where a Hugging Face network computes what: its inputs, its layers and their attention, read from the network itself.

No list of families: one forward pass of two random examples shows which modules are the layers (the members of the
first `nn.ModuleList` that reads states of the units), where attention is computed and which linear map follows it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Generator, Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.models._attention_windows import MAX_WEIGHTS, WindowLayout, find_window_units
from heedful.models._softmax_hooks import SoftmaxInterception, SoftmaxSurvey
from heedful.models.attention_hooks import (
    ATTENTION_IMPLEMENTATION,
    AttentionHook,
    AttentionInputs,
    AttentionRecorder,
    ForwardPass,
    PlainAttention,
    copy_sharing_weights,
    layer_input,
    register_attention,
    running,
    set_attention_implementation,
)
from heedful.types import Batch, UserError

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network

AttentionPath = Literal["interface", "softmax"]
"""How attention is reached: by transformers' attention interface, or by the softmax of the layers."""
ATTENTION_PATHS: tuple[AttentionPath, ...] = ("interface", "softmax")
DEFAULT_PATCH_SIZE, DEFAULT_IMAGE_SIZE = 16, 224
MIN_PATCHES = 4
"""To a side of an image, where a network has no patches of its own; smaller ones are taken then."""
SAMPLE_LENGTHS = (7, 5)
"""Units of the two random texts that a network is tried on."""


# Inputs


def reads_images(network: Network) -> bool:
    """True for networks that read pixels, False for those that read token ids."""
    return "input_ids" not in _parameters(network)


def reads_both(network: Network) -> bool:
    """True for an image classifier that reads a text too."""
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    known = type(network.config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    return known and {"input_ids", "pixel_values"} <= set(_parameters(network))


def _parameters(network: Network) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(type(network).forward).parameters


def text_config(network: Network) -> NetworkConfig:
    """The part of a configuration that is about text."""
    return network.config.get_text_config()


def padding_id(network: Network) -> int:
    """The id that stands for padding; 0 where a configuration has none, or one outside its vocabulary."""
    number, size = (getattr(text_config(network), name, None) for name in ("pad_token_id", "vocab_size"))
    return number if isinstance(number, int) and 0 <= number < (size or math.inf) else 0


def vision_config(network: Network) -> NetworkConfig:
    """The part of a configuration that is about images."""
    config = network.config
    return cast("NetworkConfig", getattr(config, "vision_config", config))


def image_grid(config: NetworkConfig) -> tuple[int, int, int, int]:
    """Rows and columns of patches, and height and width of a patch; squares of 16 pixels where the grid is unknown."""
    image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if image is None:
        count = getattr(config, "num_patches", None)
        image = math.isqrt(count) * patch if count and isinstance(patch, int) else DEFAULT_IMAGE_SIZE
    patch = patch if isinstance(patch, int) or (isinstance(patch, list | tuple) and len(patch) == 2) else None
    sides = [(side, side) if isinstance(side, int) else tuple(side) for side in (image, patch or DEFAULT_PATCH_SIZE)]
    (height, width), (tall, wide) = sides
    if height % tall or width % wide:
        tall = wide = math.gcd(height, width, DEFAULT_PATCH_SIZE)
    while patch is None and tall > 1 and min(height, width) // tall < MIN_PATCHES:
        tall = wide = tall // 2
    return height // tall, width // wide, tall, wide


def image_layout(config: NetworkConfig) -> tuple[int, int, int] | None:
    """Side of a patch, side of an image and channels of an image classifier; None for one of texts.

    Raises a `UserError` where images or patches are not square.
    """
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    if type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or (
        type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    ):
        return None
    image_config = cast("NetworkConfig", getattr(config, "vision_config", config))
    rows, columns, tall, wide = image_grid(image_config)
    if rows != columns or tall != wide:
        raise UserError(
            f"the model reads images of {rows * tall} x {columns * wide} pixels in patches of {tall} x {wide}: only "
            "squares can be loaded; give the model with a tokenizer of its own"
        )
    return tall, rows * tall, getattr(image_config, "num_channels", 3)


def fold_images(batch: Batch, config: NetworkConfig, prefix: int = 1) -> Tensor:
    """Images `[batch channel height width]` from patches in row-major order behind `prefix` special units."""
    (rows, columns, tall, wide), channels = image_grid(config), getattr(config, "num_channels", 3)
    expected = (prefix + rows * columns, channels * tall * wide)
    if tuple(batch.inputs.shape[1:]) != expected:
        units, numbers = batch.inputs.shape[1:]
        raise UserError(
            f"the images have {units} units of {numbers} numbers, but the model reads {expected[0]} of "
            f"{expected[1]}: {channels} x {rows * tall} x {columns * wide} pixels in patches of {tall} x {wide}"
        )
    if not bool(batch.mask.all()):
        raise ValueError("images have no padding: blank a patch instead")
    patches = batch.inputs[:, prefix:].reshape(-1, rows, columns, channels, tall, wide)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, rows * tall, columns * wide)


@dataclass(frozen=True)
class NetworkInputs:
    """What a network wants beside ids, mask and segments, or beside pixels.

    Args:
        first_position: number of the first position, which is not 0 for RoBERTa and its kin; None gives no positions.
        prefix: special units before the patches of an image.
    """

    first_position: int | None = None
    prefix: int = 0

    def max_tokens(self, network: Network) -> int | None:
        """The length of the longest text that a network reads, special tokens included; None without a limit."""
        limit = getattr(text_config(network), "max_position_embeddings", None)
        return limit - (self.first_position or 0) if isinstance(limit, int) and limit > 0 else None

    def arguments(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The arguments of a network for a batch, as far as it takes them."""
        images = reads_images(network)
        if images != (batch.inputs.dim() == 3):
            reads, holds = ("images", "ids") if images else ("text", "image patches")
            raise UserError(f"{type(network).__name__} reads {reads}, but the batch holds {holds}")
        if images:
            return _image_arguments(network, batch, self.prefix)
        self._check_ids(network, batch)
        # Heads that read the last real token find it by the id of padding: a real token with that id is -1 until it
        # reaches the table of word vectors.
        config, pad_id = text_config(network), padding_id(network)
        real = batch.inputs.masked_fill(batch.inputs == pad_id, -1)
        inputs = {
            "input_ids": torch.where(batch.mask, real, pad_id),
            "attention_mask": (batch.mask | ~batch.mask.any(1, keepdim=True)).long(),
        }
        if self.first_position is not None:
            inputs["position_ids"] = (batch.mask.cumsum(1) * batch.mask + self.first_position - 1).clamp(min=0)
        types = getattr(config, "type_vocab_size", 0)
        if types:
            inputs["token_type_ids"] = batch.segments.clamp(max=types - 1)
        known = _parameters(network)
        return {name: tensor for name, tensor in inputs.items() if name in known}

    def _check_ids(self, network: Network, batch: Batch) -> None:
        name, longest = type(network).__name__, int(batch.lengths.max()) if len(batch) else 0
        limit, size = self.max_tokens(network), getattr(text_config(network), "vocab_size", None)
        highest = int(batch.inputs.max()) if batch.inputs.numel() else 0
        if limit is not None and longest > limit:
            raise UserError(
                f"a text has {longest} tokens, but {name} reads at most {limit}: truncate to {limit} tokens"
            )
        if size is not None and highest >= size:
            raise UserError(
                f"id {highest} is outside the vocabulary of {name}, which ends at {size - 1}: "
                "use the tokenizer that belongs to the model"
            )


def _image_arguments(network: Network, batch: Batch, prefix: int) -> dict[str, Tensor]:
    """Pixels; a network that takes the shape of the grid reads patches of pixels with their channels last."""
    config = vision_config(network)
    images = fold_images(batch, config, prefix).to(network.dtype)
    if "spatial_shapes" not in _parameters(network):
        return {"pixel_values": images}
    rows, columns, tall, wide = image_grid(config)
    patches = batch.inputs[:, prefix:].reshape(len(batch), rows * columns, -1, tall, wide).permute(0, 1, 3, 4, 2)
    return {
        "pixel_values": patches.flatten(2).to(network.dtype),
        "pixel_attention_mask": torch.ones_like(batch.mask[:, prefix:], dtype=torch.long),
        "spatial_shapes": torch.tensor([[rows, columns]], device=batch.mask.device).repeat(len(batch), 1),
    }


def _restore_pad_ids(table: nn.Module, inputs: tuple[object, ...], pad_id: int) -> tuple[object, ...]:
    ids, *others = inputs or (None,)
    return inputs if not isinstance(ids, Tensor) or ids.is_floating_point() else (ids.where(ids >= 0, pad_id), *others)


def sample_batch(network: Network, prefix: int = 0) -> Batch:
    """Two random examples that a network can read; of texts the second is shorter, and both end as its texts do."""
    generator = Generator().manual_seed(0)
    if reads_images(network):
        config = vision_config(network)
        rows, columns, tall, wide = image_grid(config)
        numbers = getattr(config, "num_channels", 3) * tall * wide
        patches = torch.rand(2, rows * columns, numbers, generator=generator)
        inputs = nn.functional.pad(patches, (0, 0, prefix, 0))
        mask = torch.ones(inputs.shape[:2], dtype=torch.bool)
        segments = torch.zeros_like(mask)
    else:
        config = text_config(network)
        numbered = (value for name, value in config.to_dict().items() if name.endswith(("_token_id", "_index")))
        special = {0, *(value for value in numbered if isinstance(value, int))}
        size = getattr(config, "vocab_size", 256)
        ids = torch.tensor([token_id for token_id in range(min(size, 1000)) if token_id not in special] or [0])
        lengths = torch.tensor(SAMPLE_LENGTHS).unsqueeze(1)
        mask = torch.arange(SAMPLE_LENGTHS[0]) < lengths
        inputs = ids[torch.randint(len(ids), mask.shape, generator=generator)]
        end = getattr(config, "eos_token_id", None)
        # Padding cannot end a text that is given to the library as it is.
        if isinstance(end, int) and 0 <= end < size and end != padding_id(network):
            inputs[torch.arange(2), lengths.squeeze(1) - 1] = end
        inputs, segments = inputs.masked_fill(~mask, 0), (torch.arange(mask.shape[1]) > 2) & mask
    return Batch(("0", "1"), inputs, mask, segments.long(), torch.zeros_like(mask).long() - 1).to(network.device)


# Anatomy


@dataclass(frozen=True)
class Stack:
    """The layers of a network.

    Args:
        name: of their `nn.ModuleList`; empty where no list reads states of the units.
        layers: number of calls of its members; more than members where layers are shared.
        width: of the input of the first layer.
        inputs: what the network reads.
        transposed: whether layers read `[unit batch width]`.
        is_uniform: whether the inputs of all layers have one shape.
        words: name of the table in which the ids of the units are looked up; empty for images.
    """

    name: str = ""
    layers: int = 0
    width: int = 0
    inputs: NetworkInputs = field(default_factory=NetworkInputs)
    transposed: bool = False
    is_uniform: bool = True
    words: str = ""


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of the layers.

    Args:
        count: maps that are computed in one pass.
        heads: of each map.
        others: maps outside the layers, or of another shape.
        projections: name of the linear map that each attended value goes through next; empty where there is none.
        windows: where the units stand, if layers attend within windows of them.
    """

    count: int
    heads: int
    others: int
    projections: tuple[str, ...]
    windows: WindowLayout | None = None


def open_network(network: Network, path: AttentionPath | None) -> Network:
    """A copy of a network that computes attention by this path, or by None as before; its layers are not hooked yet."""
    register_attention()
    opened = copy_sharing_weights(network)
    implementations = {"interface": ATTENTION_IMPLEMENTATION, "softmax": "eager", None: None}
    set_attention_implementation(opened, implementations[path])
    if not reads_images(opened):
        config = text_config(opened)
        config.pad_token_id = padding_id(opened)
        tables: set[nn.Module] = {module for module in opened.modules() if isinstance(module, nn.Embedding)}
        with suppress(NotImplementedError):
            tables.add(opened.get_input_embeddings())
        # Perceiver gives a parameter.
        for table in (candidate for candidate in tables if isinstance(candidate, nn.Module)):
            table.register_forward_pre_hook(partial(_restore_pad_ids, pad_id=config.pad_token_id))
    return opened


def find_stack(opened: Network, within: str = "") -> Stack:
    """The first module list whose members read states of the units, from one forward pass of an opened network.

    Args:
        within: name of the module whose lists are looked at; by default of all.
    """
    batch = sample_batch(opened)
    rows, units = batch.mask.shape
    calls: list[tuple[str, Tensor]] = []
    depth, first, words = 0, 0, ""

    def enter(layer: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object], name: str) -> None:
        nonlocal depth
        depth += 1
        states = layer_input(inputs, named)
        if depth == 1 and states is not None:
            calls.append((name, states))

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def watch_ids(table: nn.Module, inputs: tuple[object, ...], name: str) -> None:
        nonlocal first, words
        ids = inputs[0] if inputs else None
        if not words and isinstance(table, nn.Embedding) and isinstance(ids, Tensor) and ids.shape == (rows, units):
            words = name if torch.equal(ids, batch.inputs) else ""
        if isinstance(ids, Tensor) and ids.dim() and ids.shape[-1] >= units and not ids.is_floating_point():
            row = ids.reshape(-1, ids.shape[-1])[0, :units].long()
            if bool((row.diff() == 1).all()):
                first = int(row[0])

    inner = opened.get_submodule(within).named_modules(prefix=within)
    parts = ((name, module) for name, module in inner if isinstance(module, nn.ModuleList))
    # A list without weights holds rotary positions.
    lists = {name: module for name, module in parts if next(module.parameters(), None) is not None}
    with ExitStack() as hooks, torch.no_grad():
        for name, members in lists.items():
            for member in members:
                handle = member.register_forward_pre_hook(partial(enter, name=name), with_kwargs=True)
                hooks.callback(handle.remove)
                hooks.callback(member.register_forward_hook(leave).remove)
        for name, table in opened.named_modules():
            if not list(table.children()):
                hooks.callback(table.register_forward_pre_hook(partial(watch_ids, name=name)).remove)
        opened(**NetworkInputs().arguments(opened, batch))
    images = reads_images(opened)
    form = NetworkInputs() if images else NetworkInputs(first if "position_ids" in _parameters(opened) else None)
    for name, states in calls:
        shape = tuple(states.shape)
        transposed = not images and shape[:2] == (units, rows)
        if len(shape) == 3 and (transposed or (shape[0] == rows and shape[1] >= units)):
            shapes = [tuple(shape_of.shape) for stack, shape_of in calls if stack == name]
            form = replace(form, prefix=shape[1] - units) if images else form
            return Stack(name, len(shapes), shape[2], form, transposed, len(set(shapes)) == 1, words)
    return Stack(inputs=form, words=words)


@dataclass
class _MapSurvey(AttentionHook):
    """Records the shape of each attention map, and what is attended."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    attended: list[Tensor | None] = field(default_factory=list)

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        attended, weights = PlainAttention().attend(inputs)
        assert weights is not None
        self.shapes.append(tuple(weights.shape))
        self.attended.append(attended)
        return attended, weights

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        self.shapes.append(tuple(weights.shape))
        self.attended.append(None)
        return weights

    def keep_values(self, values: Tensor, attended: Tensor) -> Tensor:
        self.attended[-1] = attended
        return attended


def find_attention(
    opened: Network, path: AttentionPath, stack: Stack, windows: WindowLayout | None = None
) -> AttentionMaps:
    """The attention maps of a network with hooked layers from one forward pass; `UserError` where there are none.

    Args:
        windows: where the units stand, if layers attend within windows of them.
    """
    batch = sample_batch(opened, stack.inputs.prefix)
    rows, units = batch.mask.shape
    height, width = (rows, units) if windows is None else (rows * windows.shape[0], windows.shape[1])
    survey = _MapSurvey()
    projections: dict[int, str] = {}

    def compare(module: nn.Module, inputs: tuple[object, ...], name: str) -> None:
        values, last = inputs[0] if inputs else None, len(survey.attended) - 1
        attended = survey.attended[last] if last >= 0 else None
        if attended is None or last in projections or not isinstance(values, Tensor):
            return
        merged = attended.transpose(1, 2).flatten(2)
        if values.numel() == merged.numel() and torch.equal(values.reshape(merged.shape), merged):
            projections[last] = name

    with ExitStack() as hooks, torch.no_grad(), running(ForwardPass(survey, units)) as forward_pass:
        for name, module in opened.named_modules():
            if projection_matrix(module) is not None:
                hooks.callback(module.register_forward_pre_hook(partial(compare, name=name)).remove)
        if path == "softmax":
            hooks.enter_context(SoftmaxInterception(height, width))
        opened(**stack.inputs.arguments(opened, batch))
    shapes = set(survey.shapes)
    if not shapes:
        raise UserError("its layers compute no attention that can be reached")
    if len(shapes) > 1:
        raise UserError(f"its attention maps have several shapes, {', '.join(map(str, sorted(shapes)))}")
    ((first, heads, queries, keys),) = shapes
    if (first, queries, keys) != (height, width, width):
        raise UserError(f"it attends to {keys} positions in {first} windows of {queries}, not to {units} units")
    names = tuple(projections.get(number, "") for number in range(len(survey.shapes)))
    return AttentionMaps(len(survey.shapes), heads, forward_pass.other_maps, names, windows)


@dataclass(frozen=True)
class _LayerCall:
    """One call of a layer of a hooked network, which can be repeated with other states.

    Args:
        states: what the layer reads first `[batch unit width]`.
    """

    layer: nn.Module
    inputs: tuple[object, ...]
    named: Mapping[str, object]
    states: Tensor

    @torch.no_grad()
    def repeat(self, hook: AttentionHook, mode: TorchFunctionMode | None, states: Tensor) -> None:
        """Let a hook, and a mode for layers that normalise attention themselves, see the layer read these states."""
        with running(ForwardPass(hook, states.shape[1])), mode or nullcontext():
            self.layer(
                *(states if value is self.states else value for value in self.inputs),
                **{name: states if value is self.states else value for name, value in self.named.items()},
            )


def find_windows(opened: Network, path: AttentionPath, stage: Stack) -> AttentionMaps:
    """The attention maps of hooked layers that attend within windows of an image; `UserError` where they do not.

    Nothing is known of the windows but that the values in them depend on one unit each.
    """
    batch, calls = sample_batch(opened, stage.inputs.prefix), list[_LayerCall]()
    rows, units = batch.mask.shape

    def keep(layer: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        states = layer_input(inputs, named)
        if states is not None and states.shape[:2] == (rows, units):
            calls.append(_LayerCall(layer, inputs, dict(named), states))

    with ExitStack() as hooks, torch.no_grad():
        for layer in cast("nn.ModuleList", opened.get_submodule(stage.name)):
            hooks.callback(layer.register_forward_pre_hook(keep, with_kwargs=True).remove)
        opened(**stage.inputs.arguments(opened, batch))
    layouts = list[Tensor]()
    for call in calls:
        survey, softmaxes = _MapSurvey(), SoftmaxSurvey()
        call.repeat(survey, softmaxes if path == "softmax" else None, call.states)
        shapes = softmaxes.shapes if path == "softmax" else survey.shapes
        if len(shapes) != 1 or len(shapes[0]) != 4:
            raise UserError("its layers compute no attention within windows that can be reached")
        windows, heads, queries, keys = shapes[0]
        if windows % rows or queries != keys or windows // rows * keys != units:
            raise UserError(
                f"its {windows // rows} windows have {queries} queries and {keys} positions each, which are not its "
                f"{units} units"
            )
        if len(calls) * heads * units**2 > MAX_WEIGHTS:
            raise UserError(
                f"the attention of {len(calls)} layers and {heads} heads between {units} units has more than "
                f"{MAX_WEIGHTS} weights for one image"
            )
        interception = SoftmaxInterception(windows, keys) if path == "softmax" else None

        def read_values(
            states: Tensor, call: _LayerCall = call, mode: SoftmaxInterception | None = interception
        ) -> Tensor:
            recorder = AttentionRecorder()
            call.repeat(recorder, mode, states)
            if len(recorder.values) != 1:
                raise UserError("the values that its attention weighs were not found")
            return recorder.values[0].transpose(1, 2).flatten(2)

        layouts.append(find_window_units(read_values, call.states))
    if not layouts or len({tuple(layout.shape) for layout in layouts}) > 1:
        raise UserError("its layers have windows of several sizes, or none")
    return find_attention(opened, path, stage, WindowLayout(tuple(layouts)))


def projection_matrix(module: nn.Module) -> Tensor | None:
    """The matrix `[in out]` of a linear layer; None for any other module."""
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, Conv1D):
        return cast("Tensor", module.weight)
    return module.weight.t() if isinstance(module, nn.Linear) else None
