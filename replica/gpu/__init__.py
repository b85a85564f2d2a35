"""Steps on a GPU: the model over Triton's kernels, decodes as graphs, tokens that stay there.

Everything but ``device.CudaDevice`` also runs on a CPU, under Triton's interpreter.
"""
