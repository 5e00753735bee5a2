"""Every command, option, recipe and setting that the documents show exists."""

import re

import pytest
from command_line import spotlight
from document_commands import ROOT, commands_in, problems_with, recipes, unknown_settings_in
from shown_commands import DOCUMENTS


def shown(document: str) -> list[str]:
    return commands_in((ROOT / document).read_text())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_that_a_document_shows_exists_with_its_options(document):
    wrong = [f"{document}: `{command}`: {problem}" for command in shown(document) for problem in problems_with(command)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_that_a_document_names_exists(document):
    assert unknown_settings_in((ROOT / document).read_text()) == set()


def test_every_verb_that_a_document_shows_has_help():
    verbs = {command.split()[1] for document in DOCUMENTS for command in shown(document) if command[:2] == "sp"}
    assert {"train", "resume", "status", "list", "drain", "drill", "audit", "report", "plan", "sim"} <= verbs
    assert [verb for verb in sorted(verbs) if spotlight(verb, "--help").code != 0] == []


def test_options_beside_a_benchmark_in_their_table_are_its_own():
    rows = re.findall(r"^\| `(\w+)` \|(.*)$", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)
    aside = {name: re.findall(r"`(--[^`]+)`", rest) for name, rest in rows}
    assert any(aside.values())
    wrong = {name: problems_with(f"python -m benchmarks.{name} {' '.join(flags)}") for name, flags in aside.items()}
    assert {name: problems for name, problems in wrong.items() if problems} == {}


def test_the_recipes_that_the_configuration_page_lists_are_those_shipped():
    page = (ROOT / "docs/configuration.md").read_text()
    table = page.partition("## Recipes")[2].partition("##")[0]
    assert set(re.findall(r"`([\w-]+)`", table)) == recipes()


def test_the_readme_names_the_two_commands():
    """So that the search above cannot pass by finding nothing."""
    assert {"make demo", "make test", "spotlight resume RUN"} <= set(shown("README.md"))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("spotlight trane words-nft", "spotlight has no command 'trane'"),
        ("spotlight status RUN --jsn", "'status' has no option --jsn"),
        ("spotlight train word-nft", "there is no recipe 'word-nft'"),
        ("spotlight train words-nft --cluster.spots 3", "'train' has no option --cluster.spots"),
        ("spotlight train words-nft --set cluster.spots=3", "there is no setting 'cluster.spots'"),
        ("spotlight sim words-nft --profile h100-qwen", "the package has no 'h100-qwen' for --profile"),
        ("make tests", "the Makefile has no target tests"),
        ("make storm SEED=3", "the Makefile has no variable SEED"),
        ("python -m benchmarks.pipelines", "there is no benchmark 'pipelines'"),
        ("python -m benchmarks.pipeline --fast", "pipeline has no option --fast"),
        ("sbatch launch/slurm/spots.sbatch", "there is no file launch/slurm/spots.sbatch"),
        ("docker build -f launch/docker/Dockerfile --target gpu .", "the Dockerfile has no target gpu"),
        ("pip install 'spotlight-rl[tensorbord]'", "the package has no extra tensorbord"),
    ],
)
def test_a_command_that_does_not_exist_is_found(command, problem):
    assert problems_with(command) == [problem]


def test_a_setting_that_does_not_exist_is_found():
    assert unknown_settings_in("`cluster.rows` and `cluster.row: 3`, in `config.py`") == {"cluster.row"}
