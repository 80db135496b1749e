"""Verbs that tell what commands and files may hold."""
