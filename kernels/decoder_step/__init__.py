"""A whole step of a Llama decoder: one call into compiled code for a flat batch of tokens.

Prefill chunks and decodes stand together; what comes back are logits of the rows to sample.
"""
