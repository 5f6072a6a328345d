"""What a run asks of its machine.

- files: files that are whole or absent, and files of JSON lines,
- hardware: names and peak speeds of devices, and copies to them,
- preemption: leaving on a signal, with a status that asks for a requeue,
- processes: the processes of a run on several devices,
- seeding: random numbers that depend on a seed and a purpose only.
"""
