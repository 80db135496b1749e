"""What commands and files may hold, as a person reads it."""
