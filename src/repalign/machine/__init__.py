"""What differs from machine to machine: devices, memory, and libraries that need help on some."""
