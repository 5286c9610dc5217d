"""IBM's published types in TypeScript: the compiler checks a training against its documented parts, and refuses unknown
ones.
"""

import json
import subprocess
import sys
from pathlib import Path

# Options of `cpd-cli ml training create` (ibm.com/docs, software-hub 5.4) for the parts with types in the SDK.
TRAINING = """
interface Training {
  name: string; description?: string; tags?: string[]; project_id?: string; space_id?: string; custom?: object;
  model_definition: ModelDefinitionRel; results_reference: ObjectLocation;
  training_data_references?: DataConnectionReference[];
}
"""
HEAD = "import type { ModelDefinitionRel, ObjectLocation, DataConnectionReference } from '%s';\n"

folder = Path(sys.argv[1])
types = folder / "node_modules" / "@ibm-cloud" / "watsonx-ai" / "types" / "vml_v1"
given = json.load(sys.stdin)
for number, document in enumerate(given["documents"]):
    text = HEAD % types + TRAINING + f"export const training: Training = {json.dumps(document)};\n"
    Path(f"training{number}.ts").write_text(text)
command = [str(folder / "node_modules" / ".bin" / "tsc"), "--noEmit", "--strict", "--skipLibCheck", "--target", "es2022",
           "--moduleResolution", "node", "--typeRoots", str(folder / "node_modules" / "@types"), "--types", "node"]  # fmt: skip
names = [f"training{number}.ts" for number in range(len(given["documents"]))]
done = subprocess.run([*command, *names], capture_output=True, text=True, check=False)
answers = []
for name in names:
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{name}(")]
    answers.append({"refused": "\n".join(lines) or None})
other = [line for line in done.stdout.splitlines() if line and not line.startswith(("training", " "))]
if other:
    sys.exit("\n".join(other))
print("RESULT " + json.dumps({"answers": answers}))
