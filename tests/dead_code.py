"""Names that templates read, as Python, so that vulture counts them as used: python tests/template_names.py."""

import sys

from jinja2 import Environment, nodes

from spotlight.surface.html.templating import TEMPLATES

environment = Environment(extensions=["jinja2.ext.do"])
names: set[str] = set()
for template in sorted(TEMPLATES.rglob("*.*")):
    parsed = environment.parse(template.read_text(encoding="utf-8"))
    names |= {node.attr for node in parsed.find_all(nodes.Getattr)}
sys.stdout.write("\n".join([*sorted(names), ""]))
