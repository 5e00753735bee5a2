"""The recognition network on a GPU, only for programs of one process (`reward.processes: 0`).

A learning benchmark on one GPU spent most of its time reading words on the CPU, and onnxruntime's GPU build would add
300 MB. So this package parses the ONNX file, runs its graph with torch and resizes pictures as Pillow does, all on the
device. Runs, evaluations and the preflight use onnxruntime and load nothing from here.
"""
