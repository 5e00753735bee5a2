"""Dead code, found by vulture in one scan that is read twice: python tests/dead_code.py.

First without the tests, for code that nothing but a test uses, then with them. Names that templates read count as used.
"""

import sys

from jinja2 import Environment, nodes
from vulture.config import make_config
from vulture.core import Vulture

from spotlight.surface.html.templating import TEMPLATES


def names_of_templates() -> set[str]:
    environment = Environment(extensions=["jinja2.ext.do"])
    names: set[str] = set()
    for template in sorted(TEMPLATES.rglob("*.*")):
        parsed = environment.parse(template.read_text(encoding="utf-8"))
        names |= {node.attr for node in parsed.find_all(nodes.Getattr)}
    return names


def main() -> int:
    config = make_config(["src", "benchmarks", "vulture_whitelist.py"])
    vulture = Vulture(ignore_names=config["ignore_names"], ignore_decorators=config["ignore_decorators"])
    vulture.scan("\n".join(sorted(names_of_templates())), filename=str(TEMPLATES))
    vulture.scavenge(config["paths"], exclude=config["exclude"])
    alone = vulture.report(min_confidence=config["min_confidence"])
    vulture.scavenge(["tests"], exclude=config["exclude"])
    return int(vulture.report(min_confidence=config["min_confidence"]) or alone)


if __name__ == "__main__":
    sys.exit(main())
