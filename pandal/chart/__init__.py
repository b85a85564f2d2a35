"""The chart's values: their model, and the schema, defaults and page that are made of it."""
