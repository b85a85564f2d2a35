"""Who is closed is who drains: over a watch that is late, and over words that were."""

import copy

import pytest

from autoscaler.kubernetes.cluster import Home, KubernetesCluster
from autoscaler.kubernetes.notebook import Notebook
from autoscaler.kubernetes.resource import pool_spec
from autoscaler.pool import Phase
from tests.autoscaler.fake_kubernetes import BORN, NAMESPACE, POOL_PATH, FakeKubernetes
from tests.autoscaler.test_kubernetes_crashes import SPEC, Term


@pytest.fixture
def kubernetes() -> FakeKubernetes:
    """Two pods, both ready."""
    kubernetes = FakeKubernetes(SPEC, 2)
    for _ in range(3):
        kubernetes.turn(0)
    return kubernetes


def cluster_over(kubernetes: FakeKubernetes) -> KubernetesCluster:
    term = Term("a/1")
    home = Home(
        kubernetes, NAMESPACE, term, kubernetes, kubernetes, lambda: [kubernetes.pool], lambda: 0.0
    )
    return KubernetesCluster(home, pool_spec("chat", SPEC), Notebook(kubernetes, POOL_PATH, term))


async def test_a_drain_that_was_undone_is_not_begun_again_by_a_late_watch(
    kubernetes: FakeKubernetes,
) -> None:
    cluster = cluster_over(kubernetes)
    await cluster.observe()
    await cluster.cordon("p000", at_s=100.0)
    await cluster.observe()
    kubernetes.stale_pods = copy.deepcopy(kubernetes.pods)
    await cluster.uncordon("p000")
    (variant,) = (await cluster.observe()).variants
    assert variant.count(Phase.READY) == 2, "what we wrote is known without the watch"
    assert kubernetes.cordoned == set()


async def test_what_others_write_after_us_is_believed(kubernetes: FakeKubernetes) -> None:
    cluster = cluster_over(kubernetes)
    await cluster.observe()
    await cluster.cordon("p000", at_s=100.0)
    kubernetes.pods["p000"]["metadata"].update(annotations={}, resourceVersion="10")
    (variant,) = (await cluster.observe()).variants
    assert variant.count(Phase.READY) == 2


async def test_one_that_was_closed_by_a_late_word_is_opened(kubernetes: FakeKubernetes) -> None:
    kubernetes.cordoned.add("p001")
    later = "2027-01-15T09:00:00Z"
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": later}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BORN}
    kubernetes.pods["p001"]["status"]["conditions"] = [placed, unready]
    cluster = cluster_over(kubernetes)
    await cluster.observe()
    assert kubernetes.cordoned == set()
    assert not any(word.endswith("p000") for word in kubernetes.writes)
