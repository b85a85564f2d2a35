"""Keep endpoints that take work and have not failed this request already."""

from gateway.routing.endpoint import Endpoint, RoutingRequest


class Ready:
    name = "ready"

    def keep(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        return endpoint.is_ready and endpoint.name not in request.tried
