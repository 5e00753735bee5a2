"""What a worker does until it says Hello, in a process of its own, to be timed from outside.

    python -m spotlight.compute.profiling.start MODEL DEVICE

Imports all that a worker computes with and builds its model; of Qwen-Image, whose weights are not here, it only wakes
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
