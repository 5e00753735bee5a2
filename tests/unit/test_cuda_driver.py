"""The quick probe of GPUs: what the driver replies, through a stub of its library; torch where the driver does not."""

import os
import shutil
import subprocess

import pytest
from fake_gpus import fake_gpus

from spotlight.pools.devices import Device, Devices, probe, query

STUB = """
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
static int setting(const char *name, int other) { char *found = getenv(name); return found ? atoi(found) : other; }
int cuInit(unsigned flags) { return setting("STUB_INIT", 0); }
int cuDriverGetVersion(int *version) { *version = setting("STUB_VERSION", 12040); return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int number) { *device = 40 + number; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Stub %d", device); return 0; }
static void *current = 0;
static int retained = 0;
int cuDevicePrimaryCtxRetain(void **context, int device) {
    retained++; *context = (void *)(0x700000000000 + device); return 0;
}
int cuCtxPushCurrent_v2(void *context) { current = context; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (!current || retained != 1) return 201;
    *free = 100000000000 + ((size_t)current & 0xff); *total = 150000000000; return 0;
}
int cuCtxPopCurrent_v2(void **context) { *context = current; current = 0; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { retained--; return 0; }
"""
COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def _library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "stub.c").write_text(STUB)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "stub.c"], check=True)
    return folder


@pytest.fixture
def _driver(_library, monkeypatch):
    """Processes find the stub before any other driver."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(_library), prepend=os.pathsep)


pytestmark = [pytest.mark.skipif(COMPILER is None, reason="no C compiler"), pytest.mark.usefixtures("_driver")]


def test_runs_learn_their_devices_from_the_driver():
    with fake_gpus(1, cuda="12.8"):
        found = probe("cuda")
    assert found == Devices(
        torch="2.99.0+fake",
        cuda="12.8",
        devices=(
            Device("cuda:0", "Stub 40", 100_000_000_040, 150_000_000_000),
            Device("cuda:1", "Stub 41", 100_000_000_041, 150_000_000_000),
        ),
    )


@pytest.mark.parametrize(("name", "value"), [("STUB_INIT", "100"), ("STUB_VERSION", "11080")])
def test_torch_replies_where_the_driver_fails_or_is_too_old(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with fake_gpus(1, cuda="12.8"):
        assert [each.model for each in probe("cuda").devices] == ["Fake"]


def test_doctor_asks_torch_which_knows_nccl_too():
    with fake_gpus(1, cuda="12.8"):
        assert [each.model for each in query().devices] == ["Fake"]
