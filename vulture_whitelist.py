"""Names that vulture reports as unused and that are used all the same, each with the reason.

A name that only tests use is dead unless a line here says what it is kept for.
"""

# Read by pytest, hypothesis and the standard library.
pytestmark  # pytest
pytest_collection_finish  # pytest
teardown  # hypothesis, after each history of a state machine
TestLedger  # pytest collects the state machine under this name
TestAnyHistory  # pytest collects the state machine under this name
installed  # a fixture that tests name as an argument for its effect
do_POST  # http.server
log_message  # http.server
handle_error  # socketserver
should_exit  # uvicorn
daemon_threads  # socketserver
handle_startendtag  # html.parser
handle_endtag  # html.parser
handle_data  # html.parser
__getattr__  # Python, for attributes of the paced reward's module
__dir__  # Python, for the names of the package
Axes  # in a quoted annotation

# Read by libraries.
model_config  # pydantic
_devices  # gloo's options
_timeout  # gloo's and NCCL's options
blocking  # NCCL's options
set_timeout  # torch calls it on a store
has_extended_api  # torch calls it on a store
redirect_request  # urllib calls it on a redirect
num_tickets  # OpenSSL, of a TLS server
intra_op_num_threads  # onnxruntime's options
inter_op_num_threads  # onnxruntime's options
recompile_limit  # torch's compiler
__class__  # Python: a layer becomes one of a subclass, with the same parameters
momentum  # an attribute of ONNX files, passed by name

# Named by text: in the table of rewards, in recipes, for the nursery, by `python -m` and by tests of reward processes.
open_device  # run.py, called in spare processes
ocr  # compute/rewards/registry.py
ocr_exact  # compute/rewards/registry.py
ocr_graded  # compute/rewards/registry.py
ocr_judge  # compute/rewards/registry.py
geneval  # compute/rewards/registry.py
geneval_strict  # compute/rewards/registry.py
jpeg  # compute/rewards/registry.py
clip  # compute/rewards/registry.py
pickscore  # compute/rewards/registry.py
ocr_endpoint  # compute/rewards/registry.py
rubric_endpoint  # compute/rewards/registry.py
demo  # the command that writes assets/traces/demo.csv
bulk  # the command that writes assets/traces/bulk.csv
Mobile  # tests name it as a reward
Failing  # tests name it as a reward
Endless  # tests name it as a reward
Unhurried  # tests name it as a reward
permute_keys  # tests send it to a rank by name
footprint  # tests send it to a rank by name

TensorboardTracker  # surface/track/tracker_process.py
WandbTracker  # surface/track/tracker_process.py
TrackioTracker  # surface/track/tracker_process.py

# Members of enumerations that come from files and settings, or that the other members imply.
COLOR_ATTR  # a task in prompt files
DANCE_SDE  # rollout.sampler
LITERATURE  # provenance in profiles
DOWN  # the other order of resizing
SOUND  # drawn by hypothesis

# Fields that are written to or read from files.
interpolation  # profiles: the rule in words
at_s  # a row of the Python API
notes  # profiles: remarks for people
unnoticed  # status --json
spot_workers  # status --json
reserved_workers  # status --json
steps_redone  # status --json
groups_skipped  # status --json
spot_slots  # plan --json
dollars_per_hour  # plan --json
evaluations_empty  # status --json
samples_dropped  # status --json
samples_unscored  # status --json
previews_unscored  # status --json
SYNCHRONOUS  # benchmarks: a row of results
virtual_hours  # benchmarks: results
profile_digest  # benchmarks: results
trace_digest  # benchmarks: results
zero_variance_groups  # benchmarks: results
first_update  # benchmarks: results
last_update  # benchmarks: results
first_worker_s  # benchmarks: results
varied_prompts  # benchmarks: results
resident_gib  # benchmarks: results

# For users of the package, or for what comes next.
foreseen  # tests/user: only type checkers read it
node_notices  # the agent's preemption notices
TransformersDetector  # GenEval on photographs: the detector of a user's own reward
release_text_encoder  # real families: frees the encoders once all prompts are embedded
SD3Adapter  # compute/models/family_registry.py names it
FluxAdapter  # compute/models/family_registry.py names it
QwenImageAdapter  # compute/models/family_registry.py names it
flux  # the schedule of FLUX.1
sd3  # the schedule of SD3.5
training_layout  # compute/memory/choices.py: chosen by it when several ranks train

rolls_out  # a worker whose rank holds a share of the weights must not roll out

# What tests observe and nothing else shows.
wait_for_teardown  # process tests count sockets and threads after it
misses  # computations that a replay of a co-simulation must not repeat
slots_used  # slots that a fixed crew works with

# Kept for servers of a run beside the controller.
