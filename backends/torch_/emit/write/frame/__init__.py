"""What every script has. Sections of a training script, as lines of text."""
