"""A payee: it charges accounts, and is asked by the key of the request."""

from __future__ import annotations

from typing import Any, cast

from counterfoil.outcomes import Evidence, Failed
from counterfoil.testing.recipients.faulty import Faulty, handler, key_of, newest


class Payee(Faulty):
    """Charges accounts. Without `deduplicates` it makes one more charge for each request that reaches it."""

    @handler
    def charge(self, ctx: Any, account: str = "", cents: int = 0) -> str:
        """Charge an account, and return what the charge is called."""
        what = {"account": account, "cents": cents}
        return cast(str, self.receive(ctx, what, lambda: self.name_item("ch")))

    @handler
    def find(self, ctx: Any) -> str | None:
        """Return what the charge under this key is called, or None."""
        return cast("str | None", self.look(ctx, lambda shown: newest(shown, key_of(ctx))))

    @handler
    def cancel_or_find(self, ctx: Any) -> str:
        """Return what the charge under this key is called; if there is none, close the key for good.

        Raises:
            Failed: the key was closed, so that the charge can never happen.
        """
        key = key_of(ctx)
        with self.lock:
            self.asked.append(key)
            made = self.made_for(key)
            if made:
                return cast(str, made[0])
            self.close(key)
        raise Failed(Evidence("cancelled-at-recipient", status=200))
