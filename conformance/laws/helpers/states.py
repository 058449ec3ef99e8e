"""The states of torch and the threads in which laws call a model, in words of a failure."""

from attnspec.spec import CallMode

STATES = {
    CallMode.DEFAULT_FLOAT64: "if the default dtype is float64",
    CallMode.DEFAULT_FLOAT16: "if the default dtype is float16",
    CallMode.DEFAULT_BFLOAT16: "if the default dtype is bfloat16",
    CallMode.DETERMINISTIC: "if deterministic algorithms are requested",
    CallMode.THREADS: "if PyTorch divides work among several threads",
    CallMode.OTHER_THREAD: "in another thread than the one that built the model",
    CallMode.INFERENCE: "in inference mode",
    CallMode.SERVING: "in inference mode, in another thread that has threads of its own",
}
