"""Keep endpoints that take work."""

from gateway.routing.endpoint import Endpoint, RoutingRequest


class Ready:
    name = "ready"

    def keep(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        return endpoint.is_ready
