"""SkyPilot's `Task.from_yaml`: refused, or the parsed task."""

import json
import sys
from pathlib import Path

import sky

given = json.load(sys.stdin)
answers = []
for number, text in enumerate(given["texts"]):
    path = Path(f"task-{number}.yaml")
    path.write_text(text)
    try:
        answers.append({"refused": None, "read": sky.Task.from_yaml(str(path)).to_yaml_config()})
    except Exception as error:  # it has many kinds of errors
        answers.append({"refused": f"{type(error).__name__}: {error}"[:2000]})
print("RESULT " + json.dumps({"answers": answers}, default=str))
