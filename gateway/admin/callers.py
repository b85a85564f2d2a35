"""Who calls, and what they may do.  Apart from tenants and their keys."""

import enum
from dataclasses import dataclass

from gateway.errors import RoleMissing


class Role(enum.IntEnum):
    """Each may do what those before it may."""

    VIEWER = 1  # reads policies, history, keys' records
    OPERATOR = 2  # edits tenants and their keys
    OWNER = 3  # edits what holds for all: tiers, organisations, prices; goes back to old versions


ROLES = {role.name.lower(): role for role in Role}


@dataclass(frozen=True, slots=True)
class Caller:
    name: str  # for the audit log
    role: Role

    def require(self, role: Role) -> None:
        """Raises RoleMissing."""
        if self.role < role:
            raise RoleMissing(f"This needs the role {role.name.lower()}.")
