"""How many attempts may be repeated: a share of all requests, lest retries become the load."""

_RESERVE = 10.0  # retries that may come at once, also where there is little traffic


class RetryBudget:
    def __init__(self, ratio: float) -> None:
        """``ratio``: retries a request, at most; 0: none at all."""
        self._ratio = ratio
        self._balance = _RESERVE if ratio > 0.0 else 0.0
        self.is_whole = True  # nothing to be made good
        self.num_withdrawn = 0
        self.num_refused = 0

    def deposit(self) -> None:
        """A request has come."""
        if self._balance < _RESERVE:
            self._balance += self._ratio
        self.is_whole = self._balance >= _RESERVE

    def withdraw(self) -> bool:
        """Whether one more attempt may be made."""
        if self._balance < 1.0:
            self.num_refused += 1
            return False
        self.num_withdrawn += 1
        self._balance -= 1.0
        self.is_whole = False
        return True
