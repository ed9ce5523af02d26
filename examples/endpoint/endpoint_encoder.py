"""A plug-in encoder that asks a server.

Text-embeddings-inference, vLLM, or any with OpenAI's `/v1/embeddings`.

Name it in a config next to a copy of this file:

    model:
      name: BAAI/bge-small-en-v1.5
      encoder: endpoint_encoder:make
      kwargs: {url: "http://127.0.0.1:8080/v1/embeddings"}
    device: cpu
    workers: {per_device: 4}

A key is read from the variable ENDPOINT_KEY.

`urlopen` raises what a run knows, so let it pass. A server that is full (429), fails (5xx) or is not
there is waited for, as long as its Retry-After says. A text for which it fails while it encodes
others is found and quarantined. A reply about the size of the batch (413, 422) halves it. For a
limit of another kind, raise `chunkvisor_worker.Busy`.
"""

import json
import os
import urllib.request

import numpy as np


class Endpoint:
    """The server's address, and the model that it is asked for."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.headers = {"Content-Type": "application/json"}
        if key := os.environ.get("ENDPOINT_KEY"):
            self.headers["Authorization"] = f"Bearer {key}"

    def encode(self, texts: list[str], batch_size: int) -> np.ndarray:
        """Vectors in float32, shape (texts, dimension)."""
        vectors = []
        for first in range(0, len(texts), batch_size):
            body = json.dumps(
                {"model": self.model, "input": texts[first : first + batch_size]}
            ).encode()
            request = urllib.request.Request(self.url, body, self.headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                found = sorted(json.load(answer)["data"], key=lambda each: each["index"])
            vectors += [each["embedding"] for each in found]
        return np.array(vectors, dtype=np.float32)


def make(model, device):  # type: ignore[no-untyped-def]  # noqa: ARG001 - the server has the device
    """The factory that the config names; `model.kwargs.url` is the address."""
    return Endpoint(model.kwargs["url"], model.name)
