"""Traces and metrics by OpenTelemetry's conventions for generative AI; off unless configured."""
