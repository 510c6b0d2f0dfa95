"""What commands share: the program, options, output, values."""
