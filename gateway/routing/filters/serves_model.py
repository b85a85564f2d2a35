"""Keep endpoints that serve the model."""

from gateway.routing.endpoint import Endpoint, RoutingRequest


class ServesModel:
    name = "serves_model"

    def keep(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        return request.model in endpoint.models
