"""A mail sink: it takes messages, and shows them late."""

from __future__ import annotations

from typing import Any, cast

from counterfoil.testing.recipients.faulty import Faulty, handler, key_of


class MailSink(Faulty):
    """Takes messages. Their key becomes the `Message-ID`, which a search finds once `lag_s` has passed."""

    @handler
    def send(self, ctx: Any, to: str = "", subject: str = "") -> str:
        """Send a message, and return its `Message-ID`."""
        name = key_of(ctx) or self.name_item("mail")
        return cast(str, self.receive(ctx, {"to": to, "subject": subject}, lambda: f"<{name}@sink>"))

    @handler
    def find(self, ctx: Any) -> str | None:
        """Search for the message with this key's `Message-ID`."""
        wanted = f"<{key_of(ctx)}@sink>"
        return cast("str | None", self.look(ctx, lambda shown: next((m.item for m in shown if m.item == wanted), None)))

    def subjects(self) -> list[str]:
        """Return the subjects of all messages, in the order in which they came."""
        with self.lock:
            return [str(made.what.get("subject", "")) for made in self.items]
