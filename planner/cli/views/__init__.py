"""Answers as a person reads them: tables by rich, plain text where there is no terminal."""
