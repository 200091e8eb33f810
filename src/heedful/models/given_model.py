"""A model in memory and its tokenizer, and the digest that identifies them."""

from __future__ import annotations

import datetime
import hashlib
import json
import secrets
import warnings

import torch

from heedful.devices import device_of
from heedful.models.label_words import LabelWords
from heedful.models.transformer import TransformerModel
from heedful.store.state_digest import class_digest, digest_state, is_library, module_state, tensor_bytes, without_noise
from heedful.types import Model, Tokenizer


class GivenModel:
    """A model in memory and its tokenizer; recipes of the same process find them by their digest.

    Args:
        version: a name that the user gave to what the model does. It stands for everything but weights, structure, code
            and tokenizer.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, version: str = "") -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.version = version
        self.recorded: dict[str, str] = {}
        """By each digest that a recipe has, that of the weights alone."""
        self._hashed: tuple[tuple[tuple[int, int], ...], str] | None = None
        self._session = secrets.token_hex(16)
        self._is_announced = False
        self.refresh()

    def refresh(self) -> None:
        """Look again at what decides outputs beside the weights: a user may have changed an attribute."""
        state: dict[str, object] = {**module_state(self.model)}
        if not is_library(type(self.tokenizer)):
            state["tokenizer"] = self.tokenizer
        if self.version:
            kinds = [type(module) for module in self.model.modules() if not is_library(type(module))]
            state = {"version": self.version, "code": [class_digest(kind) for kind in dict.fromkeys(kinds)]}
        self._state = digest_state(state) if state else None

    @property
    def digest(self) -> str:
        """SHA-256 of weights, structure and tokenizer, and of the code and attributes of classes of the user.

        Weights count as they are now, everything else as it was when it was last looked at. Where an attribute cannot
        be told and no version is named, no other object has this digest.
        """
        if self._state is None:
            return self.weights_digest
        session = self._session if self._state.unknown else ""
        return hashlib.sha256(f"{self.weights_digest} {self._state.digest} {session}".encode()).hexdigest()

    @property
    def weights_digest(self) -> str:
        """SHA-256 of weights, structure and tokenizer; computed anew when a weight has changed."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        state = tuple((id(tensor), tensor._version) for tensor in tensors)
        if self._hashed is None or self._hashed[0] != state:
            self._hashed = state, hash_model(self.model, self.tokenizer)
        return self._hashed[1]

    def is_changed(self, digest: str) -> bool:
        """Whether the weights are others than when a recipe got this digest."""
        return self.weights_digest != self.recorded.get(digest)

    @property
    def device(self) -> torch.device:
        """That of the weights; the CPU if there are none."""
        return device_of(self.model)

    def announce_unknown(self, name: str) -> None:
        """Warn once if results cannot be reused, because nobody can tell whether two such models are the same."""
        if self._state is not None and self._state.unknown and not self._is_announced:
            self._is_announced = True
            classes = ", ".join(self._state.unknown[:MAX_LISTED_CLASSES])
            warnings.warn(
                f"{name} holds objects that cannot be compared with those of another session ({classes}): its results "
                "are used as long as this object exists, and not again; to reuse them later, name what it does: "
                f'heedful.load(..., version="{datetime.datetime.now(datetime.UTC).date().isoformat()}")',
                stacklevel=4,
            )


MAX_LISTED_CLASSES = 3


def hash_model(model: Model, tokenizer: Tokenizer) -> str:
    """SHA-256 of the names and numbers of all weights and buffers, of the structure, and of the tokenizer."""
    structure = f"{type(model).__qualname__} {model.architecture_summary} {model.task} {model}"
    if isinstance(model, TransformerModel):
        # The number of heads and the like are in no weight.
        structure += json.dumps(without_noise(json.loads(model.network.config.to_json_string())), sort_keys=True)
        if isinstance(model.readout, LabelWords):
            structure += repr(model.readout)
    digest = hashlib.sha256(f"{structure}\n{tokenizer.definition()}\n".encode("utf-8", "surrogatepass"))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
