"""What a checkpoint says about its own outputs: how many, what they are called, a number or classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heedful.core.types import UserError
from heedful.models.tapping import NetworkConfig


@dataclass(frozen=True)
class Outputs:
    """The outputs of a classifier in their order.

    Args:
        names: as the configuration calls them; LABEL_0, LABEL_1 ... where nobody named them.
        number: whether the one output is a real number.
    """

    names: tuple[str, ...]
    number: bool = False


def outputs_of(source: str) -> Outputs:
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
    names = _names(config)
    kind = config.get("problem_type")
    _check(source, kind, len(names))
    return Outputs(names, len(names) == 1 and kind in (None, "regression"))


def _check(source: str, kind: object, count: int) -> None:
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


def _names(config: Mapping[str, object]) -> tuple[str, ...]:
    """The names by index; without any, the library's own: two unless the configuration counts them."""
    given = config.get("id2label")
    if isinstance(given, Mapping) and given:
        return tuple(str(given[key]) for key in sorted(given, key=int))
    count = config.get("num_labels", 2)
    return tuple(f"LABEL_{place}" for place in range(count if isinstance(count, int) else 2))
