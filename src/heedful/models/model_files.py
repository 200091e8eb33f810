"""Models in a folder or on the hub: their configuration, outputs and weights, without unpickling or foreign code.

An adapter (PEFT) is merged into its model. What can be known before memory is allocated is checked before: settings,
the names of files and the sizes of weights.
"""

from __future__ import annotations

import copy
import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from safetensors import safe_open

from heedful.devices import Precision, check_precision, torch_dtype
from heedful.store.model_folder import ADAPTER_SETTINGS, check_model_code, read_adapter_base, read_model_settings
from heedful.store.shown_path import shown_path
from heedful.types import UserError, first_line, user_path

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SOURCE_HINT = (
    "give a folder with config.json and model.safetensors, or the id of a model on the hub that is reachable or cached"
)
WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
NetworkHead = Literal["classifier", "causal", "masked"]
"""What a network is loaded with: a head for classes, or that of a causal or masked language model."""
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

    folder = user_path(source)
    if not (folder / "config.json").is_file() and (base := read_adapter_base(folder)) is not None:
        return read_config(base)
    if (folder / "config.json").is_file():
        config = read_model_settings(folder / "config.json")
    else:
        try:
            with _silence_transformers():
                content, _ = PreTrainedConfig.get_config_dict(str(folder) if folder.is_dir() else source)
        except (OSError, ValueError) as error:
            raise _loading_error(source, error) from error
        config = cast("dict[str, object]", content)
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


ADAPTED_HEADS: Mapping[str, str] = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "SEQ_2_SEQ_LM": "ForConditionalGeneration",
    "CAUSAL_LM": "ForCausalLM",
}
"""How the name of a class ends by the task of an adapter (PEFT), which may give its model another head."""


def read_class_name(source: str) -> str:
    """The class that a model in a folder or on the hub was saved from, as far as its settings say; else empty."""
    folder, names = user_path(source), read_config(source).get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if read_adapter_base(folder) is None:
        return name
    return ADAPTED_HEADS.get(str(read_model_settings(folder / ADAPTER_SETTINGS).get("task_type")), name)


_EXPLAINED_TASK = re.compile("SequenceClassification|ImageClassification|CausalLM|MaskedLM")


def check_explained_task(source: str, class_name: str) -> None:
    """Raise a `UserError` for a class of network that transformers has for another task than those explained here."""
    from transformers.models.auto import modeling_auto

    task = class_name.rpartition("For")[2]
    if task == class_name or _EXPLAINED_TASK.match(task):
        return
    entries = [
        entry
        for name, kinds in vars(modeling_auto).items()
        if re.fullmatch("MODEL_FOR_.*_MAPPING_NAMES", name)
        for entry in cast("Mapping[str, str | tuple[str, ...]]", kinds).values()
    ]
    known = {kind for entry in entries for kind in ((entry,) if isinstance(entry, str) else entry)}
    if any(kind.endswith(class_name) for kind in known):
        words = re.sub("(?<=[a-z])(?=[A-Z])", " ", task).lower()
        raise UserError(
            f"{source} is a network for {words} ({class_name}): heedful explains text and image classifiers, and "
            "causal and masked language models; give one of them"
        )


def read_output_labels(source: str) -> OutputLabels:
    """The outputs of the checkpoint in a folder or on the hub, from its configuration alone."""
    config = read_config(source)
    check_explained_task(source, read_class_name(source))
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


def check_distinct_names(source: str, names: Sequence[str]) -> None:
    """Raise a `UserError` for classes of the same name, which no table could tell apart."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UserError(
            f"{source} has several classes named {', '.join(map(repr, twice))}: give each a name of its own, in "
            "id2label of its config.json or as class_names"
        )


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


def network_class(config: NetworkConfig, source: str, head: NetworkHead = "classifier") -> type[Network]:
    """The class of a network with this configuration and head, of those that transformers has."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    )

    mappings = {
        "classifier": (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING),
        "causal": (MODEL_FOR_CAUSAL_LM_MAPPING,),
        "masked": (MODEL_FOR_MASKED_LM_MAPPING,),
    }
    for mapping in mappings[head]:
        if type(config) in mapping:
            kind = mapping[type(config)]
            return cast("type[Network]", kind[0] if isinstance(kind, tuple) else kind)
    wanted = {"classifier": "sequence or image classifier"}.get(head, f"{head} language model")
    raise UserError(f"{source} holds a {type(config).__name__}: transformers has no {wanted} for it")


