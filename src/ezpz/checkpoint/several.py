"""Several models, optimizers and schedules of one run, each under the user's word for it, as one of each.

    Checkpoints(folder, model={"generator": g, "critic": c}, optimizer={"generator": og, "critic": oc})

Weights are called ``generator.<name>``. The optimizers are saved as one that has all of their groups, in the order of
their words, so that what is true of one optimizer's state (`ezpz.checkpoint.optimizers`) is true of several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Models", "Optimizers", "Schedules", "as_one", "holds", "kind_of", "models_in"]


class Models(nn.ModuleDict):  # type: ignore[misc]  # torch is Any to the type check
    """Models by their words."""


class Optimizers:
    """Optimizers by their words; no two may hold the same weights.

    Attributes:
        by_word: Each of them, in the order of the words.
    """

    def __init__(self, by_word: Mapping[str, Optimizer]) -> None:
        self.by_word = dict(sorted(by_word.items()))
        holders: dict[int, str] = {}
        for word, each in self.by_word.items():
            for parameter in (parameter for group in each.param_groups for parameter in group["params"]):
                other = holders.setdefault(id(parameter), word)
                if other != word:
                    raise UsageError(
                        f"the optimizers {other!r} and {word!r} hold the same weights (from Checkpoints); expected "
                        "each weight in one of them. Give one optimizer several groups in place of two."
                    )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [group for each in self.by_word.values() for group in each.param_groups]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients of all."""
        for each in self.by_word.values():
            each.zero_grad(set_to_none=set_to_none)


class Schedules:
    """Schedules by their words.

    Attributes:
        by_word: Each of them, in the order of the words.
    """

    def __init__(self, by_word: Mapping[str, Any]) -> None:
        self.by_word = dict(sorted(by_word.items()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each by its word."""
        return {word: each.state_dict() for word, each in self.by_word.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let each take up its state."""
        for word, each in self.by_word.items():
            each.load_state_dict(state_dict[word])


def as_one(what: str, given: Any) -> Any:
    """Return one object for several that were given by their words; what is no mapping of them as it is.

    Args:
        what: ``model``, ``optimizer`` or ``schedule``.
        given: Of `ezpz.checkpoint.Checkpoints`.

    Raises:
        UsageError: There are none, a word cannot be a name, or optimizers share weights.
    """
    if not isinstance(given, Mapping):
        return given
    odd = next((word for word in given if not isinstance(word, str) or not word.isidentifier()), None)
    if odd is not None or not given:
        shown = "no one at all" if odd is None else f"the word {odd!r}"
        raise UsageError(
            f"{shown} for {what}= (from Checkpoints); expected one object, or several by words of letters, digits and "
            f'"_". Type {what}={{"generator": …, "critic": …}}.'
        )
    kinds = {"model": Models, "optimizer": Optimizers, "schedule": Schedules}
    try:
        return kinds[what](given)
    except KeyError as error:  # of torch: the name of one of its own methods
        raise UsageError(f"{error.args[0]} (from {what}= of Checkpoints); expected another word.") from None


def models_in(model: nn.Module) -> list[nn.Module]:
    """Return the models that one stands for."""
    return list(model.values()) if isinstance(model, Models) else [model]


def holds(own: Any, given: Any) -> bool:
    """Tell whether an optimizer or schedule is what is saved, or one of it."""
    return own is given or (isinstance(own, (Optimizers, Schedules)) and given in own.by_word.values())


def kind_of(thing: Any) -> str:
    """Return the name of a class; of several objects each with its word."""
    if isinstance(thing, (Optimizers, Schedules)):
        return ", ".join(f"{word}: {kind_of(each)}" for word, each in thing.by_word.items())
    return type(thing).__name__
