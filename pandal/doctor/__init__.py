"""``pandal doctor``: what is set up so that it will hurt, and what to do about it."""
