"""The recognition network on a GPU, for programs of one process alone (`reward.processes: 0`).

A learning benchmark on one GPU spent most of its time reading words on the CPU, and onnxruntime's GPU build would add
300 MB. So this folder reads the ONNX file, runs its graph with torch and resizes pictures as Pillow does, all on the
device. Runs, evaluations and the preflight read with onnxruntime and load nothing from here.
"""
