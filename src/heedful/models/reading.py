"""What a network reads of a batch: ids with positions and segments, or pixels folded from patches."""

from __future__ import annotations

import inspect

import torch
from torch import Generator, Tensor

from heedful.core.types import Batch, UserError
from heedful.models.tapping import Network, NetworkConfig, embedder


def embedding_inputs(network: Network, batch: Batch) -> dict[str, Tensor]:
    """What the embedding block of this family reads of a batch: pixels, or ids, positions and segments."""
    images = reads_images(network)
    if images != (batch.inputs.dim() == 3):
        reads, holds = ("images", "ids") if images else ("text", "image patches")
        raise UserError(f"{type(network).__name__} reads {reads}, but the batch holds {holds}")
    if images:
        return {"pixel_values": folded(batch, network.config).to(network.dtype)}
    block, config = embedder(network), network.config
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


def folded(batch: Batch, config: NetworkConfig) -> Tensor:
    """Images `[batch channel height width]` from patches in row-major order behind the class unit."""
    (height, width), (tall, wide) = _pair(config.image_size), _pair(config.patch_size)
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


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
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


def sample(network: Network) -> Batch:
    """Two rows that a network can read; of texts the second is shorter."""
    draw, config = Generator().manual_seed(0), network.config
    if reads_images(network):
        (height, width), (tall, wide) = _pair(config.image_size), _pair(config.patch_size)
        shape = (2, 1 + (height // tall) * (width // wide), config.num_channels * tall * wide)
        inputs, mask = torch.rand(shape, generator=draw), torch.ones(shape[:2], dtype=torch.bool)
    else:
        filler = config.pad_token_id or 0
        mask = torch.arange(6) < torch.tensor([[6], [4]])
        inputs = torch.randint(1, config.vocab_size, (2, 6), generator=draw)
        inputs = ((inputs + filler) % config.vocab_size).masked_fill(~mask, filler)
    segments = (torch.arange(mask.shape[1]) > 2) & mask
    return Batch(("0", "1"), inputs, mask, segments.long(), torch.zeros_like(mask).long() - 1).to(network.device)
