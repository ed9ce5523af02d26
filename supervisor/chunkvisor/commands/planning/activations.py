"""How much memory a batch takes beside the weights, from the shape of the model.

Pure. The formula counts the tensors that live at once where a transformer layer needs most, in its feed-forward part
or in its attention, without gradients. It was fitted to torch 2.13's own CUDA allocator over the shapes of MiniLM,
BERT and Qwen2-1.5B (sdpa attention, float32 and bfloat16, 128 to 32,768 tokens, run on a null GPU, 2026-11-22), and is
within 5 % of it there. On a card before Ampere sdpa has no kernel for bfloat16 but the math kernel, which computes in
float32 and holds what it knows of each pair of tokens for every head (same shapes, capability 7.5, 2026-11-24).
"""

from chunkvisor.engine.modelfolder import ModelShape


def activation_bytes(
    shape: ModelShape, element_bytes: int, rows: int, length: int, *, math_kernel: bool = False
) -> int:
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
    of_mask = length * (1 + copies * element_bytes)
    if math_kernel:
        # Scores, their softmax (4 bytes each) and where that is nothing (1); query, key and value in float32.
        of_mask = length * (1 + element_bytes + 9 * shape.heads) + 14 * shape.queries
    a_token = max(feed_forward * element_bytes + length, attention * element_bytes + of_mask)
    return rows * length * a_token
