"""Fuzzing: every parser of users' files, tried with damaged and hostile inputs.

targets.py, torch_targets.py   one target per parser: writes bytes as files, parses them, uses the result; and its seeds
seeds.py     a small trace and run directory as seeds pack.py      one input that is several files: a folder with links, pipes
and missing files damage.py    changes to inputs that keep them close to valid watch.py     the definition of a finding
session.py   one target in a separate process, guided by coverage; needs the extra `fuzz`
"""
