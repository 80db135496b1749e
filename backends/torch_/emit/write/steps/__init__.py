"""Sections of a script, as lines of text: a step, its batch, losses that add up, gradients, clipping."""
