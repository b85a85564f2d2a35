"""Names that only the autoscaler and the API server must spell alike."""

from typing import Final

GROUP: Final = "pandal.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ReplicaPool"
PLURAL: Final = "replicapools"

DRAINING_SINCE: Final = f"{GROUP}/draining-since"  # seconds since the epoch
RELEASED_TO: Final = f"{GROUP}/released-to"  # the count to be written when this pod may go

# https://kubernetes.io/docs/reference/labels-annotations-taints/#pod-deletion-cost
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
