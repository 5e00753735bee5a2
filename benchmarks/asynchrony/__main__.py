import sys

from benchmarks.asynchrony.run import main
from spotlight.core.errors import SpotlightError

try:
    main()
except SpotlightError as error:
    print(f"asynchrony: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
