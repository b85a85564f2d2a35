"""The model server: scheduler, paged KV cache, model, streaming."""
