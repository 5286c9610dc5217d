"""The protocol buffers of Vertex AI: parsed and returned as JSON, or refused."""

import json
import sys

from google.cloud import aiplatform_v1
from google.protobuf import json_format

given = json.load(sys.stdin)
answers = []
for document in given["documents"]:
    try:
        parsed = json_format.ParseDict(document, aiplatform_v1.CustomJob()._pb)
        answers.append({"refused": None, "parsed": json_format.MessageToDict(parsed)})
    except json_format.ParseError as error:
        answers.append({"refused": str(error), "parsed": None})
enumerations = {"AcceleratorType": [one.name for one in aiplatform_v1.AcceleratorType]}
print("RESULT " + json.dumps({"answers": answers, "enumerations": enumerations}))