def check_model_source(source: str, head: NetworkHead = "classifier") -> NetworkConfig:
    """The configuration of a model that can be loaded: its settings and the names and sizes of its weights fit.

    Nothing is allocated, unpickled or run: the network is built without memory, and of the weights only the headers are
    read. Raises a `UserError` otherwise.
    """
    from transformers import AutoConfig
    from transformers.utils.hub import cached_file

    read_config(source)
    folder = user_path(source)
    if (base := read_adapter_base(folder)) is not None:
        _check_adapter(folder, base)
        return check_model_source(base, head)
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
            kind, sizes = network_class(config, source, head), [_tensor_sizes(path) for path in files]
            if kind.config_class is type(text_config := config.get_text_config()):
                config = text_config  # the language model of a larger one
            for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
                # A network without attention has no heads, and one of several stages has a list of each.
                value = getattr(config, name, None)
                if not isinstance(value, list | tuple | None) and (not isinstance(value, int) or value < 1):
                    raise UserError(f"{name} in the config.json of {source} is {value!r}: it must be at least 1")
            layers = getattr(config, "num_hidden_layers", None)
            if files and isinstance(layers, int) and layers > 100 + sum(map(len, sizes)):
                raise UserError(_sizes_message(source, f"{layers} layers", sizes))
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


def _check_adapter(folder: Path, base: str) -> None:
    """Raise a `UserError` unless an adapter can be merged into its model without unpickling."""
    files = [path.name for path in folder.iterdir()]
    if ADAPTER_WEIGHTS not in files and any(name.endswith(_PICKLED) for name in files):
        raise _pickled_weights_error(f"the adapter {folder}")
    if ADAPTER_WEIGHTS not in files:
        raise UserError(f"{folder} holds an adapter without {ADAPTER_WEIGHTS}: save it again with save_pretrained")
    if find_spec("peft") is None:
        raise UserError(
            f"{folder} holds an adapter of {base}: install peft (pip install peft), or merge it into its model and "
            "save that with save_pretrained"
        )
    if read_model_settings(folder / ADAPTER_SETTINGS).get("layer_replication"):
        # Copies of a layer share its weights, so that merging would change all of them at once.
        raise UserError(
            f"the adapter {folder} repeats layers of {base} (layer_replication) and cannot be merged: train it without"
        )


@dataclass(frozen=True)
class LoadedNetwork:
    """A network with the weights of a folder or the hub.

    Args:
        notes: on its weights, for the report.
        new_weights: names of randomly initialized weights; only those of a head and its pooler may be.
    """

    network: Network
    notes: tuple[str, ...]
    new_weights: frozenset[str] = frozenset()


def _load_adapted(folder: Path, base: str, outputs: int | None, head: NetworkHead, kind: torch.dtype) -> LoadedNetwork:
    """The network of an adapter merged into its model."""
    _check_adapter(folder, base)
    loaded = _load_weights(base, outputs, head, kind)
    try:
        with _silence_transformers(), warnings.catch_warnings(), safe_open(folder / ADAPTER_WEIGHTS, "pt") as weights:
            warnings.simplefilter("ignore")  # missing weights are an error here
            names = tuple(weights.keys())
            peft = import_module("peft")
            adapted = peft.PeftModel.from_pretrained(loaded.network, str(folder))
            stored = peft.load_peft_weights(str(folder), device="cpu")
            report = peft.set_peft_model_state_dict(adapted, stored, "default")
            saved = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
            merged: Network = adapted.merge_and_unload()
    except Exception as error:  # an adapter for another model fails in many ways
        raise UserError(
            f"the adapter {folder} could not be merged into {base} ({first_line(error)}): check base_model_name_or_path"
        ) from error
    missing, foreign = sorted(set(saved) - set(stored)), sorted(report.unexpected_keys)
    # Names may differ where the library renames them on loading, and then nothing of the adapter is missing in it.
    if missing and any(".default" in name for name in report.missing_keys):
        raise UserError(
            f"the adapter {folder} lacks {len(missing)} weights that its {ADAPTER_SETTINGS} describes, "
            f"{_list_names(missing)}: save it again with save_pretrained"
        )
    if foreign:
        raise UserError(
            f"the adapter {folder} has {len(foreign)} weights without a place in {base}, {_list_names(foreign)}: check "
            "base_model_name_or_path"
        )
    left = frozenset(name for name in loaded.new_weights if not any(stored.endswith(f".{name}") for stored in names))
    merge_note = f"adapter {shown_path(folder)} merged into {shown_path(base)}"
    if left:
        return LoadedNetwork(merged, (*loaded.notes, merge_note), left)
    return LoadedNetwork(merged, (merge_note, f"all weights are those of {shown_path(base)}, head included"))


