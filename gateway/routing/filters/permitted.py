"""Keep our own, and those of other owners that the tenant's policy names."""

from gateway.routing.endpoint import Endpoint, RoutingRequest


class Permitted:
    name = "permitted"

    def keep(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        return endpoint.keeps_prefixes or endpoint.name in request.providers
