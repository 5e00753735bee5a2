"""diffusers, transformers and peft without their progress bars and warnings, for commands that print their own."""

import os
import warnings


def quiet_libraries() -> None:
    """Turn both off for the rest of this process, before other modules import diffusers; errors are still raised."""
    # Read at import.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    import diffusers
    import transformers

    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"(diffusers|transformers|peft|torch)\b.*")
