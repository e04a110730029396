"""What an endpoint answers, as facts; never by the text of an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from counterfoil.outcomes import Accepted, Failed, Outcome, Rejected


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end.

    Attributes:
        outcome: what the HTTP recipient made of it.
        status: of the answer, None if there is none.
        headers: of it, names in lower case.
        content: its body; b"" where it was cut.
        cut: there was more of the body, and it did not come: nothing can be said of what it said.
    """

    outcome: Outcome[Any]
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    cut: bool = False

    @property
    def done(self) -> bool:
        """Whether the endpoint says that it did it, in a body too where it has one."""
        return isinstance(self.outcome, Accepted) and not self.cut and self.root_name != "Error"

    @property
    def refused(self) -> bool:
        """Whether it proves that this request changed nothing."""
        return isinstance(self.outcome, (Failed, Rejected))

    @property
    def absent(self) -> bool:
        """Whether it answers that there is no such thing."""
        return self.status == 404

    @property
    def root_name(self) -> str:
        """The name of the body's outermost element, "" if it is none."""
        root = self.root
        return "" if root is None else _plain(root.tag)

    @property
    def root(self) -> ET.Element | None:
        """The body as XML; None if it is none, or declares entities."""
        if not self.content.lstrip().startswith(b"<") or b"<!DOCTYPE" in self.content:
            return None
        try:
            return ET.fromstring(self.content)  # noqa: S314 - bounded by the recipient, and without entities
        except ET.ParseError:
            return None

    def texts(self, *path: str) -> list[str]:
        """Return the texts of the elements at a path below the root, whatever their namespace."""
        root = self.root
        found = [] if root is None else [root]
        for name in path:
            found = [child for one in found for child in one if _plain(child.tag) == name]
        return [one.text or "" for one in found]

    def text(self, *path: str) -> str | None:
        """Return the first of these texts."""
        return next(iter(self.texts(*path)), None)


def _plain(tag: str) -> str:
    return tag.rpartition("}")[2]
