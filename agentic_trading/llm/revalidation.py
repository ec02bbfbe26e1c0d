"""Frozen models whose copies are built anew."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel
from typing_extensions import override

from agentic_trading.llm.lazy_property import lazy_property


class RevalidatedModel(BaseModel, frozen=True, ignored_types=(lazy_property,)):
    """A frozen model that is copied by building it again: validated, and with nothing cached carried over."""

    follows: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Fields that follow from others: unless it is given itself, each is made anew when one of those is replaced."""

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Build a new object with `update` applied; raises pydantic's `ValidationError` for a value that does not fit.

        Lists and objects of plain JSON are never shared with the original, `deep` or not.
        """
        given = dict(update or {})
        stale = self._stale(given)
        kept = {name: getattr(self, name) for name in type(self).model_fields if name not in stale}
        return type(self).model_validate({**kept, **(self.model_extra or {}), **given})

    def _stale(self, update: Mapping[str, Any]) -> set[str]:
        return {name for name, sources in self.follows.items() if sources & update.keys()}
