"""The HTTP surface: the OpenAI API, and what an operator asks a replica."""
