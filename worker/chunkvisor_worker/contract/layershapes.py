"""What of a model's shapes says how many operations a batch takes."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShapes:
    """Of all layers together."""

    weights: int = 0
    """Numbers in the matrices that each token is multiplied with; 0 = unknown."""
    attention_width: int = 0
    """Attention heads times the dimension of each."""

    def flop(self, lengths: Iterable[int]) -> float:
        """Floating-point operations of texts of so many tokens, padding included; 0 = unknown.

        Two for each weight and token, and four for each pair of tokens and unit of attention's width: queries by keys,
        and what comes of that by values (Chowdhery et al., PaLM, appendix B, forward pass alone).
        """
        if not self.weights:
            return 0.0
        return float(sum(2 * self.weights * tokens + 4 * self.attention_width * tokens**2 for tokens in lengths))
