import sys

from benchmarks.intervals.run import main
from spotlight.core.errors import SpotlightError

try:
    main()
except SpotlightError as error:
    print(f"intervals: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
