"""What is read of EndpointSlices, and the members that follow from them.

https://kubernetes.io/docs/reference/kubernetes-api/discovery/endpoint-slice-v1/
"""

from collections.abc import Iterable, Mapping

import msgspec

from gateway.discovery.membership import Members


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Spelled as Kubernetes spells it."""


class Metadata(_Struct, frozen=True, kw_only=True):
    name: str = ""
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Conditions(_Struct, frozen=True, kw_only=True):
    """``None`` counts as "yes" for ``ready``, as Kubernetes says, and as "no" otherwise."""

    ready: bool | None = None
    terminating: bool | None = None


class Target(_Struct, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""


class Endpoint(_Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...]
    conditions: Conditions = Conditions()
    target_ref: Target | None = None


class Port(_Struct, frozen=True, kw_only=True):
    name: str | None = None
    port: int | None = None


class Slice(_Struct, frozen=True, kw_only=True):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


class SliceList(_Struct, frozen=True, kw_only=True):
    metadata: Metadata
    items: tuple[Slice, ...] = ()


class Notice(_Struct, frozen=True, kw_only=True):
    type: str
    object: msgspec.Raw


class WithMetadata(_Struct, frozen=True, kw_only=True):
    metadata: Metadata = Metadata()


class Failure(_Struct, frozen=True, kw_only=True):
    code: int = 0
    reason: str = ""


def members_of(slices: Iterable[Slice], port_name: str) -> Members:
    """Pods by name: that of a stateful set's pod outlives it.

    Whoever terminates is no member, also where a slice says it would still serve; whoever is not
    ready yet is one, for the gateway asks it itself.
    """
    members: dict[str, str] = {}
    for found in slices:
        port = _port_of(found, port_name)
        if port is None or found.address_type != "IPv4":
            continue
        for endpoint in found.endpoints or ():
            if endpoint.conditions.terminating or not endpoint.addresses:
                continue
            address = endpoint.addresses[0]
            target = endpoint.target_ref
            is_pod = target is not None and target.kind == "Pod"
            name = target.name if target is not None and is_pod else f"{address}:{port}"
            members[name] = f"http://{address}:{port}"
    return members


def _port_of(found: Slice, name: str) -> int | None:
    """The one of that name, or the only one."""
    ports: Mapping[str | None, int | None] = {port.name: port.port for port in found.ports or ()}
    if name in ports:
        return ports[name]
    return next(iter(ports.values())) if len(ports) == 1 else None
