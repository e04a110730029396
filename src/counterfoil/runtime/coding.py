"""Between the caller's types and JSON: plain JSON values, or a type that the caller names."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

from counterfoil.errors import NotSerializable, UsageError
from counterfoil.protocol import codec

PLAIN: Final = frozenset({dict, list, str, int, float, bool, type(None)})


class Coder:
    """Encodes and decodes values of one type.

    Args:
        type_: a dataclass, TypedDict, msgspec Struct, pydantic model or any type that msgspec converts; None
            for plain JSON values.
        what: what the value is, for error messages.
    """

    __slots__ = ("_decoder", "_model", "_type", "_what")

    def __init__(self, type_: Any, what: str) -> None:
        self._type = type_
        self._what = what
        self._model = _is_pydantic(type_)
        if type_ is not None and not self._model:
            try:
                self._decoder = msgspec.json.Decoder(type_)
            except Exception as error:
                raise UsageError(f"{_name(type_)} is no type that {what} can be decoded into") from error

    def encode(self, value: Any) -> bytes:
        """Encode a value as canonical JSON.

        Raises:
            NotSerializable: decoding would not give an equal value back.
        """
        if self._type is None:
            return codec.encode(value, what=self._what)
        if type(value) in PLAIN:
            # A plain JSON value that the type can be read from, as handlers return what they got over the wire.
            with suppress(NotSerializable):
                body = codec.encode(value, what=self._what)
                self.decode(body)
                return body
        try:
            # Through JSON and back, so that what only the type tells apart (tuples, sets, bytes) is plain.
            plain = value.model_dump(mode="json") if self._model else codec.decode(msgspec.json.encode(value))
        except Exception as error:
            raise NotSerializable(
                f"{self._what} cannot be encoded as {_name(self._type)}: {type(error).__name__}"
            ) from error
        body = codec.encode(plain, what=self._what)
        if self.decode(body) != value:
            raise NotSerializable(f"{self._what} does not come back equal from {_name(self._type)}")
        return body

    def decode(self, body: bytes) -> Any:
        """Decode JSON into the type.

        Raises:
            NotSerializable: the JSON does not fit the type.
        """
        if self._type is None:
            return codec.decode(body)
        try:
            if self._model:
                return self._type.model_validate_json(body)
            return self._decoder.decode(body)
        except Exception as error:
            raise NotSerializable(
                f"{self._what} on record does not fit {_name(self._type)}: {type(error).__name__}",
                hint="ask for it with the type that it was recorded with, or without one",
            ) from error


def _is_pydantic(type_: Any) -> bool:
    # Looked up, not imported: a pydantic model can only be given where pydantic is loaded already.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(type_, type) and issubclass(type_, pydantic.BaseModel)


def _name(type_: Any) -> str:
    return getattr(type_, "__qualname__", repr(type_))


PROOF = Coder(None, "the proof")
RESULT = Coder(None, "the step's result")
OF_TRANSACTION = Coder(None, "the transaction's result")


def coder(type_: Any, plain: Coder) -> Coder:
    """Return the coder for a type, `plain` where there is none."""
    return plain if type_ is None else Coder(type_, plain._what)


def canonical(value: Any, what: str) -> bytes | None:
    """Encode a request or inputs for their fingerprint; None stays None."""
    return None if value is None else codec.encode(value, what=what)
