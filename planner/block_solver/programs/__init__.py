"""Integer programs: the block problem as one, and others as plain numbers, solved in a child process."""
