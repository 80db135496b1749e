"""Pipelines: their stages, their schedule, meshes that differ. Sections of a training script, as lines of text."""
