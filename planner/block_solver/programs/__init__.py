"""Integer programs: the block problem as one, any other as plain numbers, both solved in a child process."""
