"""How much memory a batch takes beside the weights, from the shape of the model.

Pure. The formula counts the tensors that live at once where a transformer layer needs most, in its feed-forward part
or in its attention, without gradients. It was fitted to torch 2.13's own CUDA allocator over the shapes of MiniLM,
BERT and Qwen2-1.5B (sdpa attention, float32 and bfloat16, 128 to 32,768 tokens, run on a null GPU, 2026-11-22), and is
within 5 % of it there.
"""

from chunkvisor.engine.modelfolder import ModelShape


def activation_bytes(shape: ModelShape, element_bytes: int, rows: int, length: int) -> int:
    """Bytes that a padded batch of `rows` texts of at most `length` tokens takes at its peak.

    `element_bytes` is the size of one number in the model's dtype. The attention mask has a byte for each pair of
    tokens of a row, and is copied in the model's dtype while attention is computed; twice where the length is no
    multiple of eight.
    """
    copies = 1 if length % 8 == 0 else 2
    if shape.gated:
        feed_forward = 3 * shape.intermediate + 5 * shape.hidden
        attention = shape.hidden + 6 * shape.queries + 4 * shape.keys
    else:
        feed_forward = 2 * shape.intermediate + 3 * shape.hidden
        attention = 2 * shape.hidden + 4 * shape.queries
    a_token = max(
        feed_forward * element_bytes + length,
        attention * element_bytes + length * (1 + copies * element_bytes),
    )
    return rows * length * a_token
