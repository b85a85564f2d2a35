"""Which replicas there are: told by settings, a file, DNS or Kubernetes."""
