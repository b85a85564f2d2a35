"""The whole of the chart's values.  Read this first."""

from typing import Any

from pydantic import Field

from pandal.chart.control_values import Autoscaler, Billing, Monitoring, NetworkPolicy, StreamTest
from pandal.chart.gateway_values import Admin, Gateway, Usage
from pandal.chart.pool_values import Pool, PoolDefaults
from pandal.chart.shared_values import Group, OptionalLabel, OptionalName, ServiceAccount


class Replica(Group):
    """Of all pools."""

    service_account: ServiceAccount = ServiceAccount()


class Values(Group):
    name_override: OptionalLabel = ""
    fullname_override: OptionalLabel = Field("", description="What every object's name begins with")
    image_registry: str = Field("", description="Before every repository, with its slash left out")
    image_pull_secrets: list[OptionalName] = Field([], description="Of every pod")
    common_labels: dict[str, str] = Field({}, description="Of every object, not of selectors")
    gateway: Gateway = Gateway()
    admin: Admin = Admin()
    usage: Usage = Usage()
    pools: list[Pool] = Field(
        [Pool(name="smollm2", model="SmolLM2-135M-Instruct")],
        description="One model on one kind of replica each; a list takes the place of this one",
    )
    pool_defaults: PoolDefaults = Field(PoolDefaults(), description="Of every pool")
    replica: Replica = Replica()
    autoscaler: Autoscaler = Autoscaler()
    billing: Billing = Billing()
    monitoring: Monitoring = Monitoring()
    network_policy: NetworkPolicy = NetworkPolicy()
    stream_test: StreamTest = StreamTest()
    extra_objects: list[Any] = Field(
        [], description="Objects, or text, of which templates are made and installed"
    )
    # Helm gives it to every chart, and merges a parent's into it.
    global_: dict[str, Any] = Field({}, alias="global", description="Read by nothing here")
