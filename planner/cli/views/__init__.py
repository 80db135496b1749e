"""Answers as a person reads them; `tables` makes those on plans and profiles fit the terminal."""
