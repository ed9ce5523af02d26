"""The child: encodes one chunk of texts in a process of its own and leaves a result or a fault in a folder."""
