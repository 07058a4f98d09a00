"""What differs from machine to machine: devices, seeds, memory, and libraries that need help on some."""
