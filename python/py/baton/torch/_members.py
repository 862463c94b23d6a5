"""What a module has by path: its parameters and buffers, and the extra state that it gives and takes by itself.

Concurrency: as of torch.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch

from baton._errors import InvalidArgument

# Types that no other library knows: of less than a byte, of no meaning, quantized.
_OF_TORCH_ALONE = re.compile(r"torch\.(u?int[1-7]|bits.*|qu?int.*)")
# As torch names it in a state dict.
_EXTRA_STATE = "_extra_state"


def parts(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The module and all below it, with what their paths begin with; one that has several paths under each."""
    return [(f"{path}." if path else "", part) for path, part in module.named_modules(remove_duplicate=False)]


def tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by path, tied ones under each of theirs."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for prefix, part in parts(module):
        # Where named_parameters and named_buffers look, which take several times as long.
        for found, own in ((parameters, part._parameters), (buffers, part._buffers)):
            for name, t in own.items():
                if t is not None:
                    found[prefix + name] = t
    return parameters | buffers


def not_in_state_dict(module: torch.nn.Module) -> set[str]:
    """The paths of buffers that are not persistent."""
    return {prefix + name for prefix, part in parts(module) for name in part._non_persistent_buffers_set}


def with_extra_state(module: torch.nn.Module) -> dict[str, Any]:
    """Parameters and buffers, and what modules give as their extra state, by the paths of a state dict."""
    extra = {
        prefix + _EXTRA_STATE: part.get_extra_state()
        for prefix, part in parts(module)
        if _overrides(part, "get_extra_state")
    }
    return tensors(module) | extra


def takers_of_extra_state(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that take an extra state, by the paths of a state dict."""
    return {prefix + _EXTRA_STATE: part for prefix, part in parts(module) if _overrides(part, "set_extra_state")}


def _overrides(part: torch.nn.Module, method: str) -> bool:
    return getattr(type(part), method) is not getattr(torch.nn.Module, method)


def by_path(weights: "torch.nn.Module | Mapping[str, torch.Tensor]") -> dict[str, torch.Tensor]:
    """A module's parameters, buffers and extra state, or tensors. Raises InvalidArgument for what is none of them."""
    given = with_extra_state(weights) if isinstance(weights, torch.nn.Module) else weights
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"weights of type {type(weights).__name__} (give a module, or tensors by name)")
    found: dict[str, torch.Tensor] = {}
    for path, t in given.items():
        extra = isinstance(path, str) and path.split(".")[-1] == _EXTRA_STATE
        if extra and t is None:
            continue  # a module that has none at present
        if extra and not isinstance(t, torch.Tensor):
            raise InvalidArgument(
                f"{path}, an extra state, is of type {type(t).__name__} and no tensor (give a state dict without it, "
                "or let get_extra_state return a tensor)"
            )
        if not isinstance(path, str):
            raise InvalidArgument(f"weights have the key {path!r} of type {type(path).__name__} (give tensors by name)")
        if not isinstance(t, torch.Tensor):
            raise InvalidArgument(
                f"weights have {type(t).__name__} at {path!r} (give tensors by name, without nesting)"
            )
        found[path] = t
    check_memory(found)
    check_elements(found)
    return found


def check_made(own: Mapping[str, torch.Tensor]) -> None:
    """Raises InvalidArgument for tensors of which a lazy module does not know the shape yet."""
    for path, t in own.items():
        if torch.nn.parameter.is_lazy(t):
            raise InvalidArgument(f"{path} is not initialized yet (call the lazy module once with an input first)")


def check_memory(own: Mapping[str, torch.Tensor]) -> None:
    """Raises InvalidArgument for tensors that have no elements yet."""
    check_made(own)
    for path, t in own.items():
        if t.is_meta:
            raise InvalidArgument(f"{path} lies on meta (give it memory by .to_empty first)")


def check_elements(own: Mapping[str, torch.Tensor]) -> None:
    """Raises InvalidArgument for tensors that are no elements with strides, or whose elements torch alone knows."""
    for path, t in own.items():
        if t.is_nested:  # of some layout, of which the next error would speak
            raise InvalidArgument(f"{path} is a nested tensor (send its parts, as of .unbind())")
        if t.layout != torch.strided:
            raise InvalidArgument(f"{path} is a {t.layout} tensor (make it dense by .to_dense() first)")
        if t.is_quantized:
            raise InvalidArgument(f"{path} is a quantized tensor (send .dequantize(), or .int_repr() and its scale)")
        if _OF_TORCH_ALONE.fullmatch(str(t.dtype)):
            raise InvalidArgument(f"{path} is {t.dtype}, which only torch has (keep its bytes, .view(torch.uint8))")


def check_module(module: Any, what: str = "the module") -> None:
    """Raises InvalidArgument for what is no module of torch's."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(f"{what} is of type {type(module).__name__} (give a torch.nn.Module)")


def bindable(own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that are to be bound in the place of a module's own, tied ones tied.

    One that was made in inference mode is never bound to other memory: a new one is to stand in its place.
    """
    new: dict[int, torch.Tensor] = {}
    for t in own.values():
        if t.is_inference() and id(t) not in new:
            # As its copy is made: of its class, and with what a program has noted at it.
            twin = torch.Tensor._make_subclass(type(t), torch.empty(0, dtype=t.dtype, device=t.device), t.requires_grad)
            twin.__dict__.update(t.__dict__)
            new[id(t)] = twin
    return {path: new.get(id(t), t) for path, t in own.items()}


def replace(module: torch.nn.Module, own: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> None:
    """Puts new tensors into a module, where they are not its own."""
    if all(new[path] is t for path, t in own.items()):
        return
    for prefix, part in parts(module):
        for name, _ in (*part._parameters.items(), *part._buffers.items()):
            path = prefix + name
            if path in new and new[path] is not own[path]:
                # Not into its dict: a module may keep it elsewhere as well, as LSTM does.
                setattr(part, name, new[path])
