"""Who may spend how much, decided before any work is done."""
