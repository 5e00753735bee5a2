"""`spotlight list` with folders that are no whole run among them."""

import json

from typer.testing import CliRunner

from spotlight.surface.cli.main import app


def test_folder_without_a_journal_is_listed_as_unreadable_and_hides_no_other(tmp_path):
    for name in ("broken", "cut-short"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"iterations": 3}')
    shown = CliRunner().invoke(app, ["list", str(tmp_path), "--json"])
    assert shown.exit_code == 0
    rows = json.loads(shown.stdout)
    assert [(row["run"], row["state"]) for row in rows] == [("broken", "unreadable"), ("cut-short", "unreadable")]
    assert all("journal" in row["reason"] for row in rows)
    assert "unreadable" in CliRunner().invoke(app, ["list", str(tmp_path)]).stdout
