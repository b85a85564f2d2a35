"""Answers to requests that were made before, word for word."""
