"""The one place that emits LLVM vector code; every CPU kernel is built from it.

``levels`` names what a CPU can do, ``emitter`` writes instructions for a level, ``specialization``
carries compile-time constants in types, and ``function`` turns emitted code into something a
compiled Python function can call.
"""
