"""The start of a worker up to its Hello, as a separate process that is timed from outside.

    python -m spotlight.compute.profiling.start MODEL DEVICE

Imports a worker's modules and builds its model. For Qwen-Image, whose weights are not available, it only initialises
the device.
"""

import sys


def main(model: str, device: str) -> None:
    import torch

    from spotlight.compute.models.families import usable_device
    from spotlight.compute.parallel import crew_adapter
    from spotlight.compute.profiling.subject import QWEN_IMAGE, tiny_subject
    from spotlight.compute.rollout import engine
    from spotlight.compute.train import role

    _ = (crew_adapter, engine, role)
    if model == QWEN_IMAGE:
        from spotlight.compute.models import qwen_image

        _ = (*_, qwen_image)
        torch.zeros(1, device=usable_device(device))
    else:
        tiny_subject(model, device)


if __name__ == "__main__":
    main(*sys.argv[1:])
