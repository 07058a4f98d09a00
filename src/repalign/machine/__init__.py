"""What differs from machine to machine: devices, seeds, and a torchvision that imports beside this torch."""
