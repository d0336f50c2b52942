from typing import TypedDict

class Sums(TypedDict):
    allocations: int
    hits: int
    misses: int
    live_bytes: int
    cached_bytes: int
    returned_bytes: int

class Stats(Sums):
    live_peak_bytes: int
    cached_limit_bytes: int

class Pool:
    def __new__(
        cls,
        limit: int | str | None = None,
        decay: float | None = 1.0,
        background: bool = True,
    ) -> Pool: ...
    def stats(self) -> Stats: ...
    def trim(self, bytes: int | str | None = None) -> int: ...
    def _handler(self) -> object: ...

def stats() -> Sums: ...
def trim(bytes: int | str | None = None) -> int: ...
def set_handler(handler: object | None, /) -> object: ...
