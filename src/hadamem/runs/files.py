"""What reading the files of a run can raise. How they are written is in `hadamem.files`."""


class CheckpointError(ValueError):
    """Saved tensors that are damaged or missing; the message says where and how."""
