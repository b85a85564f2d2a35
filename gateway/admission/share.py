"""Whose tokens are counted, and by which weight."""

from dataclasses import dataclass

from contracts.admission import ServiceClass
from contracts.names import TenantId

_CLASS_WEIGHTS = {
    ServiceClass.INTERACTIVE: 4.0,
    ServiceClass.STANDARD: 1.0,
    ServiceClass.BATCH: 1.0,
}


@dataclass(frozen=True, slots=True)
class Share:
    """By which weight a tenant's tokens count."""

    tenant: TenantId
    service_class: ServiceClass
    weight: int

    @property
    def effective_weight(self) -> float:
        return self.weight * _CLASS_WEIGHTS[self.service_class]

    def weighted(self, num_tokens: float) -> float:
        return num_tokens / self.effective_weight
