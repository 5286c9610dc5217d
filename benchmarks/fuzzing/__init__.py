"""Fuzzing: every parser of files that a user can hand in, tried with damaged and hostile ones.

targets.py, torch_targets.py   a parser each: how bytes become files, what is done with what was read, where to start from
seeds.py     a small trace and run directory to start from
pack.py      one input that is several files: a folder, with links, pipes and what is missing
damage.py    changes to inputs that keep them close to valid
watch.py     what counts as a finding
session.py   one target in a process of its own, guided by coverage; needs the extra `fuzz`
"""
