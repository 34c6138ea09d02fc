"""The kernels: one folder per operation.

`reference.py` is the definition in plain torch, `kernel.py` the Triton form, `cpu.py` a faster torch form
where one exists, `spec.py` the cost formula with the test and bench cases. The folder itself exports the
public operation, which picks the form by the device of its input. Nothing here imports triton until a Triton
form is asked for.
"""
