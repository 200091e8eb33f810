"""Explanations that teach: how a teacher turns an example into a distribution e_T over its units.

Nothing (`Unexplained`), the scores of any attribution method (`Static`), heads mixed in a fixed way (`Mixed`) or as a
ridge regression on leave-one-out effects says (`Ridged`, the cheap rival), or a mix that is itself trained (`Learned`,
SMaT). All are softmax(sum_h lambda_h map_h / temperature) over a support: the words, or all real units as in the paper.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.learned import ridge_mix
from heedful.core import mixing
from heedful.core.mixing import Normaliser
from heedful.core.types import Batch, Method, UserError
from heedful.recipes.banks import Bank, HeadBank, LayerBank, MethodBank
from heedful.recipes.hypergradient import Way, check_way
from heedful.recipes.teaching import Taught


@dataclass(frozen=True)
class Teaching:
    """e_T of any batch that the teacher was asked about.

    Args:
        phi: `[map]`, before normalising; with `tempered` a last entry more, the logarithm of a second temperature.
        specials: whether special symbols may be pointed at.
    """

    taught: Taught
    phi: Tensor
    normaliser: Normaliser = "sparsemax"
    temperature: float = 1.0
    specials: bool = False
    tempered: bool = False

    def support(self, batch: Batch) -> Tensor:
        """The units that may be pointed at `[batch unit]`."""
        return batch.mask if self.specials else batch.scored

    def at(self, phi: Tensor, batch: Batch) -> Tensor:
        """e_T `[batch unit]` as phi would have it, differentiable in phi."""
        phi = phi.to(batch.mask.device)
        weights, extra = (phi[:-1], phi[-1].exp()) if self.tempered else (phi, 1.0)
        logits = mixing.mixed(self.taught.maps(batch), weights, self.normaliser) / (self.temperature * extra)
        return mixing.distribution(logits, self.support(batch))

    def __call__(self, batch: Batch) -> Tensor:
        """e_T `[batch unit]`."""
        return self.at(self.phi, batch)

    def coefficients(self, phi: Tensor) -> Tensor:
        """The weight of each map."""
        return mixing.coefficients(phi[:-1] if self.tempered else phi, self.normaliser)


class Explanation(ABC):
    """A frozen way to explain; `beta` is how heavy the paper lets it weigh beside the simulation."""

    beta: ClassVar[float]

    @property
    @abstractmethod
    def banks(self) -> tuple[Bank, ...]:
        """The maps of the teacher that it is made of; none where nothing is explained."""

    @abstractmethod
    def teaching(self, taught: tuple[Taught, ...]) -> Teaching | None:
        """e_T from the maps of its banks, in their order; None where nothing is explained."""

    @property
    @abstractmethod
    def called(self) -> str:
        """A few words for tables."""

    @property
    def last(self) -> bool:
        """Whether it reads the last layer only, as the student's own explainer then does too."""
        return False


@dataclass(frozen=True)
class Unexplained(Explanation):
    """The teacher's answers alone."""

    beta: ClassVar[float] = 0.0

    @property
    def banks(self) -> tuple[Bank, ...]:
        return ()

    def teaching(self, taught: tuple[Taught, ...]) -> None:
        """Nothing."""

    @property
    def called(self) -> str:
        return "none"


@dataclass(frozen=True)
class Static(Explanation):
    """softmax(scores / temperature) of an attribution method, for the output that the teacher predicts.

    The paper takes temperature .1 for gradient x input, .5 for integrated gradients and none for the gradient's norm.
    A saved `HeadMix(output="logits")` teaches in this way too.
    """

    method: Method
    temperature: float = 1.0
    beta: ClassVar[float] = 0.2

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)

    @property
    def banks(self) -> tuple[Bank, ...]:
        return (MethodBank(self.method),)

    def teaching(self, taught: tuple[Taught, ...]) -> Teaching:
        """The method's scores as they are."""
        return Teaching(taught[0], torch.ones(1), "none", self.temperature)

    @property
    def called(self) -> str:
        return type(self.method).__name__


@dataclass(frozen=True)
class Mixed(Explanation):
    """Heads mixed in a fixed way: static attention.

    Args:
        phi: before normalising, layer by layer; None is the plain mean.
        specials: special symbols may be pointed at too, as in the paper.
    """

    bank: HeadBank = HeadBank()
    phi: tuple[float, ...] | None = None
    normaliser: Normaliser = "sparsemax"
    temperature: float = 1.0
    specials: bool = False
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        mixing.check_normaliser(self.normaliser)

    @property
    def banks(self) -> tuple[Bank, ...]:
        return (self.bank,)

    def teaching(self, taught: tuple[Taught, ...]) -> Teaching:
        """The mix."""
        phi = _start(self.phi, taught[0].count)
        return Teaching(taught[0], phi, self.normaliser, self.temperature, self.specials)

    @property
    def called(self) -> str:
        return self.bank.called if self.phi is None else f"{self.bank.called}, mixed"

    @property
    def last(self) -> bool:
        return self.bank.layer == -1


