"""Rounds, executors, checkpoints and the ledger."""