def load_network(
    source: str, outputs: int | None, head: NetworkHead, precision: Precision = "float32"
) -> LoadedNetwork:
    """The network in a folder or on the hub; an adapter is merged.

    Args:
        outputs: number of classes; None for a language model.
        precision: of weights and states.
    """
    kind = torch_dtype(check_precision(precision))
    folder = user_path(source)
    if (base := read_adapter_base(folder)) is not None:
        return _load_adapted(folder, base, outputs, head, kind)
    return _load_weights(source, outputs, head, kind)


def _load_weights(source: str, outputs: int | None, head: NetworkHead, kind: torch.dtype) -> LoadedNetwork:
    config = check_model_source(source, head)
    folder = user_path(source)
    try:
        with _silence_transformers():
            if outputs is not None and config.num_labels != outputs:
                config.num_labels = outputs
            loaded: object = network_class(config, source, head).from_pretrained(
                str(folder) if folder.is_dir() else source,
                config=config,
                dtype=kind,
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
    unused = sorted(cast("set[str]", report["unexpected_keys"]))
    if unused:
        _check_unused(source, network, unused, has_new_head=bool(new))
    where = shown_path(source)
    if new:
        note = f"{where} has no head of this size; randomly initialised: {', '.join(sorted(new))}"
        return LoadedNetwork(network, (note,), frozenset(new))
    notes = [f"all weights are those of {where}, head included"]
    if unused:
        notes.append(f"weights of {where} that {type(network).__name__} does not use: {_list_names(unused)}")
    return LoadedNetwork(network, tuple(notes))


MAX_LISTED_WEIGHTS = 3


def _list_names(names: Sequence[str]) -> str:
    """The first names of weights, and how many more there are."""
    more = len(names) - MAX_LISTED_WEIGHTS
    return ", ".join(names[:MAX_LISTED_WEIGHTS]) + (f" and {more} more" if more > 0 else "")


def _check_unused(source: str, network: Network, unused: Sequence[str], *, has_new_head: bool) -> None:
    """Raise a `UserError` for weights of a checkpoint that no network with its configuration has.

    Heads for other tasks, poolers and other towers belong to other networks with the same configuration. Under a new
    head, only what stands inside the trunk counts: the old head may be of any kind.
    """
    prefix, known = network.base_model_prefix + ".", _known_weights(source, network.config)
    inner = {name for name, _ in network.base_model.named_children()} | {network.base_model_prefix}
    foreign = [
        name
        for name in unused
        if not known & {name, prefix + name} and (not has_new_head or name.split(".")[0] in inner)
    ]
    if foreign:
        raise UserError(
            f"{source} has {len(foreign)} weights that {type(network).__name__} does not, {_list_names(foreign)}: its "
            "config.json and its weights do not belong together"
        )


def _known_weights(source: str, config: NetworkConfig) -> set[str]:
    """The names of the weights of all networks that transformers builds from the configuration of a model."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    folder, names = user_path(source), set[str]()
    whole = AutoConfig.from_pretrained(str(folder) if folder.is_dir() else source, trust_remote_code=False)
    mappings = [mapping for name, mapping in vars(modeling_auto).items() if name.endswith("_MAPPING")]
    for settings in (config, whole):  # the part of a larger model that is loaded, and all of it
        kinds = [mapping[type(settings)] for mapping in mappings if type(settings) in mapping]
        for kind in {
            network_class for entry in kinds for network_class in (entry if isinstance(entry, tuple) else (entry,))
        }:
            # Some kinds of network need settings or libraries that the loaded one does not.
            with suppress(Exception), _silence_transformers(), torch.device("meta"):
                names.update(kind(copy.deepcopy(settings)).state_dict())
    return names
