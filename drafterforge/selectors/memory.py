"""State with a row for every drafter, which can be reset, resized, saved as JSON and restored bit for bit."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from drafterforge.errors import ConfigError


class Memory:
    """The state of a selector or a part of it."""

    num_drafters: int

    def blank_rows(self) -> dict[str, Any]:
        """Attributes that are arrays [N, ...], each with the row of a new drafter."""
        return {}

    def blank(self) -> dict[str, Any]:
        """Other attributes, each with its initial value, which JSON can hold."""
        return {}

    def reset(self) -> None:
        """Forget everything."""
        for name, row in self.blank_rows().items():
            setattr(self, name, np.array([row] * self.num_drafters, dtype=np.float64))
        for name, value in self.blank().items():
            setattr(self, name, value)

    def add_drafter(self) -> None:
        """Add a drafter with blank rows."""
        self.num_drafters += 1
        for name, row in self.blank_rows().items():
            setattr(self, name, np.concatenate((getattr(self, name), np.array([row], dtype=np.float64))))

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`; the indices of later ones decrease by one."""
        if not 0 <= index < self.num_drafters:
            raise ConfigError(f"no drafter {index} in a pool of {self.num_drafters}; the first is 0")
        if self.num_drafters == 1:
            raise ConfigError("the last drafter of a pool cannot be removed")
        self.num_drafters -= 1
        for name in self.blank_rows():
            setattr(self, name, np.delete(getattr(self, name), index, axis=0))

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON; NaN becomes null."""
        rows = {name: _nulls(getattr(self, name)) for name in self.blank_rows()}
        return {
            "num_drafters": self.num_drafters,
            "rows": rows,
            "values": deepcopy({name: getattr(self, name) for name in self.blank()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state["num_drafters"] != self.num_drafters:
            raise ConfigError(
                f"this state is of a pool of {state['num_drafters']} drafters, but the selector has {self.num_drafters}"
            )
        for name in self.blank_rows():
            setattr(self, name, np.array(state["rows"][name], dtype=np.float64))
        for name in self.blank():
            setattr(self, name, deepcopy(state["values"][name]))


def _nulls(rows: np.ndarray) -> list[Any]:
    return np.where(np.isnan(rows), None, rows).tolist() if np.isnan(rows).any() else rows.tolist()
