"""llama.cpp's own HTTP server with the weights of the local model. It answers chat completions, responses and Messages."""

import signal
from importlib import import_module
from urllib.parse import urlsplit

from agentic_trading.llm.models import find_weights
from agentic_trading.llm.providers.local import MODEL
from tests.local_model import FOLDER

CONTEXT = 8192

if __name__ == "__main__":
    xllamacpp = import_module("xllamacpp")  # without types
    params = xllamacpp.CommonParams()
    params.model.path = str(find_weights(FOLDER, MODEL))
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    params.warmup = params.ui = params.endpoint_slots = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(urlsplit(server.listening_address).port, flush=True)  # noqa: T201 - the caller reads it
    signal.pause()
