"""Random state of ``torch.rsx``: a Philox seed and offset on the host, so that nothing here waits for the device."""

from collections.abc import Iterable
from typing import Any

import torch


def _generator() -> torch.Generator:
    return torch.ops.rsx.default_generator()


class _DefaultGenerators:
    """``torch.rsx.default_generators[0]``, as for CUDA."""

    def __getitem__(self, index: int) -> torch.Generator:
        if index not in (0, -1):
            raise IndexError(index)
        return _generator()

    def __len__(self) -> int:
        return 1


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seed the device's generator. Same seed, same numbers."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    manual_seed(seed)


def seed() -> None:
    """Seed the generator with a number that nobody knows."""
    _generator().seed()


def seed_all() -> None:
    """:func:`seed` for all devices."""
    seed()


def initial_seed() -> int:
    """The current seed."""
    return _generator().initial_seed()


def get_rng_state(device: Any = "rsx") -> torch.Tensor:
    """State of the generator: a CPU tensor uint8[16] (seed, offset)."""
    return _generator().get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "rsx") -> None:
    """Restore a state from :func:`get_rng_state`."""
    _generator().set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states of all devices."""
    for state in new_states:
        set_rng_state(state)
