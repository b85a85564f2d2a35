"""The OpenAI surface: shapes in, shapes out."""
