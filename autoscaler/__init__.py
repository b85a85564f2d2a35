"""The Kubernetes control loop: observe, decide, act, drain."""
