"""KV memory of one prefill worker, and the prompt blocks that can be found in it again.

Owns block accounting: nothing is held twice, nothing beyond capacity, the least recently used goes first.
"""

from __future__ import annotations

from collections.abc import Sequence


class PrefixCache:
    """Blocks of one worker. A block is private (being filled, or a prompt's part block), in use, or idle.

    A prompt is the ids of its full blocks; an id names a block together with all before it, so a prompt finds what
    some other prompt with the same beginning left here.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.peak = 0
        self._users: dict[int, int] = {}  # block id -> requests that use it
        self._idle: dict[int, None] = {}  # blocks without users, least recently used first
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that hold something, idle ones included."""
        return len(self._users) + self._private

    @property
    def idle(self) -> int:
        """Blocks that may be evicted."""
        return len(self._idle)

    def blocks(self) -> list[int]:
        """Ids of all blocks that can be found."""
        return list(self._users)

    def match(self, prompt: Sequence[int]) -> int:
        """How many leading blocks of the prompt are here."""
        users = self._users
        found = 0
        for block in prompt:
            if block not in users:
                break
            found += 1
        return found

    def keep(self, prompt: Sequence[int]) -> bool:
        """Put blocks here as if a prompt had left them; False if there is no free room (nothing changes)."""
        new = [block for block in prompt if block not in self._users]
        if self.used + len(new) > self.capacity:
            return False
        for block in reversed(new):
            self._users[block] = 0
            self._idle[block] = None
        self.peak = max(self.peak, self.used)
        return True

    def begin(self, prompt: Sequence[int], blocks: int, most_found: int) -> int | None:
        """Take room for a prompt of ``blocks`` blocks, evicting idle ones; None if there is no room (nothing changes).

        Returns:
            Leading blocks found and now in use, at most ``most_found``.
        """
        found = min(self.match(prompt), most_found)
        idle, users = self._idle, self._users
        again = [block for block in prompt[:found] if block in idle]
        need = blocks - found
        free = self.capacity - len(users) - self._private
        if need > free + len(idle) - len(again):
            return None
        for block in again:
            del idle[block]
        for block in prompt[:found]:
            users[block] += 1
        for _ in range(need - free):
            evicted = next(iter(idle))
            del idle[evicted], users[evicted]
        self._private += need
        self.peak = max(self.peak, self.used)
        return found

    def fill(self, prompt: Sequence[int], found: int) -> None:
        """The prompt was computed: its full blocks after the first ``found`` can be found by others from now on."""
        users = self._users
        for block in prompt[found:]:
            if block in users:  # somebody else computed it meanwhile: that copy is used, ours is freed
                users[block] += 1
                self._idle.pop(block, None)
            else:
                users[block] = 1
        self._private -= len(prompt) - found

    def release(self, prompt: Sequence[int], blocks: int) -> None:
        """A filled prompt of ``blocks`` blocks is not needed any more; its full blocks stay until evicted."""
        users, idle = self._users, self._idle
        for block in reversed(prompt):  # the end goes first: a beginning serves more prompts
            users[block] -= 1
            if not users[block]:
                idle[block] = None
        self._private -= blocks - len(prompt)

    def abandon(self, prompt: Sequence[int], blocks: int, found: int) -> None:
        """A prompt that began is given up before it was filled."""
        self._private -= blocks - found
        for block in reversed(prompt[:found]):
            self._users[block] -= 1
            if not self._users[block]:
                self._idle[block] = None

    def clear(self) -> None:
        """The process restarted: nothing is left."""
        self._users.clear()
        self._idle.clear()
        self._private = 0
