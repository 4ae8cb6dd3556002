"""The configuration with which NVIDIA's Triton serves an exported step and keeps its states."""

from __future__ import annotations

from lapse.models import Stepper

TYPES = {"torch.float32": "TYPE_FP32", "torch.float64": "TYPE_FP64"}


def triton_config(step: Stepper, *, name: str = "lapse", max_batch_size: int = 64) -> str:
    """The text of `config.pbtxt` for the ONNX file of a step, which lies beside it as `1/model.onnx`.

    Triton keeps the states of every sequence (its "implicit state"), so that a client sends values and a time span
    and gets an answer. Only the state `events` must begin as zero, because a sequence begins where that is 0.

    Args:
        step: one event of the whole model.
        name: what the model is called on the server.
        max_batch_size: how many sequences are computed at once at most.
    """
    number, schema = TYPES[str(step.dtype)], step.schema
    inputs = [f'{{ name: "values" data_type: {number} dims: [ {len(schema.inputs)} ] }}']
    # A tensor without axes beside that of the batch is sent as one number, and reshaped.
    inputs.append(f'{{ name: "timespan" data_type: {number} dims: [ 1 ] reshape: {{ shape: [ ] }} }}')
    if schema.static:
        inputs.append(f'{{ name: "static" data_type: {number} dims: [ {len(schema.static_inputs)} ] }}')
    answer = f'{{ name: "answer" data_type: {number} dims: [ {len(step.head.answer_names)} ] }}'
    states = [_state(name, part.shape[1], TYPES[str(part.dtype)]) for name, part in step.start(1).items()]
    return "\n".join(
        [
            f'name: "{name}"',
            'backend: "onnxruntime"',
            f"max_batch_size: {max_batch_size}",
            *_listed("input", inputs),
            *_listed("output", [answer]),
            "sequence_batching {",
            *("  " + line for line in _listed("state", states)),
            "}",
            "",
        ]
    )


def _state(name: str, size: int, number: str) -> str:
    kind = f"data_type: {number} dims: [ {size} ]"
    zero = f' initial_state: {{ name: "zero" {kind} zero_data: true }}' if name == "events" else ""
    return f'{{ input_name: "{name}" output_name: "next_{name}" {kind}{zero} }}'


def _listed(title: str, entries: list[str]) -> list[str]:
    return [f"{title} [", *(f"  {entry}," for entry in entries[:-1]), f"  {entries[-1]}", "]"]
