"""What keeps a replica's failure from becoming its client's."""
