"""The command line and the local fleet; the only importer of services."""