@dataclass(frozen=True)
class Ridged(Explanation):
    """Heads mixed so that they foretell leave-one-out effects best, by ridge regression on the student's examples.

    Args:
        ridge: how strongly large coefficients are punished.
        temperature: None finds the one that makes the mix as peaked as static attention on these examples. Effects
            have a scale of their own, mostly a small one: at temperature 1 the mix would be nearly even and teach
            nothing, whatever it says.
        effects: the effects; the signed loss of the answer's logit tells words for it from words against it.
    """

    ridge: float = 1.0
    temperature: float | None = None
    effects: LeaveOneOut = LeaveOneOut("logit")
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        if self.temperature is not None:
            _check_temperature(self.temperature)
        _check_number("ridge", self.ridge)

    @property
    def banks(self) -> tuple[Bank, ...]:
        return (HeadBank(), MethodBank(self.effects))

    def teaching(self, taught: tuple[Taught, ...]) -> Teaching:
        """The mix of the closed form; it needs no student at all."""
        maps, scored, _ = taught[0].every()
        effects = taught[1].every()[0].squeeze(1)
        phi = ridge_mix(maps, effects, scored, self.ridge)
        if self.temperature is not None:
            return Teaching(taught[0], phi, "none", self.temperature)
        even = mixing.mixed(maps.double(), mixing.uniform(len(phi)), "none")
        own = mixing.mixed(maps.double(), phi, "none")
        return Teaching(taught[0], phi, "none", mixing.as_peaked(own, scored, mixing.peak(even, scored)))

    @property
    def called(self) -> str:
        return "attention, ridge on leave-one-out"


@dataclass(frozen=True)
class Learned(Explanation):
    """A mix that is trained so that students learn from it (SMaT, Fernandes et al. 2022); see `Scaffolded`.

    Args:
        start: phi before training; None is the plain mean.
        rate: of AdamW, which takes one step after each of the student's.
        clip: largest norm of the hypergradient; None leaves it.
        batch: held-out examples of a step; None takes as many as the student's batches have.
        pilot: learning rate of the pilot step; None takes that of the student's own step, as the paper.
        way: how the hypergradient is computed.
        specials: special symbols may be pointed at too, as in the paper.
        tempered: a temperature is learned beside the mix.
    """

    bank: Bank = HeadBank()
    normaliser: Normaliser = "sparsemax"
    start: tuple[float, ...] | None = None
    rate: float = 5e-4
    clip: float | None = 5.0
    batch: int | None = None
    pilot: float | None = None
    way: Way = "jvp"
    temperature: float = 1.0
    specials: bool = False
    tempered: bool = False
    beta: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        mixing.check_normaliser(self.normaliser)
        check_way(self.way)
        _check_number("rate", self.rate)
        for name, value in (("clip", self.clip), ("pilot", self.pilot)):
            if value is not None:
                _check_number(name, value, above=True)
        if self.batch is not None and self.batch < 1:
            raise UserError(f"batch must be 1 or more, not {self.batch}; None takes as many as the student's")
        if self.specials and not self.bank.specials:
            raise UserError(f"{self.bank.called} says nothing of special symbols: leave specials=True out")
        if isinstance(self.bank, LayerBank) and self.bank.mix.specials != self.specials:
            raise UserError(
                "LayerMix(specials=True) also replaces special symbols in the reference: say specials=True here too, "
                "or at neither place"
            )

    @property
    def banks(self) -> tuple[Bank, ...]:
        return (self.bank,)

    def teaching(self, taught: tuple[Taught, ...]) -> Teaching:
        """The mix before training."""
        phi = _start(self.start, taught[0].count)
        found = Teaching(taught[0], phi, self.normaliser, self.temperature, self.specials)
        # The logarithm of temperature 1: the mix starts as without one.
        return replace(found, phi=torch.cat((phi, torch.zeros(1))), tempered=True) if self.tempered else found

    @property
    def called(self) -> str:
        return "SMaT" if self.bank == HeadBank() else f"SMaT of {self.bank.called}"

    @property
    def last(self) -> bool:
        return isinstance(self.bank, HeadBank) and self.bank.layer == -1


def _start(phi: tuple[float, ...] | None, count: int) -> Tensor:
    if phi is None:
        return mixing.uniform(count)
    if len(phi) != count:
        raise UserError(f"phi has {len(phi)} entries, but the teacher has {count} maps to mix")
    return torch.tensor(phi)


def _check_number(name: str, value: float, *, above: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 if above else value >= 0)):
        raise UserError(f"{name} must be a number {'above' if above else 'from'} 0, not {value}")


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise UserError(f"a temperature must be above 0, not {temperature}")
