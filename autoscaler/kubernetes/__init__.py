"""Kubernetes behind the autoscaler's ports: the ReplicaPool resource, the cluster, the lease."""
