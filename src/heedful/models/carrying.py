"""What the attention of a network's layers carries: values, and the projection that puts them into the states.

The library's families keep the output projection in three places: beside the values (`out_lin` of DistilBERT, `o_proj`
of newer ViTs), or in the block behind the attention (`output.dense` of BERT and its kin).
"""

from __future__ import annotations

from torch import Tensor, nn

from heedful.core.carrying import Carried
from heedful.core.types import UserError
from heedful.models.tapping import Network, Tap

_PROJECTIONS = ("out_lin", "o_proj", "out_proj")
_BEHIND = "output.dense"


def carried_by(network: Network, tap: Tap, logits: Tensor) -> Carried:
    """What the tap of a finished call saw, with the output projection of each layer cut into its heads."""
    names = {id(module): name for name, module in network.named_modules()}
    linears = [_projection(network, names[id(module)]) for module, _ in tap.carried]
    values = tuple(value for _, value in tap.carried)
    return Carried(
        attention=tuple(tap.attention),
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


def _projection(network: Network, name: str) -> nn.Linear:
    """The output projection that belongs to the attention module of this name."""
    parent = name.rpartition(".")[0]
    modules = dict(network.named_modules())
    for place in (*(f"{name}.{own}" for own in _PROJECTIONS), f"{parent}.{_BEHIND}"):
        found = modules.get(place)
        if isinstance(found, nn.Linear):
            return found
    raise UserError(
        f"the output projection of {type(network).__name__} was not found beside {name}: norms of what attention "
        "carries need a family such as BERT, DistilBERT, RoBERTa, XLM-R, ELECTRA or ViT"
    )
