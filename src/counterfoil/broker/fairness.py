"""The queue between principals: places are bounded, and whoever waits for one gets it in turn."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Bounded places, handed out to principals in turn and in order within each principal.

    However much one principal asks for, another waits for at most one place to be free and one turn of the
    others. Not safe to share: whoever calls it holds the desk's lock.

    Args:
        places: how many there are, 1 or more.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        # The first principal is next; its items wait in the order in which they came.
        self._waiting: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()

    def ask(self, principal: str, item: T) -> bool:
        """Take a place, True, or wait for one."""
        if self.taken < self.places:
            self.taken += 1
            return True
        self._waiting.setdefault(principal, OrderedDict())[item] = None
        return False

    def leave(self, principal: str, item: T) -> bool:
        """Wait no longer; False if it was not waiting."""
        own = self._waiting.get(principal)
        if own is None or item not in own:
            return False
        del own[item]
        if not own:
            del self._waiting[principal]
        return True

    def give_back(self) -> T | None:
        """Give a place back; it goes to the item that is returned, if one waits."""
        if not self._waiting:
            self.taken -= 1
            return None
        principal, own = self._waiting.popitem(last=False)
        item, _ = own.popitem(last=False)
        if own:
            self._waiting[principal] = own
        return item

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(own) for own in self._waiting.values())
