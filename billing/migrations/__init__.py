"""Alembic's steps from one shape of the ledger to the next.  Forwards only."""
