"""Fuzzing: every parser of users' files, tried with damaged and hostile inputs.

- `targets.py`, `torch_targets.py`: one target per parser: writes bytes as files, parses them, uses the result; its seeds.
- `verb_targets.py`: targets that run a whole verb on a file: logs, traces, workloads, schedules, config files.
- `seeds.py`: A small trace and run directory as seeds.
- `pack.py`: One input that is several files: a folder with links, pipes and missing files.
- `damage.py`: Changes to inputs that keep them close to valid.
- `watch.py`: The definition of a finding.
- `session.py`: One target in a separate process, guided by coverage; needs the extra `fuzz`.
"""
