"""The load generator behind ``pandal bench``: sends what real clients send, and tells the truth.

Latency counts from the moment a request was meant to be sent, so that a slow server cannot hide
behind a generator that waits for it.  Neither keys nor prompts nor answers reach a report.
"""
