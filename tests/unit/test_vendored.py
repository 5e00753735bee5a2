"""Vendored files are those whose digests and licences are recorded."""

import hashlib
import re

from spotlight.surface.dashboard.dashboard_app import OWN_STATIC

VENDOR = OWN_STATIC / "vendor"


def test_vendored_files_have_their_recorded_digests_and_no_other_is_there():
    rows = re.findall(r"^\| `([\w.]+)` \| .*? \| MIT \| ([0-9a-f]{64}) \|$", (VENDOR / "README.md").read_text(), re.M)
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["README.md"]
    assert found == dict(rows)
    assert "MIT License" in (VENDOR / "uPlot.LICENSE").read_text()


def test_no_script_or_style_names_another_host():
    own = [path for path in OWN_STATIC.rglob("*") if path.suffix in (".js", ".css")]
    assert len(own) > 8
    addresses = [
        (path.name, found)
        for path in own
        for found in re.findall(r"https?://[\w.]+|\bimport\(|\beval\(|url\((?!#)", path.read_text())
    ]
    assert addresses == [("uPlot.iife.min.js", "https://github.com")], "a comment on its first line"
