"""Where the policy document is kept, version by version: one protocol, a file or Valkey."""
