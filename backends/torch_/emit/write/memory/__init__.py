"""What is computed again, and what waits in the memory of the host. Sections of a training script, as lines of text."""
