"""Each sentence of SECURITY.md is shown by tests, or is a promise of people."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Sentences about what people do, and headings of bullets that repeat the sentences after them.
OF_PEOPLE = {
    "Report a vulnerability in private: open a draft advisory under 'Security', 'Report a vulnerability' of the repository.",
    "Please do not open a public issue.",
    "You get an answer within a week.",
    "The newest release gets fixes.",
    "A bug that needs such code is not a vulnerability.",
}
# Each sentence, without markup and links, and the tests that show it.
SHOWN_BY = {
    "Files from others run no code.": ["test_trust.py::test_no_verb_runs_code_named_by_a_file", "test_bad_input.py::test_hostile_yaml"],
    "Records, runs, traces, tables, logs and job files are data.": [
        "test_trust.py::test_every_verb_has_command_lines",
        "test_bad_input.py::test_table_cannot_name_code_to_import",
    ],
    "A network or an environment that only a file names is not imported.": [
        "test_trust.py::test_module_and_function_are_code",
        "test_trust.py::test_environment_of_a_module_is_code",
    ],
    "You allow it with --trust (decision).": [
        "test_trust.py::test_trusted_code_runs",
        "test_trust.py::test_refusal_names_the_code_and_the_option",
    ],
    "Checkpoints are safetensors and JSON, never pickle.": ["test_bad_input.py::test_pickle_is_not_executed"],
    "The working directory runs no code.": ["test_attacks.py::test_packages_and_compiled_modules_of_the_folder"],
    "Every Python that we start ignores modules in the working directory, unless you named code there.": [
        "test_started_python.py::test_one_function_builds_the_command_of_every_python",
        "test_started_python.py::test_resumed_run_runs_no_module_of_the_folder",
        "test_started_python.py::test_ranks_import_code_that_the_user_named",
        "report/test_strangers.py::test_notebook_imports_no_modules_of_its_folder",
    ],
    "Git is called without the programs that a repository's configuration names.": [
        "measure/test_environment.py::test_commit_of_a_stranger_runs_no_program",
        "measure/test_environment.py::test_git_is_called_in_one_file",
        "test_attacks.py::test_git_folder_elsewhere_runs_no_program",
    ],
    "Plots ignore settings of matplotlib in the working directory.": [
        "test_attacks.py::test_settings_of_matplotlib_in_the_folder_run_no_latex",
        "test_attacks.py::test_drawing_ignores_settings_of_its_process",
    ],
    "Files from others do not exhaust the machine.": ["test_bad_input.py::test_megabyte_of_input_is_answered_within_seconds"],
    "Files are read through two modules, which limit bytes, lines and values.": [
        "test_user_paths.py::test_files_of_users_are_read_through_the_door",
        "test_door.py::test_limits_of_lines_and_values_are_chosen_by_the_caller",
        "test_bad_input.py::test_json_of_too_many_values_is_refused_before_it_is_parsed",
    ],
    "A compressed file that unpacks to more than 1 MB may have at most 100 times its size.": [
        "test_bad_input.py::test_zip_bomb_is_refused",
        "test_door.py::test_small_file_may_unpack_to_any_multiple",
    ],
    "A pipe or a device in place of a file is refused.": ["test_user_paths.py::test_error_names_pipe_and_device"],
    "No regular expression for text of others takes time that grows with the square of a line.": [
        "test_patterns.py::test_no_expression_takes_quadratic_time"
    ],
    "Parsers are fuzzed (decision).": ["test_fuzz.py::test_one_second_of_fuzzing", "test_fuzz.py::test_corpus_inputs_pass"],
    "Names in files do not leave their folder.": ["test_attacks.py::test_log_of_a_cloud_makes_no_file_for_each_named_rank"],
    "A job of a schedule, and a picture in annotations of objects, cannot have a path outside of the folder.": [
        "schedule/test_log.py::test_a_name_that_cannot_be_a_folder_is_refused",
        "launch/test_quick_scheduling.py::test_a_name_that_leaves_the_folder_is_refused",
        "test_attacks.py::test_annotations_name_no_picture_outside_of_their_folder",
    ],
    "Steps, events and output of a run are not written through a symbolic link.": [
        "test_bad_input.py::test_steps_are_never_written_through_a_link",
        "schedule/test_log.py::test_events_are_not_written_through_a_link",
        "test_user_paths.py::test_output_of_ranks_is_not_written_through_a_link",
    ],
    "Text from others stays text.": ["test_attacks.py::test_links_and_pictures_in_text_stay_text"],
    "Control characters are printed as escapes, so that they do not steer your terminal.": [
        "test_attacks.py::test_names_in_files_do_not_steer_the_terminal",
        "watch/test_queue.py::test_text_of_a_folder_does_not_steer_the_terminal",
    ],
    "On a page, in Markdown and in a notebook, text from a file is neither markup nor code.": [
        "report/test_strangers.py::test_text_of_a_saved_answer_is_text_on_a_page",
        "report/test_strangers.py::test_saved_answer_is_text_in_markdown_and_its_drawings",
        "test_attacks.py::test_name_of_a_record_is_no_code_of_a_notebook",
    ],
    "The server (chronograd serve) binds to this machine by default and limits the size of requests.": [
        "test_security.py::test_server_binds_to_this_machine_by_default",
        "deploy/test_server.py::test_body_size_limits",
        "deploy/test_protocol.py::test_body_decompression_is_limited",
    ],
    "Releases are built by pinned tools, from the files that passed all checks.": [
        "test_package.py::test_actions_are_pinned_by_commit",
        "test_package.py::test_tools_of_a_release_have_digests",
        "test_package.py::test_release_publishes_the_files_that_passed_all_checks",
    ],
    "Code that you name yourself runs with your rights: your own networks, and packages that you install, "
    "including those that add backends, devices or studies.": ["test_trust.py::test_job_file_named_by_the_user_is_trusted"],
}  # fmt: skip


def sentences() -> list[str]:
    """Return the sentences of SECURITY.md, without headings, markup and links."""
    text = re.sub(r"(?m)^#.*$", "", (ROOT / "SECURITY.md").read_text())
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "").replace('"', "'")
    paragraphs = re.split(r"\n\n+|\n(?=- )", text)
    flat = [" ".join(paragraph.removeprefix("- ").split()) for paragraph in paragraphs]
    return [
        sentence
        for paragraph in flat
        if paragraph
        for sentence in re.split(r"(?<=[.)'])(?<!\.py) (?=[A-Z])", paragraph)
    ]


def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_sentence_is_shown_by_tests_or_is_of_people() -> None:
    assert set(sentences()) == set(SHOWN_BY) | OF_PEOPLE
    assert all(SHOWN_BY.values())


@pytest.mark.parametrize("sentence", SHOWN_BY)
def test_tests_of_a_sentence_exist(sentence: str) -> None:
    for test in SHOWN_BY[sentence]:
        file, name = test.split("::")
        assert name in functions_in(file), test


def test_server_binds_to_this_machine_by_default() -> None:
    tree = ast.parse((ROOT / "src" / "chronograd" / "verbs" / "serve.py").read_text())
    defaults = [
        ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "host" and node.value is not None
    ]
    assert defaults == ["'127.0.0.1'"]
