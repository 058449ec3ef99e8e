"""The claims on which a design of cases depends, for all subjects that share them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.spec import Case, Feature, Implementation


@dataclass(frozen=True, kw_only=True)
class DesignClaims:
    """The claims of a subject, without its function: equal for subjects that claim the same.

    Attributes:
        features: as in `Implementation`.
        dtypes: as in `Implementation`.
        supports: as in `Implementation`.
        device: the device on which cases are drawn.
        compiles_each_shape: as in `Implementation`.
    """

    features: frozenset[Feature]
    dtypes: tuple[torch.dtype, ...]
    supports: Callable[[Case], str | None]
    device: str
    compiles_each_shape: bool = False

    @classmethod
    def of(cls, subject: Subject) -> "DesignClaims":
        """Return the claims of a subject."""
        claimed = subject.implementation
        return cls(
            features=claimed.features,
            dtypes=claimed.dtypes,
            supports=claimed.supports,
            device=subject.device,
            compiles_each_shape=claimed.compiles_each_shape,
        )

    def subject(self) -> Subject:
        """Return a subject with these claims, which cannot be called."""
        implementation = Implementation(
            name="claims",
            attention=_uncalled,
            features=self.features,
            dtypes=self.dtypes,
            devices=(torch.device(self.device).type,),
            supports=self.supports,
        )
        return Subject(implementation, device=self.device)


def _uncalled(*arguments: Any, **options: Any) -> NoReturn:
    raise NotImplementedError
