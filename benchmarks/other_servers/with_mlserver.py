"""A model for MLServer with ONNX Runtime, for `benchmarks.serving`. Tensors are base64 in JSON, because it reads no binary
ones.
"""

# mypy: ignore-errors
# Run in an environment with its imports installed.

import base64

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Model(MLModel):
    async def load(self):
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, providers=["CPUExecutionProvider"])
        self.input_name = self.session.get_inputs()[0].name
        self.shape = self.session.get_inputs()[0].shape[1:]
        return True

    async def predict(self, payload):
        texts = payload.inputs[0].data
        texts = texts.root if hasattr(texts, "root") else texts
        rows = [np.frombuffer(base64.b64decode(text), np.float32).reshape(self.shape) for text in texts]
        output = self.session.run(None, {self.input_name: np.stack(rows)})[0]
        data = [base64.b64encode(row.tobytes()).decode() for row in output]
        answer = ResponseOutput(name="y", datatype="BYTES", shape=[len(data), 1], data=data)
        return InferenceResponse(model_name=self.settings.name, outputs=[answer])
