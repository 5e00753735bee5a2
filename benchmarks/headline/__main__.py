import sys

from benchmarks.headline.run import main
from spotlight.core.errors import SpotlightError

try:
    main()
except SpotlightError as error:
    print(f"headline: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
