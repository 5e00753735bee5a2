"""GPUs as the CUDA driver reports them, without torch, whose import takes seconds.

The driver honours CUDA_VISIBLE_DEVICES, so its device numbers are those of torch.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

LIBRARY = "libcuda.so.1"
NAME_BYTES = 256


class DriverError(Exception):
    """A call of the driver failed; torch knows a better reason."""


def devices(runtime: str) -> list[dict[str, Any]]:
    """Name, model and memory in bytes of every GPU that a torch with this CUDA runtime can use; raises DriverError."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DriverError(str(error)) from error
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    if version.value // 1000 < int(runtime.partition(".")[0]):
        raise DriverError(f"the driver supports CUDA {version.value // 1000}, which is too old for {runtime}")
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    return [{"name": f"cuda:{number}"} | dict(_facts(driver, number)) for number in range(count.value)]


def _facts(driver: ctypes.CDLL, number: int) -> Iterator[tuple[str, Any]]:
    device, model = ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES)
    _call(driver, "cuDeviceGet", ctypes.byref(device), number)
    _call(driver, "cuDeviceGetName", model, NAME_BYTES, device)
    yield "model", model.value.decode(errors="replace")
    # The free memory is known in a context only.
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(driver, "cuCtxPushCurrent_v2", context)
    _call(driver, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    yield "free", free.value
    yield "total", total.value
    _call(driver, "cuCtxPopCurrent_v2", ctypes.byref(context))
    _call(driver, "cuDevicePrimaryCtxRelease_v2", device)


def _call(driver: ctypes.CDLL, name: str, *arguments: Any) -> None:
    try:
        status = getattr(driver, name)(*arguments)
    except AttributeError as error:
        raise DriverError(f"the driver has no {name}") from error
    if status != 0:
        raise DriverError(f"{name} failed with status {status}")
