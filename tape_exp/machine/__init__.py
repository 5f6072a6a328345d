"""What a run asks of its machine: files, processes, signals, devices, random numbers."""
