"""The fast way to the maps of a transformer's heads: the mean over query rows of q k is mean(q) k.

No score is computed for a pair of units: attention itself runs through the fused kernel of torch, which keeps none
either. That kernel has neither forward-mode nor second derivatives: with tangents on the queries, or inside
`plain_attention()`, attention is written out in plain products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from heedful.core.headscores import Heads, row_shares, wants_plain_attention
from heedful.models.tapping import NetworkConfig, Reading, Tapping


@dataclass
class HeadTap(Tapping):
    """What one call shows of its heads: the mean scores `[batch head unit]` of each layer so far.

    Args:
        mask: real units `[batch unit]`: the query rows that count, and the units that get a score.
    """

    mask: Tensor
    scores: list[Tensor] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Layers whose heads were read."""
        return len(self.scores)

    def attend(self, module: nn.Module, reading: Reading) -> tuple[Tensor, None]:
        """Dropout falls on the weights in training; the weights themselves are not kept."""
        self.scores.append(self._means(reading).masked_fill(~self.mask[:, None], 0.0))
        return _attended(reading), None

    def heads(self, logits: Tensor) -> Heads:
        """The maps of all layers, with the logits of the same reading."""
        return Heads(torch.stack(self.scores, 1), logits)

    def _means(self, reading: Reading) -> Tensor:
        rows, mask = row_shares(self.mask, reading.query.dtype), reading.mask
        if mask is None or bool((mask == mask[:, :, :1]).all()):
            query = torch.einsum("bq,bhqd->bhd", rows, reading.query)
            return torch.einsum("bhd,bhud->bhu", query, reading.key) * reading.scale
        # Attention in a window: rows differ in the units that they may see, and a score that is not seen is 0.
        seen = (mask > torch.finfo(mask.dtype).min).to(rows.dtype)
        return torch.einsum("bq,bhqu->bhu", rows, reading.scores() * seen)


def described(config: NetworkConfig) -> str:
    """Family, layers, heads and width: what two networks share whose heads can be told one to one."""
    heads, width = config.num_attention_heads, config.hidden_size
    return f"{config.model_type}, {config.num_hidden_layers} layers, {heads} heads, width {width}"


def _attended(reading: Reading) -> Tensor:
    """softmax(q k scale + mask) v, `[batch head query dim]`."""
    inputs = (reading.query, reading.key, reading.value)
    if not wants_plain_attention() and not any(_has_tangent(part) for part in inputs):
        return nn.functional.scaled_dot_product_attention(
            *inputs, attn_mask=reading.mask, dropout_p=reading.rate, scale=reading.scale
        )
    scores = reading.scores()
    weights = (scores if reading.mask is None else scores + reading.mask).softmax(-1)
    return torch.matmul(nn.functional.dropout(weights, reading.rate), reading.value)


def _has_tangent(tensor: Tensor) -> bool:
    """True where forward-mode differentiation runs through this tensor."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
