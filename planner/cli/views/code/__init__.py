"""What is seen in a model, and what was verified, as a person reads it."""
