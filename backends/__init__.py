"""What each target can run, and the code that is written for it."""
