"""The classes of tensors of the native module, whose stub is a file of its own."""

from baton._native import Bundle, Handle, Tensor

__all__ = ["Bundle", "Handle", "Tensor"]
