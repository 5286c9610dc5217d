"""LitServe with ONNX Runtime, for `benchmarks.serving`: FILE.onnx PORT. Tensors come and go as base64 in JSON."""

# mypy: ignore-errors
# Run in an environment with its imports installed. LitServe reads annotations as the form of a request.

import base64
import sys

import litserve
import numpy as np
import onnxruntime


class Model(litserve.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name
        self.shape = self.session.get_inputs()[0].shape[1:]

    def decode_request(self, request):
        return np.frombuffer(base64.b64decode(request["x"]), np.float32).reshape(self.shape)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        return self.session.run(None, {self.name: x})[0]

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"y": base64.b64encode(output.tobytes()).decode()}


if __name__ == "__main__":
    api = Model(max_batch_size=8, batch_timeout=0.002)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="warning")
